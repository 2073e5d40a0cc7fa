#include "rpc/engine.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <utlist.h>

#include "rpc/link.h"

#define CHECK_STEPS 64     /* steps between looks at the clock */
#define STANDBY_NS 1000000 /* how often the own thread looks after sockets behind a busy waiter */
#define STANDBY_LONG_NS 100000000 /* the same behind a sleeping one */
#define DEVICE_POLL_NS 50000      /* the longest sleep while device events are outstanding */
#define BUSY_ARMS_SPIN 16 /* refusals to be armed before the engine sleeps in growing steps */
#define BUSY_SLEEP_MAX_NS 1000000

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

void engine_lock(struct ferry_agent *agent)
{
    if (pthread_mutex_trylock(&agent->lock) == 0) {
        return;
    }
    atomic_fetch_add_explicit(&agent->contenders, 1, memory_order_relaxed);
    pthread_mutex_lock(&agent->lock);
    atomic_fetch_sub_explicit(&agent->contenders, 1, memory_order_relaxed);
}

void engine_unlock(struct ferry_agent *agent)
{
    pthread_mutex_unlock(&agent->lock);
}

/* Lets the lock go between two idle steps, long enough for those who want it: a mutex alone is not fair. idle: such steps so far. */
static void engine_breathe(struct ferry_agent *agent, unsigned idle)
{
    engine_unlock(agent);
    for (int i = 0; i < 1000 && atomic_load_explicit(&agent->contenders, memory_order_relaxed) > 0;
         i++) {
        sched_yield();
    }
    if (idle < CHECK_STEPS) {
        __builtin_ia32_pause();
    } else {
        sched_yield(); /* the peer may need this core */
    }
    engine_lock(agent);
}

static void action_finish(struct action *action)
{
    struct ferry_agent *agent = action->agent;
    enum user_scope before = user_scope_enter(action->scope);
    action->run(action); /* may free the action */
    user_scope_leave(before);
    engine_lock(agent);
    agent->actions_open--;
    engine_changed(agent);
    engine_unlock(agent);
}

static void action_run_in_pool(void *context)
{
    action_finish(context);
}

static void action_queue_add(struct ferry_agent *agent, struct action *action)
{
    action->next = NULL;
    if (agent->actions.head == NULL) {
        agent->actions.head = action;
    } else {
        agent->actions.tail->next = action;
    }
    agent->actions.tail = action;
}

static void action_to_pool(struct ferry_agent *agent, struct action *action)
{
    action->task.run = action_run_in_pool;
    action->task.context = action;
    if (thread_pool_submit(agent->pool, &action->task) != FERRY_OK) {
        action_queue_add(agent, action); /* no thread to be had: whoever steps runs it */
    }
}

void engine_post(struct ferry_agent *agent, struct action *action)
{
    action->agent = agent;
    action->scope = USER_HANDLER;
    agent->actions_open++;
    action_queue_add(agent, action);
    engine_kick(agent);
}

void engine_post_pool(struct ferry_agent *agent, struct action *action)
{
    action->agent = agent;
    action->scope = USER_HANDLER;
    agent->actions_open++;
    action_to_pool(agent, action);
}

void engine_post_callback(struct ferry_agent *agent, struct action *action)
{
    action->agent = agent;
    action->scope = USER_CALLBACK;
    agent->actions_open++;
    if (agent_manual(agent)) {
        action_queue_add(agent, action);
        engine_kick(agent);
    } else {
        action_to_pool(agent, action);
    }
}

/* User code runs here, without the lock; on a stack that is in user code already it goes to the pool, since that
 * code may hold locks that this one wants. `me` drives, or is NULL: the role is given up meanwhile,
 * so that the user
 * code may wait, and taken back unless somebody else has it by then. */
static unsigned engine_run_actions(struct ferry_agent *agent, const void *me)
{
    unsigned count = 0;
    while (agent->actions.head != NULL) {
        struct action *action = agent->actions.head;
        agent->actions.head = action->next;
        count++;
        if (current_scope != USER_NONE) {
            action_to_pool(agent, action);
            if (agent->actions.head == action) {
                break;
            }
            continue;
        }
        bool drives = me != NULL && agent->driver == me;
        if (drives) {
            agent->driver = NULL;
        }
        engine_unlock(agent);
        action_finish(action);
        engine_lock(agent);
        if (drives && agent->driver == NULL) {
            agent->driver = me;
        }
    }
    return count;
}

unsigned engine_step(struct ferry_agent *agent, const void *me)
{
    unsigned count = 0;
    for (size_t i = 0; i < agent->transport_count; i++) {
        ferry_transport_t *instance = agent->transports[i].instance;
        count += instance->ops->progress(instance);
    }
    if (agent->transfers != NULL) {
        count += transfer_engine_progress(agent->transfers);
    }
    if (agent->dying != NULL) {
        count += link_bury_all(agent);
    }
    if (agent->actions.head != NULL) {
        count += engine_run_actions(agent, me);
    }
    return count;
}

/* Sockets and timers. */
static unsigned engine_dispatch(struct ferry_agent *agent)
{
    unsigned count = poller_dispatch(agent->poller);
    if (agent->dying != NULL) {
        link_bury_all(agent);
    }
    return count;
}

static struct sleeper *sleeper_take(struct ferry_agent *agent)
{
    struct sleeper *sleeper = agent->spare_sleepers;
    if (sleeper != NULL) {
        agent->spare_sleepers = sleeper->next;
        return sleeper;
    }
    sleeper = malloc(sizeof(*sleeper));
    if (sleeper != NULL) {
        sleeper->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
        if (sleeper->fd < 0) {
            free(sleeper);
            sleeper = NULL;
        }
    }
    return sleeper;
}

static void sleepers_free(struct ferry_agent *agent)
{
    while (agent->spare_sleepers != NULL) {
        struct sleeper *sleeper = agent->spare_sleepers;
        agent->spare_sleepers = sleeper->next;
        close(sleeper->fd);
        free(sleeper);
    }
}

static void sleeper_wake(struct sleeper *sleeper)
{
    uint64_t one = 1;
    if (write(sleeper->fd, &one, sizeof(one)) != sizeof(one)) {
        assert(errno == EAGAIN); /* the counter is full: it is readable then */
    }
}

void engine_changed(struct ferry_agent *agent)
{
    if (agent->waiting > 0) {
        pthread_cond_broadcast(&agent->changed);
    }
    for (struct sleeper *sleeper = agent->sleeping; sleeper != NULL; sleeper = sleeper->next) {
        if (sleeper->waiter) {
            sleeper_wake(sleeper);
        }
    }
}

void engine_kick(struct ferry_agent *agent)
{
    if (agent->driver != NULL) {
        return;
    }
    if (agent->sleeping != NULL) {
        sleeper_wake(agent->sleeping);
    } else if (agent->standby || agent_manual(agent)) {
        poller_wake(agent->poller);
    }
}

static ferry_status_t engine_arm(struct ferry_agent *agent)
{
    for (size_t i = 0; i < agent->transport_count; i++) {
        ferry_transport_t *instance = agent->transports[i].instance;
        if (instance->ops->arm(instance) != FERRY_OK) {
            return FERRY_PENDING;
        }
    }
    return FERRY_OK;
}

/* How long nothing of this agent's own needs a look. */
static int64_t engine_sleep_bound(struct ferry_agent *agent, int64_t deadline_ns)
{
    int64_t next = poller_next_deadline_ns(agent->poller);
    if (deadline_ns < next) {
        next = deadline_ns;
    }
    int64_t bound = FERRY_FOREVER;
    if (next != FERRY_FOREVER) {
        int64_t now = agent_now_ns(agent);
        bound = next > now ? next - now : 0;
    }
    if (agent->transfers != NULL && transfer_engine_polls(agent->transfers) &&
        bound > DEVICE_POLL_NS) {
        bound = DEVICE_POLL_NS;
    }
    if (agent->user_clock.now_ns != NULL && bound > STANDBY_NS) {
        bound = STANDBY_NS; /* a test's clock may jump */
    }
    return bound;
}

/* Sleeps without the lock and without the role of driver. false: it could not, for want of a descriptor. */
static bool engine_doze(struct ferry_agent *agent, int64_t bound_ns, bool waiter)
{
    struct sleeper *sleeper = sleeper_take(agent);
    if (sleeper == NULL) {
        return false;
    }
    sleeper->waiter = waiter;
    LL_PREPEND(agent->sleeping, sleeper);
    agent->driver = NULL;
    if (agent->waiting > 0) {
        pthread_cond_broadcast(&agent->changed);
    }
    engine_unlock(agent);
    struct pollfd descriptors[2] = {{.fd = agent->sleep_fd, .events = POLLIN},
                                    {.fd = sleeper->fd, .events = POLLIN}};
    struct timespec timeout = {.tv_sec = bound_ns / 1000000000, .tv_nsec = bound_ns % 1000000000};
    ppoll(descriptors, 2, bound_ns == FERRY_FOREVER ? NULL : &timeout, NULL);
    engine_lock(agent);
    LL_DELETE(agent->sleeping, sleeper);
    uint64_t count;
    if (descriptors[1].revents != 0 && read(sleeper->fd, &count, sizeof(count)) < 0) {
        assert(errno == EAGAIN);
    }
    sleeper->next = agent->spare_sleepers;
    agent->spare_sleepers = sleeper;
    return true;
}

struct drive {
    bool (*ready)(void *context);
    void *context;
    int64_t deadline_ns;
    bool waiter;
};

/* Sleeps until a descriptor has something, unless there is work. The role of driver is given up meanwhile; false: another thread took it. */
static bool engine_sleep(struct ferry_agent *agent, const struct drive *drive)
{
    if (agent->actions.head != NULL || agent->dying != NULL) {
        return true;
    }
    int64_t bound = engine_sleep_bound(agent, drive->deadline_ns);
    if (engine_arm(agent) == FERRY_OK) {
        agent->busy_arms = 0;
    } else if (++agent->busy_arms < BUSY_ARMS_SPIN) {
        return true;
    } else {
        /* A stopped peer's full queue can refuse for ever. */
        int64_t pause = 1000ll * (agent->busy_arms - BUSY_ARMS_SPIN + 1);
        pause = pause < BUSY_SLEEP_MAX_NS ? pause : BUSY_SLEEP_MAX_NS;
        bound = bound < pause ? bound : pause;
    }
    if (!engine_doze(agent, bound, drive->waiter)) {
        return true;
    }
    if (agent->driver != NULL) {
        return false;
    }
    agent->driver = drive;
    engine_dispatch(agent);
    return true;
}

/* Steps until ready, the deadline, or until another thread drives; agent->driver is `drive` on entry. */
static void engine_drive(struct ferry_agent *agent, const struct drive *drive)
{
    bool spins = agent->values->progress == PROGRESS_SPIN;
    int64_t spin_ns = agent->values->progress == PROGRESS_SLEEP ? 0 : agent->values->spin_ns;
    int64_t idle_since = 0;
    unsigned idle = 0;
    for (unsigned step = 1; !drive->ready(drive->context); step++) {
        bool busy = engine_step(agent, drive) > 0;
        if (agent->driver != drive) {
            return; /* somebody else drives since our user code ran */
        }
        if (busy) {
            idle_since = 0;
            idle = 0;
        }
        /* A yield may last, so that from the first one on every step looks at the clock. */
        if (step % CHECK_STEPS != 0 && idle < CHECK_STEPS && (busy || spin_ns > 0)) {
            if (!busy) {
                engine_breathe(agent, idle++);
            }
            continue;
        }
        if (agent_now_ns(agent) >= drive->deadline_ns) {
            break;
        }
        if (agent->thread_running && drive->waiter) {
            poller_dispatch_timers(agent->poller); /* the own thread looks after the sockets */
        } else {
            engine_dispatch(agent);
        }
        if (busy) {
            continue;
        }
        int64_t now = clock_monotonic_ns(); /* a test's clock may stand still */
        if (idle_since == 0) {
            idle_since = now;
        }
        if (!spins && now - idle_since >= spin_ns && !drive->ready(drive->context)) {
            if (!engine_sleep(agent, drive)) {
                return;
            }
            idle_since = spin_ns == 0 ? 0 : clock_monotonic_ns();
        } else {
            engine_breathe(agent, idle++);
        }
    }
    agent->driver = NULL;
    if (agent->waiting > 0) {
        pthread_cond_broadcast(&agent->changed);
    }
}

static void engine_await_change(struct ferry_agent *agent, int64_t deadline_ns)
{
    int64_t bound = engine_sleep_bound(agent, deadline_ns);
    bound = bound < STANDBY_LONG_NS ? bound : STANDBY_LONG_NS; /* a signal handler cannot signal */
    int64_t until = clock_deadline_ns(clock_monotonic_ns(), bound);
    struct timespec time = {.tv_sec = until / 1000000000, .tv_nsec = until % 1000000000};
    agent->waiting++;
    pthread_cond_timedwait(&agent->changed, &agent->lock, &time);
    agent->waiting--;
}

ferry_status_t engine_wait_locked(struct ferry_agent *agent, bool (*ready)(void *context),
                                  void *context, int64_t deadline_ns)
{
    if (ready(context)) {
        return FERRY_OK;
    }
    if (current_scope == USER_CALLBACK) {
        return error_raise(FERRY_ERR_WOULD_BLOCK, "a callback must not wait");
    }
    bool pooled = agent->pool != NULL && thread_pool_current() == agent->pool;
    if (pooled) {
        ferry_status_t status = thread_pool_enter_wait(agent->pool);
        if (status != FERRY_OK) {
            return status;
        }
    }
    struct drive drive = {
        .ready = ready, .context = context, .deadline_ns = deadline_ns, .waiter = true};
    ferry_status_t status = FERRY_OK;
    atomic_fetch_add(&agent->waiters, 1);
    while (!ready(context)) {
        if (agent_now_ns(agent) >= deadline_ns) {
            status = FERRY_PENDING;
            break;
        }
        if (agent->driver != NULL) {
            engine_await_change(agent, deadline_ns);
        } else {
            agent->driver = &drive;
            engine_drive(agent, &drive);
        }
    }
    atomic_fetch_sub(&agent->waiters, 1);
    if (pooled) {
        thread_pool_leave_wait(agent->pool);
    }
    return status;
}

static bool engine_thread_yields(void *context)
{
    struct ferry_agent *agent = context;
    return atomic_load_explicit(&agent->waiters, memory_order_relaxed) > 0 ||
           atomic_load_explicit(&agent->thread_quit, memory_order_relaxed);
}

static void *engine_main(void *argument)
{
    struct ferry_agent *agent = argument;
    pthread_setname_np(pthread_self(), "ferry-engine");
    struct drive drive = {.ready = engine_thread_yields,
                          .context = agent,
                          .deadline_ns = FERRY_FOREVER,
                          .waiter = false};
    engine_lock(agent);
    while (!atomic_load(&agent->thread_quit)) {
        if (agent->driver != NULL || atomic_load(&agent->waiters) > 0) {
            int64_t bound = agent->sleeping != NULL ? STANDBY_LONG_NS : STANDBY_NS;
            agent->standby = true;
            engine_unlock(agent);
            poller_wait(agent->poller, bound);
            engine_lock(agent);
            agent->standby = false;
            engine_dispatch(agent);
            engine_run_actions(agent, NULL);
            if (atomic_load(&agent->stop_requested)) {
                engine_changed(agent); /* the wake-up of ferry_agent_stop() came here */
            }
        } else {
            agent->driver = &drive;
            engine_drive(agent, &drive);
        }
    }
    engine_unlock(agent);
    return NULL;
}

static ferry_status_t engine_watch(struct ferry_agent *agent, int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    if (epoll_ctl(agent->sleep_fd, EPOLL_CTL_ADD, fd, &event) != 0) {
        return error_raise_errno(errno, "the agent's descriptor set");
    }
    return FERRY_OK;
}

ferry_status_t engine_start(struct ferry_agent *agent)
{
    agent->sleep_fd = epoll_create1(EPOLL_CLOEXEC);
    if (agent->sleep_fd < 0) {
        return error_raise_errno(errno, "the agent's descriptor set");
    }
    ferry_status_t status = engine_watch(agent, poller_fd(agent->poller));
    for (size_t i = 0; status == FERRY_OK && i < agent->transport_count; i++) {
        ferry_transport_t *instance = agent->transports[i].instance;
        status = engine_watch(agent, instance->ops->wait_fd(instance));
    }
    if (status != FERRY_OK || agent_manual(agent)) {
        return status;
    }
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&agent->thread, NULL, engine_main, agent);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0) {
        return error_raise_errno(error, "the agent's thread");
    }
    agent->thread_running = true;
    return FERRY_OK;
}

void engine_stop(struct ferry_agent *agent)
{
    if (agent->thread_running) {
        atomic_store(&agent->thread_quit, true);
        poller_wake(agent->poller);
        pthread_join(agent->thread, NULL);
        agent->thread_running = false;
    }
    sleepers_free(agent);
    if (agent->sleep_fd >= 0) {
        close(agent->sleep_fd);
        agent->sleep_fd = -1;
    }
}

int ferry_agent_fd(const ferry_agent_t *agent)
{
    return agent->sleep_fd;
}

unsigned ferry_agent_progress(ferry_agent_t *agent)
{
    if (agent == NULL) {
        return 0;
    }
    unsigned count = 0;
    engine_lock(agent);
    if (agent->sleep_fd >= 0 && agent->driver == NULL) {
        const void *me = &count;
        agent->driver = me;
        count = engine_step(agent, me);
        if (agent->prepared || agent->progress_calls++ % CHECK_STEPS == 0) {
            agent->prepared = false;
            count += engine_dispatch(agent);
            count += engine_step(agent, me);
        }
        if (agent->driver == me) {
            agent->driver = NULL;
        }
        if (agent->waiting > 0) {
            pthread_cond_broadcast(&agent->changed);
        }
    }
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
        if (engine_arm(agent) == FERRY_OK) {
            agent->busy_arms = 0;
        } else if (++agent->busy_arms < BUSY_ARMS_SPIN) {
            status = FERRY_PENDING;
        } else if (bound > BUSY_SLEEP_MAX_NS) {
            bound = BUSY_SLEEP_MAX_NS;
        }
        if (status == FERRY_OK) {
            agent->prepared = true;
            *timeout_ns_out = bound;
        }
    }
    engine_unlock(agent);
    return status;
}
