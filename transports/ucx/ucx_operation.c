#include "core/error.h"
#include "transports/ucx/ucx_internal.h"

void ucx_posted(struct ucx_link *link, ferry_operation_t *operation, enum ucx_kind kind,
                size_t bytes)
{
    struct ucx_operation *posted = ucx_operation(operation);
    posted->link = link;
    posted->kind = (uint8_t)kind;
    posted->bytes = bytes;
    link->posted++;
    link->ucx->posted++;
}

void ucx_unposted(ferry_operation_t *operation)
{
    struct ucx_link *link = ucx_operation(operation)->link;
    link->posted--;
    link->ucx->posted--;
}

ferry_status_t ucx_raise_other_size(size_t bytes)
{
    return error_raise(FERRY_ERR_PROTOCOL,
                       "the peer sent another number of bytes than the %zu it had announced",
                       bytes);
}

void ucx_finished(ferry_operation_t *operation, ferry_status_t outcome, size_t bytes)
{
    struct ucx_link *link = ucx_operation(operation)->link;
    ucx_unposted(operation);
    link->ucx->happened++;
    operation->complete(operation, outcome, outcome == FERRY_OK ? bytes : 0);
}

void ucx_completed(ferry_operation_t *operation, ucs_status_t status, size_t bytes)
{
    ferry_status_t outcome = ucx_status(status);
    if (outcome != FERRY_OK && ucx_operation(operation)->link->disconnected) {
        outcome = FERRY_ERR_CANCELLED;
    }
    if (outcome != FERRY_OK) {
        error_raise(outcome, "%s", ucs_status_string(status));
    }
    ucx_finished(operation, outcome, bytes);
}

static ferry_status_t check(const struct ucx_link *link, const ferry_memory_t *memory)
{
    const struct ucx *ucx = link->ucx;
    ucs_memory_type_t type = ucx_memory_type(memory->device);
    if (type == UCS_MEMORY_TYPE_LAST || (ucx->memory_types & UCS_BIT(type)) == 0) {
        return error_raise(FERRY_ERR_UNSUPPORTED,
                           "this UCX cannot take memory of DLPack device type %d by %s",
                           (int)memory->device.device_type, ucx->protocol->name);
    }
    return link->disconnected ? ucx_raise_disconnected() : FERRY_OK;
}

ferry_status_t ucx_send(ferry_link_t *base, uint32_t segment, const ferry_memory_t *memory,
                        ferry_operation_t *operation)
{
    struct ucx_link *link = (struct ucx_link *)(void *)base;
    ferry_status_t status = check(link, memory);
    return status != FERRY_OK ? status
                              : link->ucx->protocol->send(link, segment, memory, operation);
}

ferry_status_t ucx_receive(ferry_link_t *base, uint32_t segment, const ferry_memory_t *memory,
                           ferry_operation_t *operation)
{
    struct ucx_link *link = (struct ucx_link *)(void *)base;
    ferry_status_t status = check(link, memory);
    return status != FERRY_OK ? status
                              : link->ucx->protocol->receive(link, segment, memory, operation);
}

ferry_status_t ucx_decline(ferry_link_t *base, uint32_t segment, size_t bytes,
                           ferry_operation_t *operation)
{
    struct ucx_link *link = (struct ucx_link *)(void *)base;
    return link->disconnected ? ucx_raise_disconnected()
                              : link->ucx->protocol->decline(link, segment, bytes, operation);
}
