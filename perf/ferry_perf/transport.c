/* Ferry's transport contract, driven as an agent drives it: one thread, one link, segments. */
#include <stdlib.h>
#include <string.h>

#include <ferry/device.h>

#include "core/config.h"
#include "core/error.h"
#include "ferry_perf/flow.h"
#include "rpc/transport_registry.h"

#define MESSAGE_BYTES 8192
#define CLOSE_ROUNDS 1000000 /* of progress, for what a link that is over still holds */

/* An operation on its way; those that are not lie in the transport's list. */
struct posting {
    ferry_operation_t operation;
    struct transport *transport;
    uint64_t *count; /* goes up when it completes */
    struct posting *next;
};

struct transport {
    struct flow flow; /* first */
    ferry_transport_t *instance;
    ferry_link_t *link;
    struct posting *postings; /* owned */
    struct posting *spare;
    uint32_t next_send, next_receive; /* segments' numbers */
};

static inline struct transport *transport_of(struct flow *flow)
{
    return (struct transport *)(void *)flow;
}

/* ---- the layer ---- */

static void completed(ferry_operation_t *operation, ferry_status_t status, size_t bytes)
{
    struct posting *posting = operation->context;
    struct transport *transport = posting->transport;
    (void)bytes;
    posting->next = transport->spare;
    transport->spare = posting;
    if (status != FERRY_OK) {
        flow_break(&transport->flow, status, ferry_last_error()->text);
        return;
    }
    ++*posting->count;
}

/* One spare operation for what is about to be posted. */
static inline struct posting *take(struct transport *transport, uint64_t *count)
{
    struct posting *posting = transport->spare;
    transport->spare = posting->next;
    posting->count = count;
    return posting;
}

/* What the transport answered: under way, done, or refused. */
static inline ferry_status_t begun(struct posting *posting, ferry_status_t status)
{
    if (status == FERRY_PENDING) {
        return FERRY_OK;
    }
    posting->next = posting->transport->spare;
    posting->transport->spare = posting;
    *posting->count += status == FERRY_OK;
    return status;
}

static inline ferry_status_t send_segment(struct flow *flow, const ferry_memory_t *memory)
{
    struct transport *transport = transport_of(flow);
    struct posting *posting = take(transport, &flow->sent);
    return begun(posting, transport->instance->ops->send(transport->link, transport->next_send++,
                                                         memory, &posting->operation));
}

static inline ferry_status_t receive_segment(struct flow *flow, const ferry_memory_t *memory)
{
    struct transport *transport = transport_of(flow);
    struct posting *posting = take(transport, &flow->received);
    return begun(posting,
                 transport->instance->ops->receive(transport->link, transport->next_receive++,
                                                   memory, &posting->operation));
}

static inline void progress(struct flow *flow)
{
    ferry_transport_t *instance = transport_of(flow)->instance;
    instance->ops->progress(instance);
}

static const struct flow_layer layer = {
    .send = send_segment,
    .receive = receive_segment,
    .progress = progress,
};

static ferry_status_t loop(struct flow *flow, bool answered, uint64_t operations,
                           struct perf_samples *samples)
{
    return flow_loop(flow, &layer, answered, operations, samples);
}

/* ---- opening and closing ---- */

static void on_message(void *context, ferry_link_t *link, const void *data, size_t bytes)
{
    (void)context, (void)link, (void)data, (void)bytes; /* the other end sends none */
}

static void on_link_down(void *context, ferry_link_t *link, ferry_status_t status, const char *text)
{
    (void)link;
    flow_break(context, status, text);
}

static ferry_status_t make_postings(struct transport *transport)
{
    size_t count = (size_t)transport->flow.end->options->window + 2;
    transport->postings = calloc(count, sizeof(*transport->postings));
    if (transport->postings == NULL) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory for %zu operations", count);
    }
    for (size_t i = 0; i < count; i++) {
        struct posting *posting = &transport->postings[i];
        posting->operation = (ferry_operation_t){.complete = completed, .context = posting};
        posting->transport = transport;
        posting->next = transport->spare;
        transport->spare = posting;
    }
    return FERRY_OK;
}

static ferry_status_t open_instance(struct transport *transport, const char *protocol)
{
    ferry_transport_options_t options = {
        .struct_bytes = sizeof(options),
        .events = {.context = &transport->flow, .message = on_message, .link_down = on_link_down},
        .interface = config_process()->interface,
        .protocol = protocol,
        .message_bytes = MESSAGE_BYTES,
    };
    return transport_open(transport_find("ucx"), &options, &transport->instance);
}

/* One link an instance, so each end's session can have the same number. */
static ferry_status_t join(struct transport *transport)
{
    const ferry_transport_ops_t *ops = transport->instance->ops;
    unsigned char theirs[FERRY_TRANSPORT_ADDRESS_BYTES_MAX];
    const void *address;
    size_t bytes;
    ops->address(transport->instance, &address, &bytes);
    ferry_status_t status = flow_meet(&transport->flow, ops->identity(transport->instance), address,
                                      bytes, theirs, sizeof(theirs), &bytes);
    if (status != FERRY_OK) {
        return status;
    }
    return ops->connect(transport->instance, theirs, bytes, 1, 1, &transport->flow,
                        &transport->link);
}

static void transport_close(void *state)
{
    struct transport *transport = state;
    ferry_transport_t *instance = transport->instance;
    if (transport->link != NULL) {
        instance->ops->disconnect(transport->link);
        for (int i = 0; i < CLOSE_ROUNDS && instance->ops->pending(instance) > 0; i++) {
            instance->ops->progress(instance);
        }
    }
    if (instance != NULL) {
        instance->ops->close(instance);
    }
    flow_finish(&transport->flow);
    free(transport->postings);
    free(transport);
}

static ferry_status_t transport_start(struct perf_end *end, const char *protocol, void **state_out)
{
    struct transport *transport = calloc(1, sizeof(*transport));
    if (transport == NULL) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory for a test of the transport");
    }
    flow_init(&transport->flow, end);
    ferry_status_t status = make_postings(transport);
    if (status == FERRY_OK) {
        status = open_instance(transport, protocol);
    }
    if (status == FERRY_OK) {
        status = join(transport);
    }
    if (status == FERRY_OK) {
        status = flow_greet(&transport->flow, loop);
    }
    if (status != FERRY_OK) {
        transport_close(transport);
        return status;
    }
    *state_out = transport;
    return FERRY_OK;
}

static ferry_status_t tag_open(struct perf_end *end, void **state_out)
{
    return transport_start(end, "tag", state_out);
}

static ferry_status_t stream_open(struct perf_end *end, void **state_out)
{
    return transport_start(end, "stream", state_out);
}

static ferry_status_t am_open(struct perf_end *end, void **state_out)
{
    return transport_start(end, "am", state_out);
}

/* ---- running ---- */

static ferry_status_t transport_prepare(void *state, size_t bytes)
{
    struct transport *transport = state;
    const struct perf_end *end = transport->flow.end;
    DLDevice device = end->options->memory[end->client ? 0 : 1];
    char text[FERRY_DEVICE_TEXT_BYTES];
    uint32_t able = transport->instance->ops->capabilities(transport->instance);
    if (device.device_type != kDLCPU &&
        (device.device_type != kDLCUDA || (able & FERRY_TRANSPORT_CUDA) == 0)) {
        return error_raise(FERRY_ERR_UNSUPPORTED,
                           "-m: this transport cannot take memory of %s; rpc_* tests stage it",
                           ferry_device_print(device, text));
    }
    return flow_prepare(&transport->flow, bytes);
}

static ferry_status_t run(struct transport *transport, bool answered, uint64_t operations,
                          struct perf_samples *samples)
{
    if (samples != NULL) {
        transport->instance->ops->describe(transport->link, samples->path, sizeof(samples->path));
    }
    return flow_run(&transport->flow, loop, answered, operations, samples);
}

static ferry_status_t transport_latency(void *state, uint64_t operations,
                                        struct perf_samples *samples)
{
    return run(state, true, operations, samples);
}

static ferry_status_t transport_bandwidth(void *state, uint64_t operations,
                                          struct perf_samples *samples)
{
    return run(state, false, operations, samples);
}

#define LATENCY(protocol)                                                                          \
    {                                                                                              \
        .name = #protocol "_lat", .text = "one way of a segment, half a ping-pong",                \
        .raw = "raw_" #protocol "_lat", .unit = "us", .usual_bytes = 8, .open = protocol##_open,   \
        .prepare = transport_prepare, .run = transport_latency, .close = transport_close,          \
    }
#define BANDWIDTH(protocol)                                                                        \
    {                                                                                              \
        .name = #protocol "_bw", .text = "segments one way, -O in flight",                         \
        .raw = "raw_" #protocol "_bw", .unit = "MB/s", .usual_bytes = 1 << 20,                     \
        .open = protocol##_open, .prepare = transport_prepare, .run = transport_bandwidth,         \
        .close = transport_close,                                                                  \
    }

const struct perf_test perf_transport_tests[] = {
    LATENCY(tag), BANDWIDTH(tag), LATENCY(stream), BANDWIDTH(stream),
    LATENCY(am),  BANDWIDTH(am),  {.name = NULL},
};
