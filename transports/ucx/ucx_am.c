/* Segments as active messages, whose header names them. Small ones carry their bytes; of larger
 * ones comes only the offer of a rendezvous, straight into the memory that was posted. */
#include "core/error.h"
#include "core/log.h"
#include "transports/ucx/ucx_internal.h"

/* Comes from inside ucp_am_recv_data_nbx() when the endpoint has failed: the outcome is then left
 * for ucx_am_fetch(). */
static void segment_received(void *request, ucs_status_t status, size_t bytes, void *argument)
{
    struct ucx_half *half = argument;
    (void)bytes;
    ucp_request_free(request);
    if (half->starting) {
        half->ended = true;
        half->status = status;
    } else {
        ucx_match_fetched(half, status);
    }
}

ferry_status_t ucx_am_fetch(struct ucx_link *link, struct ucx_half *half)
{
    struct ucx *ucx = link->ucx;
    ucp_request_param_t params = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.recv_am = segment_received,
        .user_data = half,
    };
    ucx_memory_set(&params, ucx_memory_type(half->memory.device), half->memory.handle);
    half->starting = true;
    ucs_status_ptr_t request =
        ucp_am_recv_data_nbx(ucx->worker, half->data, half->memory.data, half->bytes, &params);
    half->starting = false;
    if (UCS_PTR_IS_PTR(request) && !half->ended) {
        return FERRY_PENDING;
    }
    if (half->held && !half->offered && !ucx->receive_releases) {
        ucp_am_data_release(ucx->worker, half->data);
    }
    ucs_status_t status = half->ended ? half->status : UCS_PTR_STATUS(request);
    return status == UCS_OK ? FERRY_OK : ucx_raise(status, "receiving a segment");
}

static void am_drop(struct ucx *ucx, struct ucx_link *link, struct ucx_half *half)
{
    (void)link;
    if (half->held) {
        ucp_am_data_release(ucx->worker, half->data);
    }
    ucx_half_free(ucx, half);
}

/* UCS_INPROGRESS: the data is kept; otherwise UCX drops it, and its sender is done. */
static ucs_status_t segment_arrived(void *argument, const void *header, size_t header_bytes,
                                    void *data, size_t bytes, const ucp_am_recv_param_t *param)
{
    struct ucx *ucx = argument;
    struct ucx_segment name;
    ucx->happened++;
    if (header_bytes != sizeof(name)) {
        log_write(FERRY_LOG_WARN, "a segment with a header of %zu bytes was dropped", header_bytes);
        return UCS_OK;
    }
    memcpy(&name, header, sizeof(name));
    bool offered = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
    return ucx_match_arrived(ucx, name, data, bytes, offered) ? UCS_INPROGRESS : UCS_OK;
}

static void segment_sent(void *request, ucs_status_t status, void *argument)
{
    ucp_request_free(request);
    ucx_completed(argument, status, ucx_operation(argument)->bytes);
}

static ferry_status_t am_send(struct ucx_link *link, uint32_t segment, const ferry_memory_t *memory,
                              ferry_operation_t *operation)
{
    struct ucx_segment *name = &ucx_operation(operation)->segment;
    *name = (struct ucx_segment){.session = link->remote_session, .number = segment};
    ucp_request_param_t params = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
        .flags = memory->bytes > UCX_EAGER_BYTES ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER,
        .cb.send = segment_sent,
        .user_data = operation,
    };
    ucx_memory_set(&params, ucx_memory_type(memory->device), memory->handle);
    ucs_status_ptr_t request = ucp_am_send_nbx(link->endpoint, UCX_SEGMENT_ID, name, sizeof(*name),
                                               memory->data, memory->bytes, &params);
    if (request == NULL) {
        return FERRY_OK;
    }
    if (UCS_PTR_IS_ERR(request)) {
        return ucx_raise(UCS_PTR_STATUS(request), "sending a segment");
    }
    ucx_posted(link, operation, UCX_SEND, memory->bytes);
    return FERRY_PENDING;
}

ferry_status_t ucx_am_listen(struct ucx *ucx)
{
    unsigned major, minor, release;
    ucp_get_version(&major, &minor, &release);
    /* UCX 1.13 leaves eager data that it has received to be released. */
    ucx->receive_releases = major > 1 || minor > 13;
    ferry_status_t status = ucx_halves_open(ucx);
    return status == FERRY_OK
               ? ucx_listen(ucx, UCX_SEGMENT_ID, UCP_AM_FLAG_PERSISTENT_DATA, segment_arrived)
               : status;
}

const struct ucx_protocol ucx_am = {
    .name = "am",
    .features = 0,
    .devices = true,
    .open = ucx_am_listen,
    .close = ucx_halves_close,
    .send = am_send,
    .receive = ucx_match_receive,
    .decline = ucx_match_decline,
    .withdraw = ucx_match_withdraw,
    .drain = ucx_match_drain,
    .drain_all = ucx_match_drain_all,
    .fetch = ucx_am_fetch,
    .drop = am_drop,
};
