/* The engine: who moves an agent on, and how threads wait. At most one thread drives at a time and holds the lock while it does, letting
 * others in as soon as they want it; a waiting thread takes the place of the agent's own. */
#ifndef FERRY_RPC_ENGINE_H
#define FERRY_RPC_ENGINE_H

#include "rpc/agent.h"

/* The lock, with a word to the driver that somebody else wants it. */
void engine_lock(struct ferry_agent *agent);
void engine_unlock(struct ferry_agent *agent);

/* Everything that is ready, once; with the lock, which is let go while user code runs. `me` is agent->driver; afterwards somebody else may be. Returns how many
 * things happened. */
unsigned engine_step(struct ferry_agent *agent, const void *me);
/* The time at which the present step saw its first message; only for what a transport's events do. */
int64_t engine_step_ns(struct ferry_agent *agent);

/* Waits with the lock held (let go meanwhile) until ready(context), asked under the lock by whatever thread changed something, says true. FERRY_OK; FERRY_PENDING: deadline_ns passed.
 * FERRY_ERR_BUSY: raised, a pool thread too many would wait. FERRY_ERR_WOULD_BLOCK: raised, a
 * callback must not wait. */
ferry_status_t engine_wait_locked(struct ferry_agent *agent, bool (*ready)(void *context),
                                  void *context, int64_t deadline_ns);

/* Under the lock: something that a blocked thread may wait for has changed. */
void engine_changed(struct ferry_agent *agent);
/* Under the lock: work was posted that needs progress; wakes whoever sleeps on the descriptors. */
void engine_kick(struct ferry_agent *agent);
/* The same for a call that is not sent yet. A thread that has waited since the call before is taken
 * to wait for this one, too, and spared the system call; where it does not, the agent's own thread
 * looks within about a millisecond. */
void engine_kick_for_call(struct ferry_agent *agent);

/* Under the lock: nobody drives any more; a blocked thread or the agent's own takes over. */
void engine_hand_over(struct ferry_agent *agent);

/* Under the lock: queues user code. A handler goes to whoever steps, or to the pool; a callback to ferry_agent_progress() in manual mode, else to the pool. */
void engine_post(struct ferry_agent *agent, struct action *action);
void engine_post_pool(struct ferry_agent *agent, struct action *action);
void engine_post_callback(struct ferry_agent *agent, struct action *action);

/* The agent's own thread (not in manual mode) and the descriptor set. */
ferry_status_t engine_start(struct ferry_agent *agent);
void engine_stop(struct ferry_agent *agent);

#endif
