/* Streams of devices on both sides of a call, over each transport: what is read after them, what is
 * written after them, how long memory lives for them, and how they wait for a future. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "support/kept.h"
#include "support/placed.h"

TestSuite(call_stream, .init = test_sim_on);

struct transport_case {
    char name[8];
};

#define OVER_EACH_TRANSPORT(test)                                                                  \
    ParameterizedTestParameters(call_stream, test)                                                 \
    {                                                                                              \
        static struct transport_case cases[] = {{"inproc"}, {"ucx"}};                              \
        return cr_make_param_array(struct transport_case, cases, 2);                               \
    }                                                                                              \
    ParameterizedTest(struct transport_case *over, call_stream, test, .init = test_sim_on)

#define MAP "right: sim:0<->sim:1, cpu<->cpu"

enum { BYTES = 300000, SMALL = 64 };

/* A kernel that copies a block of device memory from or to the host. */
struct kernel {
    unsigned char *device;
    unsigned char *host;
    size_t bytes;
    bool writes;
    atomic_int runs;
};

static void kernel_run(void *context)
{
    struct kernel *kernel = context;
    if (kernel->bytes > 0) {
        unsigned char *at = ferry_sim_host_pointer(kernel->device);
        TEST_CHECK(at != NULL);
        memcpy(kernel->writes ? at : kernel->host, kernel->writes ? kernel->host : at,
               kernel->bytes);
    }
    atomic_fetch_add(&kernel->runs, 1);
}

static void launch(DLDevice device, uintptr_t stream, struct kernel *kernel)
{
    TEST_CHECK(ferry_sim_launch(device, stream, kernel_run, kernel, 0) == FERRY_OK);
}

static uintptr_t held_stream(DLDevice device)
{
    uintptr_t stream;
    TEST_CHECK(ferry_device_stream_create(device, &stream) == FERRY_OK);
    TEST_CHECK(ferry_sim_hold(device, stream) == FERRY_OK);
    return stream;
}

static void let_go(DLDevice device, uintptr_t stream)
{
    TEST_CHECK(ferry_sim_resume(device, stream) == FERRY_OK);
    TEST_CHECK(ferry_device_stream_synchronize(device, stream) == FERRY_OK);
    ferry_device_stream_destroy(device, stream);
}

/* Calls with and without device tensors go both ways as if nothing were held. */
static void others_go_on(ferry_testing_pair_t *pair)
{
    unsigned char sent[2000], got[2000];
    struct placed placed;
    int64_t shape[1];
    for (int i = 0; i < 20; i++) {
        test_random(sent, sizeof(sent));
        placed_init(&placed, test_sim0, sent, sizeof(sent));
        ferry_tensor_t tensor = placed_tensor("other", &placed, shape);
        ferry_message_t message = {.tensors = &tensor, .tensor_count = 1};
        ferry_future_t *future = test_call(pair->left, "right", "echo", &message, NULL);
        test_fetch(&ferry_future_result(future)->tensors[0], got);
        cr_assert_arr_eq(got, sent, sizeof(sent));
        ferry_future_release(future);
        placed_finish(&placed);
    }
}

/* ---- reading and writing after a stream ---- */

static void argument_after_stream(ferry_testing_pair_t *pair, size_t bytes)
{
    unsigned char *wanted = malloc(bytes), *got = malloc(bytes);
    test_random(wanted, bytes);
    struct placed placed;
    placed_init(&placed, test_sim0, NULL, bytes);
    uintptr_t stream = held_stream(test_sim0);
    struct kernel kernel = {
        .device = placed.memory, .host = wanted, .bytes = bytes, .writes = true};
    launch(test_sim0, stream, &kernel);
    int64_t shape[1];
    ferry_tensor_t tensor = placed_tensor("x", &placed, shape);
    tensor.stream = stream;
    ferry_message_t message = {.tensors = &tensor, .tensor_count = 1};
    ferry_future_t *future = NULL;
    TEST_CHECK(ferry_call(pair->left, "right", "echo", &message, NULL, &future) == FERRY_OK);
    others_go_on(pair);
    cr_assert_not(ferry_future_done(future));
    cr_assert_eq(ferry_future_wait(future, 0, NULL), FERRY_PENDING);
    TEST_CHECK(ferry_sim_resume(test_sim0, stream) == FERRY_OK);
    TEST_CHECK(ferry_future_wait(future, TEST_SECONDS(60), NULL) == FERRY_OK);
    cr_assert_eq(atomic_load(&kernel.runs), 1);
    test_fetch(&ferry_future_result(future)->tensors[0], got);
    cr_assert_eq(memcmp(got, wanted, bytes), 0, "%zu bytes were read before the kernel ran", bytes);
    ferry_future_release(future);
    let_go(test_sim0, stream);
    placed_finish(&placed);
    free(wanted);
    free(got);
}

OVER_EACH_TRANSPORT(an_argument_is_read_after_its_stream)
{
    ferry_testing_pair_t pair = test_pair(over->name, MAP, NULL);
    argument_after_stream(&pair, SMALL);
    argument_after_stream(&pair, BYTES);
    argument_after_stream(&pair, 5 << 20);
    ferry_testing_pair_destroy(&pair);
}

static void buffer_after_stream(ferry_testing_pair_t *pair, size_t bytes)
{
    unsigned char *sent = malloc(bytes), *old = malloc(bytes), *seen = calloc(1, bytes);
    test_random(sent, bytes);
    test_random(old, bytes);
    struct placed placed;
    placed_init(&placed, test_sim1, old, bytes);
    uintptr_t stream = held_stream(test_sim1);
    struct kernel kernel = {.device = placed.memory, .host = seen, .bytes = bytes};
    launch(test_sim1, stream, &kernel);
    int64_t shapes[2][1] = {{(int64_t)bytes}};
    ferry_tensor_t tensor = test_tensor("x", sent, test_u8, 1, shapes[0]);
    ferry_tensor_t buffer = placed_tensor("x", &placed, shapes[1]);
    buffer.stream = stream;
    ferry_message_t message = {.tensors = &tensor, .tensor_count = 1};
    ferry_call_options_t options = ferry_call_options();
    options.results = &buffer;
    options.result_count = 1;
    ferry_future_t *future = NULL;
    TEST_CHECK(ferry_call(pair->left, "right", "echo", &message, &options, &future) == FERRY_OK);
    others_go_on(pair);
    cr_assert_not(ferry_future_done(future));
    TEST_CHECK(ferry_sim_resume(test_sim1, stream) == FERRY_OK);
    TEST_CHECK(ferry_future_wait(future, TEST_SECONDS(60), NULL) == FERRY_OK);
    cr_assert_eq(memcmp(seen, old, bytes), 0, "written before what the stream had queued");
    placed_read(&placed, seen);
    cr_assert_eq(memcmp(seen, sent, bytes), 0);
    ferry_future_release(future);
    let_go(test_sim1, stream);
    placed_finish(&placed);
    free(sent);
    free(old);
    free(seen);
}

OVER_EACH_TRANSPORT(a_result_buffer_is_written_after_its_stream)
{
    ferry_testing_pair_t pair = test_pair(over->name, MAP, NULL);
    buffer_after_stream(&pair, SMALL);
    buffer_after_stream(&pair, BYTES);
    ferry_testing_pair_destroy(&pair);
}

OVER_EACH_TRANSPORT(a_stream_that_fails_fails_its_call)
{
    ferry_testing_pair_t pair = test_pair(over->name, MAP, NULL);
    struct placed placed;
    placed_init(&placed, test_sim0, NULL, BYTES);
    uintptr_t stream;
    TEST_CHECK(ferry_device_stream_create(test_sim0, &stream) == FERRY_OK);
    TEST_CHECK(ferry_sim_fail(test_sim0, stream, "the kernel went astray") == FERRY_OK);
    int64_t shape[1];
    ferry_tensor_t tensor = placed_tensor("x", &placed, shape);
    tensor.stream = stream;
    ferry_message_t message = {.tensors = &tensor, .tensor_count = 1};
    cr_assert_eq(test_call_fails(pair.left, "right", "echo", &message, NULL, NULL),
                 FERRY_ERR_DEVICE);
    cr_assert_not_null(strstr(ferry_last_error()->text, "the kernel went astray"), "%s",
                       ferry_last_error()->text);
    others_go_on(&pair);
    ferry_device_stream_destroy(test_sim0, stream);
    placed_finish(&placed);
    ferry_testing_pair_destroy(&pair);
}

/* ---- memory that late kernels read ---- */

struct late {
    uintptr_t stream;
    struct kernel kernel;
};

/* Queues a kernel that reads the argument and answers at once. */
static ferry_status_t answer_late(ferry_request_t *request, void *context)
{
    struct late *late = context;
    const ferry_tensor_t *x;
    TEST_CHECK(ferry_request_tensor(request, "x", test_u8, &x) == FERRY_OK);
    TEST_CHECK(test_on(x, test_sim1));
    late->kernel.device = (unsigned char *)x->view.data + x->view.byte_offset;
    launch(test_sim1, late->stream, &late->kernel);
    TEST_CHECK(ferry_request_use_stream(request, test_sim1, late->stream) == FERRY_OK);
    return ferry_request_reply(request, NULL);
}

/* Device tensors of that size travel on, which takes memory again that was given back. */
static void overwrite(ferry_testing_pair_t *pair, size_t bytes)
{
    unsigned char *sent = malloc(bytes);
    memset(sent, 0xee, bytes);
    struct placed placed;
    placed_init(&placed, test_sim0, sent, bytes);
    int64_t shape[1];
    ferry_tensor_t tensor = placed_tensor("y", &placed, shape);
    ferry_message_t message = {.tensors = &tensor, .tensor_count = 1};
    for (int i = 0; i < 10; i++) {
        ferry_future_release(test_call(pair->left, "right", "echo", &message, NULL));
    }
    placed_finish(&placed);
    free(sent);
}

OVER_EACH_TRANSPORT(a_late_kernel_never_reads_recycled_memory)
{
    static const size_t sizes[] = {SMALL, BYTES};
    for (int i = 0; i < 2; i++) {
        size_t bytes = sizes[i];
        ferry_testing_pair_t pair = test_pair(over->name, MAP, NULL);
        unsigned char *sent = malloc(bytes), *seen = calloc(1, bytes);
        test_random(sent, bytes);
        struct late late = {.stream = held_stream(test_sim1),
                            .kernel = {.host = seen, .bytes = bytes}};
        TEST_CHECK(ferry_agent_register(pair.right, "late", answer_late, &late) == FERRY_OK);
        struct placed placed;
        placed_init(&placed, test_sim0, sent, bytes);
        int64_t shape[1];
        ferry_tensor_t tensor = placed_tensor("x", &placed, shape);
        ferry_message_t message = {.tensors = &tensor, .tensor_count = 1};
        ferry_future_release(test_call(pair.left, "right", "late", &message, NULL));
        overwrite(&pair, bytes);
        cr_assert_eq(atomic_load(&late.kernel.runs), 0);
        let_go(test_sim1, late.stream);
        cr_assert_eq(atomic_load(&late.kernel.runs), 1);
        cr_assert_eq(memcmp(seen, sent, bytes), 0, "%zu bytes", bytes);
        placed_finish(&placed);
        free(sent);
        free(seen);
        ferry_testing_pair_destroy(&pair);
    }
}

OVER_EACH_TRANSPORT(results_live_until_the_streams_that_use_them_have_passed)
{
    ferry_testing_pair_t pair = test_pair(over->name, MAP, NULL);
    unsigned char *sent = malloc(BYTES), *seen = calloc(1, BYTES);
    test_random(sent, BYTES);
    struct placed placed;
    placed_init(&placed, test_sim0, sent, BYTES);
    int64_t shape[1];
    ferry_tensor_t tensor = placed_tensor("x", &placed, shape);
    ferry_message_t message = {.tensors = &tensor, .tensor_count = 1};
    ferry_future_t *future = test_call(pair.left, "right", "echo", &message, NULL);
    const ferry_tensor_t *back = &ferry_future_result(future)->tensors[0];
    cr_assert(test_on(back, test_sim0));
    uintptr_t stream = held_stream(test_sim0);
    struct kernel kernel = {.device = back->view.data, .host = seen, .bytes = BYTES};
    launch(test_sim0, stream, &kernel);
    TEST_CHECK(ferry_future_use_stream(future, test_sim0, stream) == FERRY_OK);
    for (int i = 0; i < 7; i++) {
        TEST_CHECK(ferry_future_use_stream(future, test_sim0, stream) == FERRY_OK);
    }
    cr_assert_eq(ferry_future_use_stream(future, test_sim0, stream), FERRY_ERR_LIMIT);
    cr_assert_eq(ferry_future_use_stream(future, test_cpu, stream), FERRY_ERR_INVALID_ARGUMENT);
    ferry_future_release(future);
    overwrite(&pair, BYTES);
    cr_assert_eq(atomic_load(&kernel.runs), 0);
    let_go(test_sim0, stream);
    cr_assert_eq(memcmp(seen, sent, BYTES), 0);
    placed_finish(&placed);
    free(sent);
    free(seen);
    ferry_testing_pair_destroy(&pair);
}

/* ---- streams that wait for a future ---- */

OVER_EACH_TRANSPORT(a_stream_waits_for_the_result_without_the_host)
{
    ferry_testing_pair_t pair = test_pair(over->name, MAP, NULL);
    struct kept kept = KEPT_INIT;
    TEST_CHECK(ferry_agent_register(pair.right, "later", kept_handler, &kept) == FERRY_OK);
    unsigned char *sent = malloc(BYTES), *seen = calloc(1, BYTES);
    test_random(sent, BYTES);
    struct placed placed;
    placed_init(&placed, test_sim0, NULL, BYTES);
    int64_t shapes[2][1] = {{BYTES}};
    ferry_tensor_t tensor = test_tensor("x", sent, test_u8, 1, shapes[0]);
    ferry_tensor_t buffer = placed_tensor("x", &placed, shapes[1]);
    ferry_message_t message = {.tensors = &tensor, .tensor_count = 1};
    ferry_call_options_t options = ferry_call_options();
    options.results = &buffer;
    options.result_count = 1;
    ferry_future_t *future = NULL;
    TEST_CHECK(ferry_call(pair.left, "right", "later", &message, &options, &future) == FERRY_OK);
    uintptr_t stream;
    TEST_CHECK(ferry_device_stream_create(test_sim0, &stream) == FERRY_OK);
    TEST_CHECK(ferry_future_enqueue_wait(future, test_sim0, stream) == FERRY_OK);
    struct kernel kernel = {.device = placed.memory, .host = seen, .bytes = BYTES};
    launch(test_sim0, stream, &kernel);
    ferry_request_t *request = kept_wait(&kept);
    others_go_on(&pair);
    cr_assert_eq(atomic_load(&kernel.runs), 0, "the stream did not wait");
    TEST_CHECK(ferry_request_reply(request, ferry_request_message(request)) == FERRY_OK);
    ferry_request_release(request);
    TEST_CHECK(ferry_device_stream_synchronize(test_sim0, stream) == FERRY_OK);
    cr_assert_eq(memcmp(seen, sent, BYTES), 0);
    cr_assert(ferry_future_done(future));
    TEST_CHECK(ferry_future_enqueue_wait(future, test_sim0, stream) == FERRY_OK);
    struct kernel after = {.bytes = 0};
    launch(test_sim0, stream, &after);
    let_go(test_sim0, stream);
    cr_assert_eq(atomic_load(&after.runs), 1);
    ferry_future_release(future);
    placed_finish(&placed);
    free(sent);
    free(seen);
    ferry_testing_pair_destroy(&pair);
}

enum ending {
    END_FAILS,
    END_TIMES_OUT,
    END_IS_CANCELLED,
    END_IS_RELEASED,
    END_PEER_LEAVES,
    ENDINGS
};

static void stream_is_freed(const char *transport, enum ending ending)
{
    ferry_testing_pair_t pair = test_pair(transport, MAP, NULL);
    struct kept kept = KEPT_INIT;
    TEST_CHECK(ferry_agent_register(pair.right, "later", kept_handler, &kept) == FERRY_OK);
    ferry_call_options_t options = ferry_call_options();
    options.timeout_ns = ending == END_TIMES_OUT ? 200000000 : FERRY_FOREVER;
    ferry_future_t *future = NULL;
    TEST_CHECK(ferry_call(pair.left, "right", "later", NULL, &options, &future) == FERRY_OK);
    uintptr_t stream;
    TEST_CHECK(ferry_device_stream_create(test_sim0, &stream) == FERRY_OK);
    TEST_CHECK(ferry_future_enqueue_wait(future, test_sim0, stream) == FERRY_OK);
    struct kernel kernel = {.bytes = 0};
    launch(test_sim0, stream, &kernel);
    ferry_request_t *request = kept_wait(&kept);
    if (ending == END_FAILS) {
        TEST_CHECK(ferry_request_fail(request, 1, "no") == FERRY_OK);
    } else if (ending == END_IS_CANCELLED) {
        ferry_future_cancel(future);
    } else if (ending == END_IS_RELEASED) {
        ferry_future_release(future);
        future = NULL;
    }
    if (ending == END_PEER_LEAVES) {
        ferry_request_release(request);
        request = NULL;
        ferry_agent_destroy(pair.right);
        pair.right = NULL;
    }
    TEST_CHECK(ferry_device_stream_synchronize(test_sim0, stream) == FERRY_OK);
    cr_assert_eq(atomic_load(&kernel.runs), 1, "ending %d", (int)ending);
    ferry_request_release(request);
    ferry_future_release(future);
    ferry_device_stream_destroy(test_sim0, stream);
    ferry_testing_pair_destroy(&pair);
}

OVER_EACH_TRANSPORT(a_waiting_stream_is_freed_by_every_ending)
{
    for (int ending = 0; ending < ENDINGS; ending++) {
        stream_is_freed(over->name, (enum ending)ending);
    }
}

Test(call_stream, at_most_eight_streams_wait_for_a_future)
{
    ferry_testing_pair_t pair = test_pair("inproc", MAP, NULL);
    struct kept kept = KEPT_INIT;
    TEST_CHECK(ferry_agent_register(pair.right, "later", kept_handler, &kept) == FERRY_OK);
    ferry_future_t *future = NULL;
    TEST_CHECK(ferry_call(pair.left, "right", "later", NULL, NULL, &future) == FERRY_OK);
    uintptr_t stream;
    TEST_CHECK(ferry_device_stream_create(test_sim0, &stream) == FERRY_OK);
    for (int i = 0; i < 8; i++) {
        TEST_CHECK(ferry_future_enqueue_wait(future, test_sim0, stream) == FERRY_OK);
    }
    cr_assert_eq(ferry_future_enqueue_wait(future, test_sim0, stream), FERRY_ERR_LIMIT);
    DLDevice absent = {.device_type = kDLExtDev, .device_id = 6};
    cr_assert_eq(ferry_future_enqueue_wait(future, absent, stream), FERRY_ERR_UNKNOWN_DEVICE);
    ferry_request_release(kept_wait(&kept));
    TEST_CHECK(ferry_device_stream_synchronize(test_sim0, stream) == FERRY_OK);
    ferry_device_stream_destroy(test_sim0, stream);
    ferry_future_release(future);
    ferry_testing_pair_destroy(&pair);
}
