/* The life of a transfer between its start and its end: operations are posted, copies queued, and
 * what completes makes room for the next. Nothing in this file calls the user. */
#include <string.h>
#include <utlist.h>

#include "core/log.h"
#include "rpc/transfer_internal.h"

void transfer_watch(struct transfer *transfer)
{
    if (!transfer->polled) {
        transfer->polled = true;
        DL_APPEND2(transfer->engine->polled, transfer, poll_prev, poll_next);
    }
}

void transfer_fail(struct transfer *transfer, ferry_status_t status, bool link_usable)
{
    if (transfer->status != FERRY_OK) {
        return;
    }
    transfer->status = status;
    error_record_take(&transfer->error);
    transfer_buffer_unwait(transfer);
    bool nothing_started = transfer->starting && !transfer->accepted;
    if (transfer->kind != TRANSFER_RECEIVE || transfer->link == NULL || !link_usable ||
        nothing_started || transfer->next == transfer->count) {
        return;
    }
    uint64_t moved = transfer->next * transfer->operation_bytes;
    if (transfer_decline(transfer->engine, transfer->link,
                         transfer->first_segment + (uint32_t)transfer->next,
                         transfer->bytes - moved, transfer->operation_bytes) != FERRY_OK) {
        log_write(FERRY_LOG_WARN, "the rest of a failed transfer could not be declined: %s",
                  ferry_last_error()->text);
    }
    error_raise_record(&transfer->error);
}

static const ferry_device_backend_t *backend_of(const struct transfer *transfer)
{
    return transfer->device->backend;
}

static int32_t index_of(const struct transfer *transfer)
{
    return transfer->device->device.device_id;
}

/* The last resort where no event can tell when the engine's stream lets go of memory: waits here. A
 * stream that has failed lets go at once. */
static void stream_drain(const struct transfer *transfer)
{
    backend_of(transfer)->stream_synchronize(index_of(transfer),
                                             transfer->device->streams[transfer->kind]);
}

/* Queues a copy between the piece's slot and the device, and an event behind it. */
static ferry_status_t piece_copy(struct transfer *transfer, struct transfer_piece *piece)
{
    uintptr_t stream;
    ferry_status_t status = transfer_device_stream(transfer->device, transfer->kind, &stream);
    if (status != FERRY_OK) {
        return status;
    }
    char *place = transfer->data + piece->index * transfer->operation_bytes;
    bool sends = transfer->kind == TRANSFER_SEND;
    status = backend_of(transfer)->copy(
        index_of(transfer), stream, sends ? FERRY_COPY_TO_HOST : FERRY_COPY_FROM_HOST,
        sends ? piece->block.data : place, sends ? place : piece->block.data, piece->bytes);
    if (status != FERRY_OK) {
        return status;
    }
    transfer->dirty = true;
    transfer->accepted = true;
    status = transfer_device_mark(transfer->device, stream, &piece->event);
    if (status != FERRY_OK) {
        stream_drain(transfer); /* the slot is about to be free again */
        return status;
    }
    piece->next = NULL;
    *transfer->copying_tail = piece;
    transfer->copying_tail = &piece->next;
    transfer_watch(transfer);
    return FERRY_PENDING;
}

static ferry_status_t piece_post(struct transfer *transfer, struct transfer_piece *piece)
{
    if (transfer->source != NULL) {
        memcpy(piece->block.data, transfer->source + piece->index * transfer->operation_bytes,
               piece->bytes);
        return FERRY_OK;
    }
    ferry_link_t *link = transfer->link;
    const ferry_transport_ops_t *ops = link->transport->ops;
    uint32_t segment = transfer->first_segment + (uint32_t)piece->index;
    if (transfer->kind == TRANSFER_DECLINE) {
        return ops->decline(link, segment, piece->bytes, &piece->operation);
    }
    ferry_memory_t memory = {.data = piece->block.data,
                             .bytes = piece->bytes,
                             .device = {.device_type = kDLCPU, .device_id = 0}};
    if (memory.data == NULL) {
        memory.data = transfer->data + piece->index * transfer->operation_bytes;
    }
    if (transfer->path == TRANSFER_DIRECT) {
        memory.device = transfer->device->device;
    }
    return transfer->kind == TRANSFER_SEND
               ? ops->send(link, segment, &memory, &piece->operation)
               : ops->receive(link, segment, &memory, &piece->operation);
}

/* The piece is free again. Its buffer stays with it for the next operation unless somebody waits. */
static void piece_finish(struct transfer *transfer, struct transfer_piece *piece)
{
    if (transfer->next == transfer->count || transfer->status != FERRY_OK ||
        (transfer->path == TRANSFER_STAGED && transfer_buffers_wanted(transfer->engine))) {
        transfer_buffer_give(transfer, &piece->block);
    }
    if (piece->event != NULL) {
        transfer_device_forget(transfer->device, piece->event);
        piece->event = NULL;
    }
    piece->next = transfer->free;
    transfer->free = piece;
    transfer->in_flight--;
}

/* After a slot or a copy was asked for: `status` is what it said. */
static void piece_started(struct transfer *transfer, struct transfer_piece *piece,
                          ferry_status_t status)
{
    if (status == FERRY_PENDING) {
        transfer->accepted = true;
        return;
    }
    if (status == FERRY_OK) {
        transfer->accepted = true;
    } else {
        transfer_fail(transfer, status,
                      status != FERRY_ERR_PEER_LOST && status != FERRY_ERR_TRANSPORT);
    }
    piece_finish(transfer, piece);
}

/* The wire has filled the piece's memory. */
static void piece_received(struct transfer *transfer, struct transfer_piece *piece)
{
    transfer->accepted = true;
    if (transfer->path == TRANSFER_STAGED) {
        piece_started(transfer, piece, piece_copy(transfer, piece));
        return;
    }
    if (transfer->path == TRANSFER_PACKED) {
        transfer_unpack_piece(&transfer->layout, piece->index * transfer->operation_bytes,
                              piece->bytes, piece->block.data);
    }
    piece_finish(transfer, piece);
}

/* Posts the piece; its memory is ready. */
static void piece_go(struct transfer *transfer, struct transfer_piece *piece)
{
    ferry_status_t status = piece_post(transfer, piece);
    if (status == FERRY_OK && transfer->kind == TRANSFER_RECEIVE) {
        piece_received(transfer, piece);
        return;
    }
    if (status != FERRY_OK && status != FERRY_PENDING && transfer->kind == TRANSFER_RECEIVE) {
        transfer->next = piece->index; /* not taken: it is among those to decline */
    }
    piece_started(transfer, piece, status);
}

static void piece_start(struct transfer *transfer, struct transfer_piece *piece)
{
    if (transfer->kind == TRANSFER_SEND && transfer->path == TRANSFER_STAGED) {
        piece_started(transfer, piece, piece_copy(transfer, piece));
        return;
    }
    if (transfer->kind == TRANSFER_SEND && transfer->path == TRANSFER_PACKED) {
        uint64_t offset = piece->index * transfer->operation_bytes;
        if (transfer->pack != NULL) {
            transfer->pack(transfer->context, offset, piece->bytes, piece->block.data);
        } else {
            transfer_pack_piece(&transfer->layout, offset, piece->bytes, piece->block.data);
        }
    }
    piece_go(transfer, piece);
}

/* The transport's completion of one operation. */
static void piece_complete(ferry_operation_t *operation, ferry_status_t status, size_t bytes)
{
    struct transfer_piece *piece = (struct transfer_piece *)operation;
    struct transfer *transfer = operation->context;
    struct transfer_engine *engine = transfer->engine;
    if (status == FERRY_OK && transfer->kind == TRANSFER_RECEIVE && bytes != piece->bytes) {
        status = FERRY_ERR_PROTOCOL;
    }
    if (status != FERRY_OK) {
        error_raise(status, "operation %llu of %llu (segment %u, %zu bytes, %zu moved) failed: %s",
                    (unsigned long long)piece->index + 1, (unsigned long long)transfer->count,
                    transfer->first_segment + (uint32_t)piece->index, piece->bytes, bytes,
                    ferry_status_text(status));
        transfer_fail(transfer, status, status == FERRY_ERR_PROTOCOL);
        piece_finish(transfer, piece);
    } else if (transfer->kind == TRANSFER_RECEIVE && transfer->status == FERRY_OK) {
        piece_received(transfer, piece);
    } else {
        piece_finish(transfer, piece);
    }
    transfer_pump(transfer);
    transfer_settle(engine);
}

/* Queues gather or scatter on the engine's stream. */
static ferry_status_t view_queue(struct transfer *transfer)
{
    uintptr_t stream;
    ferry_status_t status = transfer_device_stream(transfer->device, transfer->kind, &stream);
    if (status != FERRY_OK) {
        return status;
    }
    const ferry_device_backend_t *backend = backend_of(transfer);
    status = transfer->kind == TRANSFER_SEND
                 ? backend->gather(index_of(transfer), stream, transfer->packed.data,
                                   &transfer->view.view)
                 : backend->scatter(index_of(transfer), stream, &transfer->view.view,
                                    transfer->packed.data);
    if (status == FERRY_OK) {
        transfer->dirty = true;
        transfer->accepted = true;
    }
    return status;
}

/* Goes into a phase that ends when the engine's stream has passed this point. */
static ferry_status_t phase_enter(struct transfer *transfer, enum transfer_phase phase)
{
    uintptr_t stream;
    ferry_status_t status = transfer_device_stream(transfer->device, transfer->kind, &stream);
    if (status == FERRY_OK) {
        status = transfer_device_mark(transfer->device, stream, &transfer->event);
    }
    if (status == FERRY_OK) {
        transfer->phase = phase;
        transfer_watch(transfer);
    }
    return status;
}

ferry_status_t transfer_begin(struct transfer *transfer)
{
    transfer->phase = PHASE_MOVE;
    if (transfer->packed.data == NULL || transfer->kind != TRANSFER_SEND) {
        return FERRY_OK;
    }
    ferry_status_t status = view_queue(transfer);
    /* Staged copies follow on the same stream; the wire does not. */
    if (status == FERRY_OK && transfer->path == TRANSFER_DIRECT) {
        status = phase_enter(transfer, PHASE_PACK);
    }
    return status;
}

/* All operations are through. */
static void transfer_finish(struct transfer *transfer)
{
    if (transfer->status == FERRY_OK && transfer->packed.data != NULL &&
        transfer->kind == TRANSFER_RECEIVE) {
        ferry_status_t status = view_queue(transfer);
        if (status == FERRY_OK) {
            status = phase_enter(transfer, PHASE_UNPACK);
        }
        if (status == FERRY_OK) {
            return;
        }
        transfer_fail(transfer, status, true);
    }
    if (transfer->status != FERRY_OK && transfer->dirty) {
        if (phase_enter(transfer, PHASE_DRAIN) == FERRY_OK) {
            return;
        }
        stream_drain(transfer);
    }
    transfer_end(transfer);
}

void transfer_pump(struct transfer *transfer)
{
    while (transfer->phase == PHASE_MOVE && transfer->status == FERRY_OK && !transfer->waiting &&
           transfer->next < transfer->count && transfer->free != NULL) {
        struct transfer_piece *piece = transfer->free;
        if (piece->block.data == NULL &&
            (transfer->path == TRANSFER_STAGED || transfer->path == TRANSFER_PACKED)) {
            ferry_status_t status = transfer_buffer_take(transfer, &piece->block);
            if (status == FERRY_PENDING) {
                return;
            }
            if (status != FERRY_OK) {
                transfer_fail(transfer, status, true);
                break;
            }
        }
        uint64_t offset = transfer->next * transfer->operation_bytes;
        uint64_t left = transfer->bytes - offset;
        transfer->free = piece->next;
        piece->index = transfer->next++;
        piece->bytes =
            (size_t)(left < transfer->operation_bytes ? left : transfer->operation_bytes);
        piece->operation.complete = piece_complete;
        piece->operation.context = transfer;
        transfer->in_flight++;
        piece_start(transfer, piece);
    }
    if (transfer->phase == PHASE_MOVE && transfer->in_flight == 0 &&
        (transfer->next == transfer->count || transfer->status != FERRY_OK)) {
        transfer_finish(transfer);
    }
}

/* The phase's event has passed, or failed with `status`. */
static void phase_leave(struct transfer *transfer, ferry_status_t status)
{
    transfer_device_forget(transfer->device, transfer->event);
    transfer->event = NULL;
    if (status != FERRY_OK) {
        transfer_fail(transfer, status, true);
        if (transfer->phase != PHASE_STREAM) {
            stream_drain(transfer);
        }
    }
    if (transfer->phase == PHASE_UNPACK || transfer->phase == PHASE_DRAIN) {
        transfer_end(transfer);
        return;
    }
    bool waited = transfer->phase == PHASE_STREAM;
    transfer->phase = PHASE_MOVE;
    if (transfer->status == FERRY_OK && waited) {
        status = transfer_begin(transfer);
        if (status != FERRY_OK) {
            transfer->phase = PHASE_MOVE;
            transfer_fail(transfer, status, true);
        }
    }
}

/* Takes the copies that have passed, oldest first: on one stream none passes before an older one. */
static void copies_poll(struct transfer *transfer, unsigned *happened)
{
    while (transfer->copying != NULL) {
        struct transfer_piece *piece = transfer->copying;
        ferry_status_t status = backend_of(transfer)->event_query(piece->event);
        if (status == FERRY_PENDING) {
            return;
        }
        transfer->copying = piece->next;
        if (transfer->copying == NULL) {
            transfer->copying_tail = &transfer->copying;
            transfer->dirty = false; /* these copies were the last on the stream */
        }
        transfer_device_forget(transfer->device, piece->event);
        piece->event = NULL;
        (*happened)++;
        if (status != FERRY_OK) {
            transfer_fail(transfer, status, true);
            stream_drain(transfer);
        }
        if (status == FERRY_OK && transfer->status == FERRY_OK && transfer->kind == TRANSFER_SEND) {
            piece_go(transfer, piece);
        } else {
            piece_finish(transfer, piece);
        }
    }
}

void transfer_poll(struct transfer *transfer, unsigned *happened)
{
    if (transfer->event != NULL) {
        ferry_status_t status = backend_of(transfer)->event_query(transfer->event);
        if (status != FERRY_PENDING) {
            (*happened)++;
            phase_leave(transfer, status);
        }
    }
    copies_poll(transfer, happened);
    if (transfer->phase != PHASE_ENDED) {
        transfer_pump(transfer);
    }
    if (transfer->polled && transfer->event == NULL && transfer->copying == NULL) {
        transfer->polled = false;
        DL_DELETE2(transfer->engine->polled, transfer, poll_prev, poll_next);
    }
}

void transfer_abort(struct transfer *transfer, ferry_status_t status)
{
    transfer_fail(transfer, status, true);
    if (transfer->phase == PHASE_STREAM) {
        /* Nothing of this transfer's touches the memory yet. */
        transfer_device_forget(transfer->device, transfer->event);
        transfer->event = NULL;
        transfer->phase = PHASE_MOVE;
    }
    transfer_pump(transfer);
}
