/* FERRY_PROGRESS=manual: two agents that one thread moves on, over each transport. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "support/kept.h"
#include "support/placed.h"

TestSuite(manual, .init = test_sim_on);

struct transport_case {
    char name[8];
};

#define OVER_EACH_TRANSPORT(test)                                                                  \
    ParameterizedTestParameters(manual, test)                                                      \
    {                                                                                              \
        static struct transport_case cases[] = {{"inproc"}, {"ucx"}};                              \
        return cr_make_param_array(struct transport_case, cases, 2);                               \
    }                                                                                              \
    ParameterizedTest(struct transport_case *over, manual, test, .init = test_sim_on)

static bool in_progress; /* this thread is inside ferry_agent_progress() */

static unsigned progress(ferry_agent_t *agent)
{
    in_progress = true;
    unsigned count = ferry_agent_progress(agent);
    in_progress = false;
    return count;
}

static ferry_testing_pair_t manual_pair(const char *transport, const char *max_calls,
                                        ferry_testing_clock_t *clock)
{
    ferry_testing_setting_t settings[] = {
        {"FERRY_TRANSPORT", transport}, {"FERRY_PROGRESS", "manual"}, {"max_calls", max_calls}};
    ferry_testing_options_t options = ferry_testing_options();
    options.settings = settings;
    options.setting_count = max_calls == NULL ? 2 : 3;
    options.left_map = "right: sim:*<->sim:*";
    options.clock = clock;
    ferry_testing_pair_t pair;
    TEST_CHECK(ferry_testing_pair_create(&options, &pair) == FERRY_OK);
    test_register(pair.right);
    return pair;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* One turn of an event loop: all that is ready, else a sleep on both descriptors. */
static void turn(ferry_testing_pair_t *pair)
{
    if (progress(pair->left) + progress(pair->right) > 0) {
        return;
    }
    int64_t left, right;
    if (ferry_agent_prepare_wait(pair->left, &left) != FERRY_OK ||
        ferry_agent_prepare_wait(pair->right, &right) != FERRY_OK) {
        return;
    }
    int64_t ns = smaller(smaller(left, right), TEST_SECONDS(20));
    struct timespec timeout = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    struct pollfd fds[2] = {{.fd = ferry_agent_fd(pair->left), .events = POLLIN},
                            {.fd = ferry_agent_fd(pair->right), .events = POLLIN}};
    int count = ppoll(fds, 2, &timeout, NULL);
    TEST_CHECK(count > 0 || ns < TEST_SECONDS(20)); /* else the loop slept over its work */
}

static void pump_until_done(ferry_testing_pair_t *pair, const ferry_future_t *future)
{
    while (!ferry_future_done(future)) {
        turn(pair);
    }
}

struct ready {
    int runs;
    ferry_status_t status;
};

static void on_ready(void *context, ferry_status_t status)
{
    struct ready *ready = context;
    TEST_CHECK(in_progress);
    ready->runs++;
    ready->status = status;
}

/* Brings the connection about. */
static void meet(ferry_testing_pair_t *pair)
{
    struct ready ready = {.runs = 0};
    cr_assert_eq(ferry_agent_connect(pair->left, "right", 0), FERRY_ERR_WOULD_BLOCK);
    TEST_CHECK(ferry_agent_when_ready(pair->left, "right", on_ready, &ready) == FERRY_OK);
    while (ready.runs == 0) {
        turn(pair);
    }
    cr_assert_eq(ready.status, FERRY_OK);
    TEST_CHECK(ferry_agent_connect(pair->left, "right", 0) == FERRY_OK);
}

static ferry_future_t *start_call(ferry_testing_pair_t *pair, const char *method,
                                  const ferry_message_t *message,
                                  const ferry_call_options_t *options)
{
    ferry_future_t *future = NULL;
    TEST_CHECK(ferry_call(pair->left, "right", method, message, options, &future) == FERRY_OK);
    return future;
}

OVER_EACH_TRANSPORT(the_first_call_would_block_and_a_callback_says_when_it_will_not)
{
    ferry_testing_pair_t pair = manual_pair(over->name, NULL, NULL);
    ferry_future_t *future = NULL;
    struct ready ready = {.runs = 0};
    cr_assert_eq(ferry_call(pair.left, "right", "echo", NULL, NULL, &future),
                 FERRY_ERR_WOULD_BLOCK);
    cr_assert_not_null(strstr(ferry_last_error()->text, "ferry_agent_when_ready()"), "%s",
                       ferry_last_error()->text);
    cr_assert_null(future);
    TEST_CHECK(ferry_agent_when_ready(pair.left, "right", on_ready, &ready) == FERRY_OK);
    cr_assert_eq(ready.runs, 0);
    while (ready.runs == 0) {
        turn(&pair);
    }
    cr_assert_eq(ready.status, FERRY_OK);
    static const char *const methods[] = {"echo", "inline", "nothing"};
    for (int i = 0; i < 300; i++) {
        future = start_call(&pair, methods[i % 3], NULL, NULL);
        pump_until_done(&pair, future);
        TEST_CHECK(ferry_future_wait(future, 0, NULL) == FERRY_OK);
        ferry_future_release(future);
    }
    cr_assert_eq(ready.runs, 1, "one callback a request for one");
    ferry_testing_pair_destroy(&pair);
}

OVER_EACH_TRANSPORT(a_peer_that_is_not_there_is_told_to_the_callback)
{
    ferry_testing_pair_t pair = manual_pair(over->name, NULL, NULL);
    ferry_future_t *future = NULL;
    struct ready ready = {.runs = 0};
    cr_assert_eq(ferry_call(pair.left, "nobody", "echo", NULL, NULL, &future),
                 FERRY_ERR_WOULD_BLOCK);
    TEST_CHECK(ferry_agent_when_ready(pair.left, "nobody", on_ready, &ready) == FERRY_OK);
    while (ready.runs == 0) {
        turn(&pair);
    }
    cr_assert_eq(ready.status, FERRY_ERR_UNKNOWN_PEER);
    cr_assert_eq(ferry_agent_when_ready(pair.left, "no name", on_ready, &ready),
                 FERRY_ERR_INVALID_ARGUMENT);
    ferry_testing_pair_destroy(&pair);
    cr_assert_eq(ready.runs, 1);
}

static void on_done(ferry_future_t *future, void *context)
{
    TEST_CHECK(in_progress);
    TEST_CHECK(ferry_future_done(future));
    TEST_CHECK(ferry_future_wait(future, TEST_SECONDS(60), NULL) != FERRY_PENDING);
    ++*(int *)context;
}

static void on_release(void *context)
{
    TEST_CHECK(in_progress);
    ++*(int *)context;
}

OVER_EACH_TRANSPORT(callbacks_run_in_progress_and_nowhere_else)
{
    ferry_testing_pair_t pair = manual_pair(over->name, NULL, NULL);
    meet(&pair);
    static uint8_t data[500000];
    test_random(data, sizeof(data));
    int64_t shape[1] = {sizeof(data)};
    int callbacks = 0, releases = 0;
    ferry_tensor_t tensor = test_tensor("x", data, test_u8, 1, shape);
    tensor.release = on_release;
    tensor.context = &releases;
    ferry_message_t message = {.tensors = &tensor, .tensor_count = 1};
    ferry_future_t *future = start_call(&pair, "echo", &message, NULL);
    TEST_CHECK(ferry_future_then(future, on_done, &callbacks) == FERRY_OK);
    while (callbacks == 0 || releases == 0) {
        turn(&pair);
    }
    cr_assert_arr_eq(ferry_future_result(future)->tensors[0].view.data, data, sizeof(data));
    ferry_future_release(future);

    future = start_call(&pair, "fail", NULL, NULL);
    pump_until_done(&pair, future);
    TEST_CHECK(ferry_future_then(future, on_done, &callbacks) == FERRY_OK);
    cr_assert_eq(callbacks, 1, "not within ferry_future_then()");
    ferry_future_release(future);
    while (callbacks == 1) {
        turn(&pair);
    }
    ferry_testing_pair_destroy(&pair);
    cr_assert_eq(callbacks, 2);
    cr_assert_eq(releases, 1);
}

static bool readable(const ferry_agent_t *agent, int timeout_ms)
{
    struct pollfd fd = {.fd = ferry_agent_fd(agent), .events = POLLIN};
    return poll(&fd, 1, timeout_ms) == 1;
}

/* Nothing is left to do and the descriptor says so. */
static void settle(ferry_testing_pair_t *pair, ferry_agent_t *agent)
{
    int64_t timeout_ns;
    do {
        while (progress(pair->left) + progress(pair->right) > 0) {
        }
    } while (ferry_agent_prepare_wait(agent, &timeout_ns) != FERRY_OK || readable(agent, 0));
}

OVER_EACH_TRANSPORT(the_descriptor_tells_of_work_until_it_is_done)
{
    ferry_testing_pair_t pair = manual_pair(over->name, NULL, NULL);
    meet(&pair);
    settle(&pair, pair.right);
    ferry_future_t *future = start_call(&pair, "inline", NULL, NULL);
    while (!readable(pair.right, 0)) {
        progress(pair.left);
    }
    cr_assert(readable(pair.right, 0), "it is level-triggered");
    while (!ferry_future_done(future)) {
        progress(pair.right);
        progress(pair.left);
    }
    settle(&pair, pair.right);
    ferry_future_release(future);
    ferry_testing_pair_destroy(&pair);
}

Test(manual, there_is_no_descriptor_before_start)
{
    ferry_agent_options_t options = ferry_agent_options();
    options.name = "early";
    ferry_agent_t *agent;
    int64_t timeout_ns = 77;
    TEST_CHECK(ferry_agent_create(&options, &agent) == FERRY_OK);
    cr_assert_eq(ferry_agent_fd(agent), -1);
    cr_assert_eq(ferry_agent_prepare_wait(agent, &timeout_ns), FERRY_ERR_STATE);
    cr_assert_eq(timeout_ns, 77);
    cr_assert_eq(ferry_agent_progress(agent), 0);
    ferry_agent_destroy(agent);
}

OVER_EACH_TRANSPORT(timeouts_follow_the_agents_clock)
{
    ferry_testing_clock_t *clock;
    TEST_CHECK(ferry_testing_clock_create(&clock) == FERRY_OK);
    ferry_testing_pair_t pair = manual_pair(over->name, NULL, clock);
    struct kept kept = KEPT_INIT;
    TEST_CHECK(ferry_agent_register(pair.right, "later", kept_handler, &kept) == FERRY_OK);
    meet(&pair);
    ferry_call_options_t options = ferry_call_options();
    options.timeout_ns = TEST_SECONDS(4);
    ferry_future_t *future = start_call(&pair, "later", NULL, &options);
    for (int i = 0; i < 50; i++) {
        turn(&pair);
    }
    ferry_testing_clock_advance(clock, TEST_SECONDS(4) - 1);
    for (int i = 0; i < 50; i++) {
        turn(&pair);
    }
    cr_assert_not(ferry_future_done(future));
    cr_assert_eq(ferry_future_wait(future, 0, NULL), FERRY_PENDING);
    ferry_testing_clock_advance(clock, 1);
    pump_until_done(&pair, future);
    cr_assert_eq(ferry_future_error(future)->status, FERRY_ERR_TIMEOUT);
    cr_assert_not_null(strstr(ferry_future_error(future)->text, "4000 ms"), "%s",
                       ferry_future_error(future)->text);
    ferry_future_release(future);
    ferry_request_t *request = kept_wait(&kept);
    cr_assert_eq(ferry_request_remaining_ns(request), 0);
    ferry_request_release(request);
    ferry_testing_pair_destroy(&pair);
    ferry_testing_clock_destroy(clock);
}

OVER_EACH_TRANSPORT(prepare_wait_bounds_the_sleep_by_the_next_deadline)
{
    ferry_testing_pair_t pair = manual_pair(over->name, NULL, NULL);
    struct kept kept = KEPT_INIT;
    TEST_CHECK(ferry_agent_register(pair.right, "later", kept_handler, &kept) == FERRY_OK);
    meet(&pair);
    ferry_call_options_t options = ferry_call_options();
    options.timeout_ns = 150000000;
    ferry_future_t *future = start_call(&pair, "later", NULL, &options);
    int64_t timeout_ns = FERRY_FOREVER;
    while (ferry_agent_prepare_wait(pair.left, &timeout_ns) != FERRY_OK) {
        progress(pair.left);
    }
    cr_assert_leq(timeout_ns, 150000000);
    pump_until_done(&pair, future);
    cr_assert_eq(ferry_future_error(future)->status, FERRY_ERR_TIMEOUT);
    ferry_future_release(future);
    ferry_request_release(kept_wait(&kept));
    ferry_testing_pair_destroy(&pair);
}

OVER_EACH_TRANSPORT(calls_beyond_the_bound_would_block_until_one_ends)
{
    ferry_testing_pair_t pair = manual_pair(over->name, "3", NULL);
    struct kept kept = KEPT_INIT;
    TEST_CHECK(ferry_agent_register(pair.right, "later", kept_handler, &kept) == FERRY_OK);
    meet(&pair);
    ferry_future_t *futures[3], *refused = NULL;
    ferry_request_t *requests[3];
    for (int i = 0; i < 3; i++) {
        futures[i] = start_call(&pair, "later", NULL, NULL);
        pthread_mutex_lock(&kept.lock);
        while (kept.request == NULL) {
            pthread_mutex_unlock(&kept.lock);
            progress(pair.left);
            progress(pair.right);
            pthread_mutex_lock(&kept.lock);
        }
        pthread_mutex_unlock(&kept.lock);
        requests[i] = kept_wait(&kept);
    }
    cr_assert_eq(ferry_call(pair.left, "right", "echo", NULL, NULL, &refused),
                 FERRY_ERR_WOULD_BLOCK);
    cr_assert_null(refused);
    cr_assert_not_null(strstr(ferry_last_error()->text, "FERRY_MAX_CALLS"), "%s",
                       ferry_last_error()->text);
    struct ready ready = {.runs = 0};
    TEST_CHECK(ferry_agent_when_ready(pair.left, "right", on_ready, &ready) == FERRY_OK);
    for (int i = 0; i < 200; i++) {
        progress(pair.left);
        progress(pair.right);
    }
    cr_assert_eq(ready.runs, 0);
    TEST_CHECK(ferry_request_reply(requests[1], NULL) == FERRY_OK);
    while (ready.runs == 0) {
        turn(&pair);
    }
    cr_assert_eq(ready.status, FERRY_OK);
    ferry_future_t *future = start_call(&pair, "echo", NULL, NULL);
    pump_until_done(&pair, future);
    ferry_future_release(future);
    for (int i = 0; i < 3; i++) {
        ferry_request_release(requests[i]);
    }
    for (int i = 0; i < 3; i++) {
        pump_until_done(&pair, futures[i]);
        ferry_future_release(futures[i]);
    }
    cr_assert_eq(ready.runs, 1);
    ferry_testing_pair_destroy(&pair);
}

OVER_EACH_TRANSPORT(device_events_need_no_message_to_be_seen)
{
    ferry_testing_pair_t pair = manual_pair(over->name, NULL, NULL);
    meet(&pair);
    struct placed placed;
    placed_init(&placed, test_sim0, NULL, 100000);
    uintptr_t stream;
    TEST_CHECK(ferry_device_stream_create(test_sim0, &stream) == FERRY_OK);
    TEST_CHECK(ferry_sim_hold(test_sim0, stream) == FERRY_OK);
    int64_t shape[1];
    ferry_tensor_t tensor = placed_tensor("x", &placed, shape);
    tensor.stream = stream;
    ferry_message_t message = {.tensors = &tensor, .tensor_count = 1};
    ferry_future_t *future = start_call(&pair, "echo", &message, NULL);
    for (int i = 0; i < 100; i++) {
        turn(&pair);
    }
    cr_assert_not(ferry_future_done(future));
    TEST_CHECK(ferry_sim_resume(test_sim0, stream) == FERRY_OK);
    pump_until_done(&pair, future);
    TEST_CHECK(ferry_future_wait(future, 0, NULL) == FERRY_OK);
    ferry_future_release(future);
    ferry_device_stream_destroy(test_sim0, stream);
    placed_finish(&placed);
    ferry_testing_pair_destroy(&pair);
}

Test(manual, a_call_to_oneself_needs_nobody_else)
{
    ferry_testing_pair_t pair = manual_pair("inproc", NULL, NULL);
    ferry_future_t *future = NULL;
    TEST_CHECK(ferry_call(pair.right, "right", "inline", NULL, NULL, &future) == FERRY_OK);
    TEST_CHECK(ferry_future_wait(future, TEST_SECONDS(20), NULL) == FERRY_OK);
    ferry_future_release(future);
    ferry_testing_pair_destroy(&pair);
}

static void *run_agent(void *agent)
{
    TEST_CHECK(ferry_agent_run(agent) == FERRY_OK);
    return NULL;
}

OVER_EACH_TRANSPORT(run_drives_the_agent_until_it_is_stopped)
{
    ferry_testing_pair_t pair = manual_pair(over->name, NULL, NULL);
    pthread_t runner;
    cr_assert_eq(pthread_create(&runner, NULL, run_agent, pair.right), 0);
    struct ready ready = {.runs = 0};
    cr_assert_eq(ferry_agent_connect(pair.left, "right", 0), FERRY_ERR_WOULD_BLOCK);
    TEST_CHECK(ferry_agent_when_ready(pair.left, "right", on_ready, &ready) == FERRY_OK);
    while (ready.runs == 0) {
        progress(pair.left);
    }
    for (int i = 0; i < 100; i++) {
        ferry_future_t *future = start_call(&pair, "echo", NULL, NULL);
        TEST_CHECK(ferry_future_wait(future, TEST_SECONDS(20), NULL) == FERRY_OK);
        ferry_future_release(future);
    }
    ferry_agent_stop(pair.right);
    pthread_join(runner, NULL);
    ferry_testing_pair_destroy(&pair);
}

static void on_last(void *context, ferry_status_t status)
{
    TEST_CHECK(status != FERRY_OK);
    ++*(int *)context;
}

OVER_EACH_TRANSPORT(who_waits_for_room_is_told_when_the_agent_goes)
{
    ferry_testing_pair_t pair = manual_pair(over->name, NULL, NULL);
    ferry_future_t *future = NULL;
    int runs = 0;
    cr_assert_eq(ferry_call(pair.left, "right", "echo", NULL, NULL, &future),
                 FERRY_ERR_WOULD_BLOCK);
    TEST_CHECK(ferry_agent_when_ready(pair.left, "right", on_last, &runs) == FERRY_OK);
    ferry_testing_pair_destroy(&pair);
    cr_assert_eq(runs, 1);
}
