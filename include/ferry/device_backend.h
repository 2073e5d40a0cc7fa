/* The contract between Ferry and a kind of device: for authors of device back ends only. Nothing here blocks on a device
 * unless it says so: work is queued on streams, and events tell when it is done. Every back end
 * passes tests/contract.
 * All slots may be called from any thread, without locks held that user code could want. A back end
 * leaves the thread's current device as it found
 * it and creates no context on a device before the first allocate, stream or copy there. */
#ifndef FERRY_DEVICE_BACKEND_H
#define FERRY_DEVICE_BACKEND_H

#include <dlpack/dlpack.h>
#include <stdbool.h>
#include <stddef.h>

#include <ferry/status.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FERRY_DEVICE_BACKEND_ABI 1
/* The symbol a module exports: const ferry_device_backend_t *ferry_device_backend(const ferry_device_host_t *). NULL: cannot be used here. */
#define FERRY_DEVICE_BACKEND_SYMBOL "ferry_device_backend"

/* What libferry lends a module: how to raise an error and to log. */
typedef struct {
    size_t struct_bytes;
    ferry_status_t (*raise)(ferry_status_t status, const char *format, ...) FERRY_PRINTF(2, 3);
    void (*log)(int level, const char *format, ...) FERRY_PRINTF(2, 3);
} ferry_device_host_t;

typedef struct ferry_event ferry_event_t; /* a point in a stream, polled */

typedef struct {
    char name[64]; /* "NVIDIA H200" */
    uint8_t
        uuid[16]; /* the physical device, the same in every process that sees it; zeros: unknown */
    uint64_t memory_bytes;
    bool
        shared_turns; /* processes that share it take turns on its compute engine (CUDA without MPS) */
} ferry_device_info_t;

typedef enum { FERRY_COPY_TO_HOST, FERRY_COPY_FROM_HOST, FERRY_COPY_ON_DEVICE } ferry_copy_kind_t;

typedef struct ferry_device_backend {
    size_t struct_bytes;
    uint32_t abi;
    const char *kind;  /* "cuda" */
    DLDeviceType type; /* kDLCUDA */
    bool
        host_readable; /* the host can load and store this memory, and streams are not needed: cpu */

    int32_t (*count)(void); /* no context is created */
    ferry_status_t (*describe)(int32_t index, ferry_device_info_t *info_out);

    /* Device memory aligned to 256 bytes. Errors: FERRY_ERR_NO_MEMORY, FERRY_ERR_DEVICE. May block. */
    ferry_status_t (*allocate)(int32_t index, size_t bytes, void **memory_out);
    void (*deallocate)(int32_t index,
                       void *memory); /* may block until the device is idle: pool it */
    /* Host memory that this kind's copy engines reach at full speed (pinned), page-aligned. May block. */
    ferry_status_t (*allocate_staging)(int32_t index, size_t bytes, void **memory_out);
    void (*deallocate_staging)(int32_t index, void *memory);

    ferry_status_t (*stream_create)(int32_t index,
                                    uintptr_t *stream_out); /* non-blocking, high priority */
    void (*stream_destroy)(int32_t index, uintptr_t stream);
    ferry_status_t (*stream_synchronize)(int32_t index, uintptr_t stream); /* blocks */

    ferry_status_t (*event_create)(int32_t index, ferry_event_t **event_out);
    void (*event_destroy)(ferry_event_t *event);
    /* Marks the point where the stream is now; an event may be recorded again. stream as DLPack: 1 legacy, 2 per-thread, else a handle. */
    ferry_status_t (*event_record)(ferry_event_t *event, uintptr_t stream);
    /* FERRY_OK: passed (or never recorded). FERRY_PENDING: not yet. FERRY_ERR_DEVICE: the stream failed. */
    ferry_status_t (*event_query)(ferry_event_t *event);
    /* What is queued on stream from now on runs after the event; the host does not wait. */
    ferry_status_t (*stream_wait)(int32_t index, uintptr_t stream, ferry_event_t *event);

    /* Queues a copy of bytes between device memory and staging (or any host) memory, or within and between devices of the kind. The host side of
     * pageable memory may make it block: Ferry gives staging memory. */
    ferry_status_t (*copy)(int32_t index, uintptr_t stream, ferry_copy_kind_t kind, void *target,
                           const void *source, size_t bytes);
    /* Queue: packs the visible elements of a strided view into C order (gather), or the reverse (scatter); packed is memory of the same device. */
    ferry_status_t (*gather)(int32_t index, uintptr_t stream, void *packed, const DLTensor *view);
    ferry_status_t (*scatter)(int32_t index, uintptr_t stream, const DLTensor *view,
                              const void *packed);

    /* Makes the stream wait until *flag (in staging memory) is not 0; the host may store it before or after.
     * FERRY_ERR_UNSUPPORTED where the device cannot. */
    ferry_status_t (*stream_wait_flag)(int32_t index, uintptr_t stream, uint32_t *flag);
} ferry_device_backend_t;

typedef const ferry_device_backend_t *ferry_device_backend_fn(const ferry_device_host_t *host);

#ifdef __cplusplus
}
#endif

#endif
