#include "rpc/transfer.h"

#include <string.h>
#include <utlist.h>

#include "rpc/transfer_internal.h"

/* Where the view lies and how it will travel. */
struct plan {
    size_t bytes;
    DLDevice device;
    const ferry_device_backend_t *backend; /* NULL: host memory */
    enum transfer_path path;
    bool strided;
};

static ferry_status_t plan_device(const struct transfer_engine *engine,
                                  const struct transfer_spec *spec, enum transfer_kind kind,
                                  struct plan *plan)
{
    const ferry_device_backend_t *backend;
    ferry_status_t status = device_check(plan->device, &backend);
    if (status != FERRY_OK || backend->host_readable) {
        return status;
    }
    ferry_transport_t *transport = spec->link->transport;
    char reason[128];
    plan->backend = backend;
    plan->path = transfer_choose(engine, transport->ops->capabilities(transport), plan->device,
                                 plan->bytes, spec->operation_bytes, reason, sizeof reason);
    if (plan->path == TRANSFER_DIRECT && spec->host_peer && !engine->no_staged &&
        spec->operation_bytes <= engine->chunk_bytes) {
        plan->path = TRANSFER_STAGED;
    }
    if (plan->path == TRANSFER_NONE) {
        return error_raise(FERRY_ERR_UNSUPPORTED, "no way for memory of %s:%d over %s: %s",
                           backend->kind, (int)plan->device.device_id, transport->ops->name,
                           reason);
    }
    if (plan->path == TRANSFER_STAGED && kind == TRANSFER_RECEIVE &&
        plan->bytes > engine->chunk_bytes && spec->operation_bytes > engine->chunk_bytes) {
        return error_raise(FERRY_ERR_PROTOCOL,
                           "the peer sends operations of %llu bytes to %s:%d, at most %llu were "
                           "announced (%s)",
                           (unsigned long long)spec->operation_bytes, backend->kind,
                           (int)plan->device.device_id, (unsigned long long)engine->chunk_bytes,
                           reason);
    }
    return FERRY_OK;
}

static ferry_status_t plan_make(const struct transfer_engine *engine,
                                const struct transfer_spec *spec, enum transfer_kind kind,
                                struct plan *plan)
{
    *plan = (struct plan){.path = TRANSFER_NONE};
    ferry_status_t status = ferry_tensor_bytes(spec->view, &plan->bytes);
    if (status != FERRY_OK || plan->bytes == 0) {
        return status;
    }
    plan->path = TRANSFER_HOST;
    plan->device = device_normal(spec->view->device);
    plan->strided = !tensor_is_contiguous(spec->view);
    if (plan->device.device_type != kDLCPU) {
        status = plan_device(engine, spec, kind, plan);
    }
    if (plan->path == TRANSFER_HOST && (plan->strided || spec->pack != NULL)) {
        plan->path = TRANSFER_PACKED;
    }
    return status;
}

/* The pieces of a transfer that is otherwise filled in. */
static void pieces_init(struct transfer *transfer)
{
    uint64_t pieces = transfer->engine->window;
    transfer->count = transfer_operation_count(transfer->bytes, transfer->operation_bytes);
    if (transfer->count < pieces) {
        pieces = transfer->count;
    }
    for (uint64_t i = 0; i < pieces; i++) {
        struct transfer_piece *piece = &transfer->pieces[i];
        piece->block.data = NULL;
        piece->event = NULL;
        piece->next = i + 1 < pieces ? piece + 1 : NULL;
    }
    transfer->free = &transfer->pieces[0];
}

/* What device memory needs before anything moves: its streams' owner, a packed copy of a strided
 * view, and an event on the user's stream. */
static ferry_status_t device_prepare(struct transfer *transfer, const struct plan *plan,
                                     const struct transfer_spec *spec)
{
    struct transfer_engine *engine = transfer->engine;
    ferry_status_t status =
        transfer_device_find(engine, plan->device, plan->backend, &transfer->device);
    if (status == FERRY_OK && plan->strided) {
        tensor_copy_view(&transfer->view, spec->view);
        transfer->view.view.device = plan->device;
        status =
            memory_pool_take(engine->pool, plan->device, false, plan->bytes, &transfer->packed);
        transfer->data = transfer->packed.data;
    }
    if (status != FERRY_OK || spec->stream == 0) {
        return status;
    }
    status = transfer_device_mark(transfer->device, spec->stream, &transfer->event);
    if (status == FERRY_OK) {
        status = plan->backend->event_query(transfer->event);
    }
    return status;
}

static void transfer_launch(struct transfer *transfer, const struct plan *plan,
                            const struct transfer_spec *spec)
{
    ferry_status_t status = FERRY_OK;
    if (plan->path == TRANSFER_PACKED) {
        tensor_layout_init(&transfer->layout, spec->view);
    } else {
        transfer->data = tensor_data(spec->view);
    }
    if (plan->backend != NULL) {
        status = device_prepare(transfer, plan, spec);
        if (status == FERRY_PENDING) {
            transfer->phase = PHASE_STREAM;
            transfer_watch(transfer);
            return;
        }
        transfer_device_forget(transfer->device, transfer->event);
        transfer->event = NULL;
    }
    if (status == FERRY_OK) {
        status = transfer_begin(transfer);
    }
    if (status != FERRY_OK) {
        transfer->phase = PHASE_MOVE;
        transfer_fail(transfer, status, true);
    }
    transfer_pump(transfer);
}

/* What a start returns. One that ended within it is told at once, and no `done` follows, unless it
 * failed with something under way already. */
static ferry_status_t transfer_started(struct transfer *transfer, struct transfer **transfer_out)
{
    ferry_status_t status = transfer->status;
    if (transfer->phase != PHASE_ENDED || (status != FERRY_OK && transfer->accepted)) {
        if (transfer_out != NULL) {
            *transfer_out = transfer;
        }
        return FERRY_PENDING;
    }
    if (status != FERRY_OK) {
        error_raise_record(&transfer->error);
    }
    DL_DELETE2(transfer->engine->ended, transfer, queue_prev, queue_next);
    transfer_recycle(transfer);
    return status;
}

static ferry_status_t transfer_carry(struct transfer_engine *engine,
                                     const struct transfer_spec *spec, enum transfer_kind kind,
                                     const struct plan *plan, const void *source,
                                     struct transfer **transfer_out)
{
    struct transfer *transfer = transfer_take(engine);
    if (transfer == NULL) {
        return FERRY_ERR_NO_MEMORY;
    }
    transfer->link = spec->link;
    transfer->source = source;
    transfer->kind = kind;
    transfer->path = plan->path;
    transfer->first_segment = spec->first_segment;
    transfer->bytes = plan->bytes;
    transfer->operation_bytes = spec->operation_bytes;
    transfer->pack = spec->pack;
    transfer->done = spec->done;
    transfer->context = spec->context;
    pieces_init(transfer);
    transfer->starting = true;
    transfer_launch(transfer, plan, spec);
    transfer->starting = false;
    return transfer_started(transfer, transfer_out);
}

static ferry_status_t transfer_start(struct transfer_engine *engine,
                                     const struct transfer_spec *spec, enum transfer_kind kind,
                                     struct transfer **transfer_out)
{
    struct plan plan;
    ferry_status_t status = plan_make(engine, spec, kind, &plan);
    if (status != FERRY_OK || plan.bytes == 0) {
        return status;
    }
    return transfer_carry(engine, spec, kind, &plan, NULL, transfer_out);
}

ferry_status_t transfer_send(struct transfer_engine *engine, const struct transfer_spec *spec,
                             struct transfer **transfer_out)
{
    return transfer_start(engine, spec, TRANSFER_SEND, transfer_out);
}

ferry_status_t transfer_receive(struct transfer_engine *engine, const struct transfer_spec *spec,
                                struct transfer **transfer_out)
{
    return transfer_start(engine, spec, TRANSFER_RECEIVE, transfer_out);
}

ferry_status_t transfer_unpack(struct transfer_engine *engine, const void *data,
                               const struct transfer_spec *spec, struct transfer **transfer_out)
{
    struct plan plan = {.device = device_normal(spec->view->device)};
    ferry_status_t status = ferry_tensor_bytes(spec->view, &plan.bytes);
    if (status != FERRY_OK || plan.bytes == 0) {
        return status;
    }
    if (plan.device.device_type != kDLCPU) {
        status = device_check(plan.device, &plan.backend);
        if (status != FERRY_OK) {
            return status;
        }
    }
    if (plan.backend == NULL || plan.backend->host_readable) {
        struct tensor_layout layout;
        tensor_layout_init(&layout, spec->view);
        transfer_unpack_piece(&layout, 0, plan.bytes, data);
        return FERRY_OK;
    }
    plan.path = TRANSFER_STAGED;
    plan.strided = !tensor_is_contiguous(spec->view);
    struct transfer_spec local = *spec;
    local.link = NULL;
    local.operation_bytes = engine->chunk_bytes;
    return transfer_carry(engine, &local, TRANSFER_RECEIVE, &plan, data, transfer_out);
}

ferry_status_t transfer_decline(struct transfer_engine *engine, ferry_link_t *link,
                                uint32_t first_segment, uint64_t bytes, uint64_t operation_bytes)
{
    if (bytes == 0) {
        return FERRY_OK;
    }
    struct transfer *transfer = transfer_take(engine);
    if (transfer == NULL) {
        return FERRY_ERR_NO_MEMORY;
    }
    transfer->link = link;
    transfer->kind = TRANSFER_DECLINE;
    transfer->path = TRANSFER_NONE;
    transfer->phase = PHASE_MOVE;
    transfer->first_segment = first_segment;
    transfer->bytes = bytes;
    transfer->operation_bytes = operation_bytes;
    pieces_init(transfer);
    transfer_pump(transfer);
    ferry_status_t status = transfer_started(transfer, NULL);
    return status == FERRY_PENDING ? FERRY_OK : status;
}

void transfer_cancel(struct transfer *transfer)
{
    if (transfer->kind != TRANSFER_RECEIVE || transfer->phase == PHASE_ENDED) {
        return;
    }
    error_raise(FERRY_ERR_CANCELLED, "the receive was cancelled after %llu of %llu operations",
                (unsigned long long)transfer->next, (unsigned long long)transfer->count);
    transfer_abort(transfer, FERRY_ERR_CANCELLED);
}

enum transfer_path transfer_path_of(const struct transfer *transfer)
{
    return transfer->path;
}
