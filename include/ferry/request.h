/* A call as the callee sees it: answered exactly once, now or later, from any thread. */
#ifndef FERRY_REQUEST_H
#define FERRY_REQUEST_H

#include <ferry/agent.h>
#include <ferry/message.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Body and tensors as they arrived, each on the device that the caller's map named; ready on every stream. Valid until the request is
 * released and its reply has gone out. */
FERRY_API const ferry_message_t *ferry_request_message(const ferry_request_t *request);
FERRY_API const char *ferry_request_method(const ferry_request_t *request);
FERRY_API const char *ferry_request_caller(const ferry_request_t *request); /* the peer's name */
/* What is left of the call's timeout; FERRY_FOREVER: none; 0: passed. */
FERRY_API int64_t ferry_request_remaining_ns(const ferry_request_t *request);
/* The caller has cancelled, timed out or gone: an answer will not be read. */
FERRY_API bool ferry_request_cancelled(const ferry_request_t *request);

/* The tensor of that slot with that dtype. FERRY_ERR_NOT_FOUND names the slots there are; FERRY_ERR_TYPE both dtypes. */
FERRY_API ferry_status_t ferry_request_tensor(const ferry_request_t *request, const char *slot,
                                              DLDataType dtype, const ferry_tensor_t **tensor_out);

/* A new tensor in C order from the agent's memory pool; it belongs to the request, for use in the reply. name is copied. FERRY_ERR_UNKNOWN_DEVICE,
 * FERRY_ERR_NO_MEMORY, FERRY_ERR_INVALID_ARGUMENT, FERRY_ERR_DEVICE. May block on the device. */
FERRY_API ferry_status_t ferry_request_allocate(ferry_request_t *request, const char *name,
                                                DLDevice device, DLDataType dtype, int32_t ndim,
                                                const int64_t *shape, ferry_tensor_t *tensor_out);

/* Answers with a result; message NULL: empty. The body is copied. A tensor is read after this returned: it is the request's own (received or
 * allocated), or has a release, or is marked `copy`; anything else is FERRY_ERR_INVALID_ARGUMENT,
 * since nothing would keep it alive.
 * On error the request is still unanswered: FERRY_ERR_STATE (answered already), FERRY_ERR_LIMIT,
 * FERRY_ERR_NO_MEMORY, FERRY_ERR_UNKNOWN_DEVICE. A caller that is
 * gone is no error here: releases run and FERRY_OK comes. */
FERRY_API ferry_status_t ferry_request_reply(ferry_request_t *request,
                                             const ferry_message_t *message);
/* Answers with FERRY_ERR_APPLICATION, the application's own code and text. FERRY_ERR_STATE: answered already. */
FERRY_API ferry_status_t ferry_request_fail(ferry_request_t *request, int32_t code,
                                            const char *format, ...) FERRY_PRINTF(3, 4);

/* Work queued on this stream uses the request's memory on that device: it is recycled only after the stream has passed the point of the release. FERRY_ERR_LIMIT
 * (more than 8 streams), FERRY_ERR_INVALID_ARGUMENT. */
FERRY_API ferry_status_t ferry_request_use_stream(ferry_request_t *request, DLDevice device,
                                                  uintptr_t stream);

/* Only for a request that a handler kept by returning FERRY_PENDING: gives it up; unanswered: FERRY_ERR_UNANSWERED goes out. Once. */
FERRY_API void ferry_request_release(ferry_request_t *request);

#ifdef __cplusplus
}
#endif

#endif
