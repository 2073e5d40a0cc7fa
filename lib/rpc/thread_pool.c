#include "rpc/thread_pool.h"

#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <utlist.h>

#include "core/clock.h"
#include "core/error.h"

/* How long a thread that is one too many waits for work before it ends: long enough that calls which
 * nest again and again start no thread each time. */
#define LINGER_NS 100000000
#define SPIN_PAUSES 50       /* some 2 us */
#define THREAD_NAME_BYTES 16 /* the kernel's */

struct worker {
    struct thread_pool *pool;
    struct worker *next; /* in one of the pool's three lists, or running and in none */
    pthread_t thread;
    pthread_cond_t wake;
    bool woken;
    int wait_depth; /* its own thread's */
    int number;
};

/* A thread of the pool is running (a task that does not wait), waiting (within enter_wait and
 * leave_wait), asleep, or awake: about to take the lock and look for work. Work is never forgotten,
 * since whoever makes a task runnable sees to it that enough threads are awake, and a thread that
 * leaves off running looks for work itself. */
struct thread_pool {
    pthread_mutex_t lock;
    pthread_cond_t empty; /* the last thread has ended */
    struct thread_pool_task *head, *tail;
    atomic_size_t queued;   /* written under the lock; the thread that spins reads it without */
    struct worker *workers; /* owned; max of them */
    struct worker *unused, *ended, *sleepers; /* ended: to be joined; sleepers: last come, first */
    int64_t threads, max, spin_ns;
    int64_t total, running, waiting, awake;
    bool spinning; /* one thread at a time */
    bool closing;
    char prefix[THREAD_NAME_BYTES];
};

static _Thread_local struct worker *current_worker;

static bool can_run(const struct thread_pool *pool)
{
    return pool->head != NULL && pool->running < pool->threads;
}

static bool is_surplus(const struct thread_pool *pool)
{
    return pool->total > pool->threads + pool->waiting;
}

static struct thread_pool_task *queue_pop(struct thread_pool *pool)
{
    struct thread_pool_task *task = pool->head;
    pool->head = task->next;
    if (pool->head == NULL) {
        pool->tail = NULL;
    }
    atomic_fetch_sub_explicit(&pool->queued, 1, memory_order_relaxed);
    return task;
}

static void queue_push(struct thread_pool *pool, struct thread_pool_task *task)
{
    task->next = NULL;
    if (pool->tail == NULL) {
        pool->head = task;
    } else {
        pool->tail->next = task;
    }
    pool->tail = task;
    atomic_fetch_add_explicit(&pool->queued, 1, memory_order_relaxed);
}

/* The lock is held, and is again on return. The task may free itself, so it is read before. */
static void run_task(struct thread_pool *pool)
{
    struct thread_pool_task task = *queue_pop(pool);
    pool->awake--;
    pool->running++;
    pthread_mutex_unlock(&pool->lock);
    task.run(task.context);
    assert(current_worker->wait_depth == 0);
    pthread_mutex_lock(&pool->lock);
    pool->running--;
    pool->awake++;
}

/* A thread that has nothing to run soon lets others have its core: whoever submits may be on the same one. */
static void spin(struct thread_pool *pool)
{
    pool->spinning = true;
    pthread_mutex_unlock(&pool->lock);
    int64_t deadline_ns = clock_monotonic_ns() + pool->spin_ns;
    for (unsigned i = 0; atomic_load_explicit(&pool->queued, memory_order_relaxed) == 0; i++) {
        if (i < SPIN_PAUSES) {
            __builtin_ia32_pause();
        } else if (clock_monotonic_ns() < deadline_ns) {
            sched_yield();
        } else {
            break;
        }
    }
    pthread_mutex_lock(&pool->lock);
    pool->spinning = false;
}

static bool passed(const struct timespec *deadline)
{
    return clock_monotonic_ns() >= (int64_t)deadline->tv_sec * 1000000000 + deadline->tv_nsec;
}

/* Returns when there may be work; false: the thread shall end. */
static bool worker_sleep(struct worker *worker)
{
    struct thread_pool *pool = worker->pool;
    if (pool->closing) {
        return false;
    }
    int64_t until_ns = clock_monotonic_ns() + LINGER_NS;
    struct timespec deadline = {.tv_sec = until_ns / 1000000000, .tv_nsec = until_ns % 1000000000};
    worker->woken = false;
    LL_PREPEND(pool->sleepers, worker);
    pool->awake--;
    while (!worker->woken) {
        if (!is_surplus(pool)) {
            pthread_cond_wait(&worker->wake, &pool->lock);
        } else if (!passed(&deadline)) {
            pthread_cond_timedwait(&worker->wake, &pool->lock, &deadline);
        } else {
            LL_DELETE(pool->sleepers, worker);
            pool->awake++;
            return false;
        }
    }
    return true;
}

static void *worker_main(void *argument)
{
    struct worker *worker = argument;
    struct thread_pool *pool = worker->pool;
    char name[2 * THREAD_NAME_BYTES];
    snprintf(name, sizeof name, "%s-%d", pool->prefix, worker->number);
    name[THREAD_NAME_BYTES - 1] = '\0';
    pthread_setname_np(pthread_self(), name);
    current_worker = worker;

    pthread_mutex_lock(&pool->lock);
    bool goes_on = true;
    while (goes_on) {
        while (can_run(pool)) {
            run_task(pool);
        }
        if (pool->spin_ns > 0 && !pool->spinning && !pool->closing) {
            spin(pool);
        }
        goes_on = can_run(pool) || worker_sleep(worker);
    }
    pool->awake--;
    pool->total--;
    LL_PREPEND(pool->ended, worker);
    if (pool->total == 0) {
        pthread_cond_signal(&pool->empty);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

/* Ended threads need the lock no more, so joining them under it is short. */
static void join_ended(struct thread_pool *pool)
{
    while (pool->ended != NULL) {
        struct worker *worker = pool->ended;
        LL_DELETE(pool->ended, worker);
        pthread_join(worker->thread, NULL);
        LL_PREPEND(pool->unused, worker);
    }
}

/* 0 or an error number. */
static int worker_start(struct thread_pool *pool)
{
    join_ended(pool);
    struct worker *worker = pool->unused;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&worker->thread, NULL, worker_main, worker);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error == 0) {
        LL_DELETE(pool->unused, worker);
        pool->total++;
        pool->awake++;
    }
    return error;
}

/* Sees to it that what can run, with `more` tasks that are about to be queued, has a thread that is awake
 * for it. The worker that is returned is to be signalled without the lock, so that it does not wake
 * only
 * to wait for it. A thread that cannot be started is no harm while others can take over. */
static struct worker *dispatch(struct thread_pool *pool, int64_t more, int *error_out)
{
    int64_t tasks = (int64_t)atomic_load_explicit(&pool->queued, memory_order_relaxed) + more;
    int64_t room = pool->threads - pool->running;
    if (pool->awake >= (tasks < room ? tasks : room)) {
        return NULL;
    }
    struct worker *worker = pool->sleepers;
    if (worker != NULL) {
        LL_DELETE(pool->sleepers, worker);
        worker->woken = true;
        pool->awake++;
    } else if (pool->total < pool->max) {
        *error_out = worker_start(pool);
    }
    return worker;
}

ferry_status_t thread_pool_submit(struct thread_pool *pool, struct thread_pool_task *task)
{
    int error = 0;
    pthread_mutex_lock(&pool->lock);
    struct worker *worker = dispatch(pool, 1, &error);
    bool taken = pool->total > pool->waiting;
    if (taken) {
        queue_push(pool, task);
    }
    pthread_mutex_unlock(&pool->lock);
    if (!taken) {
        return error_raise_errno(error, "cannot start a thread '%s' to run a handler",
                                 pool->prefix);
    }
    if (worker != NULL) {
        pthread_cond_signal(&worker->wake);
    }
    return FERRY_OK;
}

/* The lock is held. */
static ferry_status_t begin_wait(struct thread_pool *pool, struct worker **worker_out)
{
    if (pool->waiting + 1 >= pool->max) {
        return error_raise(FERRY_ERR_BUSY,
                           "%lld of the pool's %lld threads wait already and one must stay free: "
                           "raise FERRY_POOL_MAX",
                           (long long)pool->waiting, (long long)pool->max);
    }
    int error = 0;
    pool->waiting++;
    pool->running--;
    *worker_out = dispatch(pool, 0, &error);
    if (error != 0 && pool->total == pool->waiting) {
        pool->waiting--;
        pool->running++;
        return error_raise(FERRY_ERR_BUSY, "all threads of the pool wait and no other starts: %s",
                           strerror(error));
    }
    return FERRY_OK;
}

ferry_status_t thread_pool_enter_wait(struct thread_pool *pool)
{
    struct worker *self = current_worker;
    if (self == NULL || self->pool != pool) {
        return FERRY_OK;
    }
    if (self->wait_depth == 0) {
        struct worker *worker = NULL;
        pthread_mutex_lock(&pool->lock);
        ferry_status_t status = begin_wait(pool, &worker);
        pthread_mutex_unlock(&pool->lock);
        if (status != FERRY_OK) {
            return status;
        }
        if (worker != NULL) {
            pthread_cond_signal(&worker->wake);
        }
    }
    self->wait_depth++;
    return FERRY_OK;
}

void thread_pool_leave_wait(struct thread_pool *pool)
{
    struct worker *self = current_worker;
    if (self == NULL || self->pool != pool) {
        return;
    }
    assert(self->wait_depth > 0);
    if (--self->wait_depth == 0) {
        pthread_mutex_lock(&pool->lock);
        pool->waiting--;
        pool->running++;
        pthread_mutex_unlock(&pool->lock);
    }
}

struct thread_pool *thread_pool_current(void)
{
    return current_worker == NULL ? NULL : current_worker->pool;
}

int64_t thread_pool_size(struct thread_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    int64_t total = pool->total;
    pthread_mutex_unlock(&pool->lock);
    return total;
}

static void workers_init(struct thread_pool *pool)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    for (int64_t i = pool->max - 1; i >= 0; i--) {
        struct worker *worker = &pool->workers[i];
        worker->pool = pool;
        worker->number = (int)(i + 1);
        pthread_cond_init(&worker->wake, &attributes);
        LL_PREPEND(pool->unused, worker);
    }
    pthread_condattr_destroy(&attributes);
}

ferry_status_t thread_pool_create(int64_t threads, int64_t max, int64_t spin_ns, const char *prefix,
                                  struct thread_pool **pool_out)
{
    if (threads < 1 || max < threads || max > INT32_MAX || spin_ns < 0) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT,
                           "a pool of %lld threads, at most %lld, that spins %lld ns",
                           (long long)threads, (long long)max, (long long)spin_ns);
    }
    struct thread_pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL) {
        goto no_memory;
    }
    pool->workers = calloc((size_t)max, sizeof *pool->workers);
    if (pool->workers == NULL) {
        goto free_pool;
    }
    pool->threads = threads;
    pool->max = max;
    pool->spin_ns = spin_ns;
    snprintf(pool->prefix, sizeof pool->prefix, "%s", prefix);
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->empty, NULL);
    workers_init(pool);
    *pool_out = pool;
    return FERRY_OK;

free_pool:
    free(pool);
no_memory:
    return error_raise(FERRY_ERR_NO_MEMORY, "no memory for a pool of %lld threads", (long long)max);
}

void thread_pool_destroy(struct thread_pool *pool)
{
    if (pool == NULL) {
        return;
    }
    assert(thread_pool_current() != pool);
    pthread_mutex_lock(&pool->lock);
    pool->closing = true;
    while (pool->sleepers != NULL) {
        struct worker *worker = pool->sleepers;
        LL_DELETE(pool->sleepers, worker);
        worker->woken = true;
        pool->awake++;
        pthread_cond_signal(&worker->wake);
    }
    while (pool->total > 0) {
        pthread_cond_wait(&pool->empty, &pool->lock);
    }
    assert(pool->head == NULL);
    join_ended(pool);
    pthread_mutex_unlock(&pool->lock);
    for (int64_t i = 0; i < pool->max; i++) {
        pthread_cond_destroy(&pool->workers[i].wake);
    }
    pthread_cond_destroy(&pool->empty);
    pthread_mutex_destroy(&pool->lock);
    free(pool->workers);
    free(pool);
}
