#include "support/seeded_callee.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/seeded.h"

#define SECOND INT64_C(1000000000)

static const DLDataType ANY_DTYPE = {0, 0, 0};

static ferry_status_t reply_wrong(ferry_request_t *request, int64_t wrong)
{
    ferry_writer_t *writer = NULL;
    ferry_message_t message = {.body = NULL};
    ferry_status_t status = ferry_writer_create(&writer);
    if (status == FERRY_OK) {
        ferry_writer_int64(writer, "wrong", wrong);
        status = ferry_writer_finish(writer, &message);
    }
    if (status == FERRY_OK) {
        status = ferry_request_reply(request, &message);
    }
    ferry_writer_destroy(writer);
    return status;
}

/* Says how many bytes of tensor "x" are not the seed's. */
static ferry_status_t answer_take(ferry_request_t *request, void *context)
{
    (void)context;
    char wanted[FERRY_DEVICE_TEXT_BYTES], found[FERRY_DEVICE_TEXT_BYTES];
    ferry_reader_t reader = ferry_reader(ferry_request_message(request));
    const ferry_tensor_t *tensor = ferry_reader_tensor(&reader, "x", ANY_DTYPE);
    uint64_t seed = ferry_reader_uint64(&reader, "seed");
    int64_t bytes = ferry_reader_int64(&reader, "bytes");
    ferry_reader_string(&reader, "device", wanted, sizeof(wanted));
    ferry_status_t status = ferry_reader_status(&reader);
    if (status != FERRY_OK) {
        return status;
    }
    size_t arrived;
    int64_t wrong = 0;
    if (strcmp(ferry_device_print(tensor->view.device, found), wanted) != 0) {
        return ferry_request_fail(request, 1, "x arrived on %s, wanted %s", found, wanted);
    }
    status = ferry_tensor_bytes(&tensor->view, &arrived);
    if (status == FERRY_OK && arrived != (size_t)bytes) {
        return ferry_request_fail(request, 1, "x has %zu bytes, wanted %" PRId64, arrived, bytes);
    }
    if (status == FERRY_OK) {
        status = seeded_view_check(&tensor->view, seed, &wrong);
    }
    return status == FERRY_OK ? reply_wrong(request, wrong) : status;
}

/* Takes any tensors: what is timed. */
static ferry_status_t answer_sink(ferry_request_t *request, void *context)
{
    (void)context;
    return ferry_request_reply(request, NULL);
}

/* Buffers of results that are timed, one of each kind, kept to the process's end. */
static struct seeded_buffer kept[32];
static size_t kept_count;

static void kept_release(void *context)
{
    (void)context;
}

static void given_release(void *context)
{
    seeded_buffer_destroy(context);
    free(context);
}

static ferry_status_t kept_find(DLDevice device, enum seeded_layout layout, size_t bytes,
                                struct seeded_buffer **buffer_out)
{
    for (size_t i = 0; i < kept_count; i++) {
        if (kept[i].device.device_type == device.device_type && kept[i].layout == layout &&
            kept[i].bytes == bytes) {
            *buffer_out = &kept[i];
            return FERRY_OK;
        }
    }
    if (kept_count == sizeof(kept) / sizeof(kept[0])) {
        return FERRY_ERR_LIMIT;
    }
    ferry_status_t status = seeded_buffer_create(device, layout, bytes, &kept[kept_count]);
    if (status == FERRY_OK) {
        *buffer_out = &kept[kept_count++];
    }
    return status;
}

static ferry_status_t given_create(DLDevice device, enum seeded_layout layout, size_t bytes,
                                   uint64_t seed, struct seeded_buffer **buffer_out)
{
    struct seeded_buffer *buffer = calloc(1, sizeof(*buffer));
    if (buffer == NULL) {
        return FERRY_ERR_NO_MEMORY;
    }
    ferry_status_t status = seeded_buffer_create(device, layout, bytes, buffer);
    if (status == FERRY_OK) {
        status = seeded_buffer_fill(buffer, seed);
    }
    if (status != FERRY_OK) {
        given_release(buffer);
        return status;
    }
    *buffer_out = buffer;
    return FERRY_OK;
}

/* Gives tensor "y" with the seed's data; seed 0: with any. */
static ferry_status_t answer_give(ferry_request_t *request, void *context)
{
    (void)context;
    char text[FERRY_DEVICE_TEXT_BYTES];
    DLDevice device;
    struct seeded_buffer *buffer = NULL;
    ferry_reader_t reader = ferry_reader(ferry_request_message(request));
    uint64_t seed = ferry_reader_uint64(&reader, "seed");
    size_t bytes = (size_t)ferry_reader_int64(&reader, "bytes");
    enum seeded_layout layout =
        ferry_reader_bool(&reader, "strided") ? SEEDED_STRIDED : SEEDED_PLAIN;
    ferry_reader_string(&reader, "device", text, sizeof(text));
    ferry_status_t status = ferry_reader_status(&reader);
    if (status == FERRY_OK) {
        status = ferry_device_parse(text, &device);
    }
    if (status == FERRY_OK) {
        status = seed == 0 ? kept_find(device, layout, bytes, &buffer)
                           : given_create(device, layout, bytes, seed, &buffer);
    }
    if (status != FERRY_OK) {
        return status;
    }
    ferry_tensor_t tensor = seeded_buffer_tensor(buffer, "y");
    tensor.release = seed == 0 ? kept_release : given_release;
    tensor.context = buffer;
    ferry_message_t message = {.tensors = &tensor, .tensor_count = 1};
    status = ferry_request_reply(request, &message);
    if (status != FERRY_OK) {
        tensor.release(tensor.context);
    }
    return status;
}

static ferry_agent_t *stopped_by_signal;

static void on_signal(int signal_number)
{
    (void)signal_number;
    ferry_agent_stop(stopped_by_signal);
}

static ferry_status_t callee_register(ferry_agent_t *agent)
{
    ferry_method_options_t poisoned = ferry_method_options(), once = ferry_method_options();
    ferry_method_options_t quick = ferry_method_options();
    poisoned.allocator = &seeded_poison_allocator;
    once.concurrency = 1;
    quick.run_inline = true;
    ferry_status_t status = ferry_agent_register_with(agent, "take", answer_take, NULL, &poisoned);
    if (status == FERRY_OK) {
        status = ferry_agent_register_with(agent, "sink", answer_sink, NULL, &quick);
    }
    if (status == FERRY_OK) {
        status = ferry_agent_register_with(agent, "give", answer_give, NULL, &once);
    }
    return status;
}

int seeded_callee_run(void)
{
    ferry_agent_options_t options = ferry_agent_options();
    options.name = "callee";
    ferry_agent_t *agent = NULL;
    int failed = ferry_agent_create(&options, &agent) != FERRY_OK;
    if (!failed) {
        stopped_by_signal = agent;
        signal(SIGTERM, on_signal);
    }
    failed = failed || callee_register(agent) != FERRY_OK || ferry_agent_start(agent) != FERRY_OK ||
             ferry_agent_run(agent) != FERRY_OK || ferry_agent_shutdown(agent, SECOND) != FERRY_OK;
    if (failed) {
        fprintf(stderr, "callee: %s\n", ferry_last_error()->text);
    }
    signal(SIGTERM, SIG_IGN);
    ferry_agent_destroy(agent);
    for (size_t i = 0; i < kept_count; i++) {
        seeded_buffer_destroy(&kept[i]);
    }
    return failed;
}
