#include <stdlib.h>
#include <utlist.h>

#include "core/error.h"
#include "core/log.h"
#include "transports/ucx/ucx_internal.h"

static void early_remove(struct ucx *ucx, struct ucx_early_message *message)
{
    DL_DELETE(ucx->early, message);
    free(message);
    ucx->early_count--;
}

/* The other end may have connected earlier. Of sessions that are over nothing is kept, and only so
 * much in all. */
static void early_keep(struct ucx *ucx, uint32_t session, const void *data, size_t bytes)
{
    if (ucx_session_ended(ucx, session)) {
        return;
    }
    struct ucx_early_message *message = malloc(sizeof(*message) + bytes);
    if (message == NULL) {
        log_write(FERRY_LOG_WARN, "a control message of %zu bytes was dropped: no memory", bytes);
        return;
    }
    message->session = session;
    message->bytes = bytes;
    memcpy(message->data, data, bytes);
    DL_APPEND(ucx->early, message);
    if (++ucx->early_count > UCX_EARLY_MESSAGES_MAX) {
        log_write(FERRY_LOG_WARN, "a control message of session %u was dropped: it has no link",
                  ucx->early->session);
        early_remove(ucx, ucx->early);
    }
}

void ucx_early_deliver(struct ucx *ucx)
{
    struct ucx_early_message *message, *next;
    ucx->early_due = false;
    DL_FOREACH_SAFE(ucx->early, message, next)
    {
        struct ucx_link *link = ucx_link_find(ucx, message->session);
        if (link != NULL) {
            ucx->happened++;
            ucx->events.message(ucx->events.context, &link->base, message->data, message->bytes);
            early_remove(ucx, message);
        }
    }
}

void ucx_early_drop(struct ucx *ucx, uint32_t session)
{
    struct ucx_early_message *message, *next;
    DL_FOREACH_SAFE(ucx->early, message, next)
    {
        if (message->session == session) {
            early_remove(ucx, message);
        }
    }
}

void ucx_early_drop_all(struct ucx *ucx)
{
    while (ucx->early != NULL) {
        early_remove(ucx, ucx->early);
    }
}

static ucs_status_t message_arrived(void *argument, const void *header, size_t header_bytes,
                                    void *data, size_t bytes, const ucp_am_recv_param_t *param)
{
    struct ucx *ucx = argument;
    uint32_t session;
    ucx->happened++;
    if (header_bytes != sizeof(uint64_t) || (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0 ||
        bytes > ucx->message_bytes) {
        log_write(FERRY_LOG_WARN, "a control message of %zu bytes was dropped", bytes);
        return UCS_OK;
    }
    memcpy(&session, header, sizeof(session));
    struct ucx_link *link = ucx_link_find(ucx, session);
    if (link == NULL) {
        early_keep(ucx, session, data, bytes);
        return UCS_OK;
    }
    ucx->events.message(ucx->events.context, &link->base, data, bytes);
    return UCS_OK;
}

ferry_status_t ucx_listen(struct ucx *ucx, unsigned id, uint32_t flags,
                          ucp_am_recv_callback_t arrived)
{
    ucp_am_handler_param_t params = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                      UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .id = id,
        .flags = UCP_AM_FLAG_WHOLE_MSG | flags,
        .cb = arrived,
        .arg = ucx,
    };
    ucs_status_t status = ucp_worker_set_am_recv_handler(ucx->worker, &params);
    return status == UCS_OK ? FERRY_OK : ucx_raise(status, "listening for active messages");
}

ferry_status_t ucx_message_listen(struct ucx *ucx)
{
    return ucx_listen(ucx, UCX_MESSAGE_ID, 0, message_arrived);
}

static void message_sent(void *request, ucs_status_t status, void *argument)
{
    ucp_request_free(request);
    ucx_completed(argument, status, 0);
}

ferry_status_t ucx_send_message(ferry_link_t *base, const void *data, size_t bytes,
                                ferry_operation_t *operation)
{
    struct ucx_link *link = (struct ucx_link *)(void *)base;
    if (link->disconnected) {
        return ucx_raise_disconnected();
    }
    if (bytes > link->ucx->message_bytes) {
        return error_raise(FERRY_ERR_LIMIT, "a control message of %zu bytes; %zu are allowed",
                           bytes, link->ucx->message_bytes);
    }
    /* The header is read until completion, so it lies in the operation. */
    uint64_t *header = &ucx_operation(operation)->message;
    *header = link->remote_session;
    ucp_request_param_t params = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
        .flags = UCP_AM_SEND_FLAG_EAGER,
        .cb.send = message_sent,
        .user_data = operation,
    };
    ucs_status_ptr_t request = ucp_am_send_nbx(link->endpoint, UCX_MESSAGE_ID, header,
                                               sizeof(*header), data, bytes, &params);
    if (request == NULL) {
        return FERRY_OK;
    }
    if (UCS_PTR_IS_ERR(request)) {
        return ucx_raise(UCS_PTR_STATUS(request), "sending a control message");
    }
    ucx_posted(link, operation, UCX_MESSAGE, 0);
    return FERRY_PENDING;
}
