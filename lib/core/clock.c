/* Monotonic time. */
#include "core/clock.h"

#include <stddef.h>
#include <time.h>

#include <ferry/status.h>

int64_t clock_monotonic_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + (int64_t)now.tv_nsec;
}

static int64_t monotonic_now(void *context)
{
    (void)context;
    return clock_monotonic_ns();
}

struct clock clock_monotonic(void)
{
    return (struct clock){.now_ns = monotonic_now, .context = NULL};
}

int64_t clock_now_ns(const struct clock *clock)
{
    return clock->now_ns(clock->context);
}

int64_t clock_deadline_ns(int64_t now_ns, int64_t timeout_ns)
{
    if (timeout_ns <= 0) {
        return now_ns;
    }
    if (now_ns > 0 && timeout_ns >= FERRY_FOREVER - now_ns) {
        return FERRY_FOREVER;
    }
    return timeout_ns == FERRY_FOREVER ? FERRY_FOREVER : now_ns + timeout_ns;
}
