/* The callee's side of a call. All under the agent's lock unless said otherwise. */
#ifndef FERRY_RPC_SERVE_H
#define FERRY_RPC_SERVE_H

#include <ferry/request.h>

#include "rpc/agent.h"
#include "rpc/incoming.h"
#include "rpc/outgoing.h"

/* A tensor that the handler made for its reply. */
struct request_allocation {
    struct request_allocation *next;
    struct memory_block block;
    int64_t shape[FERRY_TENSOR_NDIM_MAX];
    char name[FERRY_SLOT_BYTES_MAX + 1];
};

struct ferry_request {
    struct ferry_agent *agent;
    size_t references; /* the engine's, the handler's, one for each half under way, actions' */
    struct link *link; /* retained */
    uint64_t call_id;
    struct method *method;                       /* kept by method->open */
    char method_name[WIRE_METHOD_BYTES_MAX + 1]; /* as called: a catch-all serves many */
    int64_t deadline_ns;
    atomic_bool cancelled;
    bool answered; /* a reply was posted, or dropped with its link */
    bool receiving;
    struct incoming incoming;
    struct outgoing outgoing;
    struct request_allocation *allocations; /* owned */
    uint8_t *paths;                         /* owned; how each argument came in */
    size_t path_capacity;
    DLDevice stream_devices[AGENT_STREAMS_MAX];
    uintptr_t streams[AGENT_STREAMS_MAX];
    size_t stream_count;
    struct action action, release_action;
    int64_t seen_ns, ready_ns, started_ns;
    struct ferry_request *queue_next;  /* method->waiting */
    struct ferry_request *prev, *next; /* link->requests, or the free list */
};

/* A control message of kind WIRE_CALL. An error breaks the link. */
ferry_status_t serve_call(struct link *link, const void *data, size_t bytes,
                          const struct wire_message *header, size_t table_bytes);
void serve_cancel(struct link *link, uint64_t call_id);
void serve_link_down(struct link *link);

/* Posts the error as the answer; answered already: nothing. */
void serve_fail(struct ferry_request *request, ferry_status_t status, ferry_effect_t effect,
                int32_t code, const char *text);
/* Posts what request->outgoing was filled with. FERRY_OK: answered. */
ferry_status_t serve_post_reply(struct ferry_request *request);

void request_retain(struct ferry_request *request);
void request_unref(struct ferry_request *request);
void request_free_recycled(struct ferry_agent *agent);

/* method.c */
struct method *method_find(struct ferry_agent *agent, const char *name, size_t name_bytes);
/* One request less names the method; frees a removed one with its last. */
void method_release(struct ferry_agent *agent, struct method *method);
void method_destroy_all(struct ferry_agent *agent);

#endif
