/* Segments over UCX's streams. Small ones travel as with am. A larger one is offered, granted by
 * the receiver once it has the memory for it, and sent in frames, each behind a header; the frames
 * of several segments take turns. UCX buffers without limit what nobody reads, so that nothing is
 * sent that was not granted. */
#include <stdlib.h>

#include <utlist.h>

#include "core/error.h"
#include "core/log.h"
#include "transports/ucx/ucx_internal.h"

/* Of one segment at a time; no more than the least FERRY_CHUNK. */
#define FRAME_BYTES ((size_t)64 << 10)
/* What a grant says: frame.bytes. */
enum { GRANTED, DECLINED };

/* ---- the sender ---- */

/* UCX has let go of everything that belongs to the segment. */
static void send_finish(struct ucx_half *half)
{
    ferry_operation_t *operation = half->operation;
    ucs_status_t status = half->status;
    struct ucx *ucx = ucx_operation(operation)->link->ucx;
    ucx_half_remove(ucx, half);
    ucx_half_free(ucx, half);
    ucx_completed(operation, status, ucx_operation(operation)->bytes);
}

/* No more of the segment is sent. */
static void send_over(struct ucx_half *half, ucs_status_t status)
{
    half->over = true;
    half->status = half->status == UCS_OK ? status : half->status;
    if (half->parts == 0) {
        send_finish(half);
    }
}

static void frames_send(struct ucx_link *link);

static void frame_sent(void *request, ucs_status_t status, void *argument)
{
    struct ucx_half *half = argument;
    struct ucx_link *link = ucx_operation(half->operation)->link;
    ucp_request_free(request);
    half->parts--;
    link->in_frame = false;
    if (status != UCS_OK && !half->over) {
        DL_DELETE(link->sending, half);
        half->over = true;
    }
    half->status = half->status == UCS_OK ? status : half->status;
    if (half->over && half->parts == 0) {
        send_finish(half);
    }
    frames_send(link);
}

/* One request for header and bytes. */
static ucs_status_t frame_send(struct ucx_link *link, struct ucx_half *half)
{
    size_t left = half->memory.bytes - half->moved;
    size_t bytes = left < FRAME_BYTES ? left : FRAME_BYTES;
    half->frame = (struct ucx_frame){.name = half->note.name, .bytes = bytes};
    half->pieces[0] = (ucp_dt_iov_t){&half->frame, sizeof(half->frame)};
    half->pieces[1] = (ucp_dt_iov_t){(char *)half->memory.data + half->moved, bytes};
    half->moved += bytes;
    ucp_request_param_t params = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_DATATYPE,
        .cb.send = frame_sent,
        .user_data = half,
        .datatype = UCP_DATATYPE_IOV,
    };
    ucx_memory_set(&params, UCS_MEMORY_TYPE_HOST, NULL);
    ucs_status_ptr_t request = ucp_stream_send_nbx(link->endpoint, half->pieces, 2, &params);
    if (UCS_PTR_IS_PTR(request)) {
        half->parts++;
        link->in_frame = true;
    }
    return UCS_PTR_IS_PTR(request) ? UCS_OK : UCS_PTR_STATUS(request);
}

/* UCX has one frame of a link at a time: what is sent from a completion may overtake what still
 * waits in UCX for room (shared memory, both builds). */
static void frames_send(struct ucx_link *link)
{
    while (link->sending != NULL && !link->in_frame && !link->disconnected) {
        struct ucx_half *half = link->sending;
        DL_DELETE(link->sending, half);
        ucs_status_t status = frame_send(link, half);
        if (status == UCS_OK && half->moved < half->memory.bytes) {
            DL_APPEND(link->sending, half);
        } else {
            send_over(half, status);
        }
    }
}

/* Offers and grants: an active message that is all header. */
static ucs_status_t note_send(struct ucx_link *link, struct ucx_half *half, unsigned id,
                              ucp_send_nbx_callback_t sent)
{
    ucp_request_param_t params = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
        .flags = UCP_AM_SEND_FLAG_EAGER,
        .cb.send = sent,
        .user_data = half,
    };
    ucs_status_ptr_t request =
        ucp_am_send_nbx(link->endpoint, id, &half->note, sizeof(half->note), NULL, 0, &params);
    if (UCS_PTR_IS_PTR(request)) {
        half->parts++;
    }
    return UCS_PTR_IS_PTR(request) ? UCS_OK : UCS_PTR_STATUS(request);
}

static void offer_sent(void *request, ucs_status_t status, void *argument)
{
    struct ucx_half *half = argument;
    ucp_request_free(request);
    half->parts--;
    half->status = half->status == UCS_OK ? status : half->status;
    if (half->parts == 0 && (half->over || status != UCS_OK)) {
        send_finish(half);
    }
}

static ferry_status_t stream_send(struct ucx_link *link, uint32_t segment,
                                  const ferry_memory_t *memory, ferry_operation_t *operation)
{
    struct ucx_segment name = {.session = link->local_session, .number = segment};
    struct ucx_half *half;
    if (memory->bytes <= UCX_EAGER_BYTES) {
        return ucx_am.send(link, segment, memory, operation);
    }
    if (ucx_half_find(link->ucx, name, true) != NULL) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT, "segment %u is already being sent", segment);
    }
    ferry_status_t status = ucx_half_add(link->ucx, name, true, &half);
    if (status != FERRY_OK) {
        return status;
    }
    half->operation = operation;
    half->memory = *memory;
    half->note.name = (struct ucx_segment){.session = link->remote_session, .number = segment};
    half->note.bytes = memory->bytes;
    ucs_status_t result = note_send(link, half, UCX_OFFER_ID, offer_sent);
    if (result != UCS_OK) {
        ucx_half_remove(link->ucx, half);
        ucx_half_free(link->ucx, half);
        return ucx_raise(result, "offering a segment");
    }
    ucx_posted(link, operation, UCX_SEND, memory->bytes);
    return FERRY_PENDING;
}

/* Reads an offer or a grant; false: it is none. */
static bool note_read(struct ucx *ucx, const void *header, size_t header_bytes,
                      struct ucx_frame *note)
{
    ucx->happened++;
    if (header_bytes != sizeof(*note)) {
        log_write(FERRY_LOG_WARN, "an offer or grant with a header of %zu bytes was dropped",
                  header_bytes);
        return false;
    }
    memcpy(note, header, sizeof(*note));
    return true;
}

static ucs_status_t grant_arrived(void *argument, const void *header, size_t header_bytes,
                                  void *data, size_t bytes, const ucp_am_recv_param_t *param)
{
    struct ucx *ucx = argument;
    struct ucx_frame grant;
    (void)data;
    (void)bytes;
    (void)param;
    if (!note_read(ucx, header, header_bytes, &grant)) {
        return UCS_OK;
    }
    struct ucx_link *link = ucx_link_find(ucx, grant.name.session);
    struct ucx_half *half = ucx_half_find(ucx, grant.name, true);
    if (link == NULL) {
        return UCS_OK; /* it crossed our disconnect() */
    }
    if (half == NULL || half->over || half->fetching) {
        ucx_link_fail(link, FERRY_ERR_PROTOCOL, "the peer granted a segment that was not offered");
        return UCS_OK;
    }
    if (grant.bytes == DECLINED) {
        send_over(half, UCS_OK);
        return UCS_OK;
    }
    half->fetching = true;
    DL_APPEND(link->sending, half);
    frames_send(link);
    return UCS_OK;
}

/* ---- the receiver: offers and grants ---- */

static void grant_sent(void *request, ucs_status_t status, void *argument)
{
    struct ucx_half *half = argument;
    (void)status; /* the endpoint's failure is told by itself */
    ucp_request_free(request);
    half->parts--;
    if (half->over && half->parts == 0) {
        ucx_half_free(half->ucx, half);
    }
}

static ucs_status_t grant_send(struct ucx_link *link, struct ucx_half *half, uint64_t answer)
{
    half->ucx = link->ucx;
    half->note.name =
        (struct ucx_segment){.session = link->remote_session, .number = (uint32_t)half->key.number};
    half->note.bytes = answer;
    return note_send(link, half, UCX_GRANT_ID, grant_sent);
}

static ferry_status_t stream_fetch(struct ucx_link *link, struct ucx_half *half)
{
    if (!half->offered) {
        return ucx_am_fetch(link, half);
    }
    ucs_status_t status = grant_send(link, half, GRANTED);
    return status == UCS_OK ? FERRY_PENDING : ucx_raise(status, "granting a segment");
}

static void stream_drop(struct ucx *ucx, struct ucx_link *link, struct ucx_half *half)
{
    if (!half->offered) {
        ucx_am.drop(ucx, link, half);
        return;
    }
    half->over = true;
    if (link == NULL || grant_send(link, half, DECLINED) != UCS_OK || half->parts == 0) {
        ucx_half_free(ucx, half);
    }
}

static ucs_status_t offer_arrived(void *argument, const void *header, size_t header_bytes,
                                  void *data, size_t bytes, const ucp_am_recv_param_t *param)
{
    struct ucx_frame offer;
    (void)data;
    (void)bytes;
    (void)param;
    if (note_read(argument, header, header_bytes, &offer)) {
        ucx_match_arrived(argument, offer.name, NULL, offer.bytes, true);
    }
    return UCS_OK;
}

/* ---- the receiver: frames ---- */

static void reader_fail(struct ucx_link *link, const char *text)
{
    ucx_link_fail(link, FERRY_ERR_PROTOCOL, text);
}

/* The header's word for what comes next. False: it makes no sense, and nothing after it would. */
static bool header_take(struct ucx_link *link)
{
    struct ucx_reader *reader = &link->reader;
    const struct ucx_frame *frame = &reader->frame;
    struct ucx_half *half = ucx_half_find(link->ucx, frame->name, false);
    if (frame->bytes == 0 || frame->bytes > FRAME_BYTES) {
        reader_fail(link, "the peer sent a frame of a size that makes no sense");
        return false;
    }
    if (half == NULL || !half->fetching) {
        if (ucx_link_find(link->ucx, frame->name.session) != NULL) {
            reader_fail(link, "the peer sent a frame of a segment that was not granted");
            return false;
        }
        half = NULL; /* of a session that is over */
    } else if (half->in_frame || frame->bytes > half->bytes - half->moved) {
        reader_fail(link, "the peer sent more frames of a segment than it has bytes");
        return false;
    } else {
        half->in_frame = true;
    }
    reader->half = half;
    reader->in_frame = true;
    return true;
}

static void frame_take(struct ucx_link *link)
{
    struct ucx_reader *reader = &link->reader;
    struct ucx_half *half = reader->half;
    reader->in_frame = false;
    reader->half = NULL;
    if (half != NULL) {
        half->in_frame = false;
        half->moved += reader->frame.bytes;
        if (half->moved == half->bytes) {
            ucx_match_fetched(half, UCS_OK);
        }
    }
}

static bool reader_take(struct ucx_link *link)
{
    link->ucx->happened++;
    if (!link->reader.in_frame) {
        return header_take(link);
    }
    frame_take(link);
    return true;
}

/* The endpoint failed or is being closed. */
static void reader_end(struct ucx_link *link, ucs_status_t status)
{
    struct ucx_half *half = link->reader.half;
    link->reader.half = NULL;
    if (half != NULL) {
        half->in_frame = false;
        ucx_match_fetched(half, status);
    }
}

static void read_done(void *request, ucs_status_t status, size_t bytes, void *argument);

static ucs_status_ptr_t read_post(struct ucx_link *link)
{
    struct ucx_reader *reader = &link->reader;
    ucp_request_param_t params = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
        .flags = UCP_STREAM_RECV_FLAG_WAITALL,
        .cb.recv_stream = read_done,
        .user_data = link,
    };
    void *data = &reader->frame;
    size_t bytes = sizeof(reader->frame);
    if (reader->in_frame) {
        bytes = reader->frame.bytes;
        data = reader->half == NULL ? link->ucx->sink
                                    : (char *)reader->half->memory.data + reader->half->moved;
    }
    ucx_memory_set(&params, UCS_MEMORY_TYPE_HOST, NULL);
    return ucp_stream_recv_nbx(link->endpoint, data, bytes, &reader->length, &params);
}

/* Reads until UCX has nothing more here, and leaves it a receive for what comes. */
static void read_on(struct ucx_link *link)
{
    for (;;) {
        ucs_status_ptr_t request = read_post(link);
        if (UCS_PTR_IS_PTR(request)) {
            link->reader.posted = true;
            return;
        }
        if (UCS_PTR_IS_ERR(request)) {
            reader_end(link, UCS_PTR_STATUS(request));
            ucx_link_fail(link, ucx_status(UCS_PTR_STATUS(request)),
                          ucs_status_string(UCS_PTR_STATUS(request)));
            return;
        }
        if (!reader_take(link)) {
            return;
        }
    }
}

static void read_done(void *request, ucs_status_t status, size_t bytes, void *argument)
{
    struct ucx_link *link = argument;
    (void)bytes;
    ucp_request_free(request);
    link->reader.posted = false;
    if (status != UCS_OK) {
        reader_end(link, status);
    } else if (reader_take(link) && !link->disconnected) {
        read_on(link);
    }
}

/* ---- links and instances ---- */

static void stream_withdraw(struct ucx_link *link)
{
    struct ucx *ucx = link->ucx;
    struct ucx_half *half = ucx_half_next(ucx, link->local_session, NULL), *next;
    while (half != NULL) {
        next = ucx_half_next(ucx, link->local_session, half);
        if (half->operation != NULL && ucx_half_sent(half) && !half->over) {
            if (half->fetching) {
                DL_DELETE(link->sending, half);
            }
            send_over(half, UCS_ERR_CANCELED);
        } else if (half->operation != NULL && half->fetching && !half->in_frame &&
                   !ucx_half_sent(half)) {
            ucx_match_fetched(half, UCS_ERR_CANCELED);
        }
        half = next;
    }
    ucx_match_withdraw(link);
}

static void stream_close(struct ucx *ucx)
{
    ucx_halves_close(ucx);
    free(ucx->sink);
}

static ferry_status_t stream_open(struct ucx *ucx)
{
    ferry_status_t status = ucx_am_listen(ucx);
    ucx->sink = malloc(FRAME_BYTES);
    if (status == FERRY_OK && ucx->sink == NULL) {
        status = error_raise(FERRY_ERR_NO_MEMORY, "no memory for a sink of %zu bytes", FRAME_BYTES);
    }
    if (status == FERRY_OK) {
        status = ucx_listen(ucx, UCX_OFFER_ID, 0, offer_arrived);
    }
    return status == FERRY_OK ? ucx_listen(ucx, UCX_GRANT_ID, 0, grant_arrived) : status;
}

const struct ucx_protocol ucx_stream = {
    .name = "stream",
    .features = UCP_FEATURE_STREAM,
    .devices = false, /* UCX moves device memory over streams at a fiftieth of the wire's rate */
    .open = stream_open,
    .close = stream_close,
    .send = stream_send,
    .receive = ucx_match_receive,
    .decline = ucx_match_decline,
    .withdraw = stream_withdraw,
    .drain = ucx_match_drain,
    .drain_all = ucx_match_drain_all,
    .begin = read_on,
    .fetch = stream_fetch,
    .drop = stream_drop,
};
