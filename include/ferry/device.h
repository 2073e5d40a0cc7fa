/* Devices are DLPack's DLDevice, written "cpu", "cuda:1", "sim:0". An index is each process's own
 * visible one. Pinned host memory (kDLCUDAHost) counts as cpu, managed memory (kDLCUDAManaged) as
 * its cuda device. The functions here are for programs that should run on any device without naming
 * its API; a program that speaks CUDA anyway does not need them. Any thread. */
#ifndef FERRY_DEVICE_H
#define FERRY_DEVICE_H

#include <dlpack/dlpack.h>
#include <stddef.h>

#include <ferry/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Room for any device's text and its NUL. */
#define FERRY_DEVICE_TEXT_BYTES 32

/* The simulated accelerator's DLPack type (kDLExtDev). */
#define FERRY_DEVICE_SIM ((DLDeviceType)12)

/* Reads "cpu", "cuda:1", "sim:0". FERRY_ERR_INVALID_ARGUMENT: another text. Whether this process
 * has the device is not asked. */
FERRY_API ferry_status_t ferry_device_parse(const char *text, DLDevice *device_out);

/* Writes the device's text into buffer, always NUL-terminated, and returns buffer. A kind that Ferry
 * has no name for is written "type8:0". */
FERRY_API const char *ferry_device_print(DLDevice device, char buffer[FERRY_DEVICE_TEXT_BYTES]);

/* How many devices of this DLPack type this process has: 1 for kDLCPU, 0 where the back end is
 * missing. Does not create a CUDA context. */
FERRY_API int32_t ferry_device_count(DLDeviceType type);

/* Plain memory on a device, aligned to 256 bytes; NULL for 0 bytes. May block.
 * FERRY_ERR_INVALID_ARGUMENT: memory_out is NULL. FERRY_ERR_UNKNOWN_DEVICE, FERRY_ERR_NO_MEMORY,
 * FERRY_ERR_DEVICE. */
FERRY_API ferry_status_t ferry_device_allocate(DLDevice device, size_t bytes, void **memory_out);
/* NULL is taken. Work queued before still finds the memory. May block until the device is idle. */
FERRY_API void ferry_device_free(DLDevice device, void *memory);

/* Copies between any two devices of this process and returns when the bytes are there. Work queued
 * on the program's streams is not waited for. FERRY_ERR_INVALID_ARGUMENT: NULL, but bytes to copy.
 * FERRY_ERR_UNKNOWN_DEVICE, FERRY_ERR_NO_MEMORY, FERRY_ERR_DEVICE. */
FERRY_API ferry_status_t ferry_device_copy(DLDevice target_device, void *target,
                                           DLDevice source_device, const void *source,
                                           size_t bytes);

/* A stream of the device in DLPack's form (cuda: a cudaStream_t), for ferry_tensor_t.stream.
 * FERRY_ERR_UNSUPPORTED: cpu, which has none. FERRY_ERR_INVALID_ARGUMENT: stream_out is NULL.
 * FERRY_ERR_UNKNOWN_DEVICE, FERRY_ERR_NO_MEMORY, FERRY_ERR_DEVICE. */
FERRY_API ferry_status_t ferry_device_stream_create(DLDevice device, uintptr_t *stream_out);
/* What was queued on it still runs. */
FERRY_API void ferry_device_stream_destroy(DLDevice device, uintptr_t stream);
/* Blocks until all work queued on the stream has run. FERRY_ERR_UNKNOWN_DEVICE, FERRY_ERR_DEVICE. */
FERRY_API ferry_status_t ferry_device_stream_synchronize(DLDevice device, uintptr_t stream);

#ifdef __cplusplus
}
#endif

#endif
