/* The ways in which an agent is driven, and in which a full peer is treated, over each transport. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "support/kept.h"
#include "support/pair.h"

struct mode_case {
    char transport[8], progress[12];
    bool standing_clock;
};

ParameterizedTestParameters(modes, calls_go_both_ways_however_agents_are_driven)
{
    static struct mode_case cases[] = {
        {"inproc", "adaptive", false}, {"ucx", "adaptive", false}, {"inproc", "spin", false},
        {"ucx", "spin", false},        {"inproc", "sleep", false}, {"ucx", "sleep", false},
        {"inproc", "adaptive", true},  {"ucx", "adaptive", true},  {"ucx", "spin", true},
        {"ucx", "sleep", true},
    };
    return cr_make_param_array(struct mode_case, cases, sizeof(cases) / sizeof(*cases));
}

/* The right agent's own thread alone brings the connection about and serves, then the left one's. */
ParameterizedTest(struct mode_case *mode, modes, calls_go_both_ways_however_agents_are_driven)
{
    ferry_testing_clock_t *clock;
    TEST_CHECK(ferry_testing_clock_create(&clock) == FERRY_OK);
    ferry_testing_setting_t settings[] = {{"FERRY_TRANSPORT", mode->transport},
                                          {"FERRY_PROGRESS", mode->progress}};
    ferry_testing_options_t options = ferry_testing_options();
    options.settings = settings;
    options.setting_count = 2;
    options.clock = mode->standing_clock ? clock : NULL;
    ferry_testing_pair_t pair;
    TEST_CHECK(ferry_testing_pair_create(&options, &pair) == FERRY_OK);
    test_register(pair.left);
    test_register(pair.right);
    static const char *const methods[] = {"echo", "inline"};
    for (int i = 0; i < 20; i++) {
        ferry_future_release(test_call(pair.left, "right", methods[i % 2], NULL, NULL));
        ferry_future_release(test_call(pair.right, "left", methods[i % 2], NULL, NULL));
    }
    ferry_testing_pair_destroy(&pair);
    ferry_testing_clock_destroy(clock);
}

/* ---- a full peer ---- */

struct transport_case {
    char name[8];
};

#define OVER_EACH_TRANSPORT(test)                                                                  \
    ParameterizedTestParameters(modes, test)                                                       \
    {                                                                                              \
        static struct transport_case cases[] = {{"inproc"}, {"ucx"}};                              \
        return cr_make_param_array(struct transport_case, cases, 2);                               \
    }                                                                                              \
    ParameterizedTest(struct transport_case *over, modes, test)

/* Fills the peer with two calls. */
static ferry_testing_pair_t full_pair(const char *transport, const char *when_full,
                                      struct kept *kept, ferry_future_t *futures[2],
                                      ferry_request_t *requests[2])
{
    const char *settings[] = {"FERRY_MAX_CALLS", "2", "FERRY_WHEN_FULL", when_full, NULL};
    ferry_testing_pair_t pair = test_pair(transport, NULL, settings);
    TEST_CHECK(ferry_agent_register(pair.right, "later", kept_handler, kept) == FERRY_OK);
    for (int i = 0; i < 2; i++) {
        TEST_CHECK(ferry_call(pair.left, "right", "later", NULL, NULL, &futures[i]) == FERRY_OK);
        requests[i] = kept_wait(kept);
    }
    return pair;
}

static void empty_pair(ferry_testing_pair_t *pair, ferry_future_t *futures[2],
                       ferry_request_t *requests[2])
{
    for (int i = 0; i < 2; i++) {
        ferry_request_release(requests[i]);
        ferry_future_release(futures[i]);
    }
    ferry_testing_pair_destroy(pair);
}

static void on_ready(void *context, ferry_status_t status)
{
    TEST_CHECK(status == FERRY_OK);
    atomic_fetch_add((atomic_int *)context, 1);
}

OVER_EACH_TRANSPORT(a_full_peer_may_refuse)
{
    struct kept kept = KEPT_INIT;
    ferry_future_t *futures[2], *future = NULL;
    ferry_request_t *requests[2];
    atomic_int ready = 0;
    ferry_testing_pair_t pair = full_pair(over->name, "fail", &kept, futures, requests);
    cr_assert_eq(ferry_call(pair.left, "right", "echo", NULL, NULL, &future),
                 FERRY_ERR_WOULD_BLOCK);
    TEST_CHECK(ferry_agent_when_ready(pair.left, "right", on_ready, &ready) == FERRY_OK);
    cr_assert_eq(atomic_load(&ready), 0);
    TEST_CHECK(ferry_request_reply(requests[0], NULL) == FERRY_OK);
    while (atomic_load(&ready) == 0) {
        sched_yield();
    }
    ferry_future_release(test_call(pair.left, "right", "echo", NULL, NULL));
    empty_pair(&pair, futures, requests);
    cr_assert_eq(atomic_load(&ready), 1);
}

static void *reply_once_somebody_waits(void *request)
{
    for (int i = 0; i < 1000; i++) {
        sched_yield();
    }
    TEST_CHECK(ferry_request_reply(request, NULL) == FERRY_OK);
    return NULL;
}

OVER_EACH_TRANSPORT(a_full_peer_may_be_waited_for)
{
    struct kept kept = KEPT_INIT;
    ferry_future_t *futures[2], *future = NULL;
    ferry_request_t *requests[2];
    ferry_testing_pair_t pair = full_pair(over->name, "wait", &kept, futures, requests);
    ferry_call_options_t options = ferry_call_options();
    options.timeout_ns = 30000000;
    cr_assert_eq(ferry_call(pair.left, "right", "echo", NULL, &options, &future),
                 FERRY_ERR_TIMEOUT);
    cr_assert_not_null(strstr(ferry_last_error()->text, "FERRY_MAX_CALLS"), "%s",
                       ferry_last_error()->text);
    pthread_t answering;
    cr_assert_eq(pthread_create(&answering, NULL, reply_once_somebody_waits, requests[1]), 0);
    ferry_future_release(test_call(pair.left, "right", "echo", NULL, NULL));
    pthread_join(answering, NULL);
    empty_pair(&pair, futures, requests);
}
