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

#include "rpc/engine_internal.h"
#include "rpc/link.h"

#define LOCK_SPINS 20        /* some 1 us: a driver lets others in between two steps */
#define CHECK_STEPS 64       /* steps between looks at the clock, while they cost nothing */
#define YIELD_AFTER_NS 20000 /* of idleness: a peer on the same core needs it */
#define DISPATCH_NS 100000   /* how often a busy driver looks after the sockets */
#define STANDBY_NS 1000000   /* how often the own thread looks after sockets behind a busy waiter */
#define STANDBY_BRIEF_NS 50000    /* the same between two waits of a busy thread */
#define STANDBY_LONG_NS 100000000 /* the same behind a sleeping one */
#define DEVICE_POLL_NS 50000      /* the longest sleep while device events are outstanding */
#define BUSY_ARMS_SPIN 16 /* refusals to be armed before the engine sleeps in growing steps */
#define BUSY_SLEEP_MAX_NS 1000000

/* ---- the lock ---- */

void engine_lock(struct ferry_agent *agent)
{
    if (pthread_mutex_trylock(&agent->lock) == 0) {
        return;
    }
    atomic_fetch_add_explicit(&agent->contenders, 1, memory_order_relaxed);
    bool locked = false;
    for (int i = 0; i < LOCK_SPINS && !locked; i++) {
        __builtin_ia32_pause();
        locked = pthread_mutex_trylock(&agent->lock) == 0;
    }
    if (!locked) {
        pthread_mutex_lock(&agent->lock);
    }
    atomic_fetch_sub_explicit(&agent->contenders, 1, memory_order_relaxed);
}

void engine_unlock(struct ferry_agent *agent)
{
    if (agent->pool_actions.head != NULL) {
        engine_submit_actions(agent);
    } else {
        pthread_mutex_unlock(&agent->lock);
    }
}

/* A mutex alone is not fair: the driver would have it again before a contender has woken up. */
static void engine_let_in(struct ferry_agent *agent)
{
    engine_unlock(agent);
    for (int i = 0; i < 1000; i++) {
        if (atomic_load_explicit(&agent->contenders, memory_order_relaxed) == 0) {
            break;
        }
        if (i < LOCK_SPINS) {
            __builtin_ia32_pause();
        } else {
            sched_yield();
        }
    }
    engine_lock(agent);
}

/* ---- a step ---- */

unsigned engine_step(struct ferry_agent *agent, const void *me)
{
    unsigned count = 0;
    agent->step_ns = 0;
    for (size_t i = 0; i < agent->transport_count; i++) {
        ferry_transport_t *instance = agent->transports[i].instance;
        count += instance->ops->progress(instance);
    }
    if (agent->transfers != NULL && transfer_engine_polls(agent->transfers)) {
        count += transfer_engine_progress(agent->transfers);
    }
    if (agent->dying != NULL) {
        count += link_bury_all(agent);
    }
    if (agent->actions.head != NULL) {
        count += engine_run_actions(agent, me);
    }
    if (agent->pool_actions.head != NULL) {
        engine_submit_actions(agent);
        engine_lock(agent);
    }
    return count;
}

int64_t engine_step_ns(struct ferry_agent *agent)
{
    if (agent->step_ns == 0) {
        agent->step_ns = agent_now_ns(agent);
    }
    return agent->step_ns;
}

unsigned engine_dispatch(struct ferry_agent *agent)
{
    unsigned count = poller_dispatch(agent->poller);
    if (agent->dying != NULL) {
        link_bury_all(agent);
    }
    return count;
}

/* ---- telling threads ---- */

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

static void waiter_tell(struct waiter *waiter)
{
    waiter->told = true;
    if (waiter->sleeper != NULL) {
        sleeper_wake(waiter->sleeper);
    } else {
        sem_post(&waiter->semaphore);
    }
}

void engine_changed(struct ferry_agent *agent)
{
    for (struct waiter *waiter = agent->waiters; waiter != NULL; waiter = waiter->next) {
        if (waiter->blocked && !waiter->told && waiter->ready(waiter->context)) {
            waiter_tell(waiter);
        }
    }
}

/* A waiter that is not blocked, or was told to look, sees for itself that nobody drives. */
void engine_hand_over(struct ferry_agent *agent)
{
    struct waiter *first = agent->waiters;
    for (struct waiter *waiter = first; waiter != NULL; waiter = waiter->next) {
        if (!waiter->blocked || waiter->told) {
            return;
        }
    }
    if (first != NULL) {
        waiter_tell(first);
    } else if (agent->standby_long) {
        poller_wake(agent->poller);
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

void engine_kick_for_call(struct ferry_agent *agent)
{
    unsigned waits = atomic_load_explicit(&agent->waits, memory_order_relaxed);
    bool standby = agent->standby && !agent->standby_long && agent->sleeping == NULL;
    bool awaited = standby && waits != agent->waits_at_call;
    agent->waits_at_call = waits;
    if (!awaited) {
        engine_kick(agent);
    }
}

/* ---- sleeping ---- */

static bool transports_arm(struct ferry_agent *agent)
{
    for (size_t i = 0; i < agent->transport_count; i++) {
        ferry_transport_t *instance = agent->transports[i].instance;
        if (instance->ops->arm(instance) != FERRY_OK) {
            return false;
        }
    }
    return true;
}

ferry_status_t engine_arm(struct ferry_agent *agent, int64_t *bound_ns)
{
    if (transports_arm(agent)) {
        agent->busy_arms = 0;
        return FERRY_OK;
    }
    if (++agent->busy_arms < BUSY_ARMS_SPIN) {
        return FERRY_PENDING;
    }
    int64_t pause = 1000ll * (agent->busy_arms - BUSY_ARMS_SPIN + 1);
    pause = pause < BUSY_SLEEP_MAX_NS ? pause : BUSY_SLEEP_MAX_NS;
    *bound_ns = *bound_ns < pause ? *bound_ns : pause;
    return FERRY_OK;
}

int64_t engine_sleep_bound(struct ferry_agent *agent, int64_t deadline_ns)
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

/* Sleeps on the descriptors, without the lock and without the role of driver. false: it could not, for want of a descriptor. */
static bool engine_doze(struct ferry_agent *agent, struct waiter *waiter, int64_t bound_ns)
{
    struct sleeper *sleeper = sleeper_take(agent);
    if (sleeper == NULL) {
        return false;
    }
    LL_PREPEND(agent->sleeping, sleeper);
    waiter->sleeper = sleeper;
    waiter->told = false;
    waiter->blocked = true;
    agent->driver = NULL;
    engine_unlock(agent);
    struct pollfd descriptors[2] = {{.fd = agent->sleep_fd, .events = POLLIN},
                                    {.fd = sleeper->fd, .events = POLLIN}};
    struct timespec timeout = {.tv_sec = bound_ns / 1000000000, .tv_nsec = bound_ns % 1000000000};
    ppoll(descriptors, 2, bound_ns == FERRY_FOREVER ? NULL : &timeout, NULL);
    engine_lock(agent);
    waiter->blocked = false;
    waiter->sleeper = NULL;
    LL_DELETE(agent->sleeping, sleeper);
    uint64_t count;
    if (read(sleeper->fd, &count, sizeof(count)) < 0) {
        assert(errno == EAGAIN); /* nobody woke it */
    }
    sleeper->next = agent->spare_sleepers;
    agent->spare_sleepers = sleeper;
    return true;
}

/* Sleeps until a descriptor has something, unless there is work. false: another thread drives since. */
static bool engine_sleep(struct ferry_agent *agent, struct waiter *waiter)
{
    if (agent->actions.head != NULL || agent->dying != NULL) {
        return true;
    }
    int64_t bound = engine_sleep_bound(agent, waiter->deadline_ns);
    if (engine_arm(agent, &bound) != FERRY_OK || !engine_doze(agent, waiter, bound)) {
        return true;
    }
    if (agent->driver != NULL) {
        return false;
    }
    agent->driver = waiter;
    engine_dispatch(agent);
    return true;
}

/* Blocks while another thread drives. */
static void engine_await(struct ferry_agent *agent, struct waiter *waiter)
{
    int64_t bound = engine_sleep_bound(agent, waiter->deadline_ns);
    bound = bound < STANDBY_LONG_NS ? bound : STANDBY_LONG_NS; /* a signal handler cannot tell */
    int64_t until = clock_deadline_ns(clock_monotonic_ns(), bound);
    struct timespec time = {.tv_sec = until / 1000000000, .tv_nsec = until % 1000000000};
    waiter->told = false;
    waiter->blocked = true;
    engine_unlock(agent);
    sem_clockwait(&waiter->semaphore, CLOCK_MONOTONIC, &time);
    engine_lock(agent);
    waiter->blocked = false;
    while (sem_trywait(&waiter->semaphore) == 0) {
        /* told just after the time was up */
    }
}

/* ---- driving ---- */

/* How a driver that finds nothing to do passes the time. */
struct pace {
    bool spins;      /* for ever, and never lets the core go */
    int64_t spin_ns; /* otherwise: how long before it sleeps */
    unsigned steps;  /* since the clock was looked at */
    bool yields;     /* every step costs a system call, so every one looks at the clock */
    int64_t
        idle_since; /* by the real clock, a test's may stand still; 0: not idle when last looked */
    int64_t dispatch_ns; /* when to look after the sockets */
};

static void pace_dispatch(struct pace *pace, struct ferry_agent *agent, const struct waiter *waiter,
                          int64_t now_ns)
{
    if (agent->thread_running && !waiter->own_thread) {
        poller_dispatch_timers(agent->poller); /* the own thread looks after the sockets */
    } else if (now_ns >= pace->dispatch_ns) {
        engine_dispatch(agent);
        pace->dispatch_ns = now_ns + DISPATCH_NS;
    } else {
        poller_dispatch_timers(agent->poller);
    }
}

static void pace_yield(struct pace *pace, struct ferry_agent *agent)
{
    pace->yields = true;
    engine_unlock(agent);
    sched_yield();
    engine_lock(agent);
}

/* After a step. false: another thread drives since. */
static bool pace_keep(struct pace *pace, struct ferry_agent *agent, struct waiter *waiter,
                      bool busy)
{
    if (busy) {
        pace->idle_since = 0;
        pace->yields = false;
    }
    /* Handlers in the pool may need this core. */
    bool at_once = pace->yields || (!busy && (pace->spin_ns == 0 || agent->actions_open > 0));
    if (++pace->steps < CHECK_STEPS && !at_once) {
        return true;
    }
    pace->steps = 0;
    int64_t now = clock_monotonic_ns();
    pace_dispatch(pace, agent, waiter, now);
    if (busy) {
        return true;
    }
    if (pace->spins) {
        if (agent->actions_open > 0) {
            pace_yield(pace, agent);
        }
        return true;
    }
    pace->idle_since = pace->idle_since == 0 ? now : pace->idle_since;
    if (now - pace->idle_since >= pace->spin_ns && !waiter->ready(waiter->context)) {
        bool drives = engine_sleep(agent, waiter);
        pace->idle_since = 0;
        return drives;
    }
    if (agent->actions_open > 0 || now - pace->idle_since >= YIELD_AFTER_NS) {
        pace_yield(pace, agent);
    }
    return true;
}

/* Steps until ready, the deadline, or until another thread drives; agent->driver is `waiter` on entry. */
static void engine_drive(struct ferry_agent *agent, struct waiter *waiter)
{
    struct pace pace = {
        .spins = agent->values->progress == PROGRESS_SPIN,
        .spin_ns = agent->values->progress == PROGRESS_SLEEP ? 0 : agent->values->spin_ns,
    };
    while (!waiter->ready(waiter->context)) {
        bool busy = engine_step(agent, waiter) > 0;
        if (agent->driver != waiter) {
            return; /* somebody else drives since our user code ran */
        }
        if (atomic_load_explicit(&agent->contenders, memory_order_relaxed) > 0) {
            engine_let_in(agent);
        }
        if (!pace_keep(&pace, agent, waiter, busy)) {
            return;
        }
        if (pace.steps == 0 && agent_now_ns(agent) >= waiter->deadline_ns) {
            break;
        }
    }
    agent->driver = NULL;
}

/* The lock is held, so the counters need no atomic addition. */
static void engine_count_waiting(struct ferry_agent *agent, int change)
{
    int waiting = atomic_load_explicit(&agent->waiting, memory_order_relaxed);
    atomic_store_explicit(&agent->waiting, waiting + change, memory_order_relaxed);
}

static void waiter_add(struct ferry_agent *agent, struct waiter *waiter)
{
    sem_init(&waiter->semaphore, 0, 0);
    DL_APPEND(agent->waiters, waiter);
    engine_count_waiting(agent, 1);
    unsigned waits = atomic_load_explicit(&agent->waits, memory_order_relaxed);
    atomic_store_explicit(&agent->waits, waits + 1, memory_order_relaxed);
}

static void waiter_remove(struct ferry_agent *agent, struct waiter *waiter)
{
    engine_count_waiting(agent, -1);
    DL_DELETE(agent->waiters, waiter);
    sem_destroy(&waiter->semaphore);
}

ferry_status_t engine_wait_locked(struct ferry_agent *agent, bool (*ready)(void *context),
                                  void *context, int64_t deadline_ns)
{
    if (ready(context)) {
        return FERRY_OK;
    }
    if (user_scope_now() == USER_CALLBACK) {
        return error_raise(FERRY_ERR_WOULD_BLOCK, "a callback must not wait");
    }
    bool pooled = agent->pool != NULL && thread_pool_current() == agent->pool;
    if (pooled) {
        ferry_status_t status = thread_pool_enter_wait(agent->pool);
        if (status != FERRY_OK) {
            return status;
        }
    }
    struct waiter waiter = {.ready = ready, .context = context, .deadline_ns = deadline_ns};
    ferry_status_t status = FERRY_OK;
    waiter_add(agent, &waiter);
    while (!ready(context)) {
        if (deadline_ns != FERRY_FOREVER && agent_now_ns(agent) >= deadline_ns) {
            status = FERRY_PENDING;
            break;
        }
        if (agent->driver != NULL) {
            engine_await(agent, &waiter);
        } else {
            agent->driver = &waiter;
            engine_drive(agent, &waiter);
        }
    }
    waiter_remove(agent, &waiter);
    if (agent->driver == NULL) {
        engine_hand_over(agent);
    }
    if (pooled) {
        thread_pool_leave_wait(agent->pool);
    }
    return status;
}

/* ---- the own thread ---- */

static bool engine_thread_yields(void *context)
{
    struct ferry_agent *agent = context;
    return atomic_load_explicit(&agent->waiting, memory_order_relaxed) > 0 ||
           atomic_load_explicit(&agent->thread_quit, memory_order_relaxed);
}

/* Sleeps, without the lock, until a descriptor has something, or until no thread has begun to wait
 * for a while. A thread that calls and waits in a loop drives the agent itself: this one would only
 * take the role, and perhaps the core, from it between two of its waits. */
static void engine_sleep_behind(struct ferry_agent *agent)
{
    unsigned seen;
    bool told;
    do {
        seen = atomic_load_explicit(&agent->waits, memory_order_relaxed);
        bool between = atomic_load_explicit(&agent->waiting, memory_order_relaxed) == 0;
        told = poller_wait(agent->poller, between ? STANDBY_BRIEF_NS : STANDBY_NS);
    } while (!told && atomic_load_explicit(&agent->waits, memory_order_relaxed) != seen);
}

/* Looks after the sockets behind whoever drives. */
static void engine_stand_by(struct ferry_agent *agent)
{
    agent->standby = true;
    agent->standby_long = agent->sleeping != NULL;
    bool behind_sleeper = agent->standby_long;
    engine_unlock(agent);
    if (behind_sleeper) {
        poller_wait(agent->poller, STANDBY_LONG_NS);
    } else {
        engine_sleep_behind(agent);
    }
    engine_lock(agent);
    agent->standby = agent->standby_long = false;
    engine_dispatch(agent);
    engine_run_actions(agent, NULL);
    if (atomic_load(&agent->stop_requested)) {
        engine_changed(agent); /* the wake-up of ferry_agent_stop() came here */
    }
}

static void *engine_main(void *argument)
{
    struct ferry_agent *agent = argument;
    pthread_setname_np(pthread_self(), "ferry-engine");
    struct waiter waiter = {.ready = engine_thread_yields,
                            .context = agent,
                            .deadline_ns = FERRY_FOREVER,
                            .own_thread = true};
    engine_lock(agent);
    while (!atomic_load(&agent->thread_quit)) {
        if (agent->driver != NULL || atomic_load(&agent->waiting) > 0) {
            engine_stand_by(agent);
        } else {
            agent->driver = &waiter;
            engine_drive(agent, &waiter);
            if (agent->driver == NULL) {
                engine_hand_over(agent);
            }
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
