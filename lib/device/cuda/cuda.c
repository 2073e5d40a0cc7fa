/* The CUDA back end: memory, streams and events. */
#include <stdlib.h>
#include <sys/mman.h>

#include "device/cuda/cuda_module.h"

#define PAGE_BYTES ((size_t)4096)
#define HUGE_PAGE_BYTES ((size_t)2 << 20)
/* No device has more, and CUDA calls it an invalid value. */
#define MEMORY_BYTES_MAX ((size_t)1 << 47)

struct ferry_event {
    int32_t index;
    cudaEvent_t event;
};

/* ---- memory ---- */

static ferry_status_t no_memory(int32_t index, size_t bytes, const char *words)
{
    cudaGetLastError();
    return cuda_host->raise(FERRY_ERR_NO_MEMORY, "no memory for %zu bytes on cuda:%d: %s", bytes,
                            (int)index, words);
}

static ferry_status_t cuda_allocate(int32_t index, size_t bytes, void **memory_out)
{
    if (bytes == 0) {
        *memory_out = NULL;
        return FERRY_OK;
    }
    if (bytes >= MEMORY_BYTES_MAX) {
        return no_memory(index, bytes, "more than any device has");
    }
    ferry_status_t status = cuda_enter(index);
    if (status != FERRY_OK) {
        return status;
    }
    cuda_release_pending(index);
    void *memory = NULL;
    cudaError_t error = cudaMalloc(&memory, bytes);
    if (error == cudaErrorMemoryAllocation) {
        status = no_memory(index, bytes, cudaGetErrorString(error));
    } else {
        status = cuda_check(error, index, "cudaMalloc");
    }
    cuda_leave();
    if (status == FERRY_OK) {
        *memory_out = memory;
    }
    return status;
}

static void cuda_deallocate(int32_t index, void *memory)
{
    if (memory == NULL || cuda_enter(index) != FERRY_OK) {
        return;
    }
    cuda_release(index, memory, false);
    cuda_leave();
}

/* Plain pages that are pinned afterwards: unlike cudaHostAlloc()'s, other processes and network
 * cards can reach them like any memory, and they may be huge ones. */
static ferry_status_t cuda_allocate_staging(int32_t index, size_t bytes, void **memory_out)
{
    if (bytes == 0) {
        *memory_out = NULL;
        return FERRY_OK;
    }
    if (bytes >= MEMORY_BYTES_MAX) {
        return no_memory(index, bytes, "more than any host has");
    }
    void *memory = NULL;
    size_t whole = (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES; /* no page in two blocks */
    if (posix_memalign(&memory, whole >= HUGE_PAGE_BYTES ? HUGE_PAGE_BYTES : PAGE_BYTES, whole) !=
        0) {
        return no_memory(index, bytes, "the host's memory is full");
    }
    if (whole >= HUGE_PAGE_BYTES) {
        madvise(memory, whole, MADV_HUGEPAGE); /* a wish: kernels without it serve small pages */
    }
    ferry_status_t status = cuda_enter(index);
    if (status == FERRY_OK) {
        cudaError_t error =
            cudaHostRegister(memory, whole, cudaHostRegisterPortable | cudaHostRegisterMapped);
        status = cuda_check(error, index, "cudaHostRegister");
        cuda_leave();
    }
    if (status != FERRY_OK) {
        free(memory);
        return status;
    }
    *memory_out = memory;
    return FERRY_OK;
}

static void cuda_deallocate_staging(int32_t index, void *memory)
{
    if (memory == NULL || cuda_enter(index) != FERRY_OK) {
        return;
    }
    cuda_release(index, memory, true);
    cuda_leave();
}

/* ---- streams ---- */

static ferry_status_t cuda_stream_create(int32_t index, uintptr_t *stream_out)
{
    int least, greatest;
    cudaStream_t stream;
    ferry_status_t status = cuda_enter(index);
    if (status != FERRY_OK) {
        return status;
    }
    status = cuda_check(cudaDeviceGetStreamPriorityRange(&least, &greatest), index,
                        "cudaDeviceGetStreamPriorityRange");
    if (status == FERRY_OK) {
        status = cuda_check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest),
                            index, "cudaStreamCreateWithPriority");
    }
    cuda_leave();
    if (status == FERRY_OK) {
        *stream_out = (uintptr_t)stream;
    }
    return status;
}

static void cuda_stream_destroy(int32_t index, uintptr_t stream)
{
    if (stream <= 2 || cuda_enter(index) != FERRY_OK) {
        return; /* the default streams are nobody's */
    }
    cuda_complain(cudaStreamDestroy((cudaStream_t)stream), index, "cudaStreamDestroy");
    cuda_leave();
}

static ferry_status_t cuda_stream_synchronize(int32_t index, uintptr_t stream)
{
    ferry_status_t status = cuda_enter(index);
    if (status != FERRY_OK) {
        return status;
    }
    status =
        cuda_check(cudaStreamSynchronize((cudaStream_t)stream), index, "cudaStreamSynchronize");
    cuda_leave();
    return status;
}

static ferry_status_t cuda_stream_wait_flag(int32_t index, uintptr_t stream, uint32_t *flag)
{
    ferry_status_t status = cuda_enter(index);
    if (status != FERRY_OK) {
        return status;
    }
    status = cuda_queue_flag_wait(index, (cudaStream_t)stream, flag);
    cuda_leave();
    return status;
}

/* ---- events ---- */

static ferry_status_t cuda_event_create(int32_t index, ferry_event_t **event_out)
{
    struct ferry_event *event = malloc(sizeof *event);
    if (event == NULL) {
        return cuda_host->raise(FERRY_ERR_NO_MEMORY, "no memory for an event of cuda:%d",
                                (int)index);
    }
    event->index = index;
    ferry_status_t status = cuda_enter(index);
    if (status == FERRY_OK) {
        status = cuda_check(cudaEventCreateWithFlags(&event->event, cudaEventDisableTiming), index,
                            "cudaEventCreateWithFlags");
        cuda_leave();
    }
    if (status != FERRY_OK) {
        free(event);
        return status;
    }
    *event_out = event;
    return FERRY_OK;
}

static void cuda_event_destroy(ferry_event_t *event)
{
    if (event == NULL) {
        return;
    }
    if (cuda_enter(event->index) == FERRY_OK) {
        cuda_complain(cudaEventDestroy(event->event), event->index, "cudaEventDestroy");
        cuda_leave();
    }
    free(event);
}

static ferry_status_t cuda_event_record(ferry_event_t *event, uintptr_t stream)
{
    ferry_status_t status = cuda_enter(event->index);
    if (status != FERRY_OK) {
        return status;
    }
    status = cuda_check(cudaEventRecord(event->event, (cudaStream_t)stream), event->index,
                        "cudaEventRecord");
    cuda_leave();
    return status;
}

static ferry_status_t cuda_event_query(ferry_event_t *event)
{
    ferry_status_t status = cuda_enter(event->index);
    if (status != FERRY_OK) {
        return status;
    }
    cudaError_t error = cudaEventQuery(event->event);
    status = error == cudaErrorNotReady ? FERRY_PENDING
                                        : cuda_check(error, event->index, "cudaEventQuery");
    cuda_leave();
    return status;
}

static ferry_status_t cuda_stream_wait(int32_t index, uintptr_t stream, ferry_event_t *event)
{
    ferry_status_t status = cuda_enter(index);
    if (status != FERRY_OK) {
        return status;
    }
    status = cuda_check(cudaStreamWaitEvent((cudaStream_t)stream, event->event, 0), index,
                        "cudaStreamWaitEvent");
    cuda_leave();
    return status;
}

static const ferry_device_backend_t backend = {
    .struct_bytes = sizeof(ferry_device_backend_t),
    .abi = FERRY_DEVICE_BACKEND_ABI,
    .kind = "cuda",
    .type = kDLCUDA,
    .host_readable = false,
    .count = cuda_count,
    .describe = cuda_describe,
    .allocate = cuda_allocate,
    .deallocate = cuda_deallocate,
    .allocate_staging = cuda_allocate_staging,
    .deallocate_staging = cuda_deallocate_staging,
    .stream_create = cuda_stream_create,
    .stream_destroy = cuda_stream_destroy,
    .stream_synchronize = cuda_stream_synchronize,
    .event_create = cuda_event_create,
    .event_destroy = cuda_event_destroy,
    .event_record = cuda_event_record,
    .event_query = cuda_event_query,
    .stream_wait = cuda_stream_wait,
    .copy = cuda_copy,
    .gather = cuda_gather,
    .scatter = cuda_scatter,
    .stream_wait_flag = cuda_stream_wait_flag,
};

FERRY_API ferry_device_backend_fn ferry_device_backend;

const ferry_device_backend_t *ferry_device_backend(const ferry_device_host_t *host)
{
    return cuda_start(host) == FERRY_OK ? &backend : NULL;
}
