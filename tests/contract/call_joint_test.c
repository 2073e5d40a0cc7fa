/* Messages of a thousand tensors of mixed sizes, of which the small ones share a segment: every byte
 * arrives, wherever it shall lie, over each protocol and with the narrowest window. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "support/placed.h"

#define COUNT 1000

struct wire_case {
    char transport[8], protocol[8];
    bool narrow; /* operations of 64 KiB, one at a time */
};

#define OVER_EACH_WIRE(test)                                                                       \
    ParameterizedTestParameters(call_joint, test)                                                  \
    {                                                                                              \
        static struct wire_case cases[] = {{"inproc", "tag", false}, {"inproc", "tag", true},      \
                                           {"ucx", "tag", false},    {"ucx", "tag", true},         \
                                           {"ucx", "am", false},     {"ucx", "am", true},          \
                                           {"ucx", "stream", false}, {"ucx", "stream", true}};     \
        return cr_make_param_array(struct wire_case, cases, sizeof cases / sizeof *cases);         \
    }                                                                                              \
    ParameterizedTest(struct wire_case *over, call_joint, test, .init = test_sim_on)

static ferry_testing_pair_t joint_pair(const struct wire_case *over, const char *map)
{
    const char *settings[] = {"FERRY_UCX_PROTOCOL",
                              over->protocol,
                              "FERRY_CHUNK",
                              over->narrow ? "64KiB" : "2MiB",
                              "FERRY_CHUNK_WINDOW",
                              over->narrow ? "1" : "4",
                              NULL};
    return test_pair(over->transport, map, settings);
}

/* Tensors with the bytes that their elements make in C order. */
struct many {
    ferry_tensor_t tensors[COUNT];
    int64_t shapes[COUNT][1], strides[COUNT][1];
    size_t sizes[COUNT];
    uint8_t *bytes[COUNT];  /* owned */
    uint8_t *memory[COUNT]; /* owned: what the tensor is a view of, where it lies on the cpu */
    struct placed placed[COUNT];
};

static size_t size_of(int i)
{
    static const size_t sizes[10] = {0, 1, 4096, 4096, 4097, 2048, 4096, 63, 16384, 16385};
    return i % 50 == 7 ? 65537 : i % 100 == 8 ? 300001 : sizes[i % 10];
}

/* As a buffer or an argument on the cpu; every third with gaps between its elements. */
static void many_on_cpu(struct many *many, int i, const uint8_t *source)
{
    int64_t step = i % 3 == 0 ? 2 : 1;
    many->memory[i] = malloc(2 * many->sizes[i] + 1);
    memset(many->memory[i], 0xee, 2 * many->sizes[i] + 1);
    for (size_t at = 0; source != NULL && at < many->sizes[i]; at++) {
        many->memory[i][at * (size_t)step] = source[at];
    }
    many->strides[i][0] = step;
    many->tensors[i] = test_tensor(NULL, many->memory[i], test_u8, 1, many->shapes[i]);
    many->tensors[i].view.strides = step == 1 ? NULL : many->strides[i];
}

/* on_sim: every seventh lies on sim:0. random: else poisoned, to be written. */
static struct many *many_create(bool on_sim, bool random)
{
    struct many *many = calloc(1, sizeof *many);
    for (int i = 0; i < COUNT; i++) {
        many->sizes[i] = size_of(i);
        many->shapes[i][0] = (int64_t)many->sizes[i];
        many->bytes[i] = malloc(many->sizes[i] + 1);
        test_random(many->bytes[i], many->sizes[i]);
        if (on_sim && i % 7 == 3) {
            placed_init(&many->placed[i], test_sim0, many->bytes[i], many->sizes[i]);
            many->tensors[i] = placed_tensor(NULL, &many->placed[i], many->shapes[i]);
        } else {
            many_on_cpu(many, i, random ? many->bytes[i] : NULL);
        }
    }
    return many;
}

static void many_destroy(struct many *many)
{
    for (int i = 0; i < COUNT; i++) {
        if (many->placed[i].memory != NULL) {
            placed_finish(&many->placed[i]);
        }
        free(many->bytes[i]);
        free(many->memory[i]);
    }
    free(many);
}

static ferry_message_t many_message(struct many *many)
{
    return (ferry_message_t){.tensors = many->tensors, .tensor_count = COUNT};
}

static void expect_same(const struct many *many, const ferry_message_t *message)
{
    static uint8_t got[300001];
    cr_assert_eq(message->tensor_count, COUNT);
    for (int i = 0; i < COUNT; i++) {
        const ferry_tensor_t *tensor = &message->tensors[i];
        size_t bytes;
        TEST_CHECK(ferry_tensor_bytes(&tensor->view, &bytes) == FERRY_OK);
        cr_assert_eq(bytes, many->sizes[i]);
        cr_assert_eq((uintptr_t)tensor->view.data % 64, 0, "tensor %d", i);
        test_fetch(tensor, got);
        cr_assert_eq(memcmp(got, many->bytes[i], bytes), 0, "tensor %d of %zu bytes", i, bytes);
    }
}

/* The buffer's elements are the bytes, and what lies between and behind them is as it was. */
static void expect_filled(const struct many *many, const struct many *buffers)
{
    for (int i = 0; i < COUNT; i++) {
        size_t step = (size_t)buffers->strides[i][0];
        for (size_t at = 0; at < 2 * many->sizes[i] + 1; at++) {
            bool element = at % step == 0 && at / step < many->sizes[i];
            uint8_t wanted = element ? many->bytes[i][at / step] : 0xee;
            if (buffers->memory[i][at] != wanted) {
                cr_assert(false, "tensor %d of %zu bytes, at %zu", i, many->sizes[i], at);
            }
        }
    }
}

static void expect_echo(ferry_agent_t *agent, const char *method)
{
    struct many *many = many_create(false, true);
    ferry_message_t message = many_message(many);
    ferry_future_t *future = test_call(agent, "right", method, &message, NULL);
    expect_same(many, ferry_future_result(future));
    ferry_future_release(future);
    many_destroy(many);
}

OVER_EACH_WIRE(every_byte_comes_back)
{
    ferry_testing_pair_t pair = joint_pair(over, NULL);
    for (int i = 0; i < 3; i++) {
        expect_echo(pair.left, i == 1 ? "inline" : "echo");
    }
    ferry_testing_pair_destroy(&pair);
}

OVER_EACH_WIRE(two_results_outlive_each_other)
{
    ferry_testing_pair_t pair = joint_pair(over, NULL);
    struct many *first = many_create(false, true), *second = many_create(false, true);
    ferry_message_t messages[2] = {many_message(first), many_message(second)};
    ferry_future_t *futures[2];
    for (int i = 0; i < 2; i++) {
        TEST_CHECK(ferry_call(pair.left, "right", "echo", &messages[i], NULL, &futures[i]) ==
                   FERRY_OK);
    }
    TEST_CHECK(ferry_future_wait_all(futures, 2, TEST_SECONDS(60)) == FERRY_OK);
    expect_same(first, ferry_future_result(futures[0]));
    ferry_future_release(futures[0]);
    expect_echo(pair.left, "echo");
    expect_same(second, ferry_future_result(futures[1]));
    ferry_future_release(futures[1]);
    many_destroy(first);
    many_destroy(second);
    ferry_testing_pair_destroy(&pair);
}

OVER_EACH_WIRE(results_fill_the_callers_buffers_and_nothing_else)
{
    ferry_testing_pair_t pair = joint_pair(over, NULL);
    struct many *many = many_create(false, true), *buffers = many_create(false, false);
    ferry_message_t message = many_message(many);
    ferry_call_options_t options = ferry_call_options();
    options.results = buffers->tensors;
    options.result_count = COUNT;
    ferry_future_t *future = test_call(pair.left, "right", "echo", &message, &options);
    cr_assert_eq(ferry_future_result(future)->tensors[2].view.data, buffers->memory[2]);
    ferry_future_release(future);
    expect_filled(many, buffers);

    options.results = buffers->tensors;
    buffers->shapes[2][0]--; /* one buffer is too small: an error, and the rest is dropped */
    cr_assert_eq(test_call_fails(pair.left, "right", "echo", &message, &options, NULL),
                 FERRY_ERR_RESULT_MISMATCH);
    expect_echo(pair.left, "echo");
    many_destroy(many);
    many_destroy(buffers);
    ferry_testing_pair_destroy(&pair);
}

/* Gives memory of its own, until it shall not. */
struct giver {
    atomic_int given, taken_back, left;
};

static ferry_status_t give(void *context, DLDevice device, size_t bytes, void **data_out)
{
    struct giver *giver = context;
    cr_assert_eq(device.device_type, kDLCPU);
    if (atomic_fetch_sub(&giver->left, 1) <= 0 ||
        posix_memalign(data_out, 64, bytes == 0 ? 1 : bytes) != 0) {
        return FERRY_ERR_NO_MEMORY;
    }
    atomic_fetch_add(&giver->given, 1);
    return FERRY_OK;
}

static void take_back(void *context, DLDevice device, void *data)
{
    (void)device;
    free(data);
    atomic_fetch_add(&((struct giver *)context)->taken_back, 1);
}

static ferry_status_t answer_echo(ferry_request_t *request, void *context)
{
    (void)context;
    return ferry_request_reply(request, ferry_request_message(request));
}

OVER_EACH_WIRE(arguments_land_in_the_methods_own_memory)
{
    ferry_testing_pair_t pair = joint_pair(over, NULL);
    struct giver giver = {.left = COUNT};
    ferry_method_options_t options = ferry_method_options();
    ferry_allocator_t allocator = {.allocate = give, .deallocate = take_back, .context = &giver};
    options.allocator = &allocator;
    TEST_CHECK(ferry_agent_register_with(pair.right, "own", answer_echo, NULL, &options) ==
               FERRY_OK);
    expect_echo(pair.left, "own");

    giver.left = COUNT / 2;
    struct many *many = many_create(false, true);
    ferry_message_t message = many_message(many);
    cr_assert_eq(test_call_fails(pair.left, "right", "own", &message, NULL, NULL),
                 FERRY_ERR_NO_MEMORY);
    giver.left = 0;
    cr_assert_eq(test_call_fails(pair.left, "right", "own", &message, NULL, NULL),
                 FERRY_ERR_NO_MEMORY);
    giver.left = COUNT;
    expect_echo(pair.left, "own");
    many_destroy(many);
    ferry_testing_pair_destroy(&pair);
    cr_assert_eq(giver.given, giver.taken_back);
    cr_assert_geq(giver.given, 2 * COUNT);
}

OVER_EACH_WIRE(device_tensors_travel_between_them)
{
    ferry_testing_pair_t pair = joint_pair(over, "right: sim:0<->sim:1");
    struct many *many = many_create(true, true);
    ferry_message_t message = many_message(many);
    ferry_future_t *future = test_call(pair.left, "right", "echo", &message, NULL);
    const ferry_message_t *result = ferry_future_result(future);
    expect_same(many, result);
    cr_assert(test_on(&result->tensors[3], test_sim0) && test_on(&result->tensors[2], test_cpu));
    ferry_future_release(future);

    ferry_call_options_t options = ferry_call_options();
    options.results_device = &test_sim1;
    future = test_call(pair.left, "right", "echo", &message, &options);
    result = ferry_future_result(future);
    expect_same(many, result);
    for (int i = 0; i < COUNT; i++) {
        cr_assert(test_on(&result->tensors[i], test_sim1));
    }
    ferry_future_release(future);
    many_destroy(many);
    ferry_testing_pair_destroy(&pair);
}

OVER_EACH_WIRE(what_nobody_takes_is_dropped)
{
    ferry_testing_pair_t pair = joint_pair(over, NULL);
    struct many *many = many_create(false, true), *buffers = many_create(false, false);
    ferry_message_t message = many_message(many);
    ferry_call_options_t options = ferry_call_options();
    options.results = buffers->tensors;
    options.result_count = COUNT;
    for (int i = 0; i < 10; i++) {
        cr_assert_eq(test_call_fails(pair.left, "right", "ecko", &message, NULL, NULL),
                     FERRY_ERR_UNKNOWN_METHOD);
        ferry_future_t *future;
        TEST_CHECK(ferry_call(pair.left, "right", "echo", &message, &options, &future) == FERRY_OK);
        if (i % 2 == 0) {
            ferry_future_wait(future, i * 200000, NULL);
        }
        ferry_future_cancel(future);
        ferry_status_t status = ferry_future_wait(future, TEST_SECONDS(60), NULL);
        cr_assert(status == FERRY_ERR_CANCELLED || status == FERRY_OK);
        ferry_future_release(future);
    }
    expect_echo(pair.left, "echo");
    many_destroy(many);
    many_destroy(buffers);
    ferry_testing_pair_destroy(&pair);
}

OVER_EACH_WIRE(the_path_says_that_they_are_packed)
{
    ferry_testing_pair_t pair = joint_pair(over, NULL);
    struct many *many = many_create(false, true);
    ferry_message_t message = many_message(many);
    ferry_future_t *future = test_call(pair.left, "right", "echo", &message, NULL);
    const char *small = ferry_future_path(future, "#4"), *large = ferry_future_path(future, "#8");
    cr_assert(strstr(small, "cpu -packed->") == small && strstr(small, "-host-> cpu") != NULL, "%s",
              small);
    cr_assert(strstr(large, "cpu -host->") == large, "%s", large);
    ferry_future_release(future);
    many_destroy(many);
    ferry_testing_pair_destroy(&pair);
}
