/* Replies with tensors of the handler's own, over each transport: allocated by the request, copied,
 * released, or refused because nobody would keep them alive. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "support/placed.h"

TestSuite(call_reply, .init = test_sim_on);

struct transport_case {
    char name[8];
};

#define OVER_EACH_TRANSPORT(test)                                                                  \
    ParameterizedTestParameters(call_reply, test)                                                  \
    {                                                                                              \
        static struct transport_case cases[] = {{"inproc"}, {"ucx"}};                              \
        return cr_make_param_array(struct transport_case, cases, 2);                               \
    }                                                                                              \
    ParameterizedTest(struct transport_case *over, call_reply, test, .init = test_sim_on)

#define MAP "right: cpu<-sim:0, sim:1<-sim:1"

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

/* What a handler answers with, and what it found. */
struct answer {
    DLDevice device;
    const unsigned char *data;
    size_t bytes;
    struct placed placed; /* of the test */
    ferry_status_t status;
    char text[512];
    atomic_int releases;
};

static ferry_future_t *ask(ferry_testing_pair_t *pair, ferry_method_fn *run, struct answer *answer)
{
    TEST_CHECK(ferry_agent_register(pair->right, "ask", run, answer) == FERRY_OK);
    ferry_future_t *future = test_call(pair->left, "right", "ask", NULL, NULL);
    TEST_CHECK(ferry_agent_unregister(pair->right, "ask") == FERRY_OK);
    return future;
}

/* Everything that came back under "y", compared with what the handler sent. */
static void expect_answer(ferry_future_t *future, const struct answer *answer)
{
    unsigned char *got = calloc(1, answer->bytes + 1);
    const ferry_tensor_t *y = ferry_message_tensor(ferry_future_result(future), "y");
    cr_assert_not_null(y);
    test_fetch(y, got);
    cr_assert_eq(memcmp(got, answer->data, answer->bytes), 0, "%zu bytes", answer->bytes);
    free(got);
    ferry_future_release(future);
}

static const size_t sizes[] = {5, 3000, 300000};
enum { SIZES = sizeof(sizes) / sizeof(*sizes) };

static struct answer answer_of(DLDevice device, size_t bytes)
{
    unsigned char *data = malloc(bytes);
    test_random(data, bytes);
    return (struct answer){.device = device, .data = data, .bytes = bytes};
}

/* ---- the request's own ---- */

static ferry_status_t answer_allocated(ferry_request_t *request, void *context)
{
    struct answer *answer = context;
    int64_t shape[2] = {1, (int64_t)answer->bytes};
    char name[] = "y";
    ferry_tensor_t tensor;
    TEST_CHECK(ferry_request_allocate(request, name, answer->device, test_u8, 2, shape, &tensor) ==
               FERRY_OK);
    name[0] = 'n';
    shape[0] = shape[1] = -1;
    TEST_CHECK(test_on(&tensor, answer->device));
    TEST_CHECK(ferry_device_copy(answer->device, tensor.view.data, test_cpu, answer->data,
                                 answer->bytes) == FERRY_OK);
    ferry_message_t message = {.tensors = &tensor, .tensor_count = 1};
    return ferry_request_reply(request, &message);
}

OVER_EACH_TRANSPORT(what_the_request_allocates_goes_back)
{
    ferry_testing_pair_t pair = test_pair(over->name, MAP, NULL);
    const DLDevice devices[] = {test_cpu, test_sim0, test_sim1};
    for (size_t i = 0; i < 3 * SIZES; i++) {
        struct answer answer = answer_of(devices[i % 3], sizes[i / 3]);
        expect_answer(ask(&pair, answer_allocated, &answer), &answer);
        free((void *)answer.data);
    }
    ferry_testing_pair_destroy(&pair);
}

static ferry_status_t answer_absent(ferry_request_t *request, void *context)
{
    struct answer *answer = context;
    int64_t shape[1] = {4};
    ferry_tensor_t tensor;
    answer->status =
        ferry_request_allocate(request, "y", (DLDevice){.device_type = kDLExtDev, .device_id = 8},
                               test_u8, 1, shape, &tensor);
    return answer->status;
}

OVER_EACH_TRANSPORT(what_cannot_be_allocated_is_an_error_that_reaches_the_caller)
{
    ferry_testing_pair_t pair = test_pair(over->name, MAP, NULL);
    struct answer answer = {.status = FERRY_OK};
    TEST_CHECK(ferry_agent_register(pair.right, "ask", answer_absent, &answer) == FERRY_OK);
    cr_assert_eq(test_call_fails(pair.left, "right", "ask", NULL, NULL, NULL),
                 FERRY_ERR_UNKNOWN_DEVICE);
    cr_assert_not_null(strstr(ferry_last_error()->text, "sim:8"), "%s", ferry_last_error()->text);
    cr_assert_str_eq(ferry_last_error()->origin, "right");
    cr_assert_eq(answer.status, FERRY_ERR_UNKNOWN_DEVICE);
    ferry_testing_pair_destroy(&pair);
}

/* ---- copies ---- */

static ferry_status_t answer_copied_host(ferry_request_t *request, void *context)
{
    struct answer *answer = context;
    unsigned char *mine = malloc(answer->bytes);
    memcpy(mine, answer->data, answer->bytes);
    int64_t shape[1] = {(int64_t)answer->bytes};
    ferry_tensor_t tensor = test_tensor("y", mine, test_u8, 1, shape);
    tensor.copy = true;
    ferry_message_t message = {.tensors = &tensor, .tensor_count = 1};
    ferry_status_t status = ferry_request_reply(request, &message);
    memset(mine, 0xee, answer->bytes);
    free(mine);
    return status;
}

struct fill {
    void *device;
    const unsigned char *source; /* NULL: what must not be seen */
    size_t bytes;
};

static void kernel_fill(void *context)
{
    struct fill *fill = context;
    void *at = ferry_sim_host_pointer(fill->device);
    TEST_CHECK(at != NULL);
    if (fill->source != NULL) {
        memcpy(at, fill->source, fill->bytes);
    } else {
        memset(at, 0xee, fill->bytes);
    }
}

/* Writes the tensor late, answers with a copy of it, and overwrites it later on the same stream. */
static ferry_status_t answer_copied_device(ferry_request_t *request, void *context)
{
    struct answer *answer = context;
    struct placed mine;
    uintptr_t stream;
    placed_init(&mine, answer->device, NULL, answer->bytes);
    TEST_CHECK(ferry_device_stream_create(answer->device, &stream) == FERRY_OK);
    struct fill before = {mine.memory, answer->data, answer->bytes};
    struct fill after = {mine.memory, NULL, answer->bytes};
    TEST_CHECK(ferry_sim_launch(answer->device, stream, kernel_fill, &before, 2000000) == FERRY_OK);
    int64_t shape[1];
    ferry_tensor_t tensor = placed_tensor("y", &mine, shape);
    tensor.copy = true;
    tensor.stream = stream;
    ferry_message_t message = {.tensors = &tensor, .tensor_count = 1};
    ferry_status_t status = ferry_request_reply(request, &message);
    TEST_CHECK(ferry_sim_launch(answer->device, stream, kernel_fill, &after, 0) == FERRY_OK);
    TEST_CHECK(ferry_device_stream_synchronize(answer->device, stream) == FERRY_OK);
    ferry_device_stream_destroy(answer->device, stream);
    placed_finish(&mine);
    return status;
}

OVER_EACH_TRANSPORT(a_tensor_marked_copy_is_the_handlers_again_at_once)
{
    ferry_testing_pair_t pair = test_pair(over->name, MAP, NULL);
    const DLDevice devices[] = {test_cpu, test_sim0, test_sim1};
    for (size_t i = 0; i < 3 * SIZES; i++) {
        struct answer answer = answer_of(devices[i % 3], sizes[i / 3]);
        expect_answer(ask(&pair, i % 3 == 0 ? answer_copied_host : answer_copied_device, &answer),
                      &answer);
        free((void *)answer.data);
    }
    ferry_testing_pair_destroy(&pair);
}

/* ---- released ---- */

static ferry_status_t answer_released(ferry_request_t *request, void *context)
{
    struct answer *answer = context;
    int64_t shape[1];
    ferry_tensor_t tensor = placed_tensor("y", &answer->placed, shape);
    tensor.release = count_release;
    tensor.context = &answer->releases;
    ferry_message_t message = {.tensors = &tensor, .tensor_count = 1};
    return ferry_request_reply(request, &message);
}

OVER_EACH_TRANSPORT(a_replys_release_runs_exactly_once)
{
    ferry_testing_pair_t pair = test_pair(over->name, MAP, NULL);
    const DLDevice devices[] = {test_cpu, test_sim0, test_sim1};
    for (size_t i = 0; i < 3 * SIZES; i++) {
        struct answer answer = answer_of(devices[i % 3], sizes[i / 3]);
        placed_init(&answer.placed, answer.device, answer.data, answer.bytes);
        expect_answer(ask(&pair, answer_released, &answer), &answer);
        wait_for_count(&answer.releases, 1);
        placed_finish(&answer.placed);
        ferry_future_release(test_call(pair.left, "right", "echo", NULL, NULL));
        cr_assert_eq(atomic_load(&answer.releases), 1);
        free((void *)answer.data);
    }
    ferry_testing_pair_destroy(&pair);
}

/* The result is of no use to the caller, which declines it: the callee lets go all the same. */
OVER_EACH_TRANSPORT(a_result_that_is_declined_is_released_too)
{
    ferry_testing_pair_t pair = test_pair(over->name, NULL, NULL);
    struct answer answer = answer_of(test_sim0, 300000);
    placed_init(&answer.placed, answer.device, answer.data, answer.bytes);
    TEST_CHECK(ferry_agent_register(pair.right, "ask", answer_released, &answer) == FERRY_OK);
    cr_assert_eq(test_call_fails(pair.left, "right", "ask", NULL, NULL, NULL),
                 FERRY_ERR_UNMAPPED_DEVICE);
    wait_for_count(&answer.releases, 1);
    ferry_future_release(test_call(pair.left, "right", "echo", NULL, NULL));
    ferry_testing_pair_destroy(&pair);
    cr_assert_eq(atomic_load(&answer.releases), 1);
    placed_finish(&answer.placed);
    free((void *)answer.data);
}

/* ---- refused ---- */

static ferry_status_t answer_nobodys(ferry_request_t *request, void *context)
{
    struct answer *answer = context;
    int64_t shape[1];
    ferry_tensor_t tensor = placed_tensor("y", &answer->placed, shape);
    ferry_message_t message = {.tensors = &tensor, .tensor_count = 1};
    answer->status = ferry_request_reply(request, &message);
    memcpy(answer->text, ferry_last_error()->text,
           strnlen(ferry_last_error()->text, sizeof(answer->text) - 1));
    TEST_CHECK(ferry_request_reply(request, NULL) == FERRY_OK);
    TEST_CHECK(ferry_request_reply(request, NULL) == FERRY_ERR_STATE);
    return FERRY_OK;
}

OVER_EACH_TRANSPORT(a_tensor_that_nobody_keeps_alive_is_refused_and_the_request_stays_open)
{
    ferry_testing_pair_t pair = test_pair(over->name, MAP, NULL);
    const DLDevice devices[] = {test_cpu, test_sim0, test_sim1};
    for (size_t i = 0; i < 3 * SIZES; i++) {
        struct answer answer = answer_of(devices[i % 3], sizes[i / 3]);
        placed_init(&answer.placed, answer.device, answer.data, answer.bytes);
        ferry_future_t *future = ask(&pair, answer_nobodys, &answer);
        cr_assert_eq(ferry_future_result(future)->tensor_count, 0);
        cr_assert_eq(answer.status, FERRY_ERR_INVALID_ARGUMENT);
        cr_assert_not_null(strstr(answer.text, "result 'y'"), "%s", answer.text);
        cr_assert_not_null(strstr(answer.text, "copy"), "%s", answer.text);
        ferry_future_release(future);
        placed_finish(&answer.placed);
        free((void *)answer.data);
    }
    ferry_testing_pair_destroy(&pair);
}
