/* Descriptors and timers of one agent over one epoll instance. The owner serialises all calls but poller_wait()
 * and poller_wake(). */
#ifndef FERRY_CORE_POLLER_H
#define FERRY_CORE_POLLER_H

#include <stdbool.h>
#include <stddef.h>

#include <ferry/status.h>

#include "core/clock.h"

struct poller;

/* Lives in its owner; borrowed by the poller between add and remove. `ready` may add, change and remove any
 * source or timer, itself too. */
struct poller_source {
    int fd;
    uint32_t events; /* EPOLLIN, EPOLLOUT, ... level-triggered; EPOLLERR and EPOLLHUP always come */
    void (*ready)(void *context, uint32_t events);
    void *context;
    bool added;
};

struct poller_timer {
    int64_t deadline_ns;
    void (*fire)(void *context);
    void *context;
    size_t slot; /* heap position + 1; 0 = not set */
};

ferry_status_t poller_create(struct clock clock, struct poller **poller_out);
void poller_destroy(struct poller *poller); /* sources and timers must be gone */

/* Level-triggered readable whenever poller_dispatch() has descriptors to serve (timers are not in it). */
int poller_fd(const struct poller *poller);

ferry_status_t poller_add(struct poller *poller, struct poller_source *source);
void poller_change(struct poller *poller, struct poller_source *source, uint32_t events);
void poller_remove(struct poller *poller, struct poller_source *source); /* not added: nothing */

/* Sets or moves a timer. FERRY_ERR_NO_MEMORY. */
ferry_status_t poller_timer_set(struct poller *poller, struct poller_timer *timer,
                                int64_t deadline_ns);
void poller_timer_clear(struct poller *poller, struct poller_timer *timer); /* not set: nothing */

/* FERRY_FOREVER when no timer is set. */
int64_t poller_next_deadline_ns(const struct poller *poller);

/* Serves what is ready now without blocking, timers that have passed included; returns how many callbacks ran. */
unsigned poller_dispatch(struct poller *poller);
/* Only the timers: no system call. */
unsigned poller_dispatch_timers(struct poller *poller);

/* Blocks until a descriptor is ready, poller_wake() was called, or timeout_ns passed; whether it was not the time. Serves nothing. No
 * lock needed. */
bool poller_wait(struct poller *poller, int64_t timeout_ns);
/* Any thread, async-signal-safe. */
void poller_wake(struct poller *poller);

#endif
