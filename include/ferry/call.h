/* Calling a method on a peer. */
#ifndef FERRY_CALL_H
#define FERRY_CALL_H

#include <ferry/agent.h>
#include <ferry/future.h>
#include <ferry/message.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    size_t struct_bytes;
    int64_t timeout_ns; /* 0: FERRY_TIMEOUT; FERRY_FOREVER: none. Covers connecting too. */
    const ferry_device_map_t *
        device_map; /* this call's own rules, asked before the agent's; borrowed until the future completes */
    /* Buffers for results, matched by slot name, else by position; the buffer's device wins over every rule. The array is copied; the memory is borrowed until the future
     * completes. stream: written after it. release is not used. */
    const ferry_tensor_t *results;
    size_t result_count;
    const DLDevice *
        results_device; /* where results without a buffer go; borrowed during ferry_call(); NULL: the rules */
    bool
        wait_for_peer; /* a name that is not there yet is waited for; false: FERRY_ERR_UNKNOWN_PEER at once */
} ferry_call_options_t;

FERRY_API ferry_call_options_t ferry_call_options(void);

/* Starts a call. message NULL: empty; the message's arrays are copied, body and tensor memory are borrowed until the future completes (or the tensor's
 * release runs). peer may be the agent itself. options NULL: every default. Connects first where
 * there is no link, which may block (FERRY_CONNECT_TIMEOUT,
 * the call's timeout), and waits for room when FERRY_MAX_CALLS are in flight; in manual mode and in
 * callbacks it says FERRY_ERR_WOULD_BLOCK instead.
 *
 * On success *future_out is the caller's, to be released. On error nothing was taken, no release
 * runs: FERRY_ERR_INVALID_ARGUMENT,
 * FERRY_ERR_STATE (not started), FERRY_ERR_SHUTDOWN, FERRY_ERR_UNMAPPED_DEVICE,
 * FERRY_ERR_UNKNOWN_DEVICE (the map's target is not among the peer's devices, or a tensor's
 * not among mine), FERRY_ERR_LIMIT, FERRY_ERR_NO_MEMORY, FERRY_ERR_WOULD_BLOCK, FERRY_ERR_TIMEOUT
 * (while connecting), and those of ferry_agent_connect(). */
FERRY_API ferry_status_t ferry_call(ferry_agent_t *agent, const char *peer, const char *method,
                                    const ferry_message_t *message,
                                    const ferry_call_options_t *options,
                                    ferry_future_t **future_out);

#ifdef __cplusplus
}
#endif

#endif
