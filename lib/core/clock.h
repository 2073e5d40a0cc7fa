/* Time, replaceable for tests. */
#ifndef FERRY_CORE_CLOCK_H
#define FERRY_CORE_CLOCK_H

#include <stdint.h>

struct clock {
    int64_t (*now_ns)(void *context);
    void *context; /* borrowed */
};

int64_t clock_monotonic_ns(void);                /* CLOCK_MONOTONIC */
struct clock clock_monotonic(void);              /* the same as a struct */
int64_t clock_now_ns(const struct clock *clock); /* calls through */

/* now + timeout without overflow; FERRY_FOREVER stays FERRY_FOREVER; a negative timeout counts as 0. */
int64_t clock_deadline_ns(int64_t now_ns, int64_t timeout_ns);

#endif
