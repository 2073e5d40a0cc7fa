/* Between the files of the rpc_* tests. */
#ifndef FERRY_PERF_RPC_H
#define FERRY_PERF_RPC_H

#include <ferry/ferry.h>

#include "ferry_perf/perf.h"

/* What the callee's pool keeps for reuse, with room. */
#define RPC_IN_FLIGHT_BYTES ((size_t)768 * 1024 * 1024)

enum rpc_kind { RPC_ONE_WAY, RPC_ECHO, RPC_BIDIR };

/* One end's agent and, where it calls, what its calls carry: the same buffer again and again. */
struct rpc {
    struct perf_end *end; /* borrowed */
    enum rpc_kind kind;
    const char *peer, *method;
    bool calls; /* this end does */
    bool timed; /* each call's own time is wanted */
    ferry_agent_t *agent;
    uint32_t threads, window;

    struct perf_buffer arguments, results;
    ferry_tensor_t *tensors; /* owned: those of the arguments, then those of the results */
    int64_t *extents;        /* owned, one a tensor */
    char (*names)[16];       /* owned, one a pair */
    ferry_message_t message;
    ferry_call_options_t call;
    ferry_future_t **futures; /* owned: a window for each thread */

    bool path_known;
    char path[PERF_PATH_BYTES];
};

/* rpc_buffers.c */
ferry_status_t rpc_buffers_create(struct rpc *rpc, size_t bytes);
void rpc_buffers_free(struct rpc *rpc);

/* rpc_check.c: calls with fresh random data, one after the other; the callee compares what came
 * and, in rpc_echo, the caller what came back. */
ferry_status_t rpc_validate(struct rpc *rpc, uint64_t operations, struct perf_samples *samples);
ferry_method_fn rpc_answer_check;

#endif
