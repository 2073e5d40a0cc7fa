#include "ferry_perf/raw.h"

static void bytes_received(void *request, ucs_status_t status, size_t length, void *argument)
{
    (void)length;
    raw_received(argument, request, status);
}

static inline ferry_status_t send_bytes(struct flow *flow, const ferry_memory_t *memory)
{
    ucp_request_param_t params = raw_send_params(flow, memory);
    return raw_begun(
        ucp_stream_send_nbx(raw_of(flow)->endpoint, memory->data, memory->bytes, &params),
        &flow->sent, "sending in a stream");
}

static inline ferry_status_t receive_bytes(struct flow *flow, const ferry_memory_t *memory)
{
    struct raw *raw = raw_of(flow);
    ucp_request_param_t params = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FIELD_MEMORY_TYPE | UCP_OP_ATTR_FIELD_FLAGS,
        .flags = UCP_STREAM_RECV_FLAG_WAITALL,
        .cb.recv_stream = bytes_received,
        .user_data = raw,
        .memory_type = raw_type(flow, memory),
    };
    return raw_begun(
        ucp_stream_recv_nbx(raw->endpoint, memory->data, memory->bytes, &raw->length, &params),
        &flow->received, "receiving from a stream");
}

static const struct flow_layer layer = {
    .send = send_bytes,
    .receive = receive_bytes,
    .progress = raw_progress,
};

static ferry_status_t loop(struct flow *flow, bool answered, uint64_t operations,
                           struct perf_samples *samples)
{
    return flow_loop(flow, &layer, answered, operations, samples);
}

const struct raw_protocol raw_stream = {
    .name = "stream",
    .features = UCP_FEATURE_STREAM,
    .open = raw_open_nothing,
    .loop = loop,
};
