/* The simulated accelerator's back end: checks what it is given and queues it on its engine. */
#include <ferry/sim.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "core/config.h"
#include "core/error.h"
#include "core/log.h"
#include "device/builtin.h"
#include "device/host_memory.h"
#include "device/layout.h"
#include "device/registry.h"
#include "device/sim_engine.h"

struct ferry_event {
    int32_t index;
    struct sim_mark *mark; /* retained; NULL: never recorded */
};

static int32_t sim_count(void)
{
    return (int32_t)config_process()->sim_devices;
}

/* No other process sees the same device. */
static ferry_status_t sim_describe(int32_t index, ferry_device_info_t *info_out)
{
    static uint32_t process_number; /* 0: not yet drawn */
    uint32_t words[4] = {0};
    sim_lock();
    if (process_number == 0 &&
        getrandom(&process_number, sizeof process_number, GRND_NONBLOCK) < 0) {
        process_number = 1;
    }
    words[1] = process_number;
    sim_unlock();
    memcpy(words, "FSIM", sizeof words[0]);
    words[2] = (uint32_t)getpid();
    words[3] = (uint32_t)index;
    ferry_device_info_t info = {.memory_bytes = SIM_MEMORY_BYTES_MAX};
    snprintf(info.name, sizeof info.name, "simulated accelerator");
    memcpy(info.uuid, words, sizeof info.uuid);
    *info_out = info;
    return FERRY_OK;
}

/* ---- memory ---- */

static ferry_status_t sim_allocate(int32_t index, size_t bytes, void **memory_out)
{
    struct sim_device *device;
    struct sim_block *block;
    if (bytes == 0) {
        *memory_out = NULL;
        return FERRY_OK;
    }
    sim_lock();
    ferry_status_t status = sim_device_find(index, &device);
    if (status == FERRY_OK) {
        status = sim_memory_add(&device->memory, index, bytes, &block);
    }
    if (status == FERRY_OK) {
        *memory_out = sim_memory_user(&device->memory, block);
    }
    sim_unlock();
    return status;
}

static void sim_deallocate(int32_t index, void *memory)
{
    if (memory == NULL) {
        return;
    }
    sim_lock();
    struct sim_device *device = sim_device_of(memory);
    struct sim_block *block = device == NULL ? NULL : sim_memory_find(&device->memory, memory);
    if (block == NULL || block->freed || device->index != index ||
        sim_memory_user(&device->memory, block) != memory) {
        error_raise(FERRY_ERR_DEVICE, "%p is freed on sim:%d, which has no block that begins there",
                    memory, (int)index);
        log_write(FERRY_LOG_ERROR, "%s", ferry_last_error()->text);
    } else {
        sim_block_free(device, block);
    }
    sim_unlock();
}

static ferry_status_t sim_allocate_staging(int32_t index, size_t bytes, void **memory_out)
{
    (void)index;
    return host_memory_allocate("sim", bytes, (size_t)sysconf(_SC_PAGESIZE), memory_out);
}

static void sim_deallocate_staging(int32_t index, void *memory)
{
    (void)index;
    free(memory);
}

/* Bytes that an operation uses on a device, as the engine reaches them; any_index: memory of any
 * simulated device will do. */
static ferry_status_t device_bytes(int32_t index, bool any_index, const void *pointer, size_t bytes,
                                   struct sim_block **block_out, char **own_out)
{
    struct sim_device *device = sim_device_of(pointer);
    if (device == NULL) {
        return error_raise(FERRY_ERR_DEVICE, "%p is no memory of sim:%d", pointer, (int)index);
    }
    if (device->index != index && !any_index) {
        return error_raise(FERRY_ERR_DEVICE, "%p is memory of sim:%d, not of sim:%d", pointer,
                           (int)device->index, (int)index);
    }
    struct sim_block *block = sim_memory_find(&device->memory, pointer);
    if (block == NULL || block->freed) {
        return error_raise(FERRY_ERR_DEVICE,
                           "%p is in no block of sim:%d: never allocated, or freed", pointer,
                           (int)device->index);
    }
    const char *start = sim_memory_user(&device->memory, block);
    size_t inside = (size_t)((const char *)pointer - start);
    if (bytes > block->bytes - inside) {
        return error_raise(FERRY_ERR_DEVICE,
                           "%zu bytes at %p run over the end of sim:%d's block of %zu bytes at %p",
                           bytes, pointer, (int)device->index, block->bytes, (const void *)start);
    }
    *block_out = block;
    *own_out = sim_memory_own(&device->memory, pointer);
    return FERRY_OK;
}

static ferry_status_t host_bytes(const void *pointer)
{
    struct sim_device *device = sim_device_of(pointer);
    if (device != NULL || pointer == NULL) {
        return error_raise(FERRY_ERR_DEVICE, "%p is no host memory%s", pointer,
                           device != NULL ? " but a simulated device's" : "");
    }
    return FERRY_OK;
}

/* ---- streams ---- */

/* Takes the lock; what it finds is good until the lock is dropped. */
static ferry_status_t lock_stream(int32_t index, uintptr_t value, struct sim_stream **stream_out)
{
    struct sim_device *device;
    sim_lock();
    ferry_status_t status = sim_device_find(index, &device);
    return status != FERRY_OK ? status : sim_stream_find(device, value, stream_out);
}

static ferry_status_t sim_stream_create(int32_t index, uintptr_t *stream_out)
{
    struct sim_device *device;
    struct sim_stream *stream;
    sim_lock();
    ferry_status_t status = sim_device_find(index, &device);
    if (status == FERRY_OK) {
        status = sim_stream_add(device, &stream);
    }
    sim_unlock();
    if (status == FERRY_OK) {
        *stream_out = (uintptr_t)stream;
    }
    return status;
}

static void sim_stream_destroy(int32_t index, uintptr_t value)
{
    struct sim_stream *stream;
    if (lock_stream(index, value, &stream) == FERRY_OK && value > 2) {
        sim_stream_remove(stream);
    }
    sim_unlock();
}

static ferry_status_t sim_stream_synchronize(int32_t index, uintptr_t value)
{
    struct sim_stream *stream;
    struct sim_mark *mark;
    ferry_status_t status = lock_stream(index, value, &stream);
    if (status == FERRY_OK) {
        status = sim_stream_mark(stream, &mark);
    }
    if (status == FERRY_OK) {
        status = sim_mark_wait(mark);
        sim_mark_release(mark);
    }
    sim_unlock();
    return status;
}

/* ---- events ---- */

static ferry_status_t sim_event_create(int32_t index, ferry_event_t **event_out)
{
    struct ferry_event *event = calloc(1, sizeof *event);
    if (event == NULL) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory for an event of sim:%d", (int)index);
    }
    event->index = index;
    *event_out = event;
    return FERRY_OK;
}

static void sim_event_destroy(ferry_event_t *event)
{
    if (event == NULL) {
        return;
    }
    sim_lock();
    sim_mark_release(event->mark);
    sim_unlock();
    free(event);
}

static ferry_status_t sim_event_record(ferry_event_t *event, uintptr_t value)
{
    struct sim_stream *stream;
    struct sim_mark *mark;
    ferry_status_t status = lock_stream(event->index, value, &stream);
    if (status == FERRY_OK) {
        status = sim_stream_mark(stream, &mark);
    }
    if (status == FERRY_OK) {
        sim_mark_release(event->mark);
        event->mark = mark;
    }
    sim_unlock();
    return status;
}

static ferry_status_t sim_event_query(ferry_event_t *event)
{
    ferry_status_t status = FERRY_OK;
    sim_lock();
    if (event->mark != NULL && !event->mark->passed) {
        status = FERRY_PENDING;
    } else if (event->mark != NULL && event->mark->failed) {
        status = error_raise(FERRY_ERR_DEVICE, "%s", event->mark->failure);
    }
    sim_unlock();
    return status;
}

static ferry_status_t sim_stream_wait(int32_t index, uintptr_t value, ferry_event_t *event)
{
    struct sim_stream *stream;
    ferry_status_t status = lock_stream(index, value, &stream);
    if (status == FERRY_OK && event->mark != NULL) {
        struct sim_operation operation = {.kind = SIM_WAIT_MARK, .mark = event->mark};
        status = sim_stream_queue(stream, &operation);
    }
    sim_unlock();
    return status;
}

static ferry_status_t sim_stream_wait_flag(int32_t index, uintptr_t value, uint32_t *flag)
{
    struct sim_stream *stream;
    struct sim_operation operation = {.kind = SIM_WAIT_FLAG, .flag = flag};
    ferry_status_t status = lock_stream(index, value, &stream);
    if (status == FERRY_OK) {
        status = host_bytes(flag);
    }
    if (status == FERRY_OK) {
        status = sim_stream_queue(stream, &operation);
    }
    sim_unlock();
    return status;
}

/* ---- copies ---- */

static ferry_status_t sim_copy(int32_t index, uintptr_t value, ferry_copy_kind_t kind, void *target,
                               const void *source, size_t bytes)
{
    struct sim_stream *stream;
    struct sim_operation operation = {.kind = SIM_COPY,
                                      .copy = {.target = target, .source = source, .bytes = bytes}};
    ferry_status_t status = lock_stream(index, value, &stream);
    if (status != FERRY_OK || bytes == 0) {
        goto unlock;
    }
    if (kind == FERRY_COPY_FROM_HOST) {
        status = host_bytes(source);
    } else {
        char *own;
        status = device_bytes(index, kind == FERRY_COPY_ON_DEVICE, source, bytes,
                              &operation.blocks[0], &own);
        operation.copy.source = own;
    }
    if (status != FERRY_OK) {
        goto unlock;
    }
    if (kind == FERRY_COPY_TO_HOST) {
        status = host_bytes(target);
    } else {
        status = device_bytes(index, kind == FERRY_COPY_ON_DEVICE, target, bytes,
                              &operation.blocks[1], &operation.copy.target);
    }
    if (status == FERRY_OK) {
        status = sim_stream_queue(stream, &operation);
    }

unlock:
    sim_unlock();
    return status;
}

static ferry_status_t queue_strided(int32_t index, uintptr_t value, enum sim_operation_kind kind,
                                    const DLTensor *view, const void *packed)
{
    struct sim_stream *stream;
    struct sim_operation operation = {.kind = kind};
    ferry_layout_t *layout = &operation.strided.layout;
    ferry_status_t status = layout_init(view, layout);
    if (status != FERRY_OK) {
        return status;
    }
    status = lock_stream(index, value, &stream);
    if (status != FERRY_OK || layout->bytes == 0) {
        goto unlock;
    }
    int64_t low, high;
    char *own;
    layout_reach(layout, &low, &high);
    status = device_bytes(index, false, (char *)layout->data + low, (size_t)(high - low),
                          &operation.blocks[0], &own);
    if (status != FERRY_OK) {
        goto unlock;
    }
    layout->data = own - low;
    status = device_bytes(index, false, packed, layout->bytes, &operation.blocks[1],
                          &operation.strided.packed);
    if (status == FERRY_OK) {
        status = sim_stream_queue(stream, &operation);
    }

unlock:
    sim_unlock();
    return status;
}

static ferry_status_t sim_gather(int32_t index, uintptr_t stream, void *packed,
                                 const DLTensor *view)
{
    return queue_strided(index, stream, SIM_GATHER, view, packed);
}

static ferry_status_t sim_scatter(int32_t index, uintptr_t stream, const DLTensor *view,
                                  const void *packed)
{
    return queue_strided(index, stream, SIM_SCATTER, view, packed);
}

/* ---- for tests ---- */

static ferry_status_t check_sim(const char *function, DLDevice device)
{
    char text[FERRY_DEVICE_TEXT_BYTES];
    const ferry_device_backend_t *backend;
    if ((int)device.device_type != FERRY_DEVICE_SIM) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT, "%s: %s is no simulated device", function,
                           ferry_device_print(device, text));
    }
    return device_check(device, &backend);
}

ferry_status_t ferry_sim_launch(DLDevice device, uintptr_t value, void (*kernel)(void *context),
                                void *context, int64_t delay_ns)
{
    struct sim_stream *stream;
    struct sim_operation operation = {
        .kind = SIM_KERNEL, .kernel = {.run = kernel, .context = context}, .delay_ns = delay_ns};
    if (kernel == NULL) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT, "ferry_sim_launch: the kernel is NULL");
    }
    ferry_status_t status = check_sim("ferry_sim_launch", device);
    if (status != FERRY_OK) {
        return status;
    }
    status = lock_stream(device.device_id, value, &stream);
    if (status == FERRY_OK) {
        status = sim_stream_queue(stream, &operation);
    }
    sim_unlock();
    return status;
}

void *ferry_sim_host_pointer(const void *device_pointer)
{
    sim_lock();
    void *pointer = sim_kernel_pointer(device_pointer);
    sim_unlock();
    return pointer;
}

ferry_status_t ferry_sim_hold(DLDevice device, uintptr_t value)
{
    struct sim_stream *stream;
    ferry_status_t status = check_sim("ferry_sim_hold", device);
    if (status != FERRY_OK) {
        return status;
    }
    status = lock_stream(device.device_id, value, &stream);
    if (status == FERRY_OK) {
        sim_stream_hold(stream);
    }
    sim_unlock();
    return status;
}

ferry_status_t ferry_sim_resume(DLDevice device, uintptr_t value)
{
    struct sim_stream *stream;
    ferry_status_t status = check_sim("ferry_sim_resume", device);
    if (status != FERRY_OK) {
        return status;
    }
    status = lock_stream(device.device_id, value, &stream);
    if (status == FERRY_OK) {
        sim_stream_resume(stream);
    }
    sim_unlock();
    return status;
}

ferry_status_t ferry_sim_fail(DLDevice device, uintptr_t value, const char *text)
{
    struct sim_stream *stream;
    struct sim_operation operation = {.kind = SIM_FAIL};
    ferry_status_t status = check_sim("ferry_sim_fail", device);
    if (status != FERRY_OK) {
        return status;
    }
    snprintf(operation.failure, sizeof operation.failure, "%s", text == NULL ? "failed" : text);
    status = lock_stream(device.device_id, value, &stream);
    if (status == FERRY_OK) {
        status = sim_stream_queue(stream, &operation);
    }
    sim_unlock();
    return status;
}

const ferry_device_backend_t device_sim = {
    .struct_bytes = sizeof(ferry_device_backend_t),
    .abi = FERRY_DEVICE_BACKEND_ABI,
    .kind = "sim",
    .type = (DLDeviceType)FERRY_DEVICE_SIM,
    .host_readable = false,
    .count = sim_count,
    .describe = sim_describe,
    .allocate = sim_allocate,
    .deallocate = sim_deallocate,
    .allocate_staging = sim_allocate_staging,
    .deallocate_staging = sim_deallocate_staging,
    .stream_create = sim_stream_create,
    .stream_destroy = sim_stream_destroy,
    .stream_synchronize = sim_stream_synchronize,
    .event_create = sim_event_create,
    .event_destroy = sim_event_destroy,
    .event_record = sim_event_record,
    .event_query = sim_event_query,
    .stream_wait = sim_stream_wait,
    .copy = sim_copy,
    .gather = sim_gather,
    .scatter = sim_scatter,
    .stream_wait_flag = sim_stream_wait_flag,
};
