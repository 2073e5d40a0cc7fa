/* Brings together posted receives and the segments that arrive for them, for protocols whose
 * segments UCX does not match. Either may come first. */
#include <stdio.h>

#include <utlist.h>

#include "core/error.h"
#include "core/log.h"
#include "transports/ucx/ucx_internal.h"

/* Segments that wait for a receive, of all links. Ferry posts a receive for every segment that a
 * peer announces, so that only a peer that keeps to no rule gets there. */
#define ARRIVALS_MAX 65536

static bool is_host(const ferry_memory_t *memory)
{
    return ucx_memory_type(memory->device) == UCS_MEMORY_TYPE_HOST;
}

static void half_discard(struct ucx *ucx, struct ucx_link *link, struct ucx_half *half)
{
    ucx_half_remove(ucx, half);
    ucx->protocol->drop(ucx, link, half);
}

/* What comes of a receive whose segment is there: FERRY_PENDING while it is fetched, and the half
 * with it; otherwise the half is gone. */
static ferry_status_t half_take(struct ucx_link *link, struct ucx_half *half, enum ucx_kind kind)
{
    struct ucx *ucx = link->ucx;
    ferry_status_t status = FERRY_OK;
    if (kind == UCX_RECEIVE && half->bytes != half->memory.bytes) {
        status = ucx_raise_other_size(half->memory.bytes);
    } else if (kind == UCX_RECEIVE && (half->offered || !is_host(&half->memory))) {
        half->fetching = true;
        link->fetching++;
        status = ucx->protocol->fetch(link, half);
        if (status == FERRY_PENDING) {
            return status;
        }
        link->fetching--;
        ucx_half_remove(ucx, half);
        ucx_half_free(ucx, half);
        return status;
    } else if (kind == UCX_RECEIVE && half->bytes > 0) {
        memcpy(half->memory.data, half->data, half->bytes);
    }
    half_discard(ucx, link, half);
    return status;
}

/* Whether a segment has to wait until others are there. */
static bool must_wait(const struct ucx_link *link, const struct ucx_half *half, enum ucx_kind kind)
{
    return kind == UCX_RECEIVE && half->offered &&
           (link->fetching >= UCX_FETCHING_MAX || link->waiting != NULL);
}

static void waiting_start(struct ucx_link *link)
{
    while (link->waiting != NULL && link->fetching < UCX_FETCHING_MAX) {
        struct ucx_half *half = link->waiting;
        ferry_operation_t *operation = half->operation;
        DL_DELETE(link->waiting, half);
        ferry_status_t status = half_take(link, half, UCX_RECEIVE);
        if (status != FERRY_PENDING) {
            ucx_finished(operation, status, ucx_operation(operation)->bytes);
        }
    }
}

void ucx_match_fetched(struct ucx_half *half, ucs_status_t status)
{
    ferry_operation_t *operation = half->operation;
    struct ucx_link *link = ucx_operation(operation)->link;
    ucx_half_remove(link->ucx, half);
    half->operation = NULL;
    half->over = true;
    if (half->parts == 0) {
        ucx_half_free(link->ucx, half);
    }
    link->fetching--;
    ucx_completed(operation, status, ucx_operation(operation)->bytes);
    if (!link->disconnected) {
        waiting_start(link);
    }
}

/* What cannot be kept would leave both ends waiting for each other. */
static bool arrival_refuse(struct ucx_link *link, ferry_status_t status, const char *text)
{
    log_write(FERRY_LOG_WARN, "%s", text);
    if (link != NULL) {
        ucx_link_fail(link, status, text);
    }
    return false;
}

bool ucx_match_arrived(struct ucx *ucx, struct ucx_segment name, void *data, size_t bytes,
                       bool offered)
{
    struct ucx_link *link = ucx_link_find(ucx, name.session);
    struct ucx_half *half = ucx_half_find(ucx, name, false);
    if (link == NULL && ucx_session_ended(ucx, name.session)) {
        return false;
    }
    if (half != NULL && half->arrived) {
        return arrival_refuse(link, FERRY_ERR_PROTOCOL, "the peer sent a segment twice");
    }
    if (half == NULL && ucx->arrivals >= ARRIVALS_MAX) {
        return arrival_refuse(link, FERRY_ERR_LIMIT,
                              "the peer sent too many segments that nobody receives");
    }
    bool posted = half != NULL;
    if (!posted && ucx_half_add(ucx, name, false, &half) != FERRY_OK) {
        return arrival_refuse(link, FERRY_ERR_NO_MEMORY, "no memory to keep a segment");
    }
    half->arrived = true;
    half->offered = offered;
    half->data = data;
    half->bytes = bytes;
    if (!posted) {
        ucx->arrivals++;
        half->held = true;
        return true;
    }
    ferry_operation_t *operation = half->operation;
    enum ucx_kind kind = (enum ucx_kind)ucx_operation(operation)->kind;
    if (must_wait(link, half, kind)) {
        DL_APPEND(link->waiting, half);
        half->held = true;
        return true;
    }
    /* A rendezvous that was begun is UCX's, even if it has failed meanwhile. */
    bool begun = offered && kind == UCX_RECEIVE && bytes == half->memory.bytes;
    ferry_status_t status = half_take(link, half, kind);
    if (status != FERRY_PENDING) {
        ucx_finished(operation, status, ucx_operation(operation)->bytes);
    }
    return begun;
}

static ferry_status_t receive_as(struct ucx_link *link, uint32_t segment,
                                 const ferry_memory_t *memory, enum ucx_kind kind,
                                 ferry_operation_t *operation)
{
    struct ucx *ucx = link->ucx;
    struct ucx_segment name = {.session = link->local_session, .number = segment};
    struct ucx_half *half = ucx_half_find(ucx, name, false);
    ferry_status_t status = FERRY_PENDING;
    if (half != NULL && half->operation != NULL) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT, "segment %u is already being received",
                           segment);
    }
    if (half == NULL) {
        status = ucx_half_add(ucx, name, false, &half);
        if (status != FERRY_OK) {
            return status;
        }
    }
    half->operation = operation;
    half->memory = *memory;
    ucx_posted(link, operation, kind, memory->bytes);
    if (!half->arrived) {
        return FERRY_PENDING;
    }
    ucx->arrivals--;
    if (must_wait(link, half, kind)) {
        DL_APPEND(link->waiting, half);
        return FERRY_PENDING;
    }
    status = half_take(link, half, kind);
    if (status != FERRY_PENDING) {
        ucx_unposted(operation);
    }
    return status;
}

ferry_status_t ucx_match_receive(struct ucx_link *link, uint32_t segment,
                                 const ferry_memory_t *memory, ferry_operation_t *operation)
{
    return receive_as(link, segment, memory, UCX_RECEIVE, operation);
}

ferry_status_t ucx_match_decline(struct ucx_link *link, uint32_t segment, size_t bytes,
                                 ferry_operation_t *operation)
{
    ferry_memory_t nothing = {.bytes = bytes, .device = {.device_type = kDLCPU, .device_id = 0}};
    return receive_as(link, segment, &nothing, UCX_DECLINE, operation);
}

/* A segment that came stays until the endpoint is closed: to let go of it earlier would answer its
 * sender, and might fill its queue. */
static void receive_withdraw(struct ucx *ucx, struct ucx_half *half)
{
    ferry_operation_t *operation = half->operation;
    half->operation = NULL;
    if (half->arrived) {
        DL_DELETE(ucx_operation(operation)->link->waiting, half);
        ucx->arrivals++;
    } else {
        ucx_half_remove(ucx, half);
        ucx_half_free(ucx, half);
    }
    ucx_completed(operation, UCS_ERR_CANCELED, 0);
}

void ucx_match_withdraw(struct ucx_link *link)
{
    struct ucx *ucx = link->ucx;
    struct ucx_half *half = ucx_half_next(ucx, link->local_session, NULL), *next;
    while (half != NULL) {
        next = ucx_half_next(ucx, link->local_session, half);
        if (!ucx_half_sent(half) && half->operation != NULL && !half->fetching) {
            receive_withdraw(ucx, half);
        }
        half = next;
    }
}

static void arrival_drop(struct ucx *ucx, struct ucx_half *half)
{
    if (half->arrived && half->operation == NULL) {
        ucx->arrivals--;
        half_discard(ucx, NULL, half);
    }
}

void ucx_match_drain(struct ucx *ucx, uint32_t session)
{
    struct ucx_half *half = ucx_half_next(ucx, session, NULL), *next;
    while (half != NULL) {
        next = ucx_half_next(ucx, session, half);
        arrival_drop(ucx, half);
        half = next;
    }
}

void ucx_match_drain_all(struct ucx *ucx)
{
    struct ucx_half *half, *next;
    HASH_ITER(hh, ucx->halves, half, next)
    {
        arrival_drop(ucx, half);
    }
}
