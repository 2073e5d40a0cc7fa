/* A future completes exactly once: with a result or with an error. */
#ifndef FERRY_FUTURE_H
#define FERRY_FUTURE_H

#include <ferry/error.h>
#include <ferry/message.h>
#include <ferry/metrics.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ferry_future ferry_future_t;

/* Waits until the future completes, driving the agent meanwhile. FERRY_OK: *result_out (may be NULL) is the result, valid until the future is
 * released. FERRY_PENDING: timeout_ns passed, the call goes on (0: a test). FERRY_ERR_STATE: would
 * wait in a callback. Otherwise the call's error,
 * which is then also this thread's last error. Several threads may wait. In a pool handler, past
 * FERRY_POOL_MAX waiting threads: FERRY_ERR_BUSY. */
FERRY_API ferry_status_t ferry_future_wait(ferry_future_t *future, int64_t timeout_ns,
                                           const ferry_message_t **result_out);
/* All of them: FERRY_OK when every future has completed with a result; the first error in array order once all have completed; FERRY_PENDING. */
FERRY_API ferry_status_t ferry_future_wait_all(ferry_future_t *const *futures, size_t count,
                                               int64_t timeout_ns);
/* Any of them: FERRY_OK and the index of one that has completed, well or not; FERRY_PENDING. */
FERRY_API ferry_status_t ferry_future_wait_any(ferry_future_t *const *futures, size_t count,
                                               int64_t timeout_ns, size_t *index_out);

/* Completed? Never blocks, moves nothing. */
FERRY_API bool ferry_future_done(const ferry_future_t *future);

/* Runs `done` once, after completion, also if that was before: in ferry_agent_progress() in manual mode, else in the pool. The future stays valid
 * during it even if the program released it. One callback a future: a second is FERRY_ERR_STATE. In
 * it ferry_call() never blocks. */
typedef void ferry_future_fn(ferry_future_t *future, void *context);
FERRY_API ferry_status_t ferry_future_then(ferry_future_t *future, ferry_future_fn *done,
                                           void *context);

/* Asks for an early end with FERRY_ERR_CANCELLED; the callee is told. A future that borrows memory completes only when the transport
 * has let go of it. Completed already: nothing. */
FERRY_API void ferry_future_cancel(ferry_future_t *future);

/* The error; NULL while pending and after a success. Lives as long as the future. */
FERRY_API const ferry_error_t *ferry_future_error(const ferry_future_t *future);
/* The result; NULL while pending and after an error. Lives as long as the future. */
FERRY_API const ferry_message_t *ferry_future_result(const ferry_future_t *future);

/* How a tensor of the call travelled, e.g. "cuda:0 -staged-> ucx(sysv/memory) -staged-> cuda:1". slot is
 * a slot name; "->x" means an argument and "<-x" a result where both have the name, "#0" a position
 * (arguments first). NULL: no such
 * tensor, or the call ended before its answer. Lives as long as the future. */
FERRY_API const char *ferry_future_path(const ferry_future_t *future, const char *slot);

/* Times and bytes of a completed call. FERRY_PENDING; FERRY_ERR_INVALID_ARGUMENT. */
FERRY_API ferry_status_t ferry_future_stats(const ferry_future_t *future,
                                            ferry_call_stats_t *stats_out);

/* Says that work queued on this stream uses result tensors that Ferry allocated on the device: their memory is recycled only after the
 * stream has passed the point of the release. FERRY_ERR_INVALID_ARGUMENT, FERRY_ERR_LIMIT (more
 * than 8 streams). */
FERRY_API ferry_status_t ferry_future_use_stream(ferry_future_t *future, DLDevice device,
                                                 uintptr_t stream);

/* Makes what is queued on the stream from now on run after the call has completed, without the host waiting; on error and timeout too, so look at ferry_future_error()
 * before believing the data. FERRY_ERR_INVALID_ARGUMENT: cpu has no streams; FERRY_ERR_UNSUPPORTED:
 * the device cannot wait for a value in memory;
 * FERRY_ERR_UNKNOWN_DEVICE, FERRY_ERR_DEVICE, FERRY_ERR_LIMIT (more than 8). */
FERRY_API ferry_status_t ferry_future_enqueue_wait(ferry_future_t *future, DLDevice device,
                                                   uintptr_t stream);

/* Gives up the future; pending: cancels it first, and does not wait. NULL is taken. Any thread; once. */
FERRY_API void ferry_future_release(ferry_future_t *future);

#ifdef __cplusplus
}
#endif

#endif
