/* Segments as active messages: a header names the segment, and the receiver matches it with the
 * memory that was posted for it. Small ones carry their bytes; of larger ones comes only the offer
 * of a rendezvous, straight into that memory. */
#include <utlist.h>

#include "core/error.h"
#include "core/log.h"
#include "transports/ucx/ucx_internal.h"

/* Segments that wait for a receive, of all links. Ferry posts a receive for every segment that a
 * peer announces, so that only a peer that keeps to no rule gets there. */
#define ARRIVALS_MAX 65536

/* Rendezvous receives that UCX has at a time. Each puts an answer into the peer's shared memory
 * queue, which has 64 places; and an endpoint whose peer's queue is full cannot be closed while the
 * peer does not read it, so that its receives would never end. */
#define RECEIVING_MAX 32

static bool is_host(const ferry_memory_t *memory)
{
    return ucx_memory_type(memory->device) == UCS_MEMORY_TYPE_HOST;
}

static void segment_received(void *request, ucs_status_t status, size_t bytes, void *argument);

/* Hands the receive of what has arrived to UCX. *keeps_out: UCX lets go of the data by itself. */
static ferry_status_t receive_by_ucx(struct ucx_link *link, const struct ucx_half *half,
                                     ferry_operation_t *operation, bool *keeps_out)
{
    struct ucx_operation *posted = ucx_operation(operation);
    ucp_request_param_t params = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.recv_am = segment_received,
        .user_data = operation,
    };
    ucx_memory_set(&params, ucx_memory_type(half->memory.device), half->memory.handle);
    posted->starting = true;
    posted->arrived = false;
    ucs_status_ptr_t request = ucp_am_recv_data_nbx(link->ucx->worker, half->data,
                                                    half->memory.data, half->bytes, &params);
    posted->starting = false;
    *keeps_out = half->rendezvous || link->ucx->receive_releases;
    if (UCS_PTR_IS_PTR(request) && !posted->arrived) {
        link->receiving++;
        return FERRY_PENDING;
    }
    ucs_status_t status =
        UCS_PTR_IS_PTR(request) ? (ucs_status_t)posted->status : UCS_PTR_STATUS(request);
    return status == UCS_OK ? FERRY_OK : ucx_raise(status, "receiving a segment");
}

/* Brings both halves together: what the operation comes to, FERRY_PENDING while UCX works on it.
 * *release_out: the data is of no use any more. */
static ferry_status_t segment_take(struct ucx_link *link, const struct ucx_half *half,
                                   ferry_operation_t *operation, enum ucx_kind kind,
                                   bool *release_out)
{
    bool keeps = false;
    ferry_status_t status = FERRY_OK;
    if (kind == UCX_RECEIVE && half->bytes != half->memory.bytes) {
        status = ucx_raise_other_size(half->memory.bytes);
    } else if (kind == UCX_RECEIVE && (half->rendezvous || !is_host(&half->memory))) {
        status = receive_by_ucx(link, half, operation, &keeps);
    } else if (kind == UCX_RECEIVE && half->bytes > 0) {
        memcpy(half->memory.data, half->data, half->bytes);
    }
    *release_out = !keeps;
    return status;
}

/* Whether a rendezvous has to wait until others are done. */
static bool must_wait(const struct ucx_link *link, const struct ucx_half *half, enum ucx_kind kind)
{
    return kind == UCX_RECEIVE && half->rendezvous &&
           (link->receiving >= RECEIVING_MAX || link->waiting != NULL);
}

static void waiting_start(struct ucx_link *link)
{
    struct ucx *ucx = link->ucx;
    while (link->waiting != NULL && link->receiving < RECEIVING_MAX) {
        struct ucx_half *half = link->waiting;
        ferry_operation_t *operation = half->operation;
        bool release;
        DL_DELETE(link->waiting, half);
        ucx_half_remove(ucx, half);
        ferry_status_t status = segment_take(link, half, operation, UCX_RECEIVE, &release);
        if (release) {
            ucp_am_data_release(ucx->worker, half->data);
        }
        ucx_half_free(ucx, half);
        if (status != FERRY_PENDING) {
            ucx_finished(operation, status, ucx_operation(operation)->bytes);
        }
    }
}

/* Comes from inside ucp_am_recv_data_nbx() when the endpoint has failed: the outcome is then left
 * for receive_by_ucx(). */
static void segment_received(void *request, ucs_status_t status, size_t bytes, void *argument)
{
    struct ucx_operation *posted = ucx_operation(argument);
    struct ucx_link *link = posted->link;
    (void)bytes;
    ucp_request_free(request);
    if (posted->starting) {
        posted->arrived = true;
        posted->status = (int8_t)status;
        return;
    }
    link->receiving--;
    ucx_completed(argument, status, posted->bytes);
    waiting_start(link);
}

/* Nothing was posted for the segment yet. */
static ucs_status_t arrival_keep(struct ucx *ucx, struct ucx_segment name, void *data, size_t bytes,
                                 bool rendezvous)
{
    struct ucx_half *half;
    if (ucx->arrivals >= ARRIVALS_MAX) {
        log_write(FERRY_LOG_WARN,
                  "segment %u of session %u was dropped: %d already wait for a receive",
                  name.number, name.session, ARRIVALS_MAX);
        return UCS_OK;
    }
    if (ucx_half_add(ucx, name, &half) != FERRY_OK) {
        log_write(FERRY_LOG_WARN, "segment %u of session %u was dropped: no memory", name.number,
                  name.session);
        return UCS_OK;
    }
    half->arrived = true;
    half->rendezvous = rendezvous;
    half->data = data;
    half->bytes = bytes;
    ucx->arrivals++;
    return UCS_INPROGRESS;
}

/* UCS_INPROGRESS: the data is kept; otherwise UCX drops it, and its sender is done. */
static ucs_status_t segment_arrived(void *argument, const void *header, size_t header_bytes,
                                    void *data, size_t bytes, const ucp_am_recv_param_t *param)
{
    struct ucx *ucx = argument;
    struct ucx_segment name;
    bool rendezvous = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0, release;
    ucx->happened++;
    if (header_bytes != sizeof(name)) {
        log_write(FERRY_LOG_WARN, "a segment with a header of %zu bytes was dropped", header_bytes);
        return UCS_OK;
    }
    memcpy(&name, header, sizeof(name));
    struct ucx_link *link = ucx_link_find(ucx, name.session);
    struct ucx_half *half = ucx_half_find(ucx, name);
    if (half == NULL) {
        return link == NULL && ucx_session_ended(ucx, name.session)
                   ? UCS_OK
                   : arrival_keep(ucx, name, data, bytes, rendezvous);
    }
    if (half->arrived) {
        log_write(FERRY_LOG_WARN, "segment %u of session %u came twice; one was dropped",
                  name.number, name.session);
        return UCS_OK;
    }
    ferry_operation_t *operation = half->operation;
    enum ucx_kind kind = (enum ucx_kind)ucx_operation(operation)->kind;
    half->arrived = true;
    half->rendezvous = rendezvous;
    half->data = data;
    half->bytes = bytes;
    if (must_wait(link, half, kind)) {
        DL_APPEND(link->waiting, half);
        return UCS_INPROGRESS;
    }
    ucx_half_remove(ucx, half);
    ferry_status_t status = segment_take(link, half, operation, kind, &release);
    ucx_half_free(ucx, half);
    if (status != FERRY_PENDING) {
        ucx_finished(operation, status, ucx_operation(operation)->bytes);
    }
    /* Inside this callback UCX leaves it to its return value, who lets go of eager data. */
    return rendezvous && !release ? UCS_INPROGRESS : UCS_OK;
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

/* Posts what waits for a segment that is not there yet. */
static ferry_status_t receive_keep(struct ucx_link *link, struct ucx_segment name,
                                   const ferry_memory_t *memory, enum ucx_kind kind,
                                   ferry_operation_t *operation)
{
    struct ucx_half *half;
    ferry_status_t status = ucx_half_add(link->ucx, name, &half);
    if (status != FERRY_OK) {
        return status;
    }
    half->operation = operation;
    half->memory = *memory;
    ucx_posted(link, operation, kind, memory->bytes);
    return FERRY_PENDING;
}

static ferry_status_t receive_as(struct ucx_link *link, uint32_t segment,
                                 const ferry_memory_t *memory, enum ucx_kind kind,
                                 ferry_operation_t *operation)
{
    struct ucx *ucx = link->ucx;
    struct ucx_segment name = {.session = link->local_session, .number = segment};
    struct ucx_half *half = ucx_half_find(ucx, name);
    bool release;
    if (half == NULL) {
        return receive_keep(link, name, memory, kind, operation);
    }
    if (half->operation != NULL) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT, "segment %u is already being received",
                           segment);
    }
    ucx->arrivals--;
    half->operation = operation;
    half->memory = *memory;
    if (must_wait(link, half, kind)) {
        DL_APPEND(link->waiting, half);
        ucx_posted(link, operation, kind, memory->bytes);
        return FERRY_PENDING;
    }
    ucx_half_remove(ucx, half);
    ferry_status_t status = segment_take(link, half, operation, kind, &release);
    if (release) {
        ucp_am_data_release(ucx->worker, half->data);
    }
    ucx_half_free(ucx, half);
    if (status == FERRY_PENDING) {
        ucx_posted(link, operation, kind, memory->bytes);
    }
    return status;
}

static ferry_status_t am_receive(struct ucx_link *link, uint32_t segment,
                                 const ferry_memory_t *memory, ferry_operation_t *operation)
{
    return receive_as(link, segment, memory, UCX_RECEIVE, operation);
}

static ferry_status_t am_decline(struct ucx_link *link, uint32_t segment, size_t bytes,
                                 ferry_operation_t *operation)
{
    ferry_memory_t nothing = {.bytes = bytes, .device = {.device_type = kDLCPU, .device_id = 0}};
    return receive_as(link, segment, &nothing, UCX_DECLINE, operation);
}

/* Segments that came stay until the endpoint is closed: to let go of one earlier would answer its
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

static void am_withdraw(struct ucx_link *link)
{
    struct ucx *ucx = link->ucx;
    struct ucx_half *half = ucx_half_next(ucx, link->local_session, NULL), *next;
    while (half != NULL) {
        next = ucx_half_next(ucx, link->local_session, half);
        if (half->operation != NULL) {
            receive_withdraw(ucx, half);
        }
        half = next;
    }
}

static void arrival_drop(struct ucx *ucx, struct ucx_half *half)
{
    ucx_half_remove(ucx, half);
    ucx->arrivals--;
    ucp_am_data_release(ucx->worker, half->data);
    ucx_half_free(ucx, half);
}

static void am_drain(struct ucx *ucx, uint32_t session)
{
    struct ucx_half *half = ucx_half_next(ucx, session, NULL), *next;
    while (half != NULL) {
        next = ucx_half_next(ucx, session, half);
        arrival_drop(ucx, half);
        half = next;
    }
}

static void am_drain_all(struct ucx *ucx)
{
    struct ucx_half *half, *next;
    HASH_ITER(hh, ucx->halves, half, next)
    {
        if (half->arrived) {
            arrival_drop(ucx, half);
        }
    }
}

static ferry_status_t am_open(struct ucx *ucx)
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
    .open = am_open,
    .close = ucx_halves_close,
    .send = am_send,
    .receive = am_receive,
    .decline = am_decline,
    .withdraw = am_withdraw,
    .drain = am_drain,
    .drain_all = am_drain_all,
};
