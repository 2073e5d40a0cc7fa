/* Staging slots and packing buffers. Staging memory is bounded by FERRY_STAGING: who finds none waits
 * in line, one line for sends and one for receives. Neither may take the last quarter from the
 * other, since the peer's receives may be what our sends wait for and the other way round. */
#include <utlist.h>

#include "core/log.h"
#include "rpc/transfer_internal.h"

static uint64_t slot_bytes(const struct transfer *transfer)
{
    return transfer->bytes < transfer->operation_bytes ? transfer->bytes
                                                       : transfer->operation_bytes;
}

static uint64_t staged_bytes(const struct transfer_engine *engine)
{
    return engine->staged[TRANSFER_SEND] + engine->staged[TRANSFER_RECEIVE];
}

static bool staging_fits(const struct transfer_engine *engine, enum transfer_kind kind,
                         uint64_t bytes)
{
    uint64_t bound = engine->staging_bytes, own = engine->staged[kind];
    uint64_t used = staged_bytes(engine);
    if (used == 0) {
        return true;
    }
    if (bytes > bound || used > bound - bytes) {
        return false;
    }
    return own == 0 || own + bytes <= bound - bound / 4;
}

bool transfer_buffers_wanted(const struct transfer_engine *engine)
{
    return engine->waiting[TRANSFER_SEND] != NULL || engine->waiting[TRANSFER_RECEIVE] != NULL;
}

static void buffer_wait(struct transfer *transfer)
{
    struct transfer_engine *engine = transfer->engine;
    if (!transfer_buffers_wanted(engine)) {
        engine->staging_moved_ns = clock_now_ns(&engine->clock);
    }
    transfer->waiting = true;
    DL_APPEND2(engine->waiting[transfer->kind], transfer, queue_prev, queue_next);
}

void transfer_buffer_unwait(struct transfer *transfer)
{
    if (transfer->waiting) {
        transfer->waiting = false;
        DL_DELETE2(transfer->engine->waiting[transfer->kind], transfer, queue_prev, queue_next);
    }
}

ferry_status_t transfer_buffer_take(struct transfer *transfer, struct memory_block *block)
{
    struct transfer_engine *engine = transfer->engine;
    size_t bytes = (size_t)slot_bytes(transfer);
    if (transfer->path == TRANSFER_PACKED) {
        DLDevice host = {.device_type = kDLCPU, .device_id = 0};
        return memory_pool_take(engine->pool, host, false, bytes, block);
    }
    bool granted = transfer->granted;
    transfer->granted = false;
    if (!granted &&
        (engine->waiting[transfer->kind] != NULL || !staging_fits(engine, transfer->kind, bytes))) {
        buffer_wait(transfer);
        return FERRY_PENDING;
    }
    ferry_status_t status =
        memory_pool_take(engine->pool, transfer->device->device, true, bytes, block);
    if (status == FERRY_ERR_NO_MEMORY && staged_bytes(engine) > 0) {
        /* The machine gives less than FERRY_STAGING allows: what there is has to do. */
        buffer_wait(transfer);
        return FERRY_PENDING;
    }
    if (status == FERRY_OK) {
        engine->staged[transfer->kind] += bytes;
    }
    return status;
}

void transfer_buffer_give(struct transfer *transfer, struct memory_block *block)
{
    struct transfer_engine *engine = transfer->engine;
    if (block->data == NULL) {
        return;
    }
    if (transfer->path == TRANSFER_STAGED) {
        engine->staged[transfer->kind] -= block->bytes;
        if (transfer_buffers_wanted(engine)) {
            engine->staging_moved_ns = clock_now_ns(&engine->clock);
        }
    }
    memory_pool_give(engine->pool, block);
    block->data = NULL;
}

/* One slot for a transfer that was waiting; true when it took it. */
static bool slot_grant(struct transfer *transfer)
{
    uint64_t before = staged_bytes(transfer->engine);
    transfer_buffer_unwait(transfer);
    transfer->granted = true;
    transfer_pump(transfer);
    transfer->granted = false;
    return staged_bytes(transfer->engine) != before || !transfer->waiting;
}

unsigned transfer_buffers_grant(struct transfer_engine *engine)
{
    unsigned happened = 0;
    for (int kind = TRANSFER_SEND; kind <= TRANSFER_RECEIVE; kind++) {
        struct transfer *first;
        while ((first = engine->waiting[kind]) != NULL &&
               staging_fits(engine, (enum transfer_kind)kind, slot_bytes(first))) {
            if (!slot_grant(first)) {
                break;
            }
            happened++;
        }
    }
    return happened;
}

void transfer_buffers_unstall(struct transfer_engine *engine)
{
    if (!transfer_buffers_wanted(engine) ||
        clock_now_ns(&engine->clock) - engine->staging_moved_ns < TRANSFER_STALL_NS) {
        return;
    }
    for (int kind = TRANSFER_SEND; kind <= TRANSFER_RECEIVE; kind++) {
        struct transfer *transfer;
        DL_FOREACH2(engine->waiting[kind], transfer, queue_next)
        {
            if (transfer->in_flight == 0) {
                log_write(FERRY_LOG_DEBUG,
                          "%llu bytes of staging memory do not move: one slot over FERRY_STAGING",
                          (unsigned long long)staged_bytes(engine));
                slot_grant(transfer);
                break;
            }
        }
    }
    if (transfer_buffers_wanted(engine)) {
        engine->staging_moved_ns = clock_now_ns(&engine->clock);
    }
}
