/* UCX alone, as a program written by hand for it would use it: the base that Ferry is measured
 * against. Its context, worker and error mode are what Ferry's transport asks for. */
#ifndef FERRY_PERF_RAW_H
#define FERRY_PERF_RAW_H

#include <ucp/api/ucp.h>

#include "ferry_perf/flow.h"

struct raw_protocol;

struct raw {
    struct flow flow; /* first */
    const struct raw_protocol *protocol;
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_ep_h endpoint;
    ucs_memory_type_t type;       /* of this end's buffers */
    const ferry_memory_t *target; /* am: where the next message goes; borrowed of the flow */
    size_t length;                /* stream: UCX writes here how much came */
};

/* The loops of one of UCX's ways to send. */
struct raw_protocol {
    const char *name;
    uint64_t features;
    ferry_status_t (*open)(struct raw *raw); /* before the address is known to anybody */
    flow_loop_fn loop;
};

extern const struct raw_protocol raw_tag;    /* raw_tag.c */
extern const struct raw_protocol raw_am;     /* raw_am.c */
extern const struct raw_protocol raw_stream; /* raw_stream.c */

/* For a protocol that has nothing to prepare. */
ferry_status_t raw_open_nothing(struct raw *raw);
/* Of a send that was not finished at once. */
void raw_sent(void *request, ucs_status_t status, void *flow);
/* For a receive that was not, or that failed at once. */
void raw_received(struct raw *raw, void *request, ucs_status_t status);
ferry_status_t raw_refused(ucs_status_t status, const char *what);

static inline struct raw *raw_of(struct flow *flow)
{
    return (struct raw *)(void *)flow;
}

static inline ucs_memory_type_t raw_type(struct flow *flow, const ferry_memory_t *memory)
{
    return memory == &flow->token ? UCS_MEMORY_TYPE_HOST : raw_of(flow)->type;
}

static inline ucp_request_param_t raw_send_params(struct flow *flow, const ferry_memory_t *memory)
{
    return (ucp_request_param_t){
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FIELD_MEMORY_TYPE,
        .cb.send = raw_sent,
        .user_data = flow,
        .memory_type = raw_type(flow, memory),
    };
}

/* What UCX answered to an operation: under way, done, or refused. */
static inline ferry_status_t raw_begun(ucs_status_ptr_t request, uint64_t *count, const char *what)
{
    if (UCS_PTR_IS_ERR(request)) {
        return raw_refused(UCS_PTR_STATUS(request), what);
    }
    *count += request == NULL;
    return FERRY_OK;
}

static inline void raw_progress(struct flow *flow)
{
    ucp_worker_progress(raw_of(flow)->worker);
}

#endif
