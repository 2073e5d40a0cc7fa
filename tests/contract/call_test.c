/* Calls, as a program sees them, over each transport. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "support/pair.h"

struct transport_case {
    char name[8];
};

#define OVER_EACH_TRANSPORT(test)                                                                  \
    ParameterizedTestParameters(call, test)                                                        \
    {                                                                                              \
        static struct transport_case cases[] = {{"inproc"}, {"ucx"}};                              \
        return cr_make_param_array(struct transport_case, cases, 2);                               \
    }                                                                                              \
    ParameterizedTest(struct transport_case *over, call, test)

OVER_EACH_TRANSPORT(an_empty_call_is_answered)
{
    ferry_testing_pair_t pair = test_pair(over->name, NULL, NULL);
    for (int i = 0; i < 1000; i++) {
        ferry_future_t *future =
            test_call(pair.left, "right", i % 2 == 0 ? "inline" : "nothing", NULL, NULL);
        const ferry_message_t *result = ferry_future_result(future);
        cr_assert_eq(result->body_bytes, 0);
        cr_assert_eq(result->tensor_count, 0);
        ferry_future_release(future);
    }
    ferry_counters_t counters = {.struct_bytes = sizeof(counters)};
    TEST_CHECK(ferry_agent_counters(pair.left, &counters) == FERRY_OK);
    cr_assert_eq(counters.calls_started, 1000);
    cr_assert_eq(counters.calls_succeeded, 1000);
    cr_assert_eq(counters.calls_pending, 0);
    ferry_testing_pair_destroy(&pair);
}

static void echo_bytes(ferry_agent_t *agent, size_t bytes)
{
    uint8_t *body = malloc(bytes + 1), *data = malloc(bytes + 1);
    test_random(body, bytes);
    test_random(data, bytes);
    int64_t shape[1] = {(int64_t)bytes};
    ferry_tensor_t tensor = test_tensor("data", data, test_u8, 1, shape);
    ferry_message_t message = {
        .body = body, .body_bytes = bytes, .tensors = &tensor, .tensor_count = 1};
    ferry_future_t *future = test_call(agent, "right", "echo", &message, NULL);
    const ferry_message_t *result = ferry_future_result(future);
    cr_assert_eq(result->body_bytes, bytes);
    cr_assert(bytes == 0 || memcmp(result->body, body, bytes) == 0, "body of %zu bytes", bytes);
    const ferry_tensor_t *back = ferry_message_tensor(result, "data");
    cr_assert_not_null(back);
    cr_assert_eq(back->view.shape[0], (int64_t)bytes);
    cr_assert(bytes == 0 || memcmp(back->view.data, data, bytes) == 0, "tensor of %zu bytes",
              bytes);
    ferry_future_release(future);
    free(body);
    free(data);
}

OVER_EACH_TRANSPORT(bodies_and_tensors_of_all_sizes_come_back_intact)
{
    ferry_testing_pair_t pair = test_pair(over->name, NULL, NULL);
    static const size_t sizes[] = {0,    1,      7,       8,       2047,    2048,    2049,   4096,
                                   8000, 100000, 1 << 20, 2097151, 2097152, 2097153, 9000001};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        echo_bytes(pair.left, sizes[i]);
    }
    ferry_testing_pair_destroy(&pair);
}

OVER_EACH_TRANSPORT(both_agents_call_each_other)
{
    ferry_testing_pair_t pair = test_pair(over->name, NULL, NULL);
    test_register(pair.left);
    ferry_future_t *there = NULL, *back = NULL;
    TEST_CHECK(ferry_call(pair.left, "right", "echo", NULL, NULL, &there) == FERRY_OK);
    TEST_CHECK(ferry_call(pair.right, "left", "echo", NULL, NULL, &back) == FERRY_OK);
    ferry_future_t *both[] = {there, back};
    TEST_CHECK(ferry_future_wait_all(both, 2, TEST_SECONDS(60)) == FERRY_OK);
    ferry_future_release(there);
    ferry_future_release(back);
    ferry_testing_pair_destroy(&pair);
}

OVER_EACH_TRANSPORT(a_typed_body_carries_arguments_and_results)
{
    ferry_testing_pair_t pair = test_pair(over->name, NULL, NULL);
    float x[6] = {1, 2, 3, 4, 5, 6.5f};
    int64_t shape[2] = {2, 3};
    ferry_tensor_t tensor = test_tensor("x", x, test_f32, 2, shape);
    ferry_message_t message = {.tensors = &tensor, .tensor_count = 1};
    ferry_future_t *future = test_call(pair.left, "right", "sum", &message, NULL);
    ferry_reader_t reader = ferry_reader(ferry_future_result(future));
    cr_assert_float_eq(ferry_reader_double(&reader, "sum"), 21.5, 1e-9);
    TEST_CHECK(ferry_reader_status(&reader) == FERRY_OK);
    ferry_future_release(future);
    ferry_testing_pair_destroy(&pair);
}

OVER_EACH_TRANSPORT(errors_say_who_what_and_whether_it_ran)
{
    ferry_testing_pair_t pair = test_pair(over->name, NULL, NULL);
    ferry_future_t *future;

    cr_assert_eq(test_call_fails(pair.left, "right", "fail", NULL, NULL, &future),
                 FERRY_ERR_APPLICATION);
    const ferry_error_t *error = ferry_future_error(future);
    cr_assert_eq(error->code, 7);
    cr_assert_eq(error->effect, FERRY_RAN);
    cr_assert_str_eq(error->origin, "right");
    cr_assert_str_eq(error->method, "fail");
    cr_assert_str_eq(error->text, "right: fail: on purpose");
    cr_assert_str_eq(ferry_last_error()->text, error->text);
    ferry_future_release(future);

    cr_assert_eq(test_call_fails(pair.left, "right", "ecko", NULL, NULL, &future),
                 FERRY_ERR_UNKNOWN_METHOD);
    error = ferry_future_error(future);
    cr_assert_eq(error->effect, FERRY_NOT_RUN);
    cr_assert_not_null(strstr(error->text, "'echo'"), "%s", error->text);
    ferry_future_release(future);

    cr_assert_eq(test_call_fails(pair.left, "right", "forget", NULL, NULL, &future),
                 FERRY_ERR_UNANSWERED);
    cr_assert_eq(ferry_future_error(future)->effect, FERRY_RAN);
    ferry_future_release(future);

    double wrong[2] = {1, 2};
    int64_t shape[1] = {2};
    ferry_tensor_t tensor =
        test_tensor("x", wrong, (DLDataType){.code = kDLFloat, .bits = 64, .lanes = 1}, 1, shape);
    ferry_message_t message = {.tensors = &tensor, .tensor_count = 1};
    cr_assert_eq(test_call_fails(pair.left, "right", "sum", &message, NULL, &future),
                 FERRY_ERR_TYPE);
    cr_assert_str_eq(ferry_future_error(future)->text,
                     "right: sum: 'x' is float64, wanted float32");
    ferry_future_release(future);
    ferry_testing_pair_destroy(&pair);
}

OVER_EACH_TRANSPORT(results_land_in_the_callers_buffers)
{
    ferry_testing_pair_t pair = test_pair(over->name, NULL, NULL);
    int32_t a[3] = {1, 2, 3}, a_back[6] = {-1, -1, -1, -1, -1, -1};
    uint8_t b[5000], b_back[5000];
    test_random(b, sizeof(b));
    memset(b_back, 0xee, sizeof(b_back));
    DLDataType int32 = {.code = kDLInt, .bits = 32, .lanes = 1};
    int64_t a_shape[1] = {3}, b_shape[1] = {5000}, stride[1] = {2};
    ferry_tensor_t arguments[2] = {test_tensor("a", a, int32, 1, a_shape),
                                   test_tensor("b", b, test_u8, 1, b_shape)};
    ferry_tensor_t buffers[2] = {test_tensor("b", b_back, test_u8, 1, b_shape),
                                 test_tensor("a", a_back, int32, 1, a_shape)};
    buffers[1].view.strides = stride;
    ferry_message_t message = {.tensors = arguments, .tensor_count = 2};
    ferry_call_options_t options = ferry_call_options();
    options.results = buffers;
    options.result_count = 2;
    ferry_future_t *future = test_call(pair.left, "right", "echo", &message, &options);
    cr_assert_arr_eq(b_back, b, sizeof(b));
    int32_t wanted[6] = {1, -1, 2, -1, 3, -1};
    cr_assert_arr_eq(a_back, wanted, sizeof(wanted));
    cr_assert_eq(ferry_message_tensor(ferry_future_result(future), "b")->view.data, b_back);
    ferry_future_release(future);

    options.results = &buffers[1];
    options.result_count = 1;
    buffers[1].view.dtype = test_f32;
    cr_assert_eq(test_call_fails(pair.left, "right", "echo", &message, &options, &future),
                 FERRY_ERR_RESULT_MISMATCH);
    cr_assert_eq(ferry_future_error(future)->effect, FERRY_RAN);
    cr_assert_not_null(strstr(ferry_future_error(future)->text, "float32[3]"), "%s",
                       ferry_future_error(future)->text);
    ferry_future_release(future);

    buffers[1].name = "c";
    cr_assert_eq(test_call_fails(pair.left, "right", "echo", &message, &options, NULL),
                 FERRY_ERR_RESULT_MISMATCH);
    ferry_testing_pair_destroy(&pair);
}

OVER_EACH_TRANSPORT(a_thousand_tensors_travel_and_too_many_are_refused)
{
    ferry_testing_pair_t pair = test_pair(over->name, NULL, NULL);
    enum { COUNT = 1000, OVER = 4097 };
    ferry_tensor_t *tensors = calloc(OVER, sizeof(*tensors));
    float *data = calloc(OVER, sizeof(*data));
    int64_t shape[1] = {1};
    double sum = 0;
    for (int i = 0; i < OVER; i++) {
        data[i] = (float)i;
        tensors[i] = test_tensor(NULL, &data[i], test_f32, 1, shape);
        sum += i < COUNT ? i : 0;
    }
    ferry_message_t message = {.tensors = tensors, .tensor_count = COUNT};
    ferry_future_t *future = test_call(pair.left, "right", "echo", &message, NULL);
    const ferry_message_t *result = ferry_future_result(future);
    cr_assert_eq(result->tensor_count, COUNT);
    for (int i = 0; i < COUNT; i++) {
        sum -= (double)*(const float *)result->tensors[i].view.data;
    }
    cr_assert_float_eq(sum, 0, 1e-9);
    ferry_future_release(future);
    message.tensor_count = OVER;
    cr_assert_eq(test_call_fails(pair.left, "right", "echo", &message, NULL, NULL),
                 FERRY_ERR_LIMIT);
    cr_assert_not_null(strstr(ferry_last_error()->text, "FERRY_MAX_TENSORS"), "%s",
                       ferry_last_error()->text);
    free(tensors);
    free(data);
    ferry_testing_pair_destroy(&pair);
}

/* ---- answering later, cancel, timeout ---- */

struct kept {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    ferry_request_t *request;
    atomic_int entered;
};

static ferry_status_t keep(ferry_request_t *request, void *context)
{
    struct kept *kept = context;
    atomic_fetch_add(&kept->entered, 1);
    pthread_mutex_lock(&kept->lock);
    kept->request = request;
    pthread_cond_signal(&kept->changed);
    pthread_mutex_unlock(&kept->lock);
    return FERRY_PENDING;
}

static ferry_request_t *kept_take(struct kept *kept)
{
    pthread_mutex_lock(&kept->lock);
    while (kept->request == NULL) {
        pthread_cond_wait(&kept->changed, &kept->lock);
    }
    ferry_request_t *request = kept->request;
    kept->request = NULL;
    pthread_mutex_unlock(&kept->lock);
    return request;
}

#define KEPT                                                                                       \
    {                                                                                              \
        .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER                     \
    }

OVER_EACH_TRANSPORT(a_kept_request_is_answered_later_from_another_thread)
{
    ferry_testing_pair_t pair = test_pair(over->name, NULL, NULL);
    struct kept kept = KEPT;
    TEST_CHECK(ferry_agent_register(pair.right, "later", keep, &kept) == FERRY_OK);
    ferry_future_t *future = NULL;
    ferry_message_t message = {.body = "question", .body_bytes = 8};
    TEST_CHECK(ferry_call(pair.left, "right", "later", &message, NULL, &future) == FERRY_OK);
    ferry_request_t *request = kept_take(&kept);
    cr_assert_not(ferry_future_done(future));
    cr_assert_eq(ferry_future_wait(future, 0, NULL), FERRY_PENDING);
    cr_assert_str_eq(ferry_request_caller(request), "left");
    cr_assert_eq(memcmp(ferry_request_message(request)->body, "question", 8), 0);
    message.body = "answer!!";
    TEST_CHECK(ferry_request_reply(request, &message) == FERRY_OK);
    cr_assert_eq(ferry_request_reply(request, &message), FERRY_ERR_STATE);
    cr_assert_eq(ferry_request_fail(request, 1, "again"), FERRY_ERR_STATE);
    ferry_request_release(request);
    const ferry_message_t *result;
    TEST_CHECK(ferry_future_wait(future, TEST_SECONDS(60), &result) == FERRY_OK);
    cr_assert_eq(memcmp(result->body, "answer!!", 8), 0);
    ferry_future_release(future);

    TEST_CHECK(ferry_call(pair.left, "right", "later", NULL, NULL, &future) == FERRY_OK);
    ferry_request_release(kept_take(&kept));
    cr_assert_eq(ferry_future_wait(future, TEST_SECONDS(60), NULL), FERRY_ERR_UNANSWERED);
    ferry_future_release(future);
    ferry_testing_pair_destroy(&pair);
}

static void count_release(void *context)
{
    atomic_fetch_add((atomic_int *)context, 1);
}

static void wait_for_count(atomic_int *count, int wanted)
{
    while (atomic_load(count) < wanted) {
        sched_yield();
    }
}

OVER_EACH_TRANSPORT(timeout_cancel_and_release_end_a_call_once)
{
    ferry_testing_pair_t pair = test_pair(over->name, NULL, NULL);
    struct kept kept = KEPT;
    TEST_CHECK(ferry_agent_register(pair.right, "later", keep, &kept) == FERRY_OK);
    atomic_int releases = 0;
    uint8_t data[100000] = {1};
    int64_t shape[1] = {sizeof(data)};
    ferry_tensor_t tensor = test_tensor("data", data, test_u8, 1, shape);
    tensor.release = count_release;
    tensor.context = &releases;
    ferry_message_t message = {.tensors = &tensor, .tensor_count = 1};
    ferry_call_options_t options = ferry_call_options();
    options.timeout_ns = 50000000;
    ferry_future_t *future;
    cr_assert_eq(test_call_fails(pair.left, "right", "later", &message, &options, &future),
                 FERRY_ERR_TIMEOUT);
    cr_assert_eq(ferry_future_error(future)->effect, FERRY_MAY_HAVE_RUN);
    cr_assert_not_null(strstr(ferry_future_error(future)->text, "50 ms"));
    wait_for_count(&releases, 1);
    ferry_future_release(future);
    ferry_request_t *request = kept_take(&kept);
    while (!ferry_request_cancelled(request)) {
        sched_yield();
    }
    TEST_CHECK(ferry_request_reply(request, ferry_request_message(request)) == FERRY_OK);
    ferry_request_release(request);

    TEST_CHECK(ferry_call(pair.left, "right", "later", &message, NULL, &future) == FERRY_OK);
    request = kept_take(&kept);
    ferry_future_cancel(future);
    cr_assert_eq(ferry_future_wait(future, TEST_SECONDS(60), NULL), FERRY_ERR_CANCELLED);
    ferry_future_release(future);
    ferry_request_release(request);
    wait_for_count(&releases, 2);

    TEST_CHECK(ferry_call(pair.left, "right", "later", &message, NULL, &future) == FERRY_OK);
    request = kept_take(&kept); /* a call that is cancelled sooner may never run */
    ferry_future_release(future);
    ferry_request_release(request);
    wait_for_count(&releases, 3);

    /* The late replies did no harm. */
    ferry_future_release(test_call(pair.left, "right", "echo", NULL, NULL));
    ferry_testing_pair_destroy(&pair);
    cr_assert_eq(atomic_load(&releases), 3);
}

Test(call, a_call_that_is_refused_took_nothing)
{
    ferry_testing_pair_t pair = test_pair("inproc", NULL, NULL);
    atomic_int releases = 0;
    uint8_t byte = 1;
    int64_t shape[1] = {-1};
    ferry_tensor_t tensor = test_tensor("data", &byte, test_u8, 1, shape);
    tensor.release = count_release;
    tensor.context = &releases;
    ferry_message_t message = {.tensors = &tensor, .tensor_count = 1};
    ferry_future_t *future = NULL;
    cr_assert_eq(ferry_call(pair.left, "right", "echo", &message, NULL, &future),
                 FERRY_ERR_INVALID_ARGUMENT);
    shape[0] = 1;
    cr_assert_eq(ferry_call(pair.left, "nobody", "echo", &message, NULL, &future),
                 FERRY_ERR_UNKNOWN_PEER);
    cr_assert_eq(ferry_call(pair.left, "not a name", "echo", &message, NULL, &future),
                 FERRY_ERR_INVALID_ARGUMENT);
    cr_assert_eq(ferry_call(pair.left, "right", "", &message, NULL, &future),
                 FERRY_ERR_INVALID_ARGUMENT);
    cr_assert_eq(ferry_call(NULL, "right", "echo", &message, NULL, &future),
                 FERRY_ERR_INVALID_ARGUMENT);
    cr_assert_null(future);
    ferry_testing_pair_destroy(&pair);
    cr_assert_eq(atomic_load(&releases), 0);
}

/* ---- threads, nesting ---- */

struct nest {
    ferry_agent_t *agent;
    const char *peer;
};

/* Counts down by calling the other side, which does the same. */
static ferry_status_t ping_pong(ferry_request_t *request, void *context)
{
    struct nest *nest = context;
    ferry_reader_t reader = ferry_reader(ferry_request_message(request));
    int64_t left = ferry_reader_int64(&reader, "left");
    if (ferry_reader_status(&reader) != FERRY_OK || left == 0) {
        return ferry_request_reply(request, NULL);
    }
    ferry_writer_t *writer;
    ferry_message_t message = {.body = NULL};
    TEST_CHECK(ferry_writer_create(&writer) == FERRY_OK);
    ferry_writer_int64(writer, "left", left - 1);
    TEST_CHECK(ferry_writer_finish(writer, &message) == FERRY_OK);
    ferry_future_t *future = NULL;
    ferry_status_t status =
        ferry_call(nest->agent, nest->peer, ferry_request_method(request), &message, NULL, &future);
    if (status == FERRY_OK) {
        status = ferry_future_wait(future, TEST_SECONDS(60), NULL);
    }
    ferry_future_release(future);
    ferry_writer_destroy(writer);
    return status == FERRY_OK ? ferry_request_reply(request, NULL) : status;
}

OVER_EACH_TRANSPORT(handlers_call_back_into_the_caller)
{
    ferry_testing_pair_t pair = test_pair(over->name, NULL, NULL);
    struct nest left = {pair.left, "right"}, right = {pair.right, "left"};
    ferry_method_options_t run_inline = ferry_method_options();
    run_inline.run_inline = true;
    TEST_CHECK(ferry_agent_register(pair.left, "pool", ping_pong, &left) == FERRY_OK);
    TEST_CHECK(ferry_agent_register(pair.right, "pool", ping_pong, &right) == FERRY_OK);
    TEST_CHECK(ferry_agent_register_with(pair.left, "engine", ping_pong, &left, &run_inline) ==
               FERRY_OK);
    TEST_CHECK(ferry_agent_register_with(pair.right, "engine", ping_pong, &right, &run_inline) ==
               FERRY_OK);
    ferry_writer_t *writer;
    ferry_message_t message = {.body = NULL};
    TEST_CHECK(ferry_writer_create(&writer) == FERRY_OK);
    ferry_writer_int64(writer, "left", 20);
    TEST_CHECK(ferry_writer_finish(writer, &message) == FERRY_OK);
    ferry_future_release(test_call(pair.left, "right", "pool", &message, NULL));
    ferry_future_release(test_call(pair.left, "right", "engine", &message, NULL));
    ferry_writer_destroy(writer);
    ferry_testing_pair_destroy(&pair);
}

OVER_EACH_TRANSPORT(an_agent_calls_itself)
{
    ferry_testing_pair_t pair = test_pair(over->name, NULL, NULL);
    uint8_t data[100000];
    test_random(data, sizeof(data));
    int64_t shape[1] = {sizeof(data)};
    ferry_tensor_t tensor = test_tensor("data", data, test_u8, 1, shape);
    ferry_message_t message = {.tensors = &tensor, .tensor_count = 1};
    ferry_future_t *future = test_call(pair.right, "right", "echo", &message, NULL);
    const ferry_tensor_t *back = ferry_message_tensor(ferry_future_result(future), "data");
    cr_assert_neq(back->view.data, data, "arguments are copies");
    cr_assert_arr_eq(back->view.data, data, sizeof(data));
    ferry_future_release(future);
    ferry_testing_pair_destroy(&pair);
}

struct callback {
    atomic_int runs;
    atomic_int status;
    atomic_int nested;
    ferry_agent_t *agent;
};

static void on_done(ferry_future_t *future, void *context)
{
    struct callback *callback = context;
    const ferry_error_t *error = ferry_future_error(future);
    atomic_store(&callback->status, error == NULL ? (int)FERRY_OK : (int)error->status);
    ferry_future_t *nested = NULL;
    if (ferry_call(callback->agent, "right", "nothing", NULL, NULL, &nested) == FERRY_OK) {
        atomic_store(&callback->nested, ferry_future_wait(nested, TEST_SECONDS(60), NULL));
        ferry_future_release(nested);
    }
    atomic_fetch_add(&callback->runs, 1);
}

OVER_EACH_TRANSPORT(a_callback_runs_once_and_never_blocks)
{
    ferry_testing_pair_t pair = test_pair(over->name, NULL, NULL);
    struct callback callback = {.agent = pair.left};
    ferry_future_t *future = NULL;
    TEST_CHECK(ferry_call(pair.left, "right", "fail", NULL, NULL, &future) == FERRY_OK);
    TEST_CHECK(ferry_future_then(future, on_done, &callback) == FERRY_OK);
    cr_assert_eq(ferry_future_then(future, on_done, &callback), FERRY_ERR_STATE);
    ferry_future_wait(future, TEST_SECONDS(60), NULL);
    wait_for_count(&callback.runs, 1);
    cr_assert_eq(atomic_load(&callback.status), FERRY_ERR_APPLICATION);
    cr_assert_eq(atomic_load(&callback.nested), FERRY_ERR_WOULD_BLOCK);
    ferry_future_release(future);

    struct callback late = {.agent = pair.left};
    future = test_call(pair.left, "right", "nothing", NULL, NULL);
    TEST_CHECK(ferry_future_then(future, on_done, &late) == FERRY_OK);
    ferry_future_release(future);
    wait_for_count(&late.runs, 1);
    cr_assert_eq(atomic_load(&late.status), FERRY_OK);
    ferry_testing_pair_destroy(&pair);
    cr_assert_eq(atomic_load(&callback.runs), 1);
    cr_assert_eq(atomic_load(&late.runs), 1);
}

struct gate {
    atomic_int inside, most, open;
};

static ferry_status_t pass_gate(ferry_request_t *request, void *context)
{
    struct gate *gate = context;
    int inside = atomic_fetch_add(&gate->inside, 1) + 1;
    int most = atomic_load(&gate->most);
    while (inside > most && !atomic_compare_exchange_weak(&gate->most, &most, inside)) {
    }
    while (!atomic_load(&gate->open)) {
        sched_yield();
    }
    atomic_fetch_sub(&gate->inside, 1);
    return ferry_request_reply(request, NULL);
}

OVER_EACH_TRANSPORT(a_concurrency_limit_holds_and_nothing_is_lost)
{
    ferry_testing_pair_t pair = test_pair(over->name, NULL, NULL);
    struct gate gate = {0};
    ferry_method_options_t options = ferry_method_options();
    options.concurrency = 2;
    TEST_CHECK(ferry_agent_register_with(pair.right, "gate", pass_gate, &gate, &options) ==
               FERRY_OK);
    ferry_future_t *futures[16];
    for (int i = 0; i < 16; i++) {
        TEST_CHECK(ferry_call(pair.left, "right", "gate", NULL, NULL, &futures[i]) == FERRY_OK);
    }
    wait_for_count(&gate.inside, 2);
    atomic_store(&gate.open, 1);
    TEST_CHECK(ferry_future_wait_all(futures, 16, TEST_SECONDS(60)) == FERRY_OK);
    cr_assert_eq(atomic_load(&gate.most), 2);
    size_t any = 99;
    TEST_CHECK(ferry_future_wait_any(futures, 16, TEST_SECONDS(60), &any) == FERRY_OK);
    cr_assert_lt(any, 16);
    for (int i = 0; i < 16; i++) {
        ferry_future_release(futures[i]);
    }
    TEST_CHECK(ferry_agent_unregister(pair.right, "gate") == FERRY_OK);
    cr_assert_eq(ferry_agent_unregister(pair.right, "gate"), FERRY_ERR_NOT_FOUND);
    cr_assert_eq(test_call_fails(pair.left, "right", "gate", NULL, NULL, NULL),
                 FERRY_ERR_UNKNOWN_METHOD);
    ferry_testing_pair_destroy(&pair);
}

static ferry_status_t name_yourself(ferry_request_t *request, void *context)
{
    (void)context;
    const char *name = ferry_request_method(request);
    ferry_message_t message = {.body = name, .body_bytes = strlen(name)};
    return ferry_request_reply(request, &message);
}

Test(call, a_catch_all_serves_what_nobody_registered)
{
    ferry_testing_pair_t pair = test_pair("inproc", NULL, NULL);
    TEST_CHECK(ferry_agent_register(pair.right, "*", name_yourself, NULL) == FERRY_OK);
    cr_assert_eq(ferry_agent_register(pair.right, "*", name_yourself, NULL), FERRY_ERR_NAME_TAKEN);
    ferry_future_t *future = test_call(pair.left, "right", "whatever", NULL, NULL);
    cr_assert_eq(memcmp(ferry_future_result(future)->body, "whatever", 8), 0);
    ferry_future_release(future);
    ferry_testing_pair_destroy(&pair);
}

struct caller {
    pthread_t thread;
    ferry_agent_t *agent;
    int calls;
};

static void *call_many(void *context)
{
    struct caller *caller = context;
    uint8_t data[3000];
    test_random(data, sizeof(data));
    int64_t shape[1] = {sizeof(data)};
    ferry_tensor_t tensor = test_tensor("data", data, test_u8, 1, shape);
    ferry_message_t message = {.tensors = &tensor, .tensor_count = 1};
    for (int i = 0; i < caller->calls; i++) {
        ferry_future_t *future =
            test_call(caller->agent, "right", i % 3 == 0 ? "echo" : "inline", &message, NULL);
        const ferry_message_t *result = ferry_future_result(future);
        TEST_CHECK(memcmp(result->tensors[0].view.data, data, sizeof(data)) == 0);
        ferry_future_release(future);
    }
    return NULL;
}

OVER_EACH_TRANSPORT(many_threads_share_one_agent)
{
    ferry_testing_pair_t pair = test_pair(over->name, NULL, NULL);
    struct caller callers[6];
    for (int i = 0; i < 6; i++) {
        callers[i] = (struct caller){.agent = pair.left, .calls = 300};
        pthread_create(&callers[i].thread, NULL, call_many, &callers[i]);
    }
    for (int i = 0; i < 6; i++) {
        pthread_join(callers[i].thread, NULL);
    }
    ferry_testing_pair_destroy(&pair);
}

OVER_EACH_TRANSPORT(a_peer_that_leaves_fails_its_calls)
{
    ferry_testing_pair_t pair = test_pair(over->name, NULL, NULL);
    struct kept kept = KEPT;
    TEST_CHECK(ferry_agent_register(pair.right, "later", keep, &kept) == FERRY_OK);
    ferry_future_t *future = NULL;
    TEST_CHECK(ferry_call(pair.left, "right", "later", NULL, NULL, &future) == FERRY_OK);
    ferry_request_t *request = kept_take(&kept);
    struct caller closer = {.agent = pair.right};
    (void)closer;
    ferry_request_release(request);
    ferry_agent_destroy(pair.right);
    pair.right = NULL;
    ferry_status_t status = ferry_future_wait(future, TEST_SECONDS(60), NULL);
    cr_assert(status == FERRY_ERR_PEER_LOST || status == FERRY_ERR_UNANSWERED, "%s",
              ferry_status_name(status));
    ferry_future_release(future);
    ferry_call_options_t options = ferry_call_options();
    options.timeout_ns = 2000000000;
    status = test_call_fails(pair.left, "right", "echo", NULL, &options, NULL);
    cr_assert(status == FERRY_ERR_UNKNOWN_PEER || status == FERRY_ERR_PEER_LOST, "%s",
              ferry_status_name(status));
    ferry_testing_pair_destroy(&pair);
}

OVER_EACH_TRANSPORT(stats_and_paths_say_what_happened)
{
    ferry_testing_pair_t pair = test_pair(over->name, NULL, NULL);
    uint8_t *data = malloc(3000000);
    test_random(data, 3000000);
    int64_t shape[1] = {3000000};
    ferry_tensor_t tensor = test_tensor("data", data, test_u8, 1, shape);
    ferry_message_t message = {.tensors = &tensor, .tensor_count = 1};
    ferry_future_t *future = test_call(pair.left, "right", "echo", &message, NULL);
    ferry_call_stats_t stats = {.struct_bytes = sizeof(stats)};
    TEST_CHECK(ferry_future_stats(future, &stats) == FERRY_OK);
    cr_assert_eq(stats.argument_bytes, 3000000);
    cr_assert_eq(stats.result_bytes, 3000000);
    cr_assert_gt(stats.total_ns, 0);
    cr_assert_geq(stats.total_ns, stats.handler_ns);
    const char *path = ferry_future_path(future, "data");
    cr_assert_not_null(path);
    cr_assert_eq(strncmp(path, "cpu -host-> ", 12), 0, "%s", path);
    cr_assert_not_null(strstr(path, over->name), "%s", path);
    cr_assert_not_null(ferry_future_path(future, "#1"));
    cr_assert_null(ferry_future_path(future, "#2"));
    cr_assert_null(ferry_future_path(future, "datum"));
    ferry_future_release(future);
    free(data);
    ferry_testing_pair_destroy(&pair);
}
