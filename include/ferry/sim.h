/* The simulated accelerator, for developing and testing device code where there is none:
 * FERRY_SIM_DEVICES=2 gives sim:0 and sim:1. The host cannot touch their memory (a stray access
 * faults, a stray pointer in a copy is an error), and their streams run late and out of step, on
 * threads of their own. All of ferry/device.h works on them; here is what a test needs beyond. Any
 * thread. Stream values 0, 1 and 2 are the device's default stream.
 *
 * In a child process after fork() the devices are new: they have no memory and no streams. */
#ifndef FERRY_SIM_H
#define FERRY_SIM_H

#include <ferry/device.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Queues a kernel: kernel(context) runs on the device's thread, delay_ns or more after what was
 * queued on the stream before it has run. It must return by itself; it may queue more work, but may
 * not wait for a stream. FERRY_ERR_INVALID_ARGUMENT: no simulated device, or no kernel.
 * FERRY_ERR_UNKNOWN_DEVICE, FERRY_ERR_NO_MEMORY, FERRY_ERR_DEVICE: no such stream, or it failed. */
FERRY_API ferry_status_t ferry_sim_launch(DLDevice device, uintptr_t stream,
                                          void (*kernel)(void *context), void *context,
                                          int64_t delay_ns);

/* Within a kernel: where the bytes at a device pointer lie, valid to the end of the block of
 * device memory until the kernel returns. NULL: not within a kernel (FERRY_ERR_STATE), or not in
 * memory that was there when the kernel was queued (FERRY_ERR_DEVICE). */
FERRY_API void *ferry_sim_host_pointer(const void *device_pointer);

/* Holds a stream: returns when nothing of it runs, and nothing more begins until it is resumed. A
 * second hold changes nothing. Not from a kernel of the same device. FERRY_ERR_INVALID_ARGUMENT,
 * FERRY_ERR_UNKNOWN_DEVICE, FERRY_ERR_DEVICE: no such stream. */
FERRY_API ferry_status_t ferry_sim_hold(DLDevice device, uintptr_t stream);
FERRY_API ferry_status_t ferry_sim_resume(DLDevice device, uintptr_t stream);

/* Queues a failure: from there on the stream does nothing more, and says FERRY_ERR_DEVICE with this
 * text, until it is destroyed. Streams that wait for an event behind it fail too. Errors as
 * ferry_sim_launch(). */
FERRY_API ferry_status_t ferry_sim_fail(DLDevice device, uintptr_t stream, const char *text);

#ifdef __cplusplus
}
#endif

#endif
