/* What can be seen of calls and agents. */
#ifndef FERRY_METRICS_H
#define FERRY_METRICS_H

#include <stddef.h>

#include <ferry/status.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ferry_agent;

/* One completed call, in nanoseconds and bytes. */
typedef struct {
    size_t struct_bytes;       /* in: sizeof; out: what this library filled */
    int64_t total_ns;          /* ferry_call() to completion */
    int64_t send_ns;           /* until the transport had let go of every argument */
    int64_t callee_receive_ns; /* callee: control message seen to all arguments there */
    int64_t callee_queue_ns;   /* callee: waiting for a thread */
    int64_t handler_ns;        /* callee: handler start to reply */
    int64_t result_ns;         /* reply seen to all results there */
    uint64_t argument_bytes;   /* body and tensors */
    uint64_t result_bytes;
    uint64_t staged_bytes; /* of these, through staging at this end */
    uint64_t direct_bytes; /* of these, device memory straight to the transport at this end */
} ferry_call_stats_t;

/* An agent's counters since its creation. */
typedef struct {
    size_t struct_bytes;
    uint64_t calls_started, calls_succeeded, calls_failed;
    uint64_t requests_received, requests_answered, requests_failed;
    uint64_t bytes_sent, bytes_received; /* bodies and tensors */
    uint64_t staged_bytes, direct_bytes;
    uint64_t links_opened, links_lost;
    uint64_t calls_pending, requests_pending;      /* now */
    uint64_t memory_used_bytes, memory_kept_bytes; /* the agent's pool now, staging included */
} ferry_counters_t;

/* A snapshot. struct_bytes must be set. FERRY_ERR_INVALID_ARGUMENT. */
FERRY_API ferry_status_t ferry_agent_counters(struct ferry_agent *agent,
                                              ferry_counters_t *counters_out);

#ifdef __cplusplus
}
#endif

#endif
