/* The caller's side of a call, and the future that it completes. All under the agent's lock. */
#ifndef FERRY_RPC_CALL_H
#define FERRY_RPC_CALL_H

#include <ferry/call.h>

#include "rpc/agent.h"
#include "rpc/incoming.h"
#include "rpc/outgoing.h"

struct result_buffer {
    char name[FERRY_SLOT_BYTES_MAX + 1];
    struct tensor_view view; /* memory borrowed */
    uintptr_t stream;
    bool used;
};

/* A stream of the user's that waits for a value in pinned memory. */
struct stream_gate {
    struct memory_block block; /* staging memory; its first 32 bits are the flag */
    uintptr_t stream;
};

struct ferry_future {
    struct ferry_agent *agent; /* borrowed; its memory outlives the future */
    size_t
        references; /* the program's, the pending call's, one for each half under way, actions' */
    atomic_bool done;
    bool sent;      /* the control message is on its way */
    bool receiving; /* a reply is coming in */
    bool answered;  /* the reply is complete */
    bool failed;    /* error is set */
    bool cancelled; /* the callee was told */
    uint32_t slot;
    uint64_t call_id;
    struct link *link;                  /* retained while pending */
    struct peer *peer;                  /* borrowed */
    struct shared_map *map;             /* retained while pending */
    const ferry_device_map_t *call_map; /* borrowed */
    char method[WIRE_METHOD_BYTES_MAX + 1];
    int64_t timeout_ns;

    struct outgoing outgoing;
    struct incoming incoming;
    struct result_buffer *buffers; /* owned; buffer_capacity */
    size_t buffer_count, buffer_capacity;
    bool has_results_device;
    DLDevice results_device;

    struct poller_timer timer;
    struct error_record error;
    ferry_error_t error_view;

    ferry_future_fn *callback;
    void *callback_context;
    struct action callback_action, release_action;

    DLDevice stream_devices[AGENT_STREAMS_MAX];
    uintptr_t streams[AGENT_STREAMS_MAX];
    size_t stream_count;
    struct stream_gate gates[AGENT_STREAMS_MAX];
    size_t gate_count;

    int64_t start_ns, sent_ns, reply_ns, done_ns;
    char **paths; /* owned; made when asked for */
    size_t path_count;

    struct ferry_future *prev, *next; /* link->calls, or the free list */
};

/* A control message of kind WIRE_REPLY. An error breaks the link. */
ferry_status_t call_reply(struct link *link, const void *data, size_t bytes,
                          const struct wire_message *header, size_t table_bytes);
/* The link has just gone down. */
void call_link_down(struct link *link);
/* Ends a pending call with an error; completes when no borrowed memory is in use any more. Pending no more: nothing. */
void call_fail(struct ferry_future *future, ferry_status_t status, ferry_effect_t effect,
               const char *format, ...) FERRY_PRINTF(4, 5);
/* All calls of the agent. */
void call_fail_all(struct ferry_agent *agent, ferry_status_t status, const char *text);

void future_retain(struct ferry_future *future);
/* Recycles it with the last reference. */
void future_unref(struct ferry_future *future);
/* Frees the recycled ones. */
void future_free_recycled(struct ferry_agent *agent);
struct ferry_future *future_new(struct ferry_agent *agent);
/* After completion: opens gates, posts the callback. */
void future_completed(struct ferry_future *future);

#endif
