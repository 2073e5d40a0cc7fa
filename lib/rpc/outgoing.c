#include "rpc/outgoing.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "rpc/link.h"

/* Tensors in host memory of up to this size share the joint segment: copying them costs less than an
 * operation of their own, about 1 us at each end. */
#define JOINT_TENSOR_BYTES_MAX (16u << 10)
/* Its operations: large enough for the wire's full rate, small enough that what was packed is still
 * in the cache when the transport reads it, and that packing one overlaps the wire time of another.
 */
#define JOINT_OPERATION_BYTES (64u << 10)

static const DLDevice cpu_device = {.device_type = kDLCPU, .device_id = 0};

static ferry_status_t outgoing_reserve(struct outgoing *outgoing, size_t count)
{
    if (count <= outgoing->capacity) {
        return FERRY_OK;
    }
    /* Views point into their own entry, so entries are never moved while they are in use. */
    struct wire_tensor *wire = calloc(count, sizeof(*wire));
    struct outgoing_tensor *tensors = calloc(count, sizeof(*tensors));
    if (wire == NULL || tensors == NULL) {
        free(wire);
        free(tensors);
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory to describe %zu tensors", count);
    }
    free(outgoing->wire);
    free(outgoing->tensors);
    outgoing->wire = wire;
    outgoing->tensors = tensors;
    outgoing->capacity = count;
    return FERRY_OK;
}

static ferry_status_t buffer_reserve(uint8_t **buffer, size_t *capacity, size_t bytes,
                                     const char *what)
{
    if (bytes <= *capacity) {
        return FERRY_OK;
    }
    uint8_t *grown = realloc(*buffer, bytes);
    if (grown == NULL) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory for %zu bytes of %s", bytes, what);
    }
    *buffer = grown;
    *capacity = bytes;
    return FERRY_OK;
}

static ferry_status_t outgoing_fill_tensor(struct outgoing *outgoing, size_t index,
                                           const ferry_tensor_t *source, const char *role)
{
    size_t bytes;
    ferry_status_t status = tensor_check(source, role, index, &bytes);
    if (status != FERRY_OK) {
        return status;
    }
    DLDevice device = tensor_device(source->view.device);
    const ferry_device_backend_t *backend;
    status = device_check(device, &backend);
    if (status != FERRY_OK) {
        return status;
    }
    struct outgoing_tensor *tensor = &outgoing->tensors[index];
    tensor_copy_view(&tensor->view, &source->view);
    tensor->view.view.device = device;
    tensor->stream = source->stream;
    tensor->release = source->release;
    tensor->context = source->context;
    tensor->path = TRANSFER_NONE;
    size_t name_bytes = source->name == NULL ? 0 : strlen(source->name);
    memcpy(tensor->name, source->name == NULL ? "" : source->name, name_bytes + 1);

    struct wire_tensor *wire = &outgoing->wire[index];
    memset(wire, 0, offsetof(struct wire_tensor, shape_storage));
    wire->name = name_bytes == 0 ? NULL : tensor->name;
    wire->name_bytes = name_bytes;
    wire->dtype = source->view.dtype;
    wire->ndim = source->view.ndim;
    wire->shape = tensor->view.shape;
    wire->source = wire->target = device;
    wire->bytes = bytes;
    if (backend->host_readable && bytes > 0 && tensor_is_contiguous(&source->view)) {
        wire->inline_data = tensor_data(&source->view);
    }
    return FERRY_OK;
}

ferry_status_t outgoing_fill(struct outgoing *outgoing, const ferry_message_t *message,
                             const char *role)
{
    memset(&outgoing->message, 0, sizeof(outgoing->message));
    outgoing->copy_body = outgoing->host_peer = false;
    outgoing->status = FERRY_OK;
    outgoing->outstanding = 0;
    outgoing->staged_bytes = outgoing->direct_bytes = 0;
    if (message == NULL) {
        return FERRY_OK;
    }
    if (message->body_bytes > 0 && message->body == NULL) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT,
                           "the message's body is NULL but body_bytes is %zu", message->body_bytes);
    }
    if (message->tensor_count > 0 && message->tensors == NULL) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT,
                           "the message's tensors are NULL but tensor_count is %zu",
                           message->tensor_count);
    }
    ferry_status_t status = outgoing_reserve(outgoing, message->tensor_count);
    for (size_t i = 0; status == FERRY_OK && i < message->tensor_count; i++) {
        status = outgoing_fill_tensor(outgoing, i, &message->tensors[i], role);
    }
    if (status != FERRY_OK) {
        return status;
    }
    outgoing->message.body = message->body;
    outgoing->message.body_bytes = message->body_bytes;
    outgoing->message.tensor_count = message->tensor_count;
    return FERRY_OK;
}

static void outgoing_settle(struct outgoing *outgoing, ferry_status_t status)
{
    if (status != FERRY_OK && outgoing->status == FERRY_OK) {
        outgoing->status = status;
        error_record_take(&outgoing->error);
    }
    if (--outgoing->outstanding == 0) {
        outgoing->done(outgoing);
    }
}

static void outgoing_message_sent(ferry_operation_t *operation, ferry_status_t status, size_t bytes)
{
    (void)bytes;
    if (status != FERRY_OK) {
        error_raise(status, "the control message could not be sent");
    }
    outgoing_settle(operation->context, status);
}

static void outgoing_transfer_done(void *context, ferry_status_t status)
{
    outgoing_settle(context, status);
}

static bool outgoing_to_host(const struct outgoing *outgoing, const struct wire_tensor *tensor)
{
    return outgoing->message.kind == WIRE_CALL ? tensor->target.device_type == kDLCPU
                                               : outgoing->host_peer;
}

/* Fixes a segment's path and operation size, which the peer must know before the first byte. */
static void outgoing_size_tensor(struct outgoing *outgoing, const struct link *link, size_t index)
{
    const struct transfer_engine *transfers = link->agent->transfers;
    struct wire_tensor *tensor = &outgoing->wire[index];
    uint32_t all = link->transport->capabilities, capabilities = all;
    if (outgoing_to_host(outgoing, tensor)) {
        capabilities &= ~TRANSFER_DEVICE_CAPABILITIES; /* as transfer_spec.host_peer */
    }
    if (transfer_choose(transfers, capabilities, tensor->source, tensor->bytes, 0, NULL, 0) ==
        TRANSFER_NONE) {
        capabilities = all; /* FERRY_PATHS excludes staging */
    }
    tensor->operation_bytes = transfer_operation_bytes(transfers, capabilities, tensor->source,
                                                       tensor->bytes, link->peer_operation_bytes);
    enum transfer_path path = transfer_choose(transfers, capabilities, tensor->source,
                                              tensor->bytes, tensor->operation_bytes, NULL, 0);
    if (path == TRANSFER_HOST && !tensor_is_contiguous(&outgoing->tensors[index].view.view)) {
        path = TRANSFER_PACKED;
    }
    outgoing->tensors[index].path = path;
    tensor->sender_path = (uint8_t)path;
    tensor->joint = tensor->source.device_type == kDLCPU && tensor->target.device_type == kDLCPU &&
                    tensor->bytes <= JOINT_TENSOR_BYTES_MAX;
}

static uint64_t outgoing_host_operation(const struct link *link, uint64_t bytes)
{
    return transfer_operation_bytes(link->agent->transfers, link->transport->capabilities,
                                    cpu_device, bytes, link->peer_operation_bytes);
}

static void outgoing_size_operations(struct outgoing *outgoing, const struct link *link)
{
    struct wire_message *message = &outgoing->message;
    message->body_operation_bytes =
        message->body_bytes == 0 ? 0 : outgoing_host_operation(link, message->body_bytes);
    message->joint_operation_bytes =
        message->tensor_count < 2 ? 0 : outgoing_host_operation(link, JOINT_OPERATION_BYTES);
    for (uint64_t i = 0; i < message->tensor_count; i++) {
        if (outgoing->wire[i].bytes > 0) {
            outgoing_size_tensor(outgoing, link, i);
        }
    }
}

static ferry_status_t outgoing_prepare(struct outgoing *outgoing, struct link *link)
{
    outgoing_size_operations(outgoing, link);
    outgoing->message.first_segment = link->next_segment;
    size_t message_bytes, table_bytes;
    ferry_status_t status = wire_plan(&outgoing->message, outgoing->wire, &link->send_limits,
                                      &message_bytes, &table_bytes);
    if (status == FERRY_OK) {
        status = buffer_reserve(&outgoing->control, &outgoing->control_capacity, message_bytes,
                                "control message");
    }
    if (status == FERRY_OK) {
        status = buffer_reserve(&outgoing->table, &outgoing->table_capacity, table_bytes,
                                "tensor table");
    }
    bool body_segment = (outgoing->message.flags & WIRE_BODY_SEGMENT) != 0;
    if (status == FERRY_OK && body_segment && outgoing->copy_body) {
        status = buffer_reserve(&outgoing->body, &outgoing->body_capacity,
                                outgoing->message.body_bytes, "body");
    }
    if (status != FERRY_OK) {
        return status;
    }
    if (body_segment && outgoing->copy_body) {
        memcpy(outgoing->body, outgoing->message.body, outgoing->message.body_bytes);
        outgoing->message.body = outgoing->body;
    }
    for (uint64_t i = 0; i < outgoing->message.tensor_count; i++) {
        if (outgoing->wire[i].inline_data != NULL || outgoing->wire[i].bytes == 0) {
            outgoing->tensors[i].path = TRANSFER_NONE;
            outgoing->wire[i].operation_bytes = 0;
            outgoing->wire[i].sender_path = TRANSFER_NONE;
        } else if (outgoing->wire[i].joint) {
            outgoing->tensors[i].path = TRANSFER_PACKED;
            outgoing->wire[i].sender_path = TRANSFER_PACKED;
        }
    }
    outgoing->table_bytes = table_bytes;
    wire_encode(&outgoing->message, outgoing->wire, outgoing->control,
                table_bytes == 0 ? NULL : outgoing->table);
    outgoing->operation =
        (ferry_operation_t){.complete = outgoing_message_sent, .context = outgoing};
    status = link->wire->transport->ops->send_message(link->wire, outgoing->control, message_bytes,
                                                      &outgoing->operation);
    if (status == FERRY_PENDING) {
        outgoing->outstanding++;
    } else if (status != FERRY_OK) {
        return status;
    }
    return FERRY_OK;
}

/* One segment; a failure after the control message has gone breaks the link, since the peer waits for
 * segments that will not come. */
static void outgoing_segment(struct outgoing *outgoing, struct link *link,
                             struct transfer_spec *spec, uint64_t bytes)
{
    if (link->state == LINK_DOWN) {
        return;
    }
    spec->link = link->wire;
    spec->first_segment = link->next_segment;
    spec->done = outgoing_transfer_done;
    spec->context = outgoing;
    link->next_segment += (uint32_t)transfer_operation_count(bytes, spec->operation_bytes);
    ferry_status_t status = transfer_send(link->agent->transfers, spec, NULL);
    if (status == FERRY_PENDING) {
        outgoing->outstanding++;
    } else if (status != FERRY_OK) {
        link_fail(link, status, "a segment could not be sent: %s", ferry_last_error()->text);
    }
}

/* Bytes in a row, or (data NULL) those that `pack` writes. */
static void outgoing_bytes_segment(struct outgoing *outgoing, struct link *link, const void *data,
                                   void (*pack)(void *, uint64_t, size_t, void *), uint64_t bytes,
                                   uint64_t operation_bytes)
{
    int64_t shape = (int64_t)bytes;
    DLTensor view = {
        .data = (void *)(uintptr_t)data,
        .device = cpu_device,
        .ndim = 1,
        .dtype = {.code = kDLUInt, .bits = 8, .lanes = 1},
        .shape = &shape,
    };
    struct transfer_spec spec = {
        .operation_bytes = operation_bytes, .view = &view, .host_peer = true, .pack = pack};
    outgoing_segment(outgoing, link, &spec, bytes);
}

static void outgoing_tensor_segment(struct outgoing *outgoing, struct link *link, size_t index)
{
    const struct outgoing_tensor *tensor = &outgoing->tensors[index];
    const struct wire_tensor *wire = &outgoing->wire[index];
    if (tensor->path == TRANSFER_STAGED) {
        outgoing->staged_bytes += wire->bytes;
    } else if (tensor->path == TRANSFER_DIRECT) {
        outgoing->direct_bytes += wire->bytes;
    }
    struct transfer_spec spec = {.operation_bytes = wire->operation_bytes,
                                 .view = &tensor->view.view,
                                 .host_peer = outgoing_to_host(outgoing, wire),
                                 .stream = tensor->stream};
    outgoing_segment(outgoing, link, &spec, wire->bytes);
}

static void outgoing_pack_tensor(const struct outgoing_tensor *tensor, uint64_t offset,
                                 size_t bytes, uint8_t *buffer)
{
    const DLTensor *view = &tensor->view.view;
    if (view->strides == NULL) {
        memcpy(buffer, (const char *)tensor_data(view) + offset, bytes);
        return;
    }
    struct tensor_layout layout;
    tensor_layout_init(&layout, view);
    transfer_pack_piece(&layout, offset, bytes, buffer);
}

/* The next bytes of the joint segment: tensors, or parts of them, and the zeros between them. */
static void outgoing_pack_joint(void *context, uint64_t offset, size_t bytes, void *buffer)
{
    struct outgoing *outgoing = context;
    uint8_t *at = buffer;
    while (bytes > 0) {
        const struct wire_tensor *wire = &outgoing->wire[outgoing->joint_next];
        if (!wire->joint || offset >= wire->joint_offset + wire->bytes) {
            outgoing->joint_next++;
            continue;
        }
        bool gap = offset < wire->joint_offset;
        uint64_t left =
            gap ? wire->joint_offset - offset : wire->joint_offset + wire->bytes - offset;
        size_t step = left < bytes ? (size_t)left : bytes;
        if (gap) {
            memset(at, 0, step);
        } else {
            outgoing_pack_tensor(&outgoing->tensors[outgoing->joint_next],
                                 offset - wire->joint_offset, step, at);
        }
        at += step;
        offset += step;
        bytes -= step;
    }
}

ferry_status_t outgoing_post(struct outgoing *outgoing, struct link *link)
{
    const struct wire_message *message = &outgoing->message;
    outgoing->outstanding = 1; /* ours, so that `done` cannot come before everything is posted */
    ferry_status_t status = outgoing_prepare(outgoing, link);
    if (status != FERRY_OK) {
        outgoing->outstanding = 0;
        return status;
    }
    if ((message->flags & WIRE_TABLE_SEGMENT) != 0) {
        outgoing_bytes_segment(outgoing, link, outgoing->table, NULL, outgoing->table_bytes,
                               outgoing->table_bytes);
    }
    if ((message->flags & WIRE_BODY_SEGMENT) != 0) {
        outgoing_bytes_segment(outgoing, link, message->body, NULL, message->body_bytes,
                               message->body_operation_bytes);
    }
    for (uint64_t i = 0; i < message->tensor_count; i++) {
        if (outgoing->wire[i].operation_bytes != 0) {
            outgoing_tensor_segment(outgoing, link, i);
        }
    }
    if (message->joint_bytes > 0) {
        outgoing->joint_next = 0;
        outgoing_bytes_segment(outgoing, link, NULL, outgoing_pack_joint, message->joint_bytes,
                               message->joint_operation_bytes);
    }
    return --outgoing->outstanding == 0 ? FERRY_OK : FERRY_PENDING;
}

bool outgoing_has_releases(const struct outgoing *outgoing)
{
    for (uint64_t i = 0; i < outgoing->message.tensor_count; i++) {
        if (outgoing->tensors[i].release != NULL) {
            return true;
        }
    }
    return false;
}

bool outgoing_borrows(const struct outgoing *outgoing)
{
    if (outgoing->outstanding == 0) {
        return false;
    }
    if ((outgoing->message.flags & WIRE_BODY_SEGMENT) != 0) {
        return true;
    }
    for (uint64_t i = 0; i < outgoing->message.tensor_count; i++) {
        const struct wire_tensor *wire = &outgoing->wire[i];
        if (outgoing->tensors[i].release == NULL && (wire->operation_bytes != 0 || wire->joint)) {
            return true;
        }
    }
    return false;
}

void outgoing_run_releases(struct outgoing *outgoing)
{
    for (uint64_t i = 0; i < outgoing->message.tensor_count; i++) {
        struct outgoing_tensor *tensor = &outgoing->tensors[i];
        if (tensor->release != NULL) {
            tensor->release(tensor->context);
            tensor->release = NULL;
        }
    }
}

void outgoing_finish(struct outgoing *outgoing)
{
    free(outgoing->wire);
    free(outgoing->tensors);
    free(outgoing->control);
    free(outgoing->table);
    free(outgoing->body);
    memset(outgoing, 0, sizeof(*outgoing));
}
