/* Segments as tagged messages: UCX itself matches them, by session and number. */
#include "core/error.h"
#include "core/log.h"
#include "transports/ucx/ucx_internal.h"

#define WHOLE_TAG UINT64_MAX
#define SESSION_TAG 0xffffffff00000000ull

static uint64_t tag_of(uint32_t session, uint32_t segment)
{
    return (uint64_t)session << 32 | segment;
}

static void receives_add(struct ucx_link *link, ferry_operation_t *operation)
{
    struct ucx_operation *posted = ucx_operation(operation);
    posted->tag.previous = NULL;
    posted->tag.next = link->receives;
    if (link->receives != NULL) {
        ucx_operation(link->receives)->tag.previous = operation;
    }
    link->receives = operation;
}

static void receives_remove(struct ucx_link *link, const struct ucx_operation *posted)
{
    if (posted->tag.previous != NULL) {
        ucx_operation(posted->tag.previous)->tag.next = posted->tag.next;
    } else {
        link->receives = posted->tag.next;
    }
    if (posted->tag.next != NULL) {
        ucx_operation(posted->tag.next)->tag.previous = posted->tag.previous;
    }
}

/* What UCX says of a receive, in UCX's words; another size is UCS_ERR_MESSAGE_TRUNCATED. */
static ucs_status_t receive_status(enum ucx_kind kind, size_t wanted, ucs_status_t status,
                                   size_t bytes)
{
    if (kind == UCX_DECLINE) {
        return status == UCS_ERR_MESSAGE_TRUNCATED ? UCS_OK : status;
    }
    return status == UCS_OK && bytes != wanted ? UCS_ERR_MESSAGE_TRUNCATED : status;
}

static void segment_sent(void *request, ucs_status_t status, void *argument)
{
    ucp_request_free(request);
    ucx_completed(argument, status, ucx_operation(argument)->bytes);
}

/* Comes from inside ucp_tag_recv_nbx() when the segment is there already: the outcome is then left
 * for tag_receive(). */
static void segment_received(void *request, ucs_status_t status, const ucp_tag_recv_info_t *info,
                             void *argument)
{
    struct ucx_operation *posted = ucx_operation(argument);
    size_t bytes = status != UCS_OK ? 0 : info->length;
    ucp_request_free(request);
    if (posted->starting) {
        posted->arrived = true;
        posted->status = (int8_t)status;
        posted->bytes = bytes;
        return;
    }
    receives_remove(posted->link, posted);
    status = receive_status((enum ucx_kind)posted->kind, posted->bytes, status, bytes);
    if (status == UCS_ERR_MESSAGE_TRUNCATED) {
        ucx_finished(argument, ucx_raise_other_size(posted->bytes), 0);
    } else {
        ucx_completed(argument, status, posted->bytes);
    }
}

static ferry_status_t tag_send(struct ucx_link *link, uint32_t segment,
                               const ferry_memory_t *memory, ferry_operation_t *operation)
{
    ucp_request_param_t params = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.send = segment_sent,
        .user_data = operation,
    };
    ucx_memory_set(&params, ucx_memory_type(memory->device), memory->handle);
    ucs_status_ptr_t request = ucp_tag_send_nbx(link->endpoint, memory->data, memory->bytes,
                                                tag_of(link->remote_session, segment), &params);
    if (request == NULL) {
        return FERRY_OK;
    }
    if (UCS_PTR_IS_ERR(request)) {
        return ucx_raise(UCS_PTR_STATUS(request), "sending a segment");
    }
    ucx_posted(link, operation, UCX_SEND, memory->bytes);
    return FERRY_PENDING;
}

/* UCX 1.13 does not say how long a segment was that it completes at once, so immediate completion
 * is denied: the callback knows (both builds). */
static ferry_status_t receive_by(struct ucx_link *link, uint32_t segment,
                                 const ferry_memory_t *memory, enum ucx_kind kind, size_t wanted,
                                 ferry_operation_t *operation)
{
    ucp_request_param_t params = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL,
        .cb.recv = segment_received,
        .user_data = operation,
    };
    struct ucx_operation *posted = ucx_operation(operation);
    posted->starting = true;
    posted->arrived = false;
    ucx_memory_set(&params, ucx_memory_type(memory->device), memory->handle);
    ucs_status_ptr_t request =
        ucp_tag_recv_nbx(link->ucx->worker, memory->data, memory->bytes,
                         tag_of(link->local_session, segment), WHOLE_TAG, &params);
    posted->starting = false;
    if (!posted->arrived && !UCS_PTR_IS_ERR(request)) {
        ucx_posted(link, operation, kind, wanted);
        posted->tag.request = request;
        receives_add(link, operation);
        return FERRY_PENDING;
    }
    ucs_status_t status = posted->arrived ? (ucs_status_t)posted->status : UCS_PTR_STATUS(request);
    status = receive_status(kind, wanted, status, posted->bytes);
    if (status == UCS_ERR_MESSAGE_TRUNCATED) {
        return ucx_raise_other_size(wanted);
    }
    return status == UCS_OK ? FERRY_OK : ucx_raise(status, "receiving a segment");
}

static ferry_status_t tag_receive(struct ucx_link *link, uint32_t segment,
                                  const ferry_memory_t *memory, ferry_operation_t *operation)
{
    return receive_by(link, segment, memory, UCX_RECEIVE, memory->bytes, operation);
}

/* A receive of no bytes: UCX tells the sender that it is done, and us that the message was longer. */
static ferry_status_t tag_decline(struct ucx_link *link, uint32_t segment, size_t bytes,
                                  ferry_operation_t *operation)
{
    ferry_memory_t nothing = {.device = {.device_type = kDLCPU, .device_id = 0}};
    return receive_by(link, segment, &nothing, UCX_DECLINE, bytes, operation);
}

/* Only what nothing has matched yet can be cancelled. */
static void tag_withdraw(struct ucx_link *link)
{
    ferry_operation_t *operation = link->receives;
    while (operation != NULL) {
        ferry_operation_t *next = ucx_operation(operation)->tag.next;
        ucp_request_cancel(link->ucx->worker, ucx_operation(operation)->tag.request);
        operation = next;
    }
}

static void leftover_dropped(void *request, ucs_status_t status, const ucp_tag_recv_info_t *info,
                             void *argument)
{
    struct ucx *ucx = argument;
    (void)status;
    (void)info;
    ucx->leftovers--;
    ucp_request_free(request);
}

static void drain_tags(struct ucx *ucx, uint64_t tag, uint64_t mask)
{
    ucp_tag_recv_info_t info;
    ucp_tag_message_h message;
    while ((message = ucp_tag_probe_nb(ucx->worker, tag, mask, 1, &info)) != NULL) {
        ucp_request_param_t params = {
            .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
            .cb.recv = leftover_dropped,
            .user_data = ucx,
        };
        ucs_status_ptr_t request = ucp_tag_msg_recv_nbx(ucx->worker, NULL, 0, message, &params);
        if (UCS_PTR_IS_PTR(request)) {
            ucx->leftovers++;
        } else if (UCS_PTR_IS_ERR(request) &&
                   UCS_PTR_STATUS(request) != UCS_ERR_MESSAGE_TRUNCATED) {
            log_write(FERRY_LOG_DEBUG, "a leftover of a former session: %s",
                      ucs_status_string(UCS_PTR_STATUS(request)));
        }
    }
}

static void tag_drain(struct ucx *ucx, uint32_t session)
{
    drain_tags(ucx, tag_of(session, 0), SESSION_TAG);
}

static void tag_drain_all(struct ucx *ucx)
{
    drain_tags(ucx, 0, 0);
}

static ferry_status_t tag_open(struct ucx *ucx)
{
    (void)ucx;
    return FERRY_OK;
}

static void tag_close(struct ucx *ucx)
{
    (void)ucx;
}

const struct ucx_protocol ucx_tag = {
    .name = "tag",
    .features = UCP_FEATURE_TAG,
    .devices = true,
    .open = tag_open,
    .close = tag_close,
    .send = tag_send,
    .receive = tag_receive,
    .decline = tag_decline,
    .withdraw = tag_withdraw,
    .drain = tag_drain,
    .drain_all = tag_drain_all,
};
