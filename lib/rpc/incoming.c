#include "rpc/incoming.h"

#include <stdlib.h>
#include <string.h>

#include "rpc/link.h"

static const DLDevice cpu_device = {.device_type = kDLCPU, .device_id = 0};

static void incoming_fail(struct incoming *incoming, ferry_status_t status)
{
    if (incoming->status == FERRY_OK) {
        incoming->status = status;
        error_record_take(&incoming->error);
    }
}

static void incoming_settle(struct incoming *incoming)
{
    if (--incoming->outstanding == 0) {
        incoming_give_unseen_joint(incoming);
        incoming->complete(incoming);
    }
}

static ferry_status_t incoming_reserve_tensors(struct incoming *incoming, size_t count)
{
    if (count <= incoming->capacity) {
        return FERRY_OK;
    }
    struct incoming_tensor *tensors = calloc(count, sizeof(*tensors));
    ferry_tensor_t *views = calloc(count, sizeof(*views));
    if (tensors == NULL || views == NULL) {
        free(tensors);
        free(views);
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory to describe %zu tensors", count);
    }
    free(incoming->tensors);
    free(incoming->views);
    incoming->tensors = tensors;
    incoming->views = views;
    incoming->capacity = count;
    return FERRY_OK;
}

static ferry_status_t incoming_copy(uint8_t **buffer, size_t *capacity, const void *data,
                                    size_t bytes)
{
    if (bytes > *capacity) {
        uint8_t *grown = realloc(*buffer, bytes);
        if (grown == NULL) {
            return error_raise(FERRY_ERR_NO_MEMORY, "no memory for a message of %zu bytes", bytes);
        }
        *buffer = grown;
        *capacity = bytes;
    }
    if (data != NULL) {
        memcpy(*buffer, data, bytes);
    }
    return FERRY_OK;
}

static void incoming_describe_tensor(struct incoming_tensor *tensor, const struct wire_tensor *wire,
                                     uint32_t first_segment)
{
    if (wire->name_bytes > 0) {
        memcpy(tensor->name, wire->name, wire->name_bytes);
    }
    tensor->name[wire->name_bytes] = '\0';
    memcpy(tensor->view.shape, wire->shape_storage, (size_t)wire->ndim * sizeof(int64_t));
    tensor->view.view = (DLTensor){
        .device = wire->target,
        .ndim = wire->ndim,
        .dtype = wire->dtype,
        .shape = tensor->view.shape,
    };
    tensor->stream = 0;
    tensor->block = (struct memory_block){.data = NULL};
    tensor->allocator = (ferry_allocator_t){.deallocate = NULL};
    tensor->source = wire->source;
    tensor->target = wire->target;
    tensor->bytes = wire->bytes;
    tensor->operation_bytes = wire->operation_bytes;
    tensor->inline_data = wire->inline_data;
    tensor->joint = wire->joint;
    tensor->joint_offset = wire->joint_offset;
    tensor->in_joint = false;
    tensor->first_segment = first_segment;
    tensor->sender_path = (enum transfer_path)wire->sender_path;
    tensor->path = TRANSFER_NONE;
    tensor->declined = false;
    tensor->transfer = NULL;
}

/* Reads the variable part and every tensor's description, now that the table is there. */
static ferry_status_t incoming_describe(struct incoming *incoming)
{
    struct wire_decoder decoder;
    ferry_status_t status = wire_decode_variable(
        incoming->control, incoming->control_bytes, incoming->table, incoming->table_bytes,
        &incoming->agent->receive_limits, &incoming->wire, &decoder);
    if (status != FERRY_OK) {
        return status;
    }
    struct wire_message *wire = &incoming->wire;
    status = incoming_reserve_tensors(incoming, wire->tensor_count);
    if (status != FERRY_OK) {
        return status;
    }
    uint32_t segment = wire->first_segment;
    if (incoming->table_bytes > 0) {
        segment++;
    }
    if ((wire->flags & WIRE_BODY_SEGMENT) != 0) {
        segment += (uint32_t)transfer_operation_count(wire->body_bytes, wire->body_operation_bytes);
    }
    incoming->total_bytes = wire->body_bytes;
    for (uint64_t i = 0; i < wire->tensor_count; i++) {
        struct wire_tensor description;
        status = wire_decode_tensor(&decoder, wire, &description);
        if (status != FERRY_OK) {
            return status;
        }
        struct incoming_tensor *tensor = &incoming->tensors[i];
        incoming_describe_tensor(tensor, &description, segment);
        tensor->incoming = incoming;
        if (description.operation_bytes != 0) {
            segment +=
                (uint32_t)transfer_operation_count(description.bytes, description.operation_bytes);
        }
        incoming->total_bytes += description.bytes;
    }
    incoming->joint_segment = segment;
    return FERRY_OK;
}

static void incoming_described(struct incoming *incoming)
{
    ferry_status_t status = incoming_describe(incoming);
    if (status != FERRY_OK) {
        /* What the rest of the message means is unknown: the link cannot go on. */
        incoming->wire.tensor_count = 0;
        incoming->wire.joint_bytes = 0;
        incoming->lost = true;
        incoming_fail(incoming, status);
        link_fail(incoming->link, status, "%s", ferry_last_error()->text);
        incoming->complete(incoming);
        return;
    }
    incoming->described(incoming);
}

static void incoming_table_arrived(void *context, ferry_status_t status)
{
    struct incoming *incoming = context;
    if (status != FERRY_OK) {
        incoming->lost = true;
        incoming_fail(incoming, status);
        incoming->wire.tensor_count = 0;
        incoming->complete(incoming);
        return;
    }
    incoming_described(incoming);
}

static DLTensor incoming_bytes_view(void *data, int64_t *shape)
{
    return (DLTensor){
        .data = data,
        .device = cpu_device,
        .ndim = 1,
        .dtype = {.code = kDLUInt, .bits = 8, .lanes = 1},
        .shape = shape,
    };
}

static ferry_status_t incoming_receive_bytes(struct incoming *incoming, void *data, uint64_t bytes,
                                             uint64_t operation_bytes, uint32_t segment,
                                             void (*done)(void *, ferry_status_t),
                                             struct transfer **transfer_out)
{
    int64_t shape = (int64_t)bytes;
    DLTensor view = incoming_bytes_view(data, &shape);
    struct transfer_spec spec = {
        .link = incoming->link->wire,
        .first_segment = segment,
        .operation_bytes = operation_bytes,
        .view = &view,
        .done = done,
        .context = incoming,
    };
    return transfer_receive(incoming->agent->transfers, &spec, transfer_out);
}

ferry_status_t incoming_open(struct incoming *incoming, struct link *link, const void *data,
                             size_t bytes, const struct wire_message *header, size_t table_bytes)
{
    ferry_status_t status =
        incoming_copy(&incoming->control, &incoming->control_capacity, data, bytes);
    if (status == FERRY_OK && table_bytes > 0) {
        status = incoming_copy(&incoming->table, &incoming->table_capacity, NULL, table_bytes);
    }
    if (status != FERRY_OK) {
        return status;
    }
    incoming->agent = link->agent;
    incoming->link = link;
    incoming->control_bytes = bytes;
    incoming->table_bytes = table_bytes;
    incoming->wire = *header;
    incoming->wire.tensor_count = table_bytes > 0 ? 0 : header->tensor_count;
    incoming->body = incoming->joint = (struct memory_block){.data = NULL};
    incoming->joint_transfer = NULL;
    incoming->joint_views = incoming->joint_wanted = 0;
    incoming->status = FERRY_OK;
    incoming->lost = incoming->receiving = false;
    incoming->outstanding = 0;
    incoming->staged_bytes = incoming->direct_bytes = incoming->total_bytes = 0;
    incoming->message = (ferry_message_t){.body = NULL};
    if (table_bytes == 0) {
        incoming_described(incoming);
        return FERRY_OK;
    }
    incoming->wire.tensor_count = header->tensor_count;
    status = incoming_receive_bytes(incoming, incoming->table, table_bytes, table_bytes,
                                    header->first_segment, incoming_table_arrived, NULL);
    if (status == FERRY_OK) {
        incoming_described(incoming);
    } else if (status != FERRY_PENDING) {
        return status;
    }
    return FERRY_OK;
}

static void incoming_show(struct incoming *incoming, size_t index)
{
    const struct incoming_tensor *tensor = &incoming->tensors[index];
    incoming->views[index] = (ferry_tensor_t){
        .name = tensor->name[0] == '\0' ? NULL : tensor->name,
        .view = tensor->view.view,
    };
}

void incoming_note_failure(struct incoming *incoming)
{
    incoming_fail(incoming, ferry_last_error()->status);
}

void incoming_decline(struct incoming *incoming, size_t index)
{
    incoming_note_failure(incoming);
    incoming->tensors[index].declined = true;
}

static void incoming_body_arrived(void *context, ferry_status_t status)
{
    struct incoming *incoming = context;
    if (status != FERRY_OK) {
        incoming->lost = true;
        incoming_fail(incoming, status);
    }
    incoming_settle(incoming);
}

static void incoming_tensor_arrived(void *context, ferry_status_t status)
{
    struct incoming_tensor *tensor = context;
    tensor->transfer = NULL;
    if (status != FERRY_OK) {
        tensor->incoming->lost = true;
        incoming_fail(tensor->incoming, status);
    }
    incoming_settle(tensor->incoming);
}

static uint32_t incoming_body_segment(const struct incoming *incoming)
{
    return incoming->wire.first_segment + (incoming->table_bytes > 0 ? 1u : 0u);
}

static void incoming_decline_segment(struct incoming *incoming, uint32_t segment, uint64_t bytes,
                                     uint64_t operation_bytes)
{
    struct link *link = incoming->link;
    if (link->state == LINK_DOWN) {
        return;
    }
    ferry_status_t status =
        transfer_decline(link->agent->transfers, link->wire, segment, bytes, operation_bytes);
    if (status != FERRY_OK && status != FERRY_PENDING) {
        link_fail(link, status, "a segment could not be declined: %s", ferry_last_error()->text);
    }
}

static void incoming_receive_body(struct incoming *incoming)
{
    const struct wire_message *wire = &incoming->wire;
    incoming->message.body = wire->body;
    incoming->message.body_bytes = wire->body_bytes;
    if ((wire->flags & WIRE_BODY_SEGMENT) == 0) {
        return;
    }
    struct link *link = incoming->link;
    uint32_t segment = incoming_body_segment(incoming);
    ferry_status_t status =
        memory_pool_take(link->agent->memory, cpu_device, false, wire->body_bytes, &incoming->body);
    if (status != FERRY_OK) {
        incoming_fail(incoming, status);
        incoming_decline_segment(incoming, segment, wire->body_bytes, wire->body_operation_bytes);
        return;
    }
    incoming->message.body = incoming->body.data;
    if (link->state == LINK_DOWN) {
        incoming->lost = true;
        incoming_fail(incoming, error_raise_reason(&link->down));
        return;
    }
    incoming->outstanding++;
    status =
        incoming_receive_bytes(incoming, incoming->body.data, wire->body_bytes,
                               wire->body_operation_bytes, segment, incoming_body_arrived, NULL);
    if (status != FERRY_PENDING) {
        incoming_body_arrived(incoming, status);
    }
}

/* Small tensors ride in the control message: onto the device they are meant for. */
static ferry_status_t incoming_unpack_inline(struct incoming_tensor *tensor)
{
    if (tensor->view.view.device.device_type == kDLCPU && tensor->view.view.strides == NULL) {
        memcpy(tensor_data(&tensor->view.view), tensor->inline_data, tensor->bytes);
        return FERRY_OK;
    }
    return FERRY_PENDING;
}

static void incoming_receive_tensor(struct incoming *incoming, size_t index)
{
    struct incoming_tensor *tensor = &incoming->tensors[index];
    struct link *link = incoming->link;
    incoming_show(incoming, index);
    if (tensor->bytes == 0) {
        return;
    }
    if (tensor->joint && tensor->inline_data == NULL) {
        incoming->joint_wanted += !tensor->declined;
        return; /* its bytes come with the others' */
    }
    if (tensor->declined) {
        if (tensor->inline_data == NULL) {
            incoming_decline_segment(incoming, tensor->first_segment, tensor->bytes,
                                     tensor->operation_bytes);
        }
        return;
    }
    if (tensor->inline_data != NULL && incoming_unpack_inline(tensor) == FERRY_OK) {
        return;
    }
    if (tensor->inline_data == NULL && link->state == LINK_DOWN) {
        incoming->lost = true;
        incoming_fail(incoming, error_raise_reason(&link->down));
        return;
    }
    struct transfer_spec spec = {
        .link = link->wire,
        .first_segment = tensor->first_segment,
        .operation_bytes = tensor->operation_bytes,
        .view = &tensor->view.view,
        .host_peer = tensor->source.device_type == kDLCPU,
        .stream = tensor->stream,
        .done = incoming_tensor_arrived,
        .context = tensor,
    };
    incoming->outstanding++;
    ferry_status_t status =
        tensor->inline_data != NULL
            ? transfer_unpack(link->agent->transfers, tensor->inline_data, &spec, &tensor->transfer)
            : transfer_receive(incoming->agent->transfers, &spec, &tensor->transfer);
    if (status == FERRY_PENDING) {
        tensor->path = transfer_path_of(tensor->transfer);
    } else {
        if (status == FERRY_OK) {
            tensor->path = TRANSFER_HOST;
        } else if (tensor->inline_data == NULL) {
            incoming_decline_segment(incoming, tensor->first_segment, tensor->bytes,
                                     tensor->operation_bytes);
        }
        incoming_tensor_arrived(tensor, status);
    }
    if (tensor->path == TRANSFER_STAGED) {
        incoming->staged_bytes += tensor->bytes;
    } else if (tensor->path == TRANSFER_DIRECT) {
        incoming->direct_bytes += tensor->bytes;
    }
}

/* The joint segment is there: what is no view of it gets its bytes as if they had ridden inside. */
static void incoming_joint_arrived(void *context, ferry_status_t status)
{
    struct incoming *incoming = context;
    incoming->joint_transfer = NULL;
    if (status != FERRY_OK) {
        incoming->lost = true;
        incoming_fail(incoming, status);
    }
    for (uint64_t i = 0; i < incoming->wire.tensor_count && incoming->status == FERRY_OK; i++) {
        struct incoming_tensor *tensor = &incoming->tensors[i];
        if (!tensor->joint) {
            continue;
        }
        tensor->path = TRANSFER_HOST;
        if (!tensor->in_joint) {
            tensor->inline_data = (const char *)incoming->joint.data + tensor->joint_offset;
            incoming_receive_tensor(incoming, i);
        }
    }
    incoming_settle(incoming);
}

static void incoming_decline_joint(struct incoming *incoming)
{
    if (incoming->wire.joint_bytes > 0) {
        incoming_decline_segment(incoming, incoming->joint_segment, incoming->wire.joint_bytes,
                                 incoming->wire.joint_operation_bytes);
    }
}

static void incoming_receive_joint(struct incoming *incoming)
{
    const struct wire_message *wire = &incoming->wire;
    if (incoming->joint_wanted == 0) {
        incoming_decline_joint(incoming);
        return;
    }
    ferry_status_t status = incoming_take_joint(incoming);
    if (status != FERRY_OK) {
        incoming_fail(incoming, status);
        incoming_decline_joint(incoming);
        return;
    }
    if (incoming->link->state == LINK_DOWN) {
        incoming->lost = true;
        incoming_fail(incoming, error_raise_reason(&incoming->link->down));
        return;
    }
    incoming->outstanding++;
    status = incoming_receive_bytes(incoming, incoming->joint.data, wire->joint_bytes,
                                    wire->joint_operation_bytes, incoming->joint_segment,
                                    incoming_joint_arrived, &incoming->joint_transfer);
    if (status != FERRY_PENDING) {
        if (status != FERRY_OK) {
            incoming_decline_joint(incoming);
        }
        incoming_joint_arrived(incoming, status);
    }
}

void incoming_receive(struct incoming *incoming)
{
    incoming->receiving = true;
    incoming->outstanding++; /* ours, so that `complete` comes after everything is posted */
    incoming_receive_body(incoming);
    for (uint64_t i = 0; i < incoming->wire.tensor_count; i++) {
        incoming_receive_tensor(incoming, i);
    }
    if (incoming->wire.joint_bytes > 0) {
        incoming_receive_joint(incoming);
    }
    incoming->message.tensors = incoming->views;
    incoming->message.tensor_count = incoming->wire.tensor_count;
    incoming->immediate = incoming->outstanding == 1 && incoming->table_bytes == 0;
    incoming_settle(incoming);
}

void incoming_refuse(struct incoming *incoming)
{
    if ((incoming->wire.flags & WIRE_BODY_SEGMENT) != 0) {
        incoming_decline_segment(incoming, incoming_body_segment(incoming),
                                 incoming->wire.body_bytes, incoming->wire.body_operation_bytes);
    }
    for (uint64_t i = 0; i < incoming->wire.tensor_count; i++) {
        const struct incoming_tensor *tensor = &incoming->tensors[i];
        if (tensor->operation_bytes != 0) {
            incoming_decline_segment(incoming, tensor->first_segment, tensor->bytes,
                                     tensor->operation_bytes);
        }
    }
    incoming_decline_joint(incoming);
}

void incoming_cancel(struct incoming *incoming)
{
    if (!incoming->receiving) {
        return; /* the table is on its way: whom it is described to will not want the rest */
    }
    incoming->outstanding++; /* a cancelled transfer may end at once */
    for (uint64_t i = 0; i < incoming->wire.tensor_count; i++) {
        if (incoming->tensors[i].transfer != NULL) {
            transfer_cancel(incoming->tensors[i].transfer);
        }
    }
    if (incoming->joint_transfer != NULL) {
        transfer_cancel(incoming->joint_transfer);
    }
    incoming_settle(incoming);
}

void incoming_finish(struct incoming *incoming)
{
    free(incoming->control);
    free(incoming->table);
    free(incoming->tensors);
    free(incoming->views);
    memset(incoming, 0, sizeof(*incoming));
}
