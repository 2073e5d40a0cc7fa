/* Descriptors over epoll, timers in a binary heap, and an eventfd to wake a sleeper. */
#include "core/poller.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "core/error.h"
#include "core/fork_guard.h"

#define BATCH_EVENTS 64

/* The events of one epoll_wait() that are being served. Callbacks may remove any source, also from
 * a dispatch inside a dispatch, so every batch under way is kept in a chain that removal can clean.
 */
struct batch {
    struct batch *outer;
    int count;
    struct epoll_event events[BATCH_EVENTS];
};

struct poller {
    struct clock clock;
    int epoll_fd;
    int wake_fd;
    struct batch *batches;
    struct poller_timer **heap; /* borrowed timers, earliest first */
    size_t heap_count;
    size_t heap_capacity;
};

ferry_status_t poller_create(struct clock clock, struct poller **poller_out)
{
    ferry_status_t status = FERRY_OK;
    struct poller *poller = calloc(1, sizeof *poller);
    if (poller == NULL) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory for a poller");
    }
    poller->clock = clock;
    poller->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (poller->epoll_fd < 0) {
        status = error_raise_errno(errno, "cannot create an epoll descriptor");
        goto free_poller;
    }
    poller->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (poller->wake_fd < 0) {
        status = error_raise_errno(errno, "cannot create an event descriptor");
        goto close_epoll;
    }
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    if (epoll_ctl(poller->epoll_fd, EPOLL_CTL_ADD, poller->wake_fd, &event) != 0) {
        status = error_raise_errno(errno, "cannot watch an event descriptor");
        goto close_wake;
    }
    fork_guard_add(poller->epoll_fd);
    *poller_out = poller;
    return FERRY_OK;

close_wake:
    close(poller->wake_fd);
close_epoll:
    close(poller->epoll_fd);
free_poller:
    free(poller);
    return status;
}

void poller_destroy(struct poller *poller)
{
    if (poller == NULL) {
        return;
    }
    fork_guard_remove(poller->epoll_fd);
    close(poller->wake_fd);
    close(poller->epoll_fd);
    free(poller->heap);
    free(poller);
}

int poller_fd(const struct poller *poller)
{
    return poller->epoll_fd;
}

/* ---- descriptors ---- */

ferry_status_t poller_add(struct poller *poller, struct poller_source *source)
{
    struct epoll_event event = {.events = source->events, .data.ptr = source};
    if (epoll_ctl(poller->epoll_fd, EPOLL_CTL_ADD, source->fd, &event) != 0) {
        return error_raise_errno(errno, "cannot watch descriptor %d", source->fd);
    }
    source->added = true;
    return FERRY_OK;
}

void poller_change(struct poller *poller, struct poller_source *source, uint32_t events)
{
    if (!source->added || source->events == events) {
        return;
    }
    source->events = events;
    struct epoll_event event = {.events = events, .data.ptr = source};
    epoll_ctl(poller->epoll_fd, EPOLL_CTL_MOD, source->fd, &event);
}

void poller_remove(struct poller *poller, struct poller_source *source)
{
    if (!source->added) {
        return;
    }
    source->added = false;
    epoll_ctl(poller->epoll_fd, EPOLL_CTL_DEL, source->fd, NULL);
    for (struct batch *batch = poller->batches; batch != NULL; batch = batch->outer) {
        for (int i = 0; i < batch->count; i++) {
            if (batch->events[i].data.ptr == source) {
                batch->events[i].events = 0;
                batch->events[i].data.ptr = NULL;
            }
        }
    }
}

static void wake_drain(struct poller *poller)
{
    uint64_t count;
    ssize_t got = read(poller->wake_fd, &count, sizeof count);
    (void)got; /* empty is as good as drained */
}

unsigned poller_dispatch(struct poller *poller)
{
    struct batch batch;
    unsigned served = 0;
    int count = epoll_wait(poller->epoll_fd, batch.events, BATCH_EVENTS, 0);
    batch.count = count < 0 ? 0 : count;
    batch.outer = poller->batches;
    poller->batches = &batch;
    for (int i = 0; i < batch.count; i++) {
        struct poller_source *source = batch.events[i].data.ptr;
        uint32_t events = batch.events[i].events;
        if (source == NULL) {
            if (events != 0) { /* the wake descriptor; a removed source has no events left */
                wake_drain(poller);
            }
            continue;
        }
        /* An earlier callback of this batch may have lost interest in what was ready. */
        events &= source->events | EPOLLERR | EPOLLHUP;
        if (events != 0) {
            source->ready(source->context, events);
            served++;
        }
    }
    poller->batches = batch.outer;
    return served + poller_dispatch_timers(poller);
}

bool poller_wait(struct poller *poller, int64_t timeout_ns)
{
    struct pollfd readable = {.fd = poller->epoll_fd, .events = POLLIN};
    struct timespec timeout;
    struct timespec *limit = NULL;
    if (timeout_ns != FERRY_FOREVER) {
        int64_t bounded_ns = timeout_ns < 0 ? 0 : timeout_ns;
        timeout.tv_sec = (time_t)(bounded_ns / 1000000000);
        timeout.tv_nsec = (long)(bounded_ns % 1000000000);
        limit = &timeout;
    }
    /* A signal ends the wait early, which callers allow for. */
    return ppoll(&readable, 1, limit, NULL) != 0;
}

void poller_wake(struct poller *poller)
{
    int saved_errno = errno; /* this may run in a signal handler */
    uint64_t one = 1;
    ssize_t put = write(poller->wake_fd, &one, sizeof one);
    (void)put; /* full means that it is readable already */
    errno = saved_errno;
}

/* ---- timers ---- */

static void heap_put(struct poller *poller, size_t index, struct poller_timer *timer)
{
    poller->heap[index] = timer;
    timer->slot = index + 1;
}

static void heap_sift_up(struct poller *poller, size_t index)
{
    struct poller_timer *timer = poller->heap[index];
    while (index > 0) {
        size_t parent = (index - 1) / 2;
        if (poller->heap[parent]->deadline_ns <= timer->deadline_ns) {
            break;
        }
        heap_put(poller, index, poller->heap[parent]);
        index = parent;
    }
    heap_put(poller, index, timer);
}

static void heap_sift_down(struct poller *poller, size_t index)
{
    struct poller_timer *timer = poller->heap[index];
    for (;;) {
        size_t child = 2 * index + 1;
        if (child >= poller->heap_count) {
            break;
        }
        if (child + 1 < poller->heap_count &&
            poller->heap[child + 1]->deadline_ns < poller->heap[child]->deadline_ns) {
            child++;
        }
        if (timer->deadline_ns <= poller->heap[child]->deadline_ns) {
            break;
        }
        heap_put(poller, index, poller->heap[child]);
        index = child;
    }
    heap_put(poller, index, timer);
}

ferry_status_t poller_timer_set(struct poller *poller, struct poller_timer *timer,
                                int64_t deadline_ns)
{
    if (timer->slot == 0) {
        if (poller->heap_count == poller->heap_capacity) {
            size_t capacity = poller->heap_capacity == 0 ? 16 : 2 * poller->heap_capacity;
            struct poller_timer **heap = realloc(poller->heap, capacity * sizeof(*heap));
            if (heap == NULL) {
                return error_raise(FERRY_ERR_NO_MEMORY, "no memory for %zu timers", capacity);
            }
            poller->heap = heap;
            poller->heap_capacity = capacity;
        }
        heap_put(poller, poller->heap_count++, timer);
    }
    timer->deadline_ns = deadline_ns;
    heap_sift_up(poller, timer->slot - 1);
    heap_sift_down(poller, timer->slot - 1);
    return FERRY_OK;
}

void poller_timer_clear(struct poller *poller, struct poller_timer *timer)
{
    if (timer->slot == 0) {
        return;
    }
    size_t index = timer->slot - 1;
    struct poller_timer *last = poller->heap[--poller->heap_count];
    timer->slot = 0;
    if (last != timer) {
        heap_put(poller, index, last);
        heap_sift_up(poller, index);
        heap_sift_down(poller, last->slot - 1);
    }
}

int64_t poller_next_deadline_ns(const struct poller *poller)
{
    return poller->heap_count == 0 ? FERRY_FOREVER : poller->heap[0]->deadline_ns;
}

unsigned poller_dispatch_timers(struct poller *poller)
{
    if (poller->heap_count == 0) {
        return 0;
    }
    int64_t now_ns = clock_now_ns(&poller->clock);
    unsigned served = 0;
    /* A timer that sets itself to a time that has passed fires again in the next dispatch, so that
     * it cannot hold this one for ever. */
    size_t most = poller->heap_count;
    while (served < most && poller->heap_count > 0 && poller->heap[0]->deadline_ns <= now_ns) {
        struct poller_timer *timer = poller->heap[0];
        poller_timer_clear(poller, timer);
        timer->fire(timer->context);
        served++;
    }
    return served;
}
