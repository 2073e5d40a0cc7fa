/* Deadlines never overflow and never lie in the past. */
#include <criterion/criterion.h>

#include <ferry/status.h>

#include "core/clock.h"

static int64_t fixed_now(void *context)
{
    return *(int64_t *)context;
}

Test(clock, monotonic_goes_forward)
{
    struct clock clock = clock_monotonic();
    int64_t before = clock_monotonic_ns();
    cr_assert_geq(clock_now_ns(&clock), before);
    cr_assert_geq(clock_monotonic_ns(), before);
}

Test(clock, can_be_replaced)
{
    int64_t now = 17;
    struct clock clock = {.now_ns = fixed_now, .context = &now};
    cr_assert_eq(clock_now_ns(&clock), 17);
    now = 18;
    cr_assert_eq(clock_now_ns(&clock), 18);
}

Test(clock, deadlines)
{
    cr_assert_eq(clock_deadline_ns(100, 5), 105);
    cr_assert_eq(clock_deadline_ns(100, 0), 100);
    cr_assert_eq(clock_deadline_ns(100, -5), 100);
    cr_assert_eq(clock_deadline_ns(100, FERRY_FOREVER), FERRY_FOREVER);
    cr_assert_eq(clock_deadline_ns(-100, FERRY_FOREVER), FERRY_FOREVER);
    cr_assert_eq(clock_deadline_ns(100, FERRY_FOREVER - 10), FERRY_FOREVER);
    cr_assert_eq(clock_deadline_ns(100, FERRY_FOREVER - 101), FERRY_FOREVER - 1);
}
