/* The host itself: memory that needs no streams, so that everything is done when its slot returns. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"
#include "device/builtin.h"
#include "device/host_memory.h"
#include "device/layout.h"

#define ALIGNMENT 256

static int32_t cpu_count(void)
{
    return 1;
}

static ferry_status_t cpu_describe(int32_t index, ferry_device_info_t *info_out)
{
    (void)index;
    *info_out = (ferry_device_info_t){
        .name = "cpu",
        .memory_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE),
    };
    return FERRY_OK;
}

static ferry_status_t cpu_allocate(int32_t index, size_t bytes, void **memory_out)
{
    (void)index;
    return host_memory_allocate("cpu", bytes, ALIGNMENT, memory_out);
}

static void cpu_deallocate(int32_t index, void *memory)
{
    (void)index;
    free(memory);
}

static ferry_status_t cpu_allocate_staging(int32_t index, size_t bytes, void **memory_out)
{
    (void)index;
    return host_memory_allocate("cpu", bytes, (size_t)sysconf(_SC_PAGESIZE), memory_out);
}

static ferry_status_t no_streams(void)
{
    return error_raise(FERRY_ERR_UNSUPPORTED, "cpu has no streams: its work is done at once");
}

static ferry_status_t cpu_stream_create(int32_t index, uintptr_t *stream_out)
{
    (void)index;
    (void)stream_out;
    return no_streams();
}

static void cpu_stream_destroy(int32_t index, uintptr_t stream)
{
    (void)index;
    (void)stream;
}

static ferry_status_t cpu_stream_synchronize(int32_t index, uintptr_t stream)
{
    (void)index;
    return stream == 0 ? FERRY_OK : no_streams();
}

/* An event on the host has always passed, so that all of them can be one. */
static char passed;

static ferry_status_t cpu_event_create(int32_t index, ferry_event_t **event_out)
{
    (void)index;
    *event_out = (ferry_event_t *)(void *)&passed;
    return FERRY_OK;
}

static void cpu_event_destroy(ferry_event_t *event)
{
    (void)event;
}

static ferry_status_t cpu_event_record(ferry_event_t *event, uintptr_t stream)
{
    (void)event;
    return stream == 0 ? FERRY_OK : no_streams();
}

static ferry_status_t cpu_event_query(ferry_event_t *event)
{
    (void)event;
    return FERRY_OK;
}

static ferry_status_t cpu_stream_wait(int32_t index, uintptr_t stream, ferry_event_t *event)
{
    (void)index;
    (void)event;
    return stream == 0 ? FERRY_OK : no_streams();
}

static ferry_status_t cpu_copy(int32_t index, uintptr_t stream, ferry_copy_kind_t kind,
                               void *target, const void *source, size_t bytes)
{
    (void)index;
    (void)kind;
    if (stream != 0) {
        return no_streams();
    }
    if (bytes > 0) {
        memcpy(target, source, bytes);
    }
    return FERRY_OK;
}

static ferry_status_t cpu_gather(int32_t index, uintptr_t stream, void *packed,
                                 const DLTensor *view)
{
    (void)index;
    ferry_layout_t layout;
    ferry_status_t status = stream == 0 ? layout_init(view, &layout) : no_streams();
    if (status == FERRY_OK) {
        layout_gather(&layout, layout.data, packed);
    }
    return status;
}

static ferry_status_t cpu_scatter(int32_t index, uintptr_t stream, const DLTensor *view,
                                  const void *packed)
{
    (void)index;
    ferry_layout_t layout;
    ferry_status_t status = stream == 0 ? layout_init(view, &layout) : no_streams();
    if (status == FERRY_OK) {
        layout_scatter(&layout, layout.data, packed);
    }
    return status;
}

static ferry_status_t cpu_stream_wait_flag(int32_t index, uintptr_t stream, uint32_t *flag)
{
    (void)index;
    (void)stream;
    (void)flag;
    return no_streams();
}

const ferry_device_backend_t device_cpu = {
    .struct_bytes = sizeof(ferry_device_backend_t),
    .abi = FERRY_DEVICE_BACKEND_ABI,
    .kind = "cpu",
    .type = kDLCPU,
    .host_readable = true,
    .count = cpu_count,
    .describe = cpu_describe,
    .allocate = cpu_allocate,
    .deallocate = cpu_deallocate,
    .allocate_staging = cpu_allocate_staging,
    .deallocate_staging = cpu_deallocate,
    .stream_create = cpu_stream_create,
    .stream_destroy = cpu_stream_destroy,
    .stream_synchronize = cpu_stream_synchronize,
    .event_create = cpu_event_create,
    .event_destroy = cpu_event_destroy,
    .event_record = cpu_event_record,
    .event_query = cpu_event_query,
    .stream_wait = cpu_stream_wait,
    .copy = cpu_copy,
    .gather = cpu_gather,
    .scatter = cpu_scatter,
    .stream_wait_flag = cpu_stream_wait_flag,
};
