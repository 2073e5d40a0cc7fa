#include "support/pair.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

const DLDataType test_f32 = {.code = kDLFloat, .bits = 32, .lanes = 1};
const DLDataType test_u8 = {.code = kDLUInt, .bits = 8, .lanes = 1};
const DLDevice test_cpu = {.device_type = kDLCPU, .device_id = 0};

void test_check(bool condition, const char *text, const char *file, int line)
{
    if (!condition) {
        fprintf(stderr, "%s:%d: %s is false; last error: %s: %s\n", file, line, text,
                ferry_status_name(ferry_last_error()->status), ferry_last_error()->text);
        abort();
    }
}

static ferry_status_t answer_echo(ferry_request_t *request, void *context)
{
    (void)context;
    return ferry_request_reply(request, ferry_request_message(request));
}

static ferry_status_t answer_nothing(ferry_request_t *request, void *context)
{
    (void)context;
    return ferry_request_reply(request, NULL);
}

static ferry_status_t answer_fail(ferry_request_t *request, void *context)
{
    (void)context;
    return ferry_request_fail(request, 7, "on purpose");
}

static ferry_status_t answer_forget(ferry_request_t *request, void *context)
{
    (void)request;
    (void)context;
    return FERRY_OK;
}

static ferry_status_t reply_with_writer(ferry_request_t *request, ferry_writer_t *writer)
{
    ferry_message_t message = {.body = NULL};
    ferry_status_t status = ferry_writer_finish(writer, &message);
    if (status == FERRY_OK) {
        status = ferry_request_reply(request, &message);
    }
    ferry_writer_destroy(writer);
    return status;
}

static ferry_status_t answer_sum(ferry_request_t *request, void *context)
{
    (void)context;
    const ferry_tensor_t *x;
    ferry_status_t status = ferry_request_tensor(request, "x", test_f32, &x);
    ferry_writer_t *writer;
    if (status == FERRY_OK) {
        status = ferry_writer_create(&writer);
    }
    if (status != FERRY_OK) {
        return status;
    }
    const float *data = (const float *)((const char *)x->view.data + x->view.byte_offset);
    int64_t count = 1;
    for (int32_t i = 0; i < x->view.ndim; i++) {
        count *= x->view.shape[i];
    }
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        sum += (double)data[i];
    }
    ferry_writer_double(writer, "sum", sum);
    return reply_with_writer(request, writer);
}

static ferry_status_t answer_where(ferry_request_t *request, void *context)
{
    (void)context;
    const ferry_message_t *message = ferry_request_message(request);
    char text[512] = "";
    for (size_t i = 0; i < message->tensor_count; i++) {
        char device[FERRY_DEVICE_TEXT_BYTES];
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%s", i == 0 ? "" : " ",
                 ferry_device_print(message->tensors[i].view.device, device));
    }
    ferry_writer_t *writer;
    ferry_status_t status = ferry_writer_create(&writer);
    if (status != FERRY_OK) {
        return status;
    }
    ferry_writer_string(writer, "where", text);
    return reply_with_writer(request, writer);
}

void test_register(ferry_agent_t *agent)
{
    TEST_CHECK(ferry_agent_register(agent, "echo", answer_echo, NULL) == FERRY_OK);
    TEST_CHECK(ferry_agent_register(agent, "sum", answer_sum, NULL) == FERRY_OK);
    TEST_CHECK(ferry_agent_register(agent, "nothing", answer_nothing, NULL) == FERRY_OK);
    TEST_CHECK(ferry_agent_register(agent, "fail", answer_fail, NULL) == FERRY_OK);
    TEST_CHECK(ferry_agent_register(agent, "forget", answer_forget, NULL) == FERRY_OK);
    TEST_CHECK(ferry_agent_register(agent, "where", answer_where, NULL) == FERRY_OK);
    ferry_method_options_t options = ferry_method_options();
    options.run_inline = true;
    TEST_CHECK(ferry_agent_register_with(agent, "inline", answer_echo, NULL, &options) == FERRY_OK);
}

ferry_testing_pair_t test_pair(const char *transport, const char *left_map,
                               const char *const *settings)
{
    ferry_testing_setting_t all[8] = {{"FERRY_TRANSPORT", transport}};
    size_t count = 1;
    for (size_t i = 0; settings != NULL && settings[i] != NULL; i += 2) {
        all[count++] = (ferry_testing_setting_t){settings[i], settings[i + 1]};
    }
    ferry_testing_options_t options = ferry_testing_options();
    options.left_map = left_map;
    options.settings = all;
    options.setting_count = count;
    ferry_testing_pair_t pair;
    TEST_CHECK(ferry_testing_pair_create(&options, &pair) == FERRY_OK);
    test_register(pair.right);
    return pair;
}

ferry_tensor_t test_tensor(const char *name, void *data, DLDataType dtype, int32_t ndim,
                           int64_t *shape)
{
    return (ferry_tensor_t){
        .name = name,
        .view = {.data = data, .device = test_cpu, .ndim = ndim, .dtype = dtype, .shape = shape},
    };
}

ferry_future_t *test_call(ferry_agent_t *agent, const char *peer, const char *method,
                          const ferry_message_t *message, const ferry_call_options_t *options)
{
    ferry_future_t *future = NULL;
    TEST_CHECK(ferry_call(agent, peer, method, message, options, &future) == FERRY_OK);
    TEST_CHECK(ferry_future_wait(future, TEST_SECONDS(60), NULL) == FERRY_OK);
    return future;
}

ferry_status_t test_call_fails(ferry_agent_t *agent, const char *peer, const char *method,
                               const ferry_message_t *message, const ferry_call_options_t *options,
                               ferry_future_t **future_out)
{
    ferry_future_t *future = NULL;
    ferry_status_t status = ferry_call(agent, peer, method, message, options, &future);
    if (status == FERRY_OK) {
        status = ferry_future_wait(future, TEST_SECONDS(60), NULL);
        TEST_CHECK(status != FERRY_OK && status != FERRY_PENDING);
    }
    if (future_out != NULL) {
        *future_out = future;
    } else {
        ferry_future_release(future);
    }
    return status;
}

void test_random(void *data, size_t bytes)
{
    uint64_t state;
    TEST_CHECK(getrandom(&state, sizeof(state), 0) == (ssize_t)sizeof(state));
    state |= 1;
    uint8_t *out = data;
    for (size_t i = 0; i < bytes; i += sizeof(state)) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        size_t left = bytes - i < sizeof(state) ? bytes - i : sizeof(state);
        memcpy(out + i, &state, left);
    }
}
