/* User code: queued under the lock, run without it. */
#include "rpc/engine_internal.h"

static _Thread_local enum user_scope current_scope;

enum user_scope user_scope_enter(enum user_scope scope)
{
    enum user_scope before = current_scope;
    current_scope = scope;
    return before;
}

void user_scope_leave(enum user_scope before)
{
    current_scope = before;
}

enum user_scope user_scope_now(void)
{
    return current_scope;
}

/* Without the lock; returns with it. */
static void action_run(struct ferry_agent *agent, struct action *action)
{
    enum user_scope before = user_scope_enter(action->scope);
    action->run(action); /* may free the action */
    user_scope_leave(before);
    agent->actions_open--;
    engine_changed(agent);
}

static void action_run_in_pool(void *context)
{
    struct action *action = context;
    struct ferry_agent *agent = action->agent;
    action_run(agent, action);
    engine_unlock(agent);
}

static void queue_add(struct action_queue *queue, struct action *action)
{
    action->next = NULL;
    if (queue->head == NULL) {
        queue->head = action;
    } else {
        queue->tail->next = action;
    }
    queue->tail = action;
}

void engine_submit_actions(struct ferry_agent *agent)
{
    struct action *action = agent->pool_actions.head, *next;
    agent->pool_actions.head = NULL;
    pthread_mutex_unlock(&agent->lock);
    for (; action != NULL; action = next) {
        next = action->next;
        action->task.run = action_run_in_pool;
        action->task.context = action;
        if (thread_pool_submit(agent->pool, &action->task) != FERRY_OK) {
            engine_lock(agent); /* no thread to be had: whoever steps runs it */
            queue_add(&agent->actions, action);
            engine_kick(agent);
            pthread_mutex_unlock(&agent->lock);
        }
    }
}

static void action_open(struct ferry_agent *agent, struct action *action, enum user_scope scope)
{
    action->agent = agent;
    action->scope = scope;
    agent->actions_open++;
}

void engine_post(struct ferry_agent *agent, struct action *action)
{
    action_open(agent, action, USER_HANDLER);
    queue_add(&agent->actions, action);
    engine_kick(agent);
}

void engine_post_pool(struct ferry_agent *agent, struct action *action)
{
    action_open(agent, action, USER_HANDLER);
    queue_add(&agent->pool_actions, action);
}

void engine_post_callback(struct ferry_agent *agent, struct action *action)
{
    action_open(agent, action, USER_CALLBACK);
    if (agent_manual(agent)) {
        queue_add(&agent->actions, action);
        engine_kick(agent);
    } else {
        queue_add(&agent->pool_actions, action);
    }
}

unsigned engine_run_actions(struct ferry_agent *agent, const void *me)
{
    unsigned count = 0;
    while (agent->actions.head != NULL) {
        struct action *action = agent->actions.head;
        agent->actions.head = action->next;
        count++;
        if (current_scope != USER_NONE) {
            queue_add(&agent->pool_actions, action);
            continue;
        }
        bool drives = me != NULL && agent->driver == me;
        if (drives) {
            agent->driver = NULL;
        }
        engine_unlock(agent);
        action_run(agent, action);
        if (drives && agent->driver == NULL) {
            agent->driver = me;
        }
    }
    return count;
}
