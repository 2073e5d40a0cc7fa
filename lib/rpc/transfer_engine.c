/* The engine: what is under way, what ended, and the stores that make the steady path free of
 * allocation. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "rpc/transfer_internal.h"

ferry_status_t transfer_engine_create(struct memory_pool *pool, const struct config_values *config,
                                      struct clock clock, struct transfer_engine **engine_out)
{
    struct transfer_engine *engine = calloc(1, sizeof *engine);
    if (engine == NULL) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory for a transfer engine");
    }
    engine->pool = pool;
    engine->clock = clock;
    engine->chunk_bytes = config->chunk_bytes > 0 ? (uint64_t)config->chunk_bytes : 1;
    engine->window = config->chunk_window > 0 ? (uint32_t)config->chunk_window : 1;
    engine->direct_min_bytes = (uint64_t)config->direct_min_bytes;
    engine->staging_bytes = (uint64_t)config->staging_bytes;
    engine->release_timeout_ns = config->release_timeout_ns;
    transfer_paths_parse(engine, config->paths);
    *engine_out = engine;
    return FERRY_OK;
}

void transfer_engine_destroy(struct transfer_engine *engine)
{
    if (engine == NULL) {
        return;
    }
    assert(engine->active == NULL);
    transfer_gives_finish(engine);
    transfer_devices_finish(engine);
    while (engine->unused != NULL) {
        struct transfer *transfer = engine->unused;
        engine->unused = transfer->queue_next;
        free(transfer);
    }
    free(engine);
}

struct transfer *transfer_take(struct transfer_engine *engine)
{
    struct transfer *transfer = engine->unused;
    if (transfer != NULL) {
        engine->unused = transfer->queue_next;
    } else {
        transfer = calloc(1, sizeof *transfer + engine->window * sizeof transfer->pieces[0]);
        if (transfer == NULL) {
            error_raise(FERRY_ERR_NO_MEMORY, "no memory for a transfer");
            return NULL;
        }
    }
    /* What lies behind is large and written before it is read. */
    memset(transfer, 0, offsetof(struct transfer, view));
    transfer->engine = engine;
    transfer->copying_tail = &transfer->copying;
    DL_APPEND2(engine->active, transfer, active_prev, active_next);
    engine->active_count++;
    return transfer;
}

void transfer_recycle(struct transfer *transfer)
{
    struct transfer_engine *engine = transfer->engine;
    DL_DELETE2(engine->active, transfer, active_prev, active_next);
    engine->active_count--;
    transfer->queue_next = engine->unused;
    engine->unused = transfer;
}

void transfer_end(struct transfer *transfer)
{
    struct transfer_engine *engine = transfer->engine;
    assert(transfer->in_flight == 0 && transfer->copying == NULL);
    transfer_buffer_unwait(transfer);
    if (transfer->polled) {
        transfer->polled = false;
        DL_DELETE2(engine->polled, transfer, poll_prev, poll_next);
    }
    for (struct transfer_piece *piece = transfer->free; piece != NULL; piece = piece->next) {
        transfer_buffer_give(transfer, &piece->block);
    }
    if (transfer->packed.data != NULL) {
        memory_pool_give(engine->pool, &transfer->packed);
    }
    if (transfer->event != NULL) {
        transfer_device_forget(transfer->device, transfer->event);
    }
    transfer->phase = PHASE_ENDED;
    DL_APPEND2(engine->ended, transfer, queue_prev, queue_next);
}

unsigned transfer_settle(struct transfer_engine *engine)
{
    unsigned happened = 0;
    if (engine->settling) {
        return 0;
    }
    engine->settling = true;
    do {
        struct transfer *transfer = engine->ended;
        if (transfer != NULL) {
            DL_DELETE2(engine->ended, transfer, queue_prev, queue_next);
            if (transfer->done != NULL) {
                if (transfer->status != FERRY_OK) {
                    error_raise_record(&transfer->error);
                }
                transfer->done(transfer->context, transfer->status);
            }
            transfer_recycle(transfer);
            happened++;
        }
        if (transfer_buffers_wanted(engine)) {
            happened += transfer_buffers_grant(engine);
        }
    } while (engine->ended != NULL);
    engine->settling = false;
    return happened;
}

unsigned transfer_engine_progress(struct transfer_engine *engine)
{
    unsigned happened = 0;
    struct transfer *transfer, *next;
    DL_FOREACH_SAFE2(engine->polled, transfer, next, poll_next)
    {
        transfer_poll(transfer, &happened);
    }
    if (engine->gives != NULL) {
        happened += transfer_gives_progress(engine);
    }
    if (transfer_buffers_wanted(engine)) {
        transfer_buffers_unstall(engine);
    }
    return happened + transfer_settle(engine);
}

bool transfer_engine_polls(const struct transfer_engine *engine)
{
    return engine->polled != NULL || engine->gives != NULL || engine->ended != NULL ||
           transfer_buffers_wanted(engine);
}

size_t transfer_engine_active(const struct transfer_engine *engine)
{
    return engine->active_count;
}

void transfer_link_lost(struct transfer_engine *engine, const ferry_link_t *link,
                        ferry_status_t status)
{
    struct error_record why;
    error_record_take(&why);
    struct transfer *transfer, *next;
    DL_FOREACH_SAFE2(engine->active, transfer, next, active_next)
    {
        if (transfer->link != link || transfer->phase == PHASE_ENDED) {
            continue;
        }
        transfer->link = NULL;
        error_raise_record(&why);
        transfer_abort(transfer, status);
    }
    error_raise_record(&why);
}
