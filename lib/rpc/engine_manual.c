/* Agents that the program drives: its own loop asks for progress and sleeps on one descriptor. */
#include "rpc/engine_internal.h"

#define DISPATCH_CALLS 64 /* progress calls between looks at the sockets, where nobody slept */

int ferry_agent_fd(const ferry_agent_t *agent)
{
    return agent->sleep_fd;
}

static unsigned manual_step(struct ferry_agent *agent)
{
    int me = 0; /* its address tells this call from every other driver */
    agent->driver = &me;
    unsigned count = engine_step(agent, &me);
    if (agent->prepared || agent->progress_calls++ % DISPATCH_CALLS == 0) {
        agent->prepared = false;
        count += engine_dispatch(agent);
        count += engine_step(agent, &me);
    }
    if (agent->driver == &me) {
        agent->driver = NULL;
        engine_hand_over(agent);
    }
    return count;
}

unsigned ferry_agent_progress(ferry_agent_t *agent)
{
    if (agent == NULL) {
        return 0;
    }
    engine_lock(agent);
    bool mine = agent->sleep_fd >= 0 && agent->driver == NULL;
    unsigned count = mine ? manual_step(agent) : 0;
    engine_unlock(agent);
    return count;
}

ferry_status_t ferry_agent_prepare_wait(ferry_agent_t *agent, int64_t *timeout_ns_out)
{
    if (agent == NULL || timeout_ns_out == NULL) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT, "agent and timeout_ns_out must not be NULL");
    }
    engine_lock(agent);
    ferry_status_t status = FERRY_OK;
    if (agent->sleep_fd < 0) {
        status = error_raise(FERRY_ERR_STATE, "agent '%s' is not started", agent->name);
    } else if (agent->actions.head != NULL || agent->dying != NULL) {
        status = FERRY_PENDING;
    } else {
        int64_t bound = engine_sleep_bound(agent, FERRY_FOREVER);
        status = engine_arm(agent, &bound);
        if (status == FERRY_OK) {
            agent->prepared = true;
            *timeout_ns_out = bound;
        }
    }
    engine_unlock(agent);
    return status;
}
