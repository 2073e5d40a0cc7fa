#include "ferry_perf/raw.h"

#include <stdio.h>
#include <stdlib.h>

#include <ferry/device.h>

#include "core/config.h"
#include "ferry_perf/frame.h"
#include "transports/ucx/ucx_internal.h"

#define CLOSE_ROUNDS 100000 /* of progress, for an endpoint that is being closed */

void raw_sent(void *request, ucs_status_t status, void *argument)
{
    struct flow *flow = argument;
    ucp_request_free(request);
    if (status != UCS_OK) {
        flow_break(flow, ucx_status(status), ucs_status_string(status));
        return;
    }
    flow->sent++;
}

void raw_received(struct raw *raw, void *request, ucs_status_t status)
{
    if (request != NULL) {
        ucp_request_free(request);
    }
    if (status != UCS_OK) {
        flow_break(&raw->flow, ucx_status(status), ucs_status_string(status));
        return;
    }
    raw->flow.received++;
}

ferry_status_t raw_refused(ucs_status_t status, const char *what)
{
    return ucx_raise(status, what);
}

ferry_status_t raw_open_nothing(struct raw *raw)
{
    (void)raw;
    return FERRY_OK;
}

static void endpoint_failed(void *argument, ucp_ep_h endpoint, ucs_status_t status)
{
    (void)endpoint;
    flow_break(argument, ucx_status(status), ucs_status_string(status));
}

/* ---- opening and closing ---- */

static bool takes(ucp_context_h context, DLDevice device)
{
    ucp_context_attr_t attributes = {.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES};
    ucs_memory_type_t type = ucx_memory_type(device);
    return type != UCS_MEMORY_TYPE_LAST && ucp_context_query(context, &attributes) == UCS_OK &&
           (attributes.memory_types & UCS_BIT(type)) != 0;
}

bool perf_raw_takes(const DLDevice memory[2])
{
    ucp_context_h context;
    if (memory[0].device_type == kDLCPU && memory[1].device_type == kDLCPU) {
        return true;
    }
    if (ucx_context_create(config_process()->interface, UCP_FEATURE_TAG, &context) != FERRY_OK) {
        return false;
    }
    bool good = takes(context, memory[0]) && takes(context, memory[1]);
    ucp_cleanup(context);
    return good;
}

static ferry_status_t check_memory(struct raw *raw)
{
    DLDevice device = raw->flow.end->options->memory[raw->flow.end->client ? 0 : 1];
    char text[FERRY_DEVICE_TEXT_BYTES];
    if (!takes(raw->context, device)) {
        return error_raise(FERRY_ERR_UNSUPPORTED,
                           "-m: this UCX cannot take memory of %s; rpc_* tests stage it",
                           ferry_device_print(device, text));
    }
    raw->type = ucx_memory_type(device);
    return FERRY_OK;
}

static ferry_status_t connect_endpoint(struct raw *raw, const void *address)
{
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .address = address,
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = {.cb = endpoint_failed, .arg = &raw->flow},
    };
    ucs_status_t result = ucp_ep_create(raw->worker, &params, &raw->endpoint);
    return result == UCS_OK ? FERRY_OK : ucx_raise(result, "creating a UCX endpoint");
}

static ferry_status_t meet(struct raw *raw)
{
    unsigned char theirs[FLOW_ADDRESS_BYTES_MAX];
    char identity[64];
    unsigned major, minor, release;
    ucp_address_t *address;
    size_t bytes;
    ucs_status_t result = ucp_worker_get_address(raw->worker, &address, &bytes);
    if (result != UCS_OK) {
        return ucx_raise(result, "asking a UCX worker for its address");
    }
    ucp_get_version(&major, &minor, &release);
    snprintf(identity, sizeof(identity), "ucx %u.%u %s", major, minor, raw->protocol->name);
    ferry_status_t status =
        flow_meet(&raw->flow, identity, address, bytes, theirs, sizeof(theirs), &bytes);
    ucp_worker_release_address(raw->worker, address);
    return status == FERRY_OK ? connect_endpoint(raw, theirs) : status;
}

static void raw_close(void *state)
{
    struct raw *raw = state;
    if (raw->endpoint != NULL) {
        ucp_request_param_t params = {
            .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
            .flags = UCP_EP_CLOSE_FLAG_FORCE,
        };
        ucs_status_ptr_t request = ucp_ep_close_nbx(raw->endpoint, &params);
        if (UCS_PTR_IS_PTR(request)) {
            for (int i = 0; i < CLOSE_ROUNDS && ucp_request_check_status(request) == UCS_INPROGRESS;
                 i++) {
                ucp_worker_progress(raw->worker);
            }
            ucp_request_free(request);
        }
    }
    if (raw->worker != NULL) {
        ucp_worker_destroy(raw->worker);
    }
    if (raw->context != NULL) {
        ucp_cleanup(raw->context);
    }
    flow_finish(&raw->flow);
    free(raw);
}

static ferry_status_t raw_open(struct perf_end *end, const struct raw_protocol *protocol,
                               void **state_out)
{
    struct raw *raw = calloc(1, sizeof(*raw));
    if (raw == NULL) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory for a test of UCX");
    }
    flow_init(&raw->flow, end);
    raw->protocol = protocol;
    ucx_tame();
    ferry_status_t status =
        ucx_context_create(config_process()->interface,
                           protocol->features | UCP_FEATURE_AM | UCP_FEATURE_WAKEUP, &raw->context);
    if (status == FERRY_OK) {
        status = check_memory(raw);
    }
    if (status == FERRY_OK) {
        status = ucx_worker_create(raw->context, &raw->worker);
    }
    if (status == FERRY_OK) {
        status = protocol->open(raw);
    }
    if (status == FERRY_OK) {
        status = meet(raw);
    }
    if (status == FERRY_OK) {
        status = flow_greet(&raw->flow, protocol->loop);
    }
    if (status != FERRY_OK) {
        raw_close(raw);
        return status;
    }
    *state_out = raw;
    return FERRY_OK;
}

static ferry_status_t raw_tag_open(struct perf_end *end, void **state_out)
{
    return raw_open(end, &raw_tag, state_out);
}

static ferry_status_t raw_am_open(struct perf_end *end, void **state_out)
{
    return raw_open(end, &raw_am, state_out);
}

static ferry_status_t raw_stream_open(struct perf_end *end, void **state_out)
{
    return raw_open(end, &raw_stream, state_out);
}

/* ---- running ---- */

static ferry_status_t raw_prepare(void *state, size_t bytes)
{
    struct raw *raw = state;
    return flow_prepare(&raw->flow, bytes);
}

static ferry_status_t raw_latency(void *state, uint64_t operations, struct perf_samples *samples)
{
    struct raw *raw = state;
    return flow_run(&raw->flow, raw->protocol->loop, true, operations, samples);
}

static ferry_status_t raw_bandwidth(void *state, uint64_t operations, struct perf_samples *samples)
{
    struct raw *raw = state;
    return flow_run(&raw->flow, raw->protocol->loop, false, operations, samples);
}

#define LATENCY(protocol)                                                                          \
    {                                                                                              \
        .name = "raw_" #protocol "_lat", .text = "UCX alone: one way, half a ping-pong",           \
        .unit = "us", .usual_bytes = 8, .open = raw_##protocol##_open, .prepare = raw_prepare,     \
        .run = raw_latency, .close = raw_close,                                                    \
    }
#define BANDWIDTH(protocol)                                                                        \
    {                                                                                              \
        .name = "raw_" #protocol "_bw", .text = "UCX alone: one way, -O in flight",                \
        .unit = "MB/s", .usual_bytes = 1 << 20, .open = raw_##protocol##_open,                     \
        .prepare = raw_prepare, .run = raw_bandwidth, .close = raw_close,                          \
    }

const struct perf_test perf_raw_tests[] = {
    LATENCY(tag),    BANDWIDTH(tag),    LATENCY(am),    BANDWIDTH(am),
    LATENCY(stream), BANDWIDTH(stream), {.name = NULL},
};
