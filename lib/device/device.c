/* The public functions on devices: memory, copies and streams for programs that name no device API. */
#include <ferry/device.h>

#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "device/host_memory.h"
#include "device/registry.h"

/* Between two kinds of device bytes go through host memory in pieces of this size. */
#define BRIDGE_BYTES ((size_t)8 << 20)

int32_t ferry_device_count(DLDeviceType type)
{
    DLDevice device = device_normal((DLDevice){.device_type = type, .device_id = 0});
    const ferry_device_backend_t *backend = device_backend(device.device_type);
    return backend == NULL ? 0 : backend->count();
}

ferry_status_t ferry_device_allocate(DLDevice device, size_t bytes, void **memory_out)
{
    const ferry_device_backend_t *backend;
    if (memory_out == NULL) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT, "ferry_device_allocate: memory_out is NULL");
    }
    ferry_status_t status = device_check(device, &backend);
    if (status != FERRY_OK) {
        return status;
    }
    return backend->allocate(device_normal(device).device_id, bytes, memory_out);
}

void ferry_device_free(DLDevice device, void *memory)
{
    const ferry_device_backend_t *backend;
    if (memory != NULL && device_check(device, &backend) == FERRY_OK) {
        backend->deallocate(device_normal(device).device_id, memory);
    }
}

/* One copy on a stream of its own, which waits for nothing that the program queued. */
static ferry_status_t copy_and_wait(const ferry_device_backend_t *backend, int32_t index,
                                    ferry_copy_kind_t kind, void *target, const void *source,
                                    size_t bytes)
{
    uintptr_t stream;
    ferry_status_t status = backend->stream_create(index, &stream);
    if (status != FERRY_OK) {
        return status;
    }
    status = backend->copy(index, stream, kind, target, source, bytes);
    if (status == FERRY_OK) {
        status = backend->stream_synchronize(index, stream);
    }
    backend->stream_destroy(index, stream);
    return status;
}

static ferry_status_t copy_through_host(const ferry_device_backend_t *to, int32_t to_index,
                                        char *target, const ferry_device_backend_t *from,
                                        int32_t from_index, const char *source, size_t bytes)
{
    size_t piece = bytes < BRIDGE_BYTES ? bytes : BRIDGE_BYTES;
    void *bridge = NULL;
    ferry_status_t status = host_memory_allocate("cpu", piece, sizeof(void *), &bridge);
    for (size_t at = 0; status == FERRY_OK && at < bytes; at += piece) {
        size_t length = bytes - at < piece ? bytes - at : piece;
        status = copy_and_wait(from, from_index, FERRY_COPY_TO_HOST, bridge, source + at, length);
        if (status == FERRY_OK) {
            status = copy_and_wait(to, to_index, FERRY_COPY_FROM_HOST, target + at, bridge, length);
        }
    }
    free(bridge);
    return status;
}

ferry_status_t ferry_device_copy(DLDevice target_device, void *target, DLDevice source_device,
                                 const void *source, size_t bytes)
{
    const ferry_device_backend_t *to, *from;
    ferry_status_t status = device_check(target_device, &to);
    if (status == FERRY_OK) {
        status = device_check(source_device, &from);
    }
    if (status != FERRY_OK || bytes == 0) {
        return status;
    }
    if (target == NULL || source == NULL) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT, "ferry_device_copy: %s is NULL",
                           target == NULL ? "target" : "source");
    }
    int32_t to_index = device_normal(target_device).device_id;
    int32_t from_index = device_normal(source_device).device_id;
    if (to->host_readable && from->host_readable) {
        memmove(target, source, bytes);
        return FERRY_OK;
    }
    if (to->host_readable) {
        return copy_and_wait(from, from_index, FERRY_COPY_TO_HOST, target, source, bytes);
    }
    if (from->host_readable) {
        return copy_and_wait(to, to_index, FERRY_COPY_FROM_HOST, target, source, bytes);
    }
    if (to == from) {
        return copy_and_wait(to, to_index, FERRY_COPY_ON_DEVICE, target, source, bytes);
    }
    return copy_through_host(to, to_index, target, from, from_index, source, bytes);
}

ferry_status_t ferry_device_stream_create(DLDevice device, uintptr_t *stream_out)
{
    const ferry_device_backend_t *backend;
    if (stream_out == NULL) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT,
                           "ferry_device_stream_create: stream_out is NULL");
    }
    ferry_status_t status = device_check(device, &backend);
    if (status != FERRY_OK) {
        return status;
    }
    return backend->stream_create(device_normal(device).device_id, stream_out);
}

void ferry_device_stream_destroy(DLDevice device, uintptr_t stream)
{
    const ferry_device_backend_t *backend;
    if (stream != 0 && device_check(device, &backend) == FERRY_OK) {
        backend->stream_destroy(device_normal(device).device_id, stream);
    }
}

ferry_status_t ferry_device_stream_synchronize(DLDevice device, uintptr_t stream)
{
    const ferry_device_backend_t *backend;
    ferry_status_t status = device_check(device, &backend);
    if (status != FERRY_OK) {
        return status;
    }
    return backend->stream_synchronize(device_normal(device).device_id, stream);
}
