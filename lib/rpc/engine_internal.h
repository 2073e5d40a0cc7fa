/* What the engine's files share. All under the agent's lock unless said otherwise. */
#ifndef FERRY_RPC_ENGINE_INTERNAL_H
#define FERRY_RPC_ENGINE_INTERNAL_H

#include <semaphore.h>

#include "rpc/engine.h"

/* A thread that waits for something of the agent's: it drives, or is blocked until it is told. Lives on the thread's stack. */
struct waiter {
    bool (*ready)(void *context);
    void *context;
    int64_t deadline_ns;
    bool own_thread; /* the agent's: not in agent->waiters, and in charge of the sockets */
    bool blocked;    /* on the semaphore, or asleep on the descriptors */
    bool told;       /* to look again, since it was blocked */
    sem_t semaphore;
    struct sleeper *sleeper; /* while asleep on the descriptors */
    struct waiter *prev, *next;
};

/* Runs what is queued, without the lock meanwhile. On a stack that is in user code already it goes to the pool, since that code may hold locks that this one wants. `me`
 * drives, or is NULL: the role is given up meanwhile, so that the user code may wait, and taken
 * back unless somebody else has it by then. Returns how many ran. */
unsigned engine_run_actions(struct ferry_agent *agent, const void *me);

/* Lets the lock go, then hands the pool what was queued for it: a thread that wakes up to run it, perhaps in this one's place, can then have the lock. */
void engine_submit_actions(struct ferry_agent *agent);

/* Sockets and timers, once. */
unsigned engine_dispatch(struct ferry_agent *agent);
/* FERRY_OK: the descriptors will tell of whatever comes. FERRY_PENDING: there is work, step first; *bound_ns may have become shorter, since a stopped peer's full queue can refuse to be armed for ever. */
ferry_status_t engine_arm(struct ferry_agent *agent, int64_t *bound_ns);
/* How long nothing of this agent's own needs a look. */
int64_t engine_sleep_bound(struct ferry_agent *agent, int64_t deadline_ns);

#endif
