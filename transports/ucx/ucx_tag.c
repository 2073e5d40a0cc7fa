#include <utlist.h>

#include "core/error.h"
#include "core/log.h"
#include "transports/ucx/ucx_internal.h"

#define WHOLE_TAG UINT64_MAX
#define SESSION_TAG 0xffffffff00000000ull

static uint64_t tag_of(uint32_t session, uint32_t segment)
{
    return (uint64_t)session << 32 | segment;
}

void ucx_posted(struct ucx_link *link, ferry_operation_t *operation, void *request,
                enum ucx_kind kind, uint64_t wanted)
{
    struct ucx_operation *posted = ucx_operation(operation);
    posted->request = request;
    posted->link = link;
    posted->kind = (uint8_t)kind;
    if (kind != UCX_MESSAGE) {
        posted->header = wanted;
    }
    link->posted++;
    link->ucx->posted++;
    if (kind == UCX_RECEIVE || kind == UCX_DECLINE) {
        posted->previous = NULL;
        posted->next = link->receives;
        if (link->receives != NULL) {
            ucx_operation(link->receives)->previous = operation;
        }
        link->receives = operation;
    }
}

static void receives_remove(struct ucx_link *link, const struct ucx_operation *posted)
{
    if (posted->previous != NULL) {
        ucx_operation(posted->previous)->next = posted->next;
    } else {
        link->receives = posted->next;
    }
    if (posted->next != NULL) {
        ucx_operation(posted->next)->previous = posted->previous;
    }
}

/* What UCX says of a receive, in the contract's words. */
static ferry_status_t receive_status(enum ucx_kind kind, uint64_t wanted, ucs_status_t status,
                                     size_t bytes)
{
    if (kind == UCX_DECLINE) {
        return status == UCS_ERR_MESSAGE_TRUNCATED ? FERRY_OK : ucx_status(status);
    }
    if (status == UCS_ERR_MESSAGE_TRUNCATED || (status == UCS_OK && bytes != wanted)) {
        return error_raise(FERRY_ERR_PROTOCOL,
                           "the peer sent another number of bytes than the %llu "
                           "it had announced",
                           (unsigned long long)wanted);
    }
    return ucx_status(status);
}

void ucx_completed(ferry_operation_t *operation, ucs_status_t status, size_t bytes)
{
    struct ucx_operation *posted = ucx_operation(operation);
    struct ucx_link *link = posted->link;
    enum ucx_kind kind = (enum ucx_kind)posted->kind;
    uint64_t wanted = posted->header;
    ferry_status_t outcome;
    if (kind == UCX_SEND || kind == UCX_MESSAGE) {
        outcome = ucx_status(status);
        bytes = kind == UCX_SEND ? wanted : 0;
    } else {
        receives_remove(link, posted);
        outcome = receive_status(kind, wanted, status, bytes);
    }
    if (outcome != FERRY_OK && link->disconnected) {
        outcome = FERRY_ERR_CANCELLED;
    }
    if (outcome != FERRY_OK && outcome != FERRY_ERR_PROTOCOL) {
        error_raise(outcome, "%s", ucs_status_string(status));
    }
    link->posted--;
    link->ucx->posted--;
    link->ucx->happened++;
    operation->complete(operation, outcome, outcome == FERRY_OK ? bytes : 0);
}

static void segment_sent(void *request, ucs_status_t status, void *argument)
{
    ucp_request_free(request);
    ucx_completed(argument, status, 0);
}

/* Comes from inside ucp_tag_recv_nbx() when the segment is there already: the outcome is then left
 * for tag_receive(). */
static void segment_received(void *request, ucs_status_t status, const ucp_tag_recv_info_t *info,
                             void *argument)
{
    struct ucx_operation *posted = ucx_operation(argument);
    size_t bytes = status != UCS_OK ? 0 : info->length;
    ucp_request_free(request);
    if (posted->link == NULL) {
        posted->arrived = true;
        posted->status = (int8_t)status;
        posted->header = bytes;
        return;
    }
    ucx_completed(argument, status, bytes);
}

static void set_memory(ucp_request_param_t *params, const ferry_memory_t *memory)
{
    params->op_attr_mask |= UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    params->memory_type = ucx_memory_type(memory->device);
    if (memory->handle != NULL) {
        params->op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
        params->memh = memory->handle;
    }
}

static ferry_status_t check_memory(const struct ucx *ucx, const ferry_memory_t *memory)
{
    ucs_memory_type_t type = ucx_memory_type(memory->device);
    if (type != UCS_MEMORY_TYPE_LAST && (ucx->memory_types & UCS_BIT(type)) != 0) {
        return FERRY_OK;
    }
    return error_raise(FERRY_ERR_UNSUPPORTED,
                       "this UCX cannot take memory of DLPack device type %d",
                       (int)memory->device.device_type);
}

ferry_status_t ucx_send(ferry_link_t *base, uint32_t segment, const ferry_memory_t *memory,
                        ferry_operation_t *operation)
{
    struct ucx_link *link = (struct ucx_link *)(void *)base;
    ferry_status_t status = check_memory(link->ucx, memory);
    if (status != FERRY_OK) {
        return status;
    }
    ucp_request_param_t params = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.send = segment_sent,
        .user_data = operation,
    };
    if (link->disconnected) {
        return ucx_raise_disconnected();
    }
    set_memory(&params, memory);
    ucs_status_ptr_t request = ucp_tag_send_nbx(link->endpoint, memory->data, memory->bytes,
                                                tag_of(link->remote_session, segment), &params);
    if (request == NULL) {
        return FERRY_OK;
    }
    if (UCS_PTR_IS_ERR(request)) {
        return ucx_raise(UCS_PTR_STATUS(request), "sending a segment");
    }
    ucx_posted(link, operation, request, UCX_SEND, memory->bytes);
    return FERRY_PENDING;
}

/* UCX 1.13 does not say how long a segment was that it completes at once, so immediate completion
 * is denied: the callback knows (both builds). */
static ferry_status_t tag_receive(struct ucx_link *link, uint32_t segment,
                                  const ferry_memory_t *memory, enum ucx_kind kind, uint64_t wanted,
                                  ferry_operation_t *operation)
{
    ucp_request_param_t params = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL,
        .cb.recv = segment_received,
        .user_data = operation,
    };
    if (link->disconnected) {
        return ucx_raise_disconnected();
    }
    struct ucx_operation *posted = ucx_operation(operation);
    posted->link = NULL;
    posted->arrived = false;
    set_memory(&params, memory);
    ucs_status_ptr_t request =
        ucp_tag_recv_nbx(link->ucx->worker, memory->data, memory->bytes,
                         tag_of(link->local_session, segment), WHOLE_TAG, &params);
    if (!posted->arrived && !UCS_PTR_IS_ERR(request)) {
        ucx_posted(link, operation, request, kind, wanted);
        return FERRY_PENDING;
    }
    ucs_status_t status = posted->arrived ? (ucs_status_t)posted->status : UCS_PTR_STATUS(request);
    ferry_status_t outcome = receive_status(kind, wanted, status, posted->header);
    return outcome == FERRY_OK || outcome == FERRY_ERR_PROTOCOL
               ? outcome
               : ucx_raise(status, "receiving a segment");
}

ferry_status_t ucx_receive(ferry_link_t *base, uint32_t segment, const ferry_memory_t *memory,
                           ferry_operation_t *operation)
{
    struct ucx_link *link = (struct ucx_link *)(void *)base;
    ferry_status_t status = check_memory(link->ucx, memory);
    if (status != FERRY_OK) {
        return status;
    }
    return tag_receive(link, segment, memory, UCX_RECEIVE, memory->bytes, operation);
}

/* A receive of no bytes: UCX tells the sender that it is done, and us that the message was longer. */
ferry_status_t ucx_decline(ferry_link_t *base, uint32_t segment, size_t bytes,
                           ferry_operation_t *operation)
{
    struct ucx_link *link = (struct ucx_link *)(void *)base;
    ferry_memory_t nothing = {.device = {.device_type = kDLCPU, .device_id = 0}};
    return tag_receive(link, segment, &nothing, UCX_DECLINE, bytes, operation);
}

void ucx_withdraw(struct ucx_link *link)
{
    ferry_operation_t *operation = link->receives;
    while (operation != NULL) {
        ferry_operation_t *next = ucx_operation(operation)->next;
        ucp_request_cancel(link->ucx->worker, ucx_operation(operation)->request);
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

void ucx_drain(struct ucx *ucx, uint32_t session)
{
    drain_tags(ucx, tag_of(session, 0), SESSION_TAG);
}

void ucx_drain_all(struct ucx *ucx)
{
    drain_tags(ucx, 0, 0);
}
