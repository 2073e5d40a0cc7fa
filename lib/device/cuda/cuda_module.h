/* What the files of the CUDA module share. The module is loaded on its own and links nothing of
 * libferry: what it borrows, libferry hands over. */
#ifndef FERRY_DEVICE_CUDA_MODULE_H
#define FERRY_DEVICE_CUDA_MODULE_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#include <ferry/device_backend.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- cuda_context.c ---- */

/* libferry's functions, set before anything else is called. */
extern const ferry_device_host_t *cuda_host;

/* Counts the devices and finds the driver's functions; raises why there is no CUDA here. */
ferry_status_t cuda_start(const ferry_device_host_t *host);
int32_t cuda_count(void);
ferry_status_t cuda_describe(int32_t index, ferry_device_info_t *info_out);
/* Do other processes' kernels and this one's take turns on the device? */
bool cuda_shared_turns(int32_t index);

/* Between the two the device is the thread's current one; what was current before, or that
 * nothing was, is so again afterwards. The device's context is created by the first enter. The
 * runtime's own cudaSetDevice() would leave a context on whatever device was current before. */
ferry_status_t cuda_enter(int32_t index);
void cuda_leave(void);

/* FERRY_OK for success; else raises FERRY_ERR_DEVICE with the device, the call and CUDA's words, and
 * clears the runtime's own last error. */
ferry_status_t cuda_check(cudaError_t error, int32_t index, const char *call);
/* The same for what must not fail its caller: a line in the log. */
void cuda_complain(cudaError_t error, int32_t index, const char *call);

/* Queues a wait on the current device. FERRY_ERR_DEVICE, FERRY_ERR_UNSUPPORTED. */
ferry_status_t cuda_wait_flag(int32_t index, cudaStream_t stream, uint32_t *flag);

/* ---- cuda_release.c: on the current device ---- */

bool cuda_release_start(int32_t count);
/* cuda_wait_flag(), remembered until it is over. FERRY_ERR_NO_MEMORY too. */
ferry_status_t cuda_queue_flag_wait(int32_t index, cudaStream_t stream, uint32_t *flag);
/* Frees memory, or staging memory, now or when no stream waits for a flag. */
void cuda_release(int32_t index, void *memory, bool staging);
/* Frees what was kept, if it may be freed now. */
void cuda_release_pending(int32_t index);

/* ---- cuda_copy.c ---- */

ferry_status_t cuda_copy(int32_t index, uintptr_t stream, ferry_copy_kind_t kind, void *target,
                         const void *source, size_t bytes);
ferry_status_t cuda_gather(int32_t index, uintptr_t stream, void *packed, const DLTensor *view);
ferry_status_t cuda_scatter(int32_t index, uintptr_t stream, const DLTensor *view,
                            const void *packed);

/* ---- pack.cu ---- */

/* Queues a kernel that walks any layout; bytes is not 0. */
cudaError_t cuda_pack(const ferry_layout_t *layout, void *packed, bool gather, cudaStream_t stream);
/* Loads the kernels onto the current device. Left to their first launch, CUDA might wait for the device
 * then, and so for a stream that waits for whoever launches. */
void cuda_pack_load(void);

#ifdef __cplusplus
}
#endif

#endif
