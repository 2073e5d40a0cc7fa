/* Buffers in any memory that Ferry knows. */
#include <string.h>

#include <ferry/device.h>

#include "ferry_perf/perf.h"

static const DLDevice HOST = {kDLCPU, 0};

ferry_status_t perf_buffer_create(DLDevice device, size_t bytes, struct perf_buffer *buffer_out)
{
    struct perf_buffer buffer = {.bytes = bytes, .device = device};
    ferry_status_t status = ferry_device_allocate(device, bytes, &buffer.data);
    if (status != FERRY_OK) {
        return status;
    }
    if (device.device_type == kDLCPU && bytes > 0) {
        memset(buffer.data, 0x5a, bytes); /* every page is there before the clock runs */
    }
    *buffer_out = buffer;
    return FERRY_OK;
}

void perf_buffer_destroy(struct perf_buffer *buffer)
{
    ferry_device_free(buffer->device, buffer->data);
    *buffer = (struct perf_buffer){.data = NULL};
}

ferry_status_t perf_buffer_write(struct perf_buffer *buffer, const void *data, size_t bytes)
{
    return bytes == 0 ? FERRY_OK
                      : ferry_device_copy(buffer->device, buffer->data, HOST, data, bytes);
}

ferry_status_t perf_buffer_read(const struct perf_buffer *buffer, void *data, size_t bytes)
{
    return bytes == 0 ? FERRY_OK
                      : ferry_device_copy(HOST, data, buffer->device, buffer->data, bytes);
}
