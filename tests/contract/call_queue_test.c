/* A method's queue, when what waits in it is of no use any more. */
#include <criterion/criterion.h>
#include <limits.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "support/pair.h"

#define CALLS 4000 /* each would take some hundred bytes of a stack that has room for few */

struct hold {
    sem_t inside, open;
    atomic_int runs;
};

static ferry_status_t hold(ferry_request_t *request, void *context)
{
    struct hold *state = context;
    if (atomic_fetch_add(&state->runs, 1) == 0) {
        sem_post(&state->inside);
        sem_wait(&state->open);
    }
    return ferry_request_reply(request, NULL);
}

/* What threads get that are started from now on, the pool's among them. */
static void use_small_stacks(void)
{
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, (size_t)PTHREAD_STACK_MIN + 128 * 1024);
    cr_assert_eq(pthread_setattr_default_np(&attributes), 0);
    pthread_attr_destroy(&attributes);
}

static ferry_testing_pair_t pair_by(ferry_testing_clock_t *clock)
{
    ferry_testing_options_t options = ferry_testing_options();
    options.clock = clock;
    ferry_testing_pair_t pair;
    TEST_CHECK(ferry_testing_pair_create(&options, &pair) == FERRY_OK);
    test_register(pair.right);
    return pair;
}

Test(queue, a_long_queue_of_expired_requests_is_answered_on_a_small_stack)
{
    use_small_stacks();
    ferry_testing_clock_t *clock;
    TEST_CHECK(ferry_testing_clock_create(&clock) == FERRY_OK);
    ferry_testing_pair_t pair = pair_by(clock);
    struct hold state = {.runs = 0};
    sem_init(&state.inside, 0, 0);
    sem_init(&state.open, 0, 0);
    ferry_method_options_t options = ferry_method_options();
    options.concurrency = 1;
    TEST_CHECK(ferry_agent_register_with(pair.right, "hold", hold, &state, &options) == FERRY_OK);
    ferry_future_t *first;
    TEST_CHECK(ferry_call(pair.left, "right", "hold", NULL, NULL, &first) == FERRY_OK);
    sem_wait(&state.inside);

    ferry_call_options_t hasty = ferry_call_options();
    hasty.timeout_ns = TEST_SECONDS(1);
    ferry_future_t **futures = calloc(CALLS, sizeof(*futures));
    for (size_t i = 0; i < CALLS; i++) {
        TEST_CHECK(ferry_call(pair.left, "right", "hold", NULL, &hasty, &futures[i]) == FERRY_OK);
    }
    ferry_future_release(test_call(pair.left, "right", "nothing", NULL, NULL)); /* they are there */
    ferry_testing_clock_advance(clock, hasty.timeout_ns);
    for (size_t i = 0; i < CALLS; i++) {
        cr_assert_eq(ferry_future_wait(futures[i], TEST_SECONDS(60), NULL), FERRY_ERR_TIMEOUT);
        ferry_future_release(futures[i]);
    }
    free(futures);
    sem_post(&state.open);
    TEST_CHECK(ferry_future_wait(first, TEST_SECONDS(60), NULL) == FERRY_OK);
    ferry_future_release(first);
    ferry_future_release(test_call(pair.left, "right", "hold", NULL, NULL));
    cr_assert_eq(atomic_load(&state.runs), 2);
    ferry_testing_pair_destroy(&pair);
    ferry_testing_clock_destroy(clock);
    sem_destroy(&state.inside);
    sem_destroy(&state.open);
}
