/* The poller: descriptors, timers, waking, and callbacks that change the set they are called from. */
#include <criterion/criterion.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "core/error.h"
#include "core/poller.h"

static int64_t fake_now(void *context)
{
    return *(int64_t *)context;
}

static struct poller *make(int64_t *now)
{
    struct poller *poller = NULL;
    struct clock clock = {.now_ns = fake_now, .context = now};
    cr_assert_eq(poller_create(now != NULL ? clock : clock_monotonic(), &poller), FERRY_OK);
    return poller;
}

static bool readable(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, 0) == 1;
}

/* An eventfd that is ready for reading, and what its callback does. */
struct probe {
    struct poller *poller;
    struct poller_source source;
    struct probe *victim; /* removed by the callback */
    bool nest;            /* dispatch inside the callback */
    unsigned calls;
    uint32_t events;
};

static void probe_ready(void *context, uint32_t events)
{
    struct probe *probe = context;
    probe->calls++;
    probe->events = events;
    if (probe->victim != NULL) {
        poller_remove(probe->poller, &probe->victim->source);
    }
    if (probe->nest) {
        probe->nest = false;
        poller_dispatch(probe->poller);
    }
}

static void probe_add(struct probe *probe, struct poller *poller)
{
    memset(probe, 0, sizeof *probe);
    probe->poller = poller;
    probe->source = (struct poller_source){.fd = eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK),
                                           .events = EPOLLIN,
                                           .ready = probe_ready,
                                           .context = probe};
    cr_assert_geq(probe->source.fd, 0);
    cr_assert_eq(poller_add(poller, &probe->source), FERRY_OK);
}

static void probe_drop(struct probe *probe)
{
    poller_remove(probe->poller, &probe->source);
    close(probe->source.fd);
}

Test(poller, serves_ready_descriptors_level_triggered)
{
    struct poller *poller = make(NULL);
    struct probe probe;
    cr_assert_not(readable(poller_fd(poller)));
    cr_assert_eq(poller_dispatch(poller), 0);
    probe_add(&probe, poller);
    cr_assert(readable(poller_fd(poller)));
    cr_assert_eq(poller_dispatch(poller), 1);
    cr_assert_eq(poller_dispatch(poller), 1);
    cr_assert_eq(probe.calls, 2);
    cr_assert_eq(probe.events, EPOLLIN);
    uint64_t count;
    cr_assert_eq(read(probe.source.fd, &count, sizeof count), (ssize_t)sizeof count);
    cr_assert_not(readable(poller_fd(poller)));
    cr_assert_eq(poller_dispatch(poller), 0);
    poller_change(poller, &probe.source, EPOLLOUT);
    cr_assert_eq(poller_dispatch(poller), 1);
    cr_assert_eq(probe.events, EPOLLOUT);
    probe_drop(&probe);
    cr_assert_eq(poller_dispatch(poller), 0);
    poller_remove(poller, &probe.source); /* not added: nothing */
    poller_destroy(poller);
}

Test(poller, add_of_an_unusable_descriptor_fails)
{
    struct poller *poller = make(NULL);
    struct poller_source source = {.fd = -1, .events = EPOLLIN};
    cr_assert_eq(poller_add(poller, &source), FERRY_ERR_SYSTEM);
    cr_assert_not(source.added);
    cr_assert_not_null(strstr(ferry_last_error()->text, "descriptor -1"));
    poller_destroy(poller);
}

/* Whichever of a pair is served first removes the other, which must not be called any more. */
Test(poller, a_callback_may_remove_any_source)
{
    struct poller *poller = make(NULL);
    struct probe a;
    struct probe b;
    probe_add(&a, poller);
    probe_add(&b, poller);
    a.victim = &b;
    b.victim = &a;
    cr_assert_eq(poller_dispatch(poller), 1);
    cr_assert_eq(a.calls + b.calls, 1);
    probe_drop(&a);
    probe_drop(&b);

    struct probe self;
    probe_add(&self, poller);
    self.victim = &self;
    cr_assert_eq(poller_dispatch(poller), 1);
    cr_assert_eq(poller_dispatch(poller), 0);
    probe_drop(&self);
    poller_destroy(poller);
}

Test(poller, removal_in_an_inner_dispatch_reaches_the_outer_one)
{
    struct poller *poller = make(NULL);
    struct probe probes[8];
    for (int i = 0; i < 8; i++) {
        probe_add(&probes[i], poller);
        probes[i].nest = true;
    }
    /* Each callback removes itself and dispatches: by the time the outermost batch goes on, all of
     * its other sources are gone. */
    for (int i = 0; i < 8; i++) {
        probes[i].victim = &probes[i];
    }
    poller_dispatch(poller);
    for (int i = 0; i < 8; i++) {
        cr_assert_eq(probes[i].calls, 1, "probe %d: %u", i, probes[i].calls);
        probe_drop(&probes[i]);
    }
    poller_destroy(poller);
}

struct alarm {
    struct poller *poller;
    struct poller_timer timer;
    struct alarm *clears;
    int64_t again_ns; /* -1: not again */
    unsigned fired;
    unsigned *order;
    unsigned position;
};

static void alarm_fire(void *context)
{
    struct alarm *alarm = context;
    alarm->fired++;
    if (alarm->order != NULL) {
        alarm->position = (*alarm->order)++;
    }
    if (alarm->clears != NULL) {
        poller_timer_clear(alarm->poller, &alarm->clears->timer);
    }
    if (alarm->again_ns >= 0) {
        cr_assert_eq(poller_timer_set(alarm->poller, &alarm->timer, alarm->again_ns), FERRY_OK);
    }
}

static struct alarm alarm_make(struct poller *poller)
{
    return (struct alarm){.poller = poller, .again_ns = -1};
}

static void alarm_set(struct alarm *alarm, int64_t deadline_ns)
{
    alarm->timer.fire = alarm_fire;
    alarm->timer.context = alarm;
    cr_assert_eq(poller_timer_set(alarm->poller, &alarm->timer, deadline_ns), FERRY_OK);
}

Test(poller, timers_fire_in_order_when_they_have_passed)
{
    int64_t now = 0;
    struct poller *poller = make(&now);
    enum { COUNT = 500 };
    static struct alarm alarms[COUNT];
    unsigned order = 0;
    cr_assert_eq(poller_next_deadline_ns(poller), FERRY_FOREVER);
    srand(7);
    for (int i = 0; i < COUNT; i++) {
        alarms[i] = alarm_make(poller);
        alarms[i].order = &order;
        alarm_set(&alarms[i], 1 + rand() % 1000);
    }
    for (int i = 0; i < COUNT; i += 3) { /* moved */
        alarm_set(&alarms[i], 1 + rand() % 1000);
    }
    for (int i = 1; i < COUNT; i += 7) { /* cleared */
        poller_timer_clear(poller, &alarms[i].timer);
        poller_timer_clear(poller, &alarms[i].timer);
    }
    for (now = 0; now <= 1000; now += 100) {
        cr_assert(now == 0 || poller_next_deadline_ns(poller) > now - 100);
        poller_dispatch_timers(poller);
        for (int i = 0; i < COUNT; i++) {
            bool due = i % 7 != 1 && alarms[i].timer.deadline_ns <= now;
            cr_assert_eq(alarms[i].fired, due ? 1 : 0, "alarm %d at %d", i, (int)now);
        }
    }
    for (int i = 0; i < COUNT; i++) {
        for (int k = 0; k < COUNT; k++) {
            if (alarms[i].fired && alarms[k].fired &&
                alarms[i].timer.deadline_ns < alarms[k].timer.deadline_ns) {
                cr_assert_lt(alarms[i].position, alarms[k].position);
            }
        }
    }
    cr_assert_eq(poller_next_deadline_ns(poller), FERRY_FOREVER);
    poller_destroy(poller);
}

Test(poller, a_timer_may_clear_another_and_set_itself)
{
    int64_t now = 10;
    struct poller *poller = make(&now);
    struct alarm first = alarm_make(poller);
    struct alarm second = alarm_make(poller);
    first.clears = &second;
    first.again_ns = 5; /* in the past: the next dispatch, not this one */
    alarm_set(&first, 1);
    alarm_set(&second, 2);
    cr_assert_leq(poller_dispatch(poller), 2);
    cr_assert_eq(second.fired, 0);
    unsigned fired = first.fired;
    cr_assert_geq(fired, 1);
    poller_dispatch(poller);
    cr_assert_gt(first.fired, fired);
    poller_timer_clear(poller, &first.timer);
    poller_destroy(poller);
}

Test(poller, wait_ends_at_its_timeout)
{
    struct poller *poller = make(NULL);
    int64_t before = clock_monotonic_ns();
    poller_wait(poller, 3000000);
    cr_assert_geq(clock_monotonic_ns() - before, 2900000);
    poller_wait(poller, -1);
    poller_destroy(poller);
}

static void *wake_it(void *context)
{
    poller_wake(context);
    return NULL;
}

Test(poller, wake_ends_a_wait_once, .timeout = 20)
{
    struct poller *poller = make(NULL);
    pthread_t thread;
    cr_assert_eq(pthread_create(&thread, NULL, wake_it, poller), 0);
    poller_wait(poller, FERRY_FOREVER);
    pthread_join(thread, NULL);
    cr_assert(readable(poller_fd(poller)));
    cr_assert_eq(poller_dispatch(poller), 0);
    cr_assert_not(readable(poller_fd(poller)));
    poller_destroy(poller);
}
