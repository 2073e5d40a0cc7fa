/* Where a call's tensors go: the peer's devices, the caller's buffers, results_device, the rules. Under the agent's lock. */
#ifndef FERRY_RPC_RESULTS_H
#define FERRY_RPC_RESULTS_H

#include "rpc/call.h"

/* Copies result buffers and results_device. FERRY_ERR_INVALID_ARGUMENT, FERRY_ERR_UNKNOWN_DEVICE, FERRY_ERR_NO_MEMORY. */
ferry_status_t results_take_options(struct ferry_future *future,
                                    const ferry_call_options_t *options);
/* The argument's target is one of the peer's devices; else FERRY_ERR_UNKNOWN_DEVICE. */
ferry_status_t results_check_peer_device(const struct link *link, const struct wire_tensor *tensor,
                                         size_t position);
/* Whether a result that is made on one of the peer's devices may land in host memory here: by a buffer, results_device or a rule. Asked after the arguments were
 * mapped. */
bool results_may_reach_host(const struct ferry_future *future, const struct peer *peer);
/* Gives every result of a described reply its memory, or declines it. */
void results_place(struct ferry_future *future);

#endif
