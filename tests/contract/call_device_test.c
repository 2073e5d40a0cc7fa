/* Calls whose tensors lie on devices, over each transport: where arguments arrive, where results come
 * back to, and what is said when a map does not tell. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/placed.h"

TestSuite(call_device, .init = test_sim_on);

struct transport_case {
    char name[8];
};

#define OVER_EACH_TRANSPORT(test)                                                                  \
    ParameterizedTestParameters(call_device, test)                                                 \
    {                                                                                              \
        static struct transport_case cases[] = {{"inproc"}, {"ucx"}};                              \
        return cr_make_param_array(struct transport_case, cases, 2);                               \
    }                                                                                              \
    ParameterizedTest(struct transport_case *over, call_device, test, .init = test_sim_on)

static const DLDevice *const devices[] = {&test_cpu, &test_sim0, &test_sim1};
static const DLDataType int32 = {.code = kDLInt, .bits = 32, .lanes = 1};

/* Answers with all that came, and with a body that says on which devices it came. */
static ferry_status_t answer_look(ferry_request_t *request, void *context)
{
    (void)context;
    ferry_message_t message = *ferry_request_message(request);
    char text[512] = "";
    for (size_t i = 0; i < message.tensor_count; i++) {
        char device[FERRY_DEVICE_TEXT_BYTES];
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%s", i == 0 ? "" : " ",
                 ferry_device_print(message.tensors[i].view.device, device));
    }
    message.body = text;
    message.body_bytes = strlen(text);
    return ferry_request_reply(request, &message);
}

static ferry_testing_pair_t look_pair(const char *transport, const char *map)
{
    ferry_testing_pair_t pair = test_pair(transport, map, NULL);
    TEST_CHECK(ferry_agent_register(pair.right, "look", answer_look, NULL) == FERRY_OK);
    return pair;
}

static bool came_to(ferry_future_t *future, const char *where)
{
    const ferry_message_t *result = ferry_future_result(future);
    bool same =
        result->body_bytes == strlen(where) && memcmp(result->body, where, result->body_bytes) == 0;
    if (!same) {
        fprintf(stderr, "came to '%.*s', not to '%s'\n", (int)result->body_bytes,
                (const char *)result->body, where);
    }
    return same;
}

static ferry_call_options_t options_with_map(const char *text, ferry_device_map_t **map)
{
    ferry_call_options_t options = ferry_call_options();
    TEST_CHECK(ferry_device_map_parse(text, map) == FERRY_OK);
    options.device_map = *map;
    return options;
}

/* ---- mappings ---- */

static void there_and_back(ferry_agent_t *agent, DLDevice mine, DLDevice theirs, size_t bytes)
{
    char left[FERRY_DEVICE_TEXT_BYTES], right[FERRY_DEVICE_TEXT_BYTES], map[96];
    snprintf(map, sizeof(map), "right: %s<->%s", ferry_device_print(mine, left),
             ferry_device_print(theirs, right));
    TEST_CHECK(ferry_agent_set_device_map(agent, map) == FERRY_OK);
    uint8_t *sent = malloc(bytes), *got = malloc(bytes);
    test_random(sent, bytes);
    struct placed placed;
    placed_init(&placed, mine, sent, bytes);
    int64_t shape[1];
    ferry_tensor_t tensor = placed_tensor("x", &placed, shape);
    ferry_message_t message = {.tensors = &tensor, .tensor_count = 1};
    ferry_future_t *future = test_call(agent, "right", "look", &message, NULL);
    cr_assert(came_to(future, right), "%s, %zu bytes", map, bytes);
    const ferry_tensor_t *back = ferry_message_tensor(ferry_future_result(future), "x");
    cr_assert(test_on(back, mine), "%s, %zu bytes", map, bytes);
    cr_assert_neq(back->view.data, placed.memory);
    memset(got, 0, bytes);
    test_fetch(back, got);
    cr_assert_eq(memcmp(got, sent, bytes), 0, "%s, %zu bytes", map, bytes);
    ferry_future_release(future);
    placed_finish(&placed);
    free(sent);
    free(got);
}

OVER_EACH_TRANSPORT(every_mapping_carries_every_size_both_ways)
{
    ferry_testing_pair_t pair = look_pair(over->name, NULL);
    static const size_t sizes[] = {1, 4, 2048, 2049, 70000, 5000001};
    for (size_t i = 0; i < 9; i++) {
        for (size_t size = 0; size < sizeof(sizes) / sizeof(*sizes); size++) {
            there_and_back(pair.left, *devices[i / 3], *devices[i % 3], sizes[size]);
        }
    }
    ferry_testing_pair_destroy(&pair);
}

OVER_EACH_TRANSPORT(several_devices_may_share_one)
{
    ferry_testing_pair_t pair =
        look_pair(over->name, "right: sim:*->sim:1, cpu->sim:1, cpu<-sim:1");
    uint8_t sent[3][3000];
    test_random(sent, sizeof(sent));
    struct placed placed[3];
    int64_t shapes[3][1];
    ferry_tensor_t tensors[3];
    static const char *const names[] = {"a", "b", "c"};
    for (int i = 0; i < 3; i++) {
        placed_init(&placed[i], *devices[i], sent[i], sizeof(sent[i]));
        tensors[i] = placed_tensor(names[i], &placed[i], shapes[i]);
    }
    ferry_message_t message = {.tensors = tensors, .tensor_count = 3};
    ferry_future_t *future = test_call(pair.left, "right", "look", &message, NULL);
    cr_assert(came_to(future, "sim:1 sim:1 sim:1"));
    for (int i = 0; i < 3; i++) {
        uint8_t got[3000];
        const ferry_tensor_t *back = ferry_message_tensor(ferry_future_result(future), names[i]);
        cr_assert(test_on(back, test_cpu));
        test_fetch(back, got);
        cr_assert_arr_eq(got, sent[i], sizeof(got));
        placed_finish(&placed[i]);
    }
    ferry_future_release(future);
    ferry_testing_pair_destroy(&pair);
}

OVER_EACH_TRANSPORT(in_calls_to_oneself_unmapped_devices_stay)
{
    ferry_testing_pair_t pair = look_pair(over->name, NULL);
    uint8_t sent[10000], got[10000];
    test_random(sent, sizeof(sent));
    struct placed placed;
    placed_init(&placed, test_sim1, sent, sizeof(sent));
    int64_t shape[1];
    ferry_tensor_t tensor = placed_tensor("x", &placed, shape);
    ferry_message_t message = {.tensors = &tensor, .tensor_count = 1};
    ferry_future_t *future = test_call(pair.right, "right", "look", &message, NULL);
    cr_assert(came_to(future, "sim:1"));
    const ferry_tensor_t *back = ferry_message_tensor(ferry_future_result(future), "x");
    cr_assert(test_on(back, test_sim1));
    cr_assert_neq(back->view.data, placed.memory, "arguments are copies");
    test_fetch(back, got);
    cr_assert_arr_eq(got, sent, sizeof(got));
    ferry_future_release(future);

    TEST_CHECK(ferry_agent_set_device_map(pair.right, "right: sim:1<->sim:0") == FERRY_OK);
    future = test_call(pair.right, "right", "look", &message, NULL);
    cr_assert(came_to(future, "sim:0"), "a rule holds for oneself too");
    ferry_future_release(future);
    placed_finish(&placed);
    ferry_testing_pair_destroy(&pair);
}

/* ---- views ---- */

enum { VIEW_ELEMENTS = 96 };

/* The visible elements in C order, found one by one. */
static void gather(const int32_t *block, const DLTensor *view, int32_t *packed)
{
    const int32_t *base = block + view->byte_offset / sizeof(int32_t);
    for (int64_t i = 0; i < view->shape[0]; i++) {
        for (int64_t j = 0; j < view->shape[1]; j++) {
            *packed++ = base[i * view->strides[0] + j * view->strides[1]];
        }
    }
}

static ferry_tensor_t view_of(const char *name, const struct placed *placed, uint64_t first,
                              int64_t shape[2], int64_t strides[2])
{
    ferry_tensor_t tensor = test_tensor(name, placed->memory, int32, 2, shape);
    tensor.view.device = placed->device;
    tensor.view.byte_offset = first * sizeof(int32_t);
    tensor.view.strides = strides;
    return tensor;
}

struct view_case {
    uint64_t first;
    int64_t shape[2], strides[2];
};

static void send_view(ferry_agent_t *agent, DLDevice device, struct view_case *view)
{
    int32_t block[VIEW_ELEMENTS], wanted[VIEW_ELEMENTS], got[VIEW_ELEMENTS];
    test_random(block, sizeof(block));
    struct placed placed;
    placed_init(&placed, device, block, sizeof(block));
    ferry_tensor_t tensor = view_of("x", &placed, view->first, view->shape, view->strides);
    gather(block, &tensor.view, wanted);
    ferry_message_t message = {.tensors = &tensor, .tensor_count = 1};
    ferry_future_t *future = test_call(agent, "right", "look", &message, NULL);
    const ferry_tensor_t *back = ferry_message_tensor(ferry_future_result(future), "x");
    cr_assert_eq(back->view.ndim, 2);
    cr_assert_arr_eq(back->view.shape, view->shape, sizeof(view->shape));
    test_fetch(back, got);
    size_t count = (size_t)(view->shape[0] * view->shape[1]);
    cr_assert_arr_eq(got, wanted, count * sizeof(int32_t));
    ferry_future_release(future);
    placed_finish(&placed);
}

OVER_EACH_TRANSPORT(only_the_visible_elements_travel)
{
    ferry_testing_pair_t pair = look_pair(over->name, NULL);
    struct view_case views[] = {
        {.first = 7, .shape = {3, 5}, .strides = {10, 2}},
        {.first = 90, .shape = {4, 6}, .strides = {-12, -2}},
        {.first = 5, .shape = {6, 4}, .strides = {1, 20}},
        {.first = 40, .shape = {5, 3}, .strides = {0, -7}},
        {.first = 11, .shape = {4, 4}, .strides = {0, 0}},
    };
    for (size_t i = 0; i < 9; i++) {
        char map[96], left[FERRY_DEVICE_TEXT_BYTES], right[FERRY_DEVICE_TEXT_BYTES];
        snprintf(map, sizeof(map), "right: %s<->%s", ferry_device_print(*devices[i / 3], left),
                 ferry_device_print(*devices[i % 3], right));
        TEST_CHECK(ferry_agent_set_device_map(pair.left, map) == FERRY_OK);
        for (size_t view = 0; view < sizeof(views) / sizeof(*views); view++) {
            send_view(pair.left, *devices[i / 3], &views[view]);
        }
    }
    ferry_testing_pair_destroy(&pair);
}

OVER_EACH_TRANSPORT(result_buffers_may_be_views_and_nothing_beside_them_is_written)
{
    ferry_testing_pair_t pair = look_pair(over->name, NULL);
    int32_t sent[15], block[VIEW_ELEMENTS], got[VIEW_ELEMENTS], back[15];
    int64_t shape[2] = {3, 5}, strides[2] = {-13, 2};
    for (size_t i = 0; i < 3; i++) {
        test_random(sent, sizeof(sent));
        test_random(block, sizeof(block));
        struct placed placed;
        placed_init(&placed, *devices[i], block, sizeof(block));
        ferry_tensor_t tensor = test_tensor("x", sent, int32, 2, shape);
        ferry_tensor_t buffer = view_of("x", &placed, 60, shape, strides);
        ferry_message_t message = {.tensors = &tensor, .tensor_count = 1};
        ferry_call_options_t options = ferry_call_options();
        options.results = &buffer;
        options.result_count = 1;
        ferry_future_release(test_call(pair.left, "right", "look", &message, &options));
        placed_read(&placed, got);
        gather(got, &buffer.view, back);
        cr_assert_arr_eq(back, sent, sizeof(sent));
        for (int at = 0; at < 15; at++) {
            got[60 + (at / 5) * -13 + (at % 5) * 2] = block[60 + (at / 5) * -13 + (at % 5) * 2];
        }
        cr_assert_arr_eq(got, block, sizeof(got), "elements beside the view");
        placed_finish(&placed);
    }
    ferry_testing_pair_destroy(&pair);
}

OVER_EACH_TRANSPORT(scalars_and_empty_tensors_travel_beside_a_body)
{
    ferry_testing_pair_t pair = look_pair(over->name, "right: sim:0<->sim:1");
    int32_t value = 4711, got = 0;
    struct placed placed;
    placed_init(&placed, test_sim0, &value, sizeof(value));
    int64_t empty_shape[2] = {3, 0};
    ferry_tensor_t tensors[2] = {test_tensor("scalar", placed.memory, int32, 0, NULL),
                                 test_tensor("empty", NULL, int32, 2, empty_shape)};
    tensors[0].view.device = tensors[1].view.device = test_sim0;
    ferry_message_t message = {
        .body = "body", .body_bytes = 4, .tensors = tensors, .tensor_count = 2};
    static const char *const methods[] = {"look", "echo"};
    for (int i = 0; i < 2; i++) {
        ferry_future_t *future = test_call(pair.left, "right", methods[i], &message, NULL);
        const ferry_message_t *result = ferry_future_result(future);
        cr_assert(i == 1 || came_to(future, "sim:1 sim:1"));
        cr_assert(i == 0 || (result->body_bytes == 4 && memcmp(result->body, "body", 4) == 0));
        const ferry_tensor_t *scalar = ferry_message_tensor(result, "scalar");
        const ferry_tensor_t *empty = ferry_message_tensor(result, "empty");
        cr_assert(test_on(scalar, test_sim0) && test_on(empty, test_sim0));
        cr_assert_eq(scalar->view.ndim, 0);
        test_fetch(scalar, &got);
        cr_assert_eq(got, 4711);
        cr_assert_eq(empty->view.ndim, 2);
        cr_assert_arr_eq(empty->view.shape, empty_shape, sizeof(empty_shape));
        ferry_future_release(future);
    }
    placed_finish(&placed);
    ferry_testing_pair_destroy(&pair);
}

/* ---- where results go ---- */

OVER_EACH_TRANSPORT(a_buffer_then_results_device_then_the_rules_place_a_result)
{
    ferry_testing_pair_t pair = look_pair(over->name, "right: sim:0<->sim:1");
    uint8_t sent[2][5000], got[5000];
    test_random(sent, sizeof(sent));
    struct placed argument, buffer;
    placed_init(&argument, test_sim0, sent[0], sizeof(sent[0]));
    placed_init(&buffer, test_sim1, NULL, sizeof(sent[0]));
    int64_t shapes[3][1] = {{0}, {sizeof(sent[1])}, {0}};
    ferry_tensor_t tensors[2] = {placed_tensor("dev", &argument, shapes[0]),
                                 test_tensor("host", sent[1], test_u8, 1, shapes[1])};
    ferry_message_t message = {.tensors = tensors, .tensor_count = 2};

    ferry_future_t *future = test_call(pair.left, "right", "look", &message, NULL);
    cr_assert(came_to(future, "sim:1 cpu"));
    cr_assert(test_on(ferry_message_tensor(ferry_future_result(future), "dev"), test_sim0));
    cr_assert(test_on(ferry_message_tensor(ferry_future_result(future), "host"), test_cpu));
    ferry_future_release(future);

    ferry_call_options_t options = ferry_call_options();
    options.results_device = &test_sim1;
    future = test_call(pair.left, "right", "look", &message, &options);
    for (int i = 0; i < 2; i++) {
        const ferry_tensor_t *back = &ferry_future_result(future)->tensors[i];
        cr_assert(test_on(back, test_sim1));
        test_fetch(back, got);
        cr_assert_arr_eq(got, sent[i], sizeof(got));
    }
    ferry_future_release(future);

    ferry_tensor_t result = placed_tensor("host", &buffer, shapes[2]);
    options.results_device = &test_cpu;
    options.results = &result;
    options.result_count = 1;
    future = test_call(pair.left, "right", "look", &message, &options);
    cr_assert(test_on(ferry_message_tensor(ferry_future_result(future), "dev"), test_cpu));
    cr_assert_eq(ferry_message_tensor(ferry_future_result(future), "host")->view.data,
                 buffer.memory);
    placed_read(&buffer, got);
    cr_assert_arr_eq(got, sent[1], sizeof(got));
    ferry_future_release(future);
    placed_finish(&argument);
    placed_finish(&buffer);
    ferry_testing_pair_destroy(&pair);
}

/* A few bytes ride inside the control message, and still belong on the device. */
OVER_EACH_TRANSPORT(small_results_land_on_the_device_that_is_named)
{
    ferry_testing_pair_t pair = look_pair(over->name, "right: sim:0<->cpu");
    int32_t value = 77, got = 0;
    ferry_tensor_t tensor = test_tensor("x", &value, int32, 0, NULL);
    ferry_message_t message = {.tensors = &tensor, .tensor_count = 1};
    ferry_future_t *future = test_call(pair.left, "right", "look", &message, NULL);
    const ferry_tensor_t *back = ferry_message_tensor(ferry_future_result(future), "x");
    cr_assert(test_on(back, test_sim0));
    test_fetch(back, &got);
    cr_assert_eq(got, 77);
    ferry_future_release(future);

    struct placed buffer;
    placed_init(&buffer, test_sim1, NULL, sizeof(value));
    ferry_tensor_t result = test_tensor(NULL, buffer.memory, int32, 0, NULL);
    result.view.device = test_sim1;
    ferry_call_options_t options = ferry_call_options();
    options.results = &result;
    options.result_count = 1;
    ferry_future_release(test_call(pair.left, "right", "look", &message, &options));
    got = 0;
    placed_read(&buffer, &got);
    cr_assert_eq(got, 77);
    placed_finish(&buffer);
    ferry_testing_pair_destroy(&pair);
}

/* ---- what a map does not tell ---- */

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

/* The nth text between double quotes of an error: a rule that it suggests. */
static void suggested_rule(const char *text, int nth, char *rule, size_t rule_bytes)
{
    const char *begin = strchr(text, '"');
    for (int i = 0; i < nth && begin != NULL; i++) {
        begin = strchr(strchr(begin + 1, '"') + 1, '"');
    }
    cr_assert_not_null(begin, "no rule %d in: %s", nth, text);
    snprintf(rule, rule_bytes, "%.*s", (int)strcspn(begin + 1, "\""), begin + 1);
}

OVER_EACH_TRANSPORT(an_unmapped_argument_is_refused_with_the_rule_that_fixes_it)
{
    ferry_testing_pair_t pair = look_pair(over->name, NULL);
    struct placed placed;
    placed_init(&placed, test_sim0, "8 bytes.", 8);
    int64_t shape[1];
    atomic_int releases = 0;
    ferry_tensor_t tensor = placed_tensor("gradient", &placed, shape);
    tensor.release = count_release;
    tensor.context = &releases;
    ferry_message_t message = {.tensors = &tensor, .tensor_count = 1};
    ferry_future_t *future = NULL;
    cr_assert_eq(ferry_call(pair.left, "right", "where", &message, NULL, &future),
                 FERRY_ERR_UNMAPPED_DEVICE);
    cr_assert_null(future);
    cr_assert_str_eq(ferry_last_error()->text,
                     "argument 'gradient' is on sim:0 and no rule for right says where it should "
                     "arrive; add \"right: sim:0->cpu\" or \"right: sim:*->sim:*\"");
    cr_assert_eq(atomic_load(&releases), 0, "a refused call took nothing");
    char text[1024], rule[128];
    snprintf(text, sizeof(text), "%s", ferry_last_error()->text);

    suggested_rule(text, 0, rule, sizeof(rule));
    ferry_device_map_t *map;
    ferry_call_options_t options = options_with_map(rule, &map);
    future = test_call(pair.left, "right", "look", &message, &options);
    cr_assert(came_to(future, "cpu"));
    ferry_future_release(future);
    ferry_device_map_destroy(map);
    wait_for_count(&releases, 1);

    suggested_rule(text, 1, rule, sizeof(rule));
    TEST_CHECK(ferry_agent_set_device_map(pair.left, rule) == FERRY_OK);
    future = test_call(pair.left, "right", "where", &message, NULL);
    ferry_reader_t reader = ferry_reader(ferry_future_result(future));
    char where[32];
    cr_assert_str_eq(ferry_reader_string(&reader, "where", where, sizeof(where)), "sim:0");
    ferry_future_release(future);
    wait_for_count(&releases, 2);
    ferry_testing_pair_destroy(&pair);
    cr_assert_eq(atomic_load(&releases), 2);
    placed_finish(&placed);
}

OVER_EACH_TRANSPORT(an_unmapped_result_says_which_rule_brings_it_back)
{
    ferry_testing_pair_t pair = look_pair(over->name, "right: sim:0->sim:1");
    struct placed placed;
    placed_init(&placed, test_sim0, "8 bytes.", 8);
    int64_t shape[1];
    ferry_tensor_t tensor = placed_tensor("x", &placed, shape);
    ferry_message_t message = {.tensors = &tensor, .tensor_count = 1};
    ferry_future_t *future = NULL;
    cr_assert_eq(test_call_fails(pair.left, "right", "look", &message, NULL, &future),
                 FERRY_ERR_UNMAPPED_DEVICE);
    const ferry_error_t *error = ferry_future_error(future);
    cr_assert_eq(error->effect, FERRY_RAN);
    cr_assert_not_null(strstr(error->text, "result 'x' is on sim:1 of right"), "%s", error->text);
    cr_assert_not_null(strstr(error->text, "results_device"), "%s", error->text);
    char rule[128];
    suggested_rule(error->text, 0, rule, sizeof(rule));
    ferry_future_release(future);

    ferry_device_map_t *map;
    ferry_call_options_t options = options_with_map(rule, &map);
    future = test_call(pair.left, "right", "look", &message, &options);
    cr_assert(came_to(future, "sim:1"), "the agent's rule still holds for arguments");
    const ferry_tensor_t *back = ferry_message_tensor(ferry_future_result(future), "x");
    cr_assert(test_on(back, test_cpu));
    cr_assert_arr_eq(back->view.data, "8 bytes.", 8);
    ferry_future_release(future);
    ferry_device_map_destroy(map);

    options = ferry_call_options();
    options.results_device = &test_cpu;
    ferry_future_release(test_call(pair.left, "right", "look", &message, &options));
    placed_finish(&placed);
    ferry_testing_pair_destroy(&pair);
}

OVER_EACH_TRANSPORT(a_device_that_somebody_lacks_is_refused_by_name)
{
    ferry_testing_pair_t pair = look_pair(over->name, "right: sim:0->sim:7");
    cr_assert_eq(ferry_agent_connect(pair.left, "right", 0), FERRY_ERR_DEVICE_MAP);
    cr_assert_not_null(strstr(ferry_last_error()->text, "sim:7"), "%s", ferry_last_error()->text);
    struct placed placed;
    placed_init(&placed, test_sim0, "8 bytes.", 8);
    int64_t shape[1];
    atomic_int releases = 0;
    ferry_tensor_t tensor = placed_tensor("x", &placed, shape);
    tensor.release = count_release;
    tensor.context = &releases;
    ferry_message_t message = {.tensors = &tensor, .tensor_count = 1};
    ferry_future_t *future = NULL;
    cr_assert_eq(ferry_call(pair.left, "right", "look", &message, NULL, &future),
                 FERRY_ERR_UNKNOWN_DEVICE);
    cr_assert_str_eq(ferry_last_error()->text,
                     "argument 'x' should arrive on sim:7, which right does not have; it has cpu, "
                     "sim:0, sim:1");
    cr_assert_eq(ferry_agent_set_device_map(pair.left, "right: sim:9->cpu"), FERRY_ERR_DEVICE_MAP);
    cr_assert_not_null(strstr(ferry_last_error()->text, "sim:9"), "%s", ferry_last_error()->text);

    tensor.view.device.device_id = 5;
    cr_assert_eq(ferry_call(pair.left, "right", "look", &message, NULL, &future),
                 FERRY_ERR_UNKNOWN_DEVICE);
    cr_assert_not_null(strstr(ferry_last_error()->text, "sim:5"), "%s", ferry_last_error()->text);
    cr_assert_null(future);
    cr_assert_eq(atomic_load(&releases), 0);

    DLDevice absent = {.device_type = kDLExtDev, .device_id = 4};
    ferry_call_options_t options = ferry_call_options();
    options.results_device = &absent;
    cr_assert_eq(ferry_call(pair.left, "right", "look", NULL, &options, &future),
                 FERRY_ERR_UNKNOWN_DEVICE);
    ferry_future_release(test_call(pair.left, "right", "echo", NULL, NULL));
    placed_finish(&placed);
    ferry_testing_pair_destroy(&pair);
}
