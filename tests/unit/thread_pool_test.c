/* The pool of handlers' threads: order, bounds, waits that do not starve, and threads that come and go. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

#include <ferry/error.h>

#include "core/clock.h"
#include "rpc/thread_pool.h"

#define SECOND_NS 1000000000LL
#define TASKS 200

static struct thread_pool *pool;

static void create(int64_t threads, int64_t max, int64_t spin_ns)
{
    cr_assert_eq(thread_pool_create(threads, max, spin_ns, "ferry-pool", &pool), FERRY_OK);
}

static void submit(struct thread_pool_task *task)
{
    cr_assert_eq(thread_pool_submit(pool, task), FERRY_OK, "%s", ferry_last_error()->text);
}

static void wait_until(const atomic_int *value, int expected)
{
    int64_t deadline_ns = clock_monotonic_ns() + 20 * SECOND_NS;
    while (atomic_load(value) != expected) {
        cr_assert(clock_monotonic_ns() < deadline_ns, "%d and not %d", atomic_load(value),
                  expected);
        sched_yield();
    }
}

static void wait_for_size(int64_t expected)
{
    int64_t deadline_ns = clock_monotonic_ns() + 20 * SECOND_NS;
    while (thread_pool_size(pool) != expected) {
        cr_assert(clock_monotonic_ns() < deadline_ns, "%d threads", (int)thread_pool_size(pool));
        sched_yield();
    }
}

static void expect_error(ferry_status_t status, ferry_status_t expected, const char *text)
{
    cr_assert_eq(status, expected, "status %d", (int)status);
    cr_assert(strstr(ferry_last_error()->text, text) != NULL, "'%s' lacks '%s'",
              ferry_last_error()->text, text);
}

static atomic_int finished;

struct numbered {
    struct thread_pool_task task;
    int number;
};

static int order[TASKS];

static void note_order(void *context)
{
    const struct numbered *self = context;
    order[atomic_fetch_add(&finished, 1)] = self->number;
}

Test(thread_pool, one_thread_runs_tasks_in_their_order_and_destroy_waits_for_all)
{
    static struct numbered tasks[TASKS];
    create(1, 1, 0);
    cr_assert_eq(thread_pool_size(pool), 0, "no thread before there is work");
    for (int i = 0; i < TASKS; i++) {
        tasks[i] =
            (struct numbered){.task = {.run = note_order, .context = &tasks[i]}, .number = i};
        submit(&tasks[i].task);
        cr_assert_eq(thread_pool_size(pool), 1);
    }
    thread_pool_destroy(pool);
    cr_assert_eq(finished, TASKS);
    for (int i = 0; i < TASKS; i++) {
        cr_assert_eq(order[i], i);
    }
}

static atomic_int inside, inside_max;
static atomic_bool gate_open;

static void pass_gate(void *context)
{
    (void)context;
    int now = atomic_fetch_add(&inside, 1) + 1;
    int most = atomic_load(&inside_max);
    while (now > most && !atomic_compare_exchange_weak(&inside_max, &most, now)) {
    }
    while (!atomic_load(&gate_open)) {
        sched_yield();
    }
    atomic_fetch_sub(&inside, 1);
    atomic_fetch_add(&finished, 1);
}

Test(thread_pool, as_many_tasks_as_threads_run_at_once)
{
    static struct thread_pool_task tasks[20];
    create(3, 10, 0);
    for (int i = 0; i < 20; i++) {
        tasks[i].run = pass_gate;
        submit(&tasks[i]);
    }
    wait_until(&inside, 3);
    cr_assert_eq(thread_pool_size(pool), 3);
    atomic_store(&gate_open, true);
    wait_until(&finished, 20);
    cr_assert_eq(inside_max, 3);
    thread_pool_destroy(pool);
}

static void finish(void *context)
{
    (void)context;
    atomic_fetch_add(&finished, 1);
}

/* A handler that twice submits another and waits for it: the first starts a thread, the second wakes it. */
static void nest(void *context)
{
    struct thread_pool_task inner = {.run = finish};
    atomic_int *results = context;
    results[0] = thread_pool_current() == pool ? 1 : -1;
    for (int round = 1; round <= 2; round++) {
        submit(&inner);
        results[1] += (int)thread_pool_enter_wait(pool);
        results[1] += (int)thread_pool_enter_wait(pool); /* a wait within the wait */
        thread_pool_leave_wait(pool);
        wait_until(&finished, round);
        thread_pool_leave_wait(pool);
    }
    atomic_fetch_add(&finished, 1);
}

Test(thread_pool, a_waiting_task_makes_room_for_the_one_it_waits_for)
{
    static atomic_int results[2];
    struct thread_pool_task outer = {.run = nest, .context = results};
    create(1, 2, 0);
    submit(&outer);
    wait_until(&finished, 3);
    cr_assert_eq(results[0], 1);
    cr_assert_eq(results[1], FERRY_OK);
    wait_for_size(1); /* the second thread has gone */
    thread_pool_destroy(pool);
}

static atomic_int waiting, refused;
static char refusal[256];

/* Waits until the gate opens, or counts itself as refused. */
static void wait_at_gate(void *context)
{
    (void)context;
    if (thread_pool_enter_wait(pool) != FERRY_OK) {
        cr_assert_eq(ferry_last_error()->status, FERRY_ERR_BUSY);
        strncpy(refusal, ferry_last_error()->text, sizeof refusal - 1);
        atomic_fetch_add(&refused, 1);
        return;
    }
    atomic_fetch_add(&waiting, 1);
    while (!atomic_load(&gate_open)) {
        sched_yield();
    }
    thread_pool_leave_wait(pool);
    atomic_fetch_add(&finished, 1);
}

Test(thread_pool, one_thread_of_the_most_never_waits)
{
    static struct thread_pool_task tasks[5];
    create(1, 4, 0);
    for (int i = 0; i < 3; i++) {
        tasks[i].run = wait_at_gate;
        submit(&tasks[i]);
    }
    wait_until(&waiting, 3);
    tasks[3].run = wait_at_gate;
    submit(&tasks[3]);
    wait_until(&refused, 1);
    cr_assert(strstr(refusal, "FERRY_POOL_MAX") != NULL, "%s", refusal);
    tasks[4].run = finish;
    submit(&tasks[4]);
    wait_until(&finished, 1);
    cr_assert_eq(thread_pool_size(pool), 4);
    atomic_store(&gate_open, true);
    wait_until(&finished, 4);
    wait_for_size(1);
    thread_pool_destroy(pool);
}

Test(thread_pool, the_only_thread_must_not_wait)
{
    struct thread_pool_task task = {.run = wait_at_gate};
    create(1, 1, 0);
    submit(&task);
    wait_until(&refused, 1);
    thread_pool_destroy(pool);
}

Test(thread_pool, waits_elsewhere_are_not_the_pools)
{
    create(1, 1, 0);
    cr_assert_eq(thread_pool_current(), NULL);
    cr_assert_eq(thread_pool_enter_wait(pool), FERRY_OK);
    thread_pool_leave_wait(pool);
    thread_pool_destroy(pool);
    thread_pool_destroy(NULL);
}

/* Those that waited go on at once, though there are then more than `threads` that run; new tasks do not. */
Test(thread_pool, returning_waiters_go_before_new_tasks)
{
    static struct thread_pool_task waiters[2], others[4];
    create(2, 8, 0);
    for (int i = 0; i < 2; i++) {
        waiters[i].run = wait_at_gate;
        submit(&waiters[i]);
    }
    wait_until(&waiting, 2);
    atomic_store(&gate_open, true);
    wait_until(&finished, 2);
    atomic_store(&gate_open, false);
    for (int i = 0; i < 4; i++) {
        others[i].run = pass_gate;
        submit(&others[i]);
    }
    wait_until(&inside, 2);
    atomic_store(&gate_open, true);
    wait_until(&finished, 6);
    cr_assert_leq(inside_max, 2);
    thread_pool_destroy(pool);
}

static char thread_name[64];
static atomic_int signals_blocked;

static void look_around(void *context)
{
    (void)context;
    sigset_t blocked;
    pthread_getname_np(pthread_self(), thread_name, sizeof thread_name);
    pthread_sigmask(SIG_BLOCK, NULL, &blocked);
    signals_blocked = sigismember(&blocked, SIGTERM) + sigismember(&blocked, SIGINT) +
                      sigismember(&blocked, SIGUSR1) + sigismember(&blocked, SIGCHLD);
    atomic_fetch_add(&finished, 1);
}

Test(thread_pool, threads_have_names_and_block_signals)
{
    struct thread_pool_task task = {.run = look_around};
    sigset_t before, after;
    pthread_sigmask(SIG_BLOCK, NULL, &before);
    create(4, 4, 0);
    submit(&task);
    wait_until(&finished, 1);
    pthread_sigmask(SIG_BLOCK, NULL, &after);
    cr_assert_str_eq(thread_name, "ferry-pool-1");
    cr_assert_eq(signals_blocked, 4);
    cr_assert_eq(sigismember(&after, SIGTERM), sigismember(&before, SIGTERM));
    thread_pool_destroy(pool);
}

static void submit_again(void *context)
{
    struct thread_pool_task *self = context;
    if (atomic_fetch_add(&finished, 1) < TASKS) {
        submit(self);
    }
}

Test(thread_pool, destroy_runs_what_tasks_submit_meanwhile)
{
    struct thread_pool_task task = {.run = submit_again, .context = &task};
    create(1, 1, 0);
    submit(&task);
    thread_pool_destroy(pool);
    cr_assert_eq(finished, TASKS + 1);
}

Test(thread_pool, a_spinning_pool_runs_everything_too)
{
    static struct thread_pool_task tasks[TASKS];
    create(2, 4, 50000);
    for (int i = 0; i < TASKS; i++) {
        tasks[i].run = finish;
        submit(&tasks[i]);
        if (i % 10 == 0) {
            wait_until(&finished, i + 1);
        }
    }
    wait_until(&finished, TASKS);
    thread_pool_destroy(pool);
}

Test(thread_pool, sizes_that_make_no_sense_are_refused)
{
    struct thread_pool *none = NULL;
    expect_error(thread_pool_create(0, 1, 0, "p", &none), FERRY_ERR_INVALID_ARGUMENT, "0 threads");
    expect_error(thread_pool_create(2, 1, 0, "p", &none), FERRY_ERR_INVALID_ARGUMENT, "2 threads");
    expect_error(thread_pool_create(1, 1, -1, "p", &none), FERRY_ERR_INVALID_ARGUMENT, "-1 ns");
    cr_assert_eq(none, NULL);
}

static void set_default_stack(size_t bytes)
{
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    cr_assert_eq(pthread_attr_setstacksize(&attributes, bytes), 0);
    cr_assert_eq(pthread_setattr_default_np(&attributes), 0);
    pthread_attr_destroy(&attributes);
}

#define NO_SUCH_STACK ((size_t)1 << 50) /* no address space has room for it, so no thread starts */

Test(thread_pool, a_task_that_no_thread_can_run_is_not_taken)
{
    struct thread_pool_task task = {.run = finish};
    create(2, 4, 0);
    set_default_stack(NO_SUCH_STACK);
    expect_error(thread_pool_submit(pool, &task), FERRY_ERR_SYSTEM, "ferry-pool");
    cr_assert_eq(thread_pool_size(pool), 0);
    set_default_stack(1 << 20);
    submit(&task);
    wait_until(&finished, 1);
    thread_pool_destroy(pool);
}

static void start_without_others(void *context)
{
    struct thread_pool_task *next = context;
    set_default_stack(NO_SUCH_STACK);
    submit(next); /* this thread will run it */
    expect_error(thread_pool_enter_wait(pool), FERRY_ERR_BUSY, "no other starts");
    set_default_stack(1 << 20);
    atomic_fetch_add(&finished, 1);
}

Test(thread_pool, a_wait_that_no_thread_can_end_is_refused)
{
    struct thread_pool_task next = {.run = finish};
    struct thread_pool_task first = {.run = start_without_others, .context = &next};
    create(2, 4, 0);
    submit(&first);
    wait_until(&finished, 2);
    thread_pool_destroy(pool);
}
