#include "ferry_perf/raw.h"

#define TAG 1
#define WHOLE_TAG UINT64_MAX

static void message_received(void *request, ucs_status_t status, const ucp_tag_recv_info_t *info,
                             void *argument)
{
    (void)info;
    raw_received(argument, request, status);
}

static inline ferry_status_t send_tagged(struct flow *flow, const ferry_memory_t *memory)
{
    ucp_request_param_t params = raw_send_params(flow, memory);
    return raw_begun(
        ucp_tag_send_nbx(raw_of(flow)->endpoint, memory->data, memory->bytes, TAG, &params),
        &flow->sent, "sending a tagged message");
}

static inline ferry_status_t receive_tagged(struct flow *flow, const ferry_memory_t *memory)
{
    ucp_request_param_t params = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FIELD_MEMORY_TYPE,
        .cb.recv = message_received,
        .user_data = raw_of(flow),
        .memory_type = raw_type(flow, memory),
    };
    return raw_begun(ucp_tag_recv_nbx(raw_of(flow)->worker, memory->data, memory->bytes, TAG,
                                      WHOLE_TAG, &params),
                     &flow->received, "receiving a tagged message");
}

static const struct flow_layer layer = {
    .send = send_tagged,
    .receive = receive_tagged,
    .progress = raw_progress,
};

static ferry_status_t loop(struct flow *flow, bool answered, uint64_t operations,
                           struct perf_samples *samples)
{
    return flow_loop(flow, &layer, answered, operations, samples);
}

const struct raw_protocol raw_tag = {
    .name = "tag",
    .features = UCP_FEATURE_TAG,
    .open = raw_open_nothing,
    .loop = loop,
};
