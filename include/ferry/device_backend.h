/* The contract between Ferry and a kind of device: for authors of device back ends only. Nothing
 * here blocks on a device unless it says so: work is queued on streams, and events tell when it is
 * done. Every back end passes the suite in tests/contract.
 *
 * All slots may be called from any thread, without locks held that user code could want. A back end
 * leaves the thread's current device as it found it and creates no context on a device before the
 * first allocate, stream, event or copy there. Every slot is filled; one that the device cannot
 * serve raises FERRY_ERR_UNSUPPORTED. index is below count(). */
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
/* The symbol a module exports, a ferry_device_backend_fn. */
#define FERRY_DEVICE_BACKEND_SYMBOL "ferry_device_backend"

#define FERRY_LAYOUT_NDIM_MAX 16

/* Where a view's visible elements lie, in the fewest dimensions: `ndim` outer ones, outermost first,
 * around runs of block_bytes that are contiguous. Walking it in order meets the elements in C
 * order. A contiguous view has ndim 0; strides may be 0 or negative. */
typedef struct {
    void *data;   /* byte_offset applied */
    size_t bytes; /* of all visible elements together; 0: nothing to do */
    size_t block_bytes;
    int32_t ndim;
    int64_t extent[FERRY_LAYOUT_NDIM_MAX];
    int64_t stride_bytes[FERRY_LAYOUT_NDIM_MAX];
} ferry_layout_t;

/* What libferry lends a module; it outlives the module. */
typedef struct {
    size_t struct_bytes;
    /* Makes this the thread's last error and returns status. */
    ferry_status_t (*raise)(ferry_status_t status, const char *format, ...) FERRY_PRINTF(2, 3);
    /* level: a ferry_log_level_t. */
    void (*log)(int level, const char *format, ...) FERRY_PRINTF(2, 3);
    /* FERRY_ERR_UNSUPPORTED: more than FERRY_LAYOUT_NDIM_MAX dimensions, or sub-byte elements that
     * are not in C order. The view's sizes were checked before. */
    ferry_status_t (*layout)(const DLTensor *view, ferry_layout_t *layout_out);
} ferry_device_host_t;

typedef struct ferry_event ferry_event_t; /* a point in a stream, polled */

typedef struct {
    char name[64];    /* "NVIDIA H200" */
    uint8_t uuid[16]; /* the physical device, the same in every process that sees it; 0: unknown */
    uint64_t memory_bytes;
    bool shared_turns; /* processes take turns on its compute engine: CUDA without MPS */
} ferry_device_info_t;

typedef enum { FERRY_COPY_TO_HOST, FERRY_COPY_FROM_HOST, FERRY_COPY_ON_DEVICE } ferry_copy_kind_t;

/* stream is DLPack's value: 0 and 1 the device's legacy default stream, 2 the thread's default
 * stream, else a handle. Where a queued operation fails later, event_query and stream_synchronize
 * say so. */
typedef struct ferry_device_backend {
    size_t struct_bytes;
    uint32_t abi;
    const char *kind;   /* "cuda" */
    DLDeviceType type;  /* kDLCUDA */
    bool host_readable; /* the host loads and stores this memory and no stream is needed: cpu */

    int32_t (*count)(void); /* no context is created */
    /* FERRY_ERR_DEVICE. No context is created. */
    ferry_status_t (*describe)(int32_t index, ferry_device_info_t *info_out);

    /* Device memory aligned to 256 bytes; NULL for 0 bytes. May block. FERRY_ERR_NO_MEMORY,
     * FERRY_ERR_DEVICE. */
    ferry_status_t (*allocate)(int32_t index, size_t bytes, void **memory_out);
    /* Work queued before still finds the memory. May block until the device is idle (so pool it), but
     * not until a stream has its flag: who frees may be who sets it. */
    void (*deallocate)(int32_t index, void *memory);
    /* Host memory that this kind's copy engines reach at full speed (pinned), page-aligned; NULL for
     * 0 bytes. May block. FERRY_ERR_NO_MEMORY, FERRY_ERR_DEVICE. */
    ferry_status_t (*allocate_staging)(int32_t index, size_t bytes, void **memory_out);
    void (*deallocate_staging)(int32_t index, void *memory); /* as deallocate */

    /* Non-blocking, high priority. FERRY_ERR_NO_MEMORY, FERRY_ERR_DEVICE, FERRY_ERR_UNSUPPORTED. */
    ferry_status_t (*stream_create)(int32_t index, uintptr_t *stream_out);
    /* Work queued before still runs. */
    void (*stream_destroy)(int32_t index, uintptr_t stream);
    /* Blocks until all that was queued has run. FERRY_ERR_DEVICE. */
    ferry_status_t (*stream_synchronize)(int32_t index, uintptr_t stream);

    /* FERRY_ERR_NO_MEMORY, FERRY_ERR_DEVICE. */
    ferry_status_t (*event_create)(int32_t index, ferry_event_t **event_out);
    void (*event_destroy)(ferry_event_t *event); /* NULL is taken; may be pending */
    /* Marks the point where the stream is now; an event may be recorded again, which makes it forget
     * the point before. The stream is of the event's device. FERRY_ERR_DEVICE. */
    ferry_status_t (*event_record)(ferry_event_t *event, uintptr_t stream);
    /* FERRY_OK: passed (or never recorded). FERRY_PENDING: not yet. FERRY_ERR_DEVICE: the stream
     * failed. */
    ferry_status_t (*event_query)(ferry_event_t *event);
    /* What is queued on stream from now on runs after the event; the host does not wait.
     * FERRY_ERR_DEVICE. */
    ferry_status_t (*stream_wait)(int32_t index, uintptr_t stream, ferry_event_t *event);

    /* Queues a copy of bytes between device memory and staging (or any host) memory, or within and
     * between devices of the kind. The host side is read or written when the copy runs; pageable
     * memory may make the call block: Ferry gives staging memory. FERRY_ERR_DEVICE. */
    ferry_status_t (*copy)(int32_t index, uintptr_t stream, ferry_copy_kind_t kind, void *target,
                           const void *source, size_t bytes);
    /* Queue: packs the visible elements of a strided view into C order (gather), or the reverse
     * (scatter). packed is memory of the same device; shape and strides are read at once.
     * FERRY_ERR_DEVICE, FERRY_ERR_UNSUPPORTED as layout() says. */
    ferry_status_t (*gather)(int32_t index, uintptr_t stream, void *packed, const DLTensor *view);
    ferry_status_t (*scatter)(int32_t index, uintptr_t stream, const DLTensor *view,
                              const void *packed);

    /* Makes the stream wait until *flag (in staging memory) is not 0; the host may store it before
     * or after. FERRY_ERR_NO_MEMORY, FERRY_ERR_DEVICE, FERRY_ERR_UNSUPPORTED where the device
     * cannot. */
    ferry_status_t (*stream_wait_flag)(int32_t index, uintptr_t stream, uint32_t *flag);
} ferry_device_backend_t;

/* host is libferry's. NULL: this kind cannot be used here, and raise() was told why. */
typedef const ferry_device_backend_t *ferry_device_backend_fn(const ferry_device_host_t *host);

#ifdef __cplusplus
}
#endif

#endif
