#include "ferry_perf/raw.h"

#include <string.h>

#define MESSAGE_ID 1

static void data_received(void *request, ucs_status_t status, size_t length, void *argument)
{
    (void)length;
    raw_received(argument, request, status);
}

/* By rendezvous, or out of what came eagerly into memory that the host cannot write. */
static ucs_status_t take_data(struct raw *raw, void *data, bool rendezvous)
{
    ucp_request_param_t params = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FIELD_MEMORY_TYPE,
        .cb.recv_am = data_received,
        .user_data = raw,
        .memory_type = raw_type(&raw->flow, raw->target),
    };
    ucs_status_ptr_t request =
        ucp_am_recv_data_nbx(raw->worker, data, raw->target->data, raw->target->bytes, &params);
    if (UCS_PTR_IS_PTR(request)) {
        return UCS_INPROGRESS;
    }
    raw_received(raw, NULL, UCS_PTR_STATUS(request));
    return rendezvous && request != NULL ? UCS_PTR_STATUS(request) : UCS_OK;
}

/* Eager data is the program's during this call, or, where it asked for persistent data, for longer;
 * what the host can write is copied at once. */
static ucs_status_t message_arrived(void *argument, const void *header, size_t header_bytes,
                                    void *data, size_t bytes, const ucp_am_recv_param_t *param)
{
    struct raw *raw = argument;
    (void)header;
    (void)header_bytes;
    if (bytes != raw->target->bytes) {
        raw_received(raw, NULL, UCS_ERR_MESSAGE_TRUNCATED);
        return UCS_OK;
    }
    if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
        return take_data(raw, data, true);
    }
    if (raw_type(&raw->flow, raw->target) == UCS_MEMORY_TYPE_HOST) {
        memcpy(raw->target->data, data, bytes);
        raw_received(raw, NULL, UCS_OK);
        return UCS_OK;
    }
    return take_data(raw, data, false);
}

static inline ferry_status_t send_message(struct flow *flow, const ferry_memory_t *memory)
{
    ucp_request_param_t params = raw_send_params(flow, memory);
    return raw_begun(ucp_am_send_nbx(raw_of(flow)->endpoint, MESSAGE_ID, NULL, 0, memory->data,
                                     memory->bytes, &params),
                     &flow->sent, "sending an active message");
}

/* An active message asks nobody before it comes: what is known beforehand is where it goes. */
static inline ferry_status_t receive_message(struct flow *flow, const ferry_memory_t *memory)
{
    raw_of(flow)->target = memory;
    return FERRY_OK;
}

static const struct flow_layer layer = {
    .send = send_message,
    .receive = receive_message,
    .progress = raw_progress,
};

static ferry_status_t loop(struct flow *flow, bool answered, uint64_t operations,
                           struct perf_samples *samples)
{
    return flow_loop(flow, &layer, answered, operations, samples);
}

static ferry_status_t open_messages(struct raw *raw)
{
    raw->target = &raw->flow.token;
    ucp_am_handler_param_t params = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                      UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .id = MESSAGE_ID,
        .flags = UCP_AM_FLAG_WHOLE_MSG |
                 (raw->type == UCS_MEMORY_TYPE_HOST ? 0u : UCP_AM_FLAG_PERSISTENT_DATA),
        .cb = message_arrived,
        .arg = raw,
    };
    ucs_status_t status = ucp_worker_set_am_recv_handler(raw->worker, &params);
    return status == UCS_OK ? FERRY_OK : raw_refused(status, "listening for active messages");
}

const struct raw_protocol raw_am = {
    .name = "am",
    .features = UCP_FEATURE_AM,
    .open = open_messages,
    .loop = loop,
};
