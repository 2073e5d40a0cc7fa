/* The engine's own streams and its store of events, and the blocks that wait for users' streams. */
#include <sched.h>
#include <stdlib.h>

#include "core/log.h"
#include "rpc/transfer_internal.h"

ferry_status_t transfer_device_find(struct transfer_engine *engine, DLDevice device,
                                    const ferry_device_backend_t *backend,
                                    struct transfer_device **device_out)
{
    for (struct transfer_device *known = engine->devices; known != NULL; known = known->next) {
        if (tensor_device_equal(known->device, device)) {
            *device_out = known;
            return FERRY_OK;
        }
    }
    struct transfer_device *fresh = calloc(1, sizeof *fresh);
    if (fresh == NULL) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory for the streams of %s:%d", backend->kind,
                           (int)device.device_id);
    }
    fresh->device = device;
    fresh->backend = backend;
    fresh->next = engine->devices;
    engine->devices = fresh;
    *device_out = fresh;
    return FERRY_OK;
}

void transfer_devices_finish(struct transfer_engine *engine)
{
    while (engine->devices != NULL) {
        struct transfer_device *device = engine->devices;
        int32_t index = device->device.device_id;
        engine->devices = device->next;
        for (int kind = 0; kind < 2; kind++) {
            if (device->has_stream[kind]) {
                device->backend->stream_synchronize(index, device->streams[kind]);
                device->backend->stream_destroy(index, device->streams[kind]);
            }
        }
        for (size_t i = 0; i < device->event_count; i++) {
            device->backend->event_destroy(device->events[i]);
        }
        free(device->events);
        free(device);
    }
}

ferry_status_t transfer_device_stream(struct transfer_device *device, enum transfer_kind kind,
                                      uintptr_t *stream_out)
{
    if (!device->has_stream[kind]) {
        ferry_status_t status =
            device->backend->stream_create(device->device.device_id, &device->streams[kind]);
        if (status != FERRY_OK) {
            return status;
        }
        device->has_stream[kind] = true;
    }
    *stream_out = device->streams[kind];
    return FERRY_OK;
}

ferry_status_t transfer_device_mark(struct transfer_device *device, uintptr_t stream,
                                    ferry_event_t **event_out)
{
    ferry_event_t *event;
    if (device->event_count > 0) {
        event = device->events[--device->event_count];
    } else {
        ferry_status_t status = device->backend->event_create(device->device.device_id, &event);
        if (status != FERRY_OK) {
            return status;
        }
    }
    ferry_status_t status = device->backend->event_record(event, stream);
    if (status != FERRY_OK) {
        transfer_device_forget(device, event);
        return status;
    }
    *event_out = event;
    return FERRY_OK;
}

void transfer_device_forget(struct transfer_device *device, ferry_event_t *event)
{
    if (event == NULL) {
        return;
    }
    if (device->event_count == device->event_capacity) {
        size_t capacity = device->event_capacity == 0 ? 16 : 2 * device->event_capacity;
        ferry_event_t **events = realloc(device->events, capacity * sizeof events[0]);
        if (events == NULL) {
            device->backend->event_destroy(event);
            return;
        }
        device->events = events;
        device->event_capacity = capacity;
    }
    device->events[device->event_count++] = event;
}

static struct transfer_give *give_take(struct transfer_engine *engine)
{
    struct transfer_give *give = engine->unused_gives;
    if (give != NULL) {
        engine->unused_gives = give->next;
        return give;
    }
    return malloc(sizeof *give);
}

static struct transfer_wait *wait_take(struct transfer_engine *engine)
{
    struct transfer_wait *wait = engine->unused_waits;
    if (wait != NULL) {
        engine->unused_waits = wait->next;
        return wait;
    }
    return malloc(sizeof *wait);
}

/* Where the stream is now becomes one more thing the block waits for. */
static ferry_status_t give_add(struct transfer_engine *engine, struct transfer_give *give,
                               struct transfer_device *device, uintptr_t stream)
{
    struct transfer_wait *wait = give == NULL ? NULL : wait_take(engine);
    if (wait == NULL) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory to remember a stream");
    }
    ferry_status_t status = transfer_device_mark(device, stream, &wait->event);
    if (status != FERRY_OK) {
        wait->next = engine->unused_waits;
        engine->unused_waits = wait;
        return status;
    }
    wait->device = device;
    wait->next = give->waits;
    give->waits = wait;
    return FERRY_OK;
}

/* Whether all streams have passed; those that have are taken off. */
static bool give_passed(struct transfer_engine *engine, struct transfer_give *give)
{
    while (give->waits != NULL) {
        struct transfer_wait *wait = give->waits;
        ferry_status_t status = wait->device->backend->event_query(wait->event);
        if (status == FERRY_PENDING) {
            return false;
        }
        if (status != FERRY_OK) {
            log_write(FERRY_LOG_ERROR, "a stream that still used received memory failed: %s",
                      ferry_last_error()->text);
        }
        give->waits = wait->next;
        transfer_device_forget(wait->device, wait->event);
        wait->next = engine->unused_waits;
        engine->unused_waits = wait;
    }
    return true;
}

static void give_end(struct transfer_engine *engine, struct transfer_give *give)
{
    memory_pool_give(engine->pool, &give->block);
    give->next = engine->unused_gives;
    engine->unused_gives = give;
}

void transfer_give_after(struct transfer_engine *engine, const struct memory_block *block,
                         const uintptr_t *streams, size_t stream_count)
{
    const ferry_device_backend_t *backend = NULL;
    struct transfer_device *device = NULL;
    struct transfer_give *give = NULL;
    DLDevice place = device_normal(block->device);
    for (size_t i = 0; i < stream_count && block->data != NULL; i++) {
        if (streams[i] == 0) {
            continue;
        }
        if (backend == NULL) {
            backend = device_backend(place.device_type);
            if (backend == NULL || backend->host_readable) {
                break;
            }
            give = give_take(engine);
            if (give != NULL) {
                give->waits = NULL;
            }
        }
        ferry_status_t status =
            device != NULL ? FERRY_OK : transfer_device_find(engine, place, backend, &device);
        if (status == FERRY_OK) {
            status = give_add(engine, give, device, streams[i]);
        }
        if (status != FERRY_OK) {
            log_write(FERRY_LOG_WARN,
                      "waiting for a stream of %s:%d before its memory is reused: "
                      "%s",
                      backend->kind, (int)place.device_id, ferry_last_error()->text);
            backend->stream_synchronize(place.device_id, streams[i]);
        }
    }
    if (give == NULL) {
        memory_pool_give(engine->pool, block);
        return;
    }
    give->block = *block;
    if (give_passed(engine, give)) {
        give_end(engine, give);
        return;
    }
    give->next = engine->gives;
    engine->gives = give;
}

unsigned transfer_gives_progress(struct transfer_engine *engine)
{
    unsigned happened = 0;
    struct transfer_give **at = &engine->gives;
    while (*at != NULL) {
        struct transfer_give *give = *at;
        if (!give_passed(engine, give)) {
            at = &give->next;
            continue;
        }
        *at = give->next;
        give_end(engine, give);
        happened++;
    }
    return happened;
}

void transfer_gives_finish(struct transfer_engine *engine)
{
    int64_t deadline = clock_deadline_ns(clock_monotonic_ns(), engine->release_timeout_ns);
    while (engine->gives != NULL && clock_monotonic_ns() < deadline) {
        if (transfer_gives_progress(engine) == 0) {
            sched_yield();
        }
    }
    while (engine->gives != NULL) {
        /* Freeing device memory waits for the device by itself, so this is late and not wrong. */
        struct transfer_give *give = engine->gives;
        engine->gives = give->next;
        log_write(FERRY_LOG_WARN, "a stream uses %zu bytes of received memory to the very end",
                  give->block.bytes);
        while (give->waits != NULL) {
            struct transfer_wait *wait = give->waits;
            give->waits = wait->next;
            wait->device->backend->event_destroy(wait->event);
            free(wait);
        }
        give_end(engine, give);
    }
    while (engine->unused_gives != NULL) {
        struct transfer_give *give = engine->unused_gives;
        engine->unused_gives = give->next;
        free(give);
    }
    while (engine->unused_waits != NULL) {
        struct transfer_wait *wait = engine->unused_waits;
        engine->unused_waits = wait->next;
        free(wait);
    }
}
