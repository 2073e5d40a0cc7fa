/* An example of a transport outside Ferry's tree: agents of one machine, over Unix sockets. It
 * knows Ferry's public headers only and passes tests/contract.
 *
 * An instance listens on a name that the kernel makes up: its address. Each end of a link dials the
 * other and writes to that socket alone; its first frame names the session, so that the peer knows
 * whose it is. What comes before the peer has made its end stays in the socket.
 *
 * A socket keeps frames apart (SOCK_SEQPACKET), so that a frame is written wholly or not at all.
 * Segments move when the receiver asks: a receive sends an ASK with its number and size, a decline
 * a DROP, and only then does the sender write DATA, which the receiver reads straight to where it
 * belongs. So receives may be posted in any order and no message waits behind a segment.
 *
 * A posted operation lies in one list of its link: in `outgoing` while it has a frame to write, in
 * `sends` or `receives` while it waits for the peer. */
#include "unix_transport.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#define FRAME_BYTES 65536u /* of DATA in one frame */
#define EVENTS 32

enum kind { FRAME_HELLO, FRAME_MESSAGE, FRAME_ASK, FRAME_DROP, FRAME_DATA };

struct frame {
    uint32_t kind;
    uint32_t number; /* of the session (HELLO) or the segment */
    uint64_t bytes; /* of the whole segment (ASK, DROP, DATA); one of another size has no payload */
};

/* What an operation's reserved words hold while it is posted. */
struct post {
    ferry_operation_t *next;
    char *data;
    size_t bytes, moved;
    struct unix_link *link;
    uint32_t segment;
    uint16_t kind; /* of the frame that it writes */
    int16_t status;
};
_Static_assert(sizeof(struct post) <= sizeof(((ferry_operation_t *)NULL)->reserved), "no room");

/* An ASK or a DROP that came before its send. */
struct ask {
    struct ask *next;
    struct frame frame;
};

/* What an epoll event leads to. */
struct source {
    int fd;
    struct unix_link *link; /* whose frames come here; NULL: the listener, or nobody's yet */
    struct source *next;    /* instance->strangers */
    uint32_t session;
    bool named; /* the HELLO was read */
};

struct unix_link {
    ferry_link_t base;
    struct unix_transport *transport; /* borrowed */
    struct unix_link *next;           /* transport->links */
    uint32_t session;
    struct source out; /* connected to the peer */
    struct source *in; /* owned; NULL until the peer has dialled */
    bool blocked;      /* `out` was full: its epoll event says when to go on */
    bool down;         /* said so in link_down */
    ferry_operation_t *outgoing, *sends, *receives;
    struct ask *asks; /* owned */
};

struct unix_transport {
    ferry_transport_t base;
    ferry_transport_events_t events;
    struct sockaddr_un address;
    socklen_t address_bytes;
    int epoll;
    struct source listener;
    struct source *strangers; /* owned: dialled, and no link of their session is here */
    struct unix_link *links;  /* owned by whoever connected them */
    size_t message_bytes, pending;
    char *message; /* owned: where one is read to */
};

static struct unix_transport *transport_of(const ferry_transport_t *base)
{
    return (struct unix_transport *)(uintptr_t)base;
}

static struct unix_link *link_of(ferry_link_t *base)
{
    return (struct unix_link *)base;
}

static struct post *post_of(ferry_operation_t *operation)
{
    return (struct post *)(void *)operation->reserved;
}

static ferry_status_t raise_errno(ferry_status_t status, const char *what)
{
    return ferry_transport_raise(status, "unix: %s: %s", what, strerror(errno));
}

/* ---- posted operations ---- */

static void list_append(ferry_operation_t **list, ferry_operation_t *operation)
{
    while (*list != NULL) {
        list = &post_of(*list)->next;
    }
    post_of(operation)->next = NULL;
    *list = operation;
}

static ferry_operation_t *list_take(ferry_operation_t **list, uint32_t segment)
{
    for (; *list != NULL; list = &post_of(*list)->next) {
        ferry_operation_t *operation = *list;
        if (post_of(operation)->segment == segment) {
            *list = post_of(operation)->next;
            return operation;
        }
    }
    return NULL;
}

static ferry_operation_t *list_find(ferry_operation_t *list, uint32_t segment)
{
    while (list != NULL && post_of(list)->segment != segment) {
        list = post_of(list)->next;
    }
    return list;
}

static void operation_finish(ferry_operation_t *operation, ferry_status_t status)
{
    post_of(operation)->link->transport->pending--;
    operation->complete(operation, status, status == FERRY_OK ? post_of(operation)->bytes : 0);
}

/* Completes all of a list; what a completion posts goes to an empty one. */
static unsigned list_finish(ferry_operation_t **list, ferry_status_t status)
{
    unsigned count = 0;
    ferry_operation_t *operation = *list;
    *list = NULL;
    while (operation != NULL) {
        ferry_operation_t *next = post_of(operation)->next;
        operation_finish(operation, status);
        operation = next;
        count++;
    }
    return count;
}

/* ---- writing ---- */

/* FERRY_PENDING: the socket is full. */
static ferry_status_t frame_write(struct unix_link *link, struct frame frame, const void *data,
                                  size_t bytes)
{
    struct iovec parts[] = {{&frame, sizeof(frame)}, {(void *)(uintptr_t)data, bytes}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = bytes > 0 ? 2 : 1};
    if (sendmsg(link->out.fd, &message, MSG_NOSIGNAL) >= 0) {
        return FERRY_OK;
    }
    return errno == EAGAIN ? FERRY_PENDING : raise_errno(FERRY_ERR_PEER_LOST, "writing");
}

/* The next frame of an operation. FERRY_OK: it was the last. */
static ferry_status_t operation_write(struct unix_link *link, ferry_operation_t *operation)
{
    struct post *post = post_of(operation);
    struct frame frame = {post->kind, post->segment, post->bytes};
    size_t bytes = post->kind == FRAME_MESSAGE ? post->bytes : 0;
    if (post->kind == FRAME_DATA && post->status == FERRY_OK) {
        bytes = post->bytes - post->moved < FRAME_BYTES ? post->bytes - post->moved : FRAME_BYTES;
    }
    ferry_status_t status = frame_write(link, frame, post->data + post->moved, bytes);
    if (status == FERRY_OK) {
        post->moved += bytes;
    }
    return status;
}

static bool operation_is_written(const struct post *post)
{
    return post->kind != FRAME_DATA || post->status != FERRY_OK || post->moved == post->bytes;
}

static void link_block(struct unix_link *link, bool blocked)
{
    struct epoll_event event = {.events = blocked ? EPOLLOUT : 0, .data.ptr = &link->out};
    link->blocked = blocked;
    epoll_ctl(link->transport->epoll, EPOLL_CTL_MOD, link->out.fd, &event);
}

static void link_fail(struct unix_link *link, const char *text)
{
    struct unix_transport *transport = link->transport;
    if (!link->down) {
        link->down = true;
        transport->events.link_down(transport->events.context, &link->base, FERRY_ERR_PEER_LOST,
                                    text);
    }
}

/* Writes until the socket is full; segments take turns, frame by frame. */
static unsigned link_write(struct unix_link *link)
{
    unsigned count = 0;
    while (link->outgoing != NULL && !link->down) {
        ferry_operation_t *operation = link->outgoing;
        struct post *post = post_of(operation);
        ferry_status_t status = operation_write(link, operation);
        if (status == FERRY_PENDING) {
            break;
        }
        if (status != FERRY_OK) {
            link_fail(link, "the other end is closed");
            break;
        }
        link->outgoing = post->next;
        count++;
        if (!operation_is_written(post)) {
            list_append(&link->outgoing, operation);
        } else if (post->kind == FRAME_ASK) {
            list_append(&link->receives, operation);
        } else {
            operation_finish(operation, FERRY_OK);
        }
    }
    if (!link->down && link->blocked != (link->outgoing != NULL)) {
        link_block(link, link->outgoing != NULL);
    }
    return count;
}

/* ---- reading ---- */

/* The peer waits for that segment, or has no use for it. */
static void send_answer(ferry_operation_t *operation, const struct frame *frame)
{
    struct post *post = post_of(operation);
    struct unix_link *link = post->link;
    if (frame->kind == FRAME_DROP) {
        operation_finish(operation, FERRY_OK);
        return;
    }
    post->kind = FRAME_DATA;
    post->status = frame->bytes == post->bytes ? FERRY_OK : FERRY_ERR_PROTOCOL;
    list_append(&link->outgoing, operation);
}

static void link_on_ask(struct unix_link *link, const struct frame *frame)
{
    ferry_operation_t *operation = list_take(&link->sends, frame->number);
    if (operation != NULL) {
        send_answer(operation, frame);
        return;
    }
    struct ask *ask = malloc(sizeof(*ask));
    if (ask == NULL) {
        link_fail(link, "no memory for what the peer asks");
        return;
    }
    *ask = (struct ask){link->asks, *frame};
    link->asks = ask;
}

static void link_on_data(struct unix_link *link, const struct frame *frame, size_t bytes)
{
    ferry_operation_t *operation = list_find(link->receives, frame->number);
    if (operation == NULL) {
        return;
    }
    struct post *post = post_of(operation);
    post->moved += bytes;
    if (frame->bytes != post->bytes || post->moved == post->bytes) {
        ferry_status_t status = frame->bytes == post->bytes ? FERRY_OK : FERRY_ERR_PROTOCOL;
        if (status != FERRY_OK) {
            ferry_transport_raise(status, "unix: %zu bytes are expected and the peer sends %llu",
                                  post->bytes, (unsigned long long)frame->bytes);
        }
        list_take(&link->receives, frame->number);
        operation_finish(operation, status);
    }
}

static void link_on_frame(struct unix_link *link, const struct frame *frame, size_t bytes)
{
    struct unix_transport *transport = link->transport;
    switch ((enum kind)frame->kind) {
    case FRAME_MESSAGE:
        transport->events.message(transport->events.context, &link->base, transport->message,
                                  bytes);
        break;
    case FRAME_ASK:
    case FRAME_DROP:
        link_on_ask(link, frame);
        break;
    case FRAME_DATA:
        link_on_data(link, frame, bytes);
        break;
    case FRAME_HELLO:
        break;
    }
}

/* Where a frame's payload belongs. */
static struct iovec link_target(struct unix_link *link, const struct frame *frame)
{
    if (frame->kind == FRAME_MESSAGE) {
        return (struct iovec){link->transport->message, link->transport->message_bytes};
    }
    ferry_operation_t *operation =
        frame->kind == FRAME_DATA ? list_find(link->receives, frame->number) : NULL;
    if (operation == NULL || frame->bytes != post_of(operation)->bytes) {
        return (struct iovec){NULL, 0};
    }
    struct post *post = post_of(operation);
    return (struct iovec){post->data + post->moved, post->bytes - post->moved};
}

/* Reads one frame: its head first, to know where the rest goes. */
static unsigned link_read(struct unix_link *link)
{
    struct frame frame;
    ssize_t got = recv(link->in->fd, &frame, sizeof(frame), MSG_PEEK);
    if (got < 0 && errno == EAGAIN) {
        return 0;
    }
    if (got != sizeof(frame)) {
        link_fail(link, "the other end is closed");
        return 1;
    }
    struct iovec parts[] = {{&frame, sizeof(frame)}, link_target(link, &frame)};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    got = recvmsg(link->in->fd, &message, 0);
    link_on_frame(link, &frame, (size_t)got - sizeof(frame));
    return 1;
}

/* ---- who dials ---- */

static void source_close(struct source *source)
{
    if (source != NULL) {
        close(source->fd); /* which takes it out of the epoll set */
        free(source);
    }
}

static int source_watch(struct unix_transport *transport, struct source *source, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = source};
    return epoll_ctl(transport->epoll, EPOLL_CTL_ADD, source->fd, &event);
}

static struct unix_link *transport_find_link(struct unix_transport *transport, uint32_t session)
{
    struct unix_link *link = transport->links;
    while (link != NULL && link->session != session) {
        link = link->next;
    }
    return link;
}

static void transport_accept(struct unix_transport *transport)
{
    int fd = accept4(transport->listener.fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    struct source *source = fd < 0 ? NULL : calloc(1, sizeof(*source));
    if (source == NULL) {
        if (fd >= 0) {
            close(fd);
        }
        return;
    }
    source->fd = fd;
    source->next = transport->strangers;
    transport->strangers = source;
    source_watch(transport, source, EPOLLIN);
}

static void stranger_remove(struct unix_transport *transport, struct source *source)
{
    struct source **at = &transport->strangers;
    while (*at != source) {
        at = &(*at)->next;
    }
    *at = source->next;
}

/* Its first frame says whose it is; if that link is not there yet, connect() will take it. */
static void stranger_read(struct unix_transport *transport, struct source *source)
{
    struct frame frame;
    if (recv(source->fd, &frame, sizeof(frame), 0) != sizeof(frame) || frame.kind != FRAME_HELLO) {
        stranger_remove(transport, source);
        source_close(source);
        return;
    }
    struct unix_link *link = transport_find_link(transport, frame.number);
    source->session = frame.number;
    source->named = true;
    if (link != NULL && link->in == NULL) {
        stranger_remove(transport, source);
        source->link = link;
        link->in = source;
    } else {
        epoll_ctl(transport->epoll, EPOLL_CTL_DEL, source->fd, NULL);
    }
}

/* A stranger that dialled before this link was made. */
static void link_claim_stranger(struct unix_link *link)
{
    struct unix_transport *transport = link->transport;
    for (struct source *source = transport->strangers; source != NULL; source = source->next) {
        if (source->named && source->session == link->session) {
            stranger_remove(transport, source);
            source->link = link;
            link->in = source;
            source_watch(transport, source, EPOLLIN);
            return;
        }
    }
}

/* ---- instances ---- */

static ferry_status_t transport_listen(struct unix_transport *transport)
{
    struct sockaddr_un any = {.sun_family = AF_UNIX};
    transport->address_bytes = sizeof(transport->address);
    transport->epoll = epoll_create1(EPOLL_CLOEXEC);
    transport->listener.fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (transport->epoll < 0 || transport->listener.fd < 0 ||
        bind(transport->listener.fd, (struct sockaddr *)&any, sizeof(any.sun_family)) != 0 ||
        listen(transport->listener.fd, INT_MAX) != 0 ||
        getsockname(transport->listener.fd, (struct sockaddr *)&transport->address,
                    &transport->address_bytes) != 0 ||
        source_watch(transport, &transport->listener, EPOLLIN) != 0) {
        return raise_errno(FERRY_ERR_TRANSPORT, "listening");
    }
    return FERRY_OK;
}

static void unix_close(ferry_transport_t *base)
{
    if (base == NULL) {
        return;
    }
    struct unix_transport *transport = transport_of(base);
    while (transport->strangers != NULL) {
        struct source *source = transport->strangers;
        transport->strangers = source->next;
        source_close(source);
    }
    if (transport->listener.fd >= 0) {
        close(transport->listener.fd);
    }
    if (transport->epoll >= 0) {
        close(transport->epoll);
    }
    free(transport->message);
    free(transport);
}

static ferry_status_t unix_open(const ferry_transport_options_t *options,
                                ferry_transport_t **transport_out)
{
    struct unix_transport *transport = calloc(1, sizeof(*transport));
    if (transport == NULL) {
        return ferry_transport_raise(FERRY_ERR_NO_MEMORY, "unix: no memory for an instance");
    }
    transport->epoll = transport->listener.fd = -1;
    transport->events = options->events;
    transport->message_bytes = options->message_bytes;
    transport->message = malloc(options->message_bytes);
    ferry_status_t status =
        transport->message == NULL
            ? ferry_transport_raise(FERRY_ERR_NO_MEMORY, "unix: no memory for messages")
            : transport_listen(transport);
    if (status != FERRY_OK) {
        unix_close(&transport->base);
        return status;
    }
    *transport_out = &transport->base;
    return FERRY_OK;
}

static uint32_t unix_capabilities(const ferry_transport_t *base)
{
    (void)base;
    return FERRY_TRANSPORT_HOST | FERRY_TRANSPORT_ORDERED | FERRY_TRANSPORT_DETECTS |
           FERRY_TRANSPORT_SAFE_ABORT;
}

static const char *unix_identity(const ferry_transport_t *base)
{
    (void)base;
    return "unix 1";
}

static void unix_address(const ferry_transport_t *base, const void **address_out, size_t *bytes_out)
{
    *address_out = &transport_of(base)->address;
    *bytes_out = transport_of(base)->address_bytes;
}

/* ---- links ---- */

static ferry_status_t link_dial(struct unix_link *link, const void *address, size_t bytes,
                                uint32_t remote_session)
{
    link->out.link = link;
    link->out.fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (link->out.fd < 0 || connect(link->out.fd, address, (socklen_t)bytes) != 0) {
        return raise_errno(FERRY_ERR_UNREACHABLE, "dialling");
    }
    if (source_watch(link->transport, &link->out, 0) != 0) {
        return raise_errno(FERRY_ERR_TRANSPORT, "watching a socket");
    }
    return frame_write(link, (struct frame){FRAME_HELLO, remote_session, 0}, NULL, 0);
}

static void link_free(struct unix_link *link)
{
    while (link->asks != NULL) {
        struct ask *ask = link->asks;
        link->asks = ask->next;
        free(ask);
    }
    if (link->out.fd >= 0) {
        close(link->out.fd);
    }
    source_close(link->in);
    free(link);
}

static ferry_status_t unix_connect(ferry_transport_t *base, const void *address, size_t bytes,
                                   uint32_t local_session, uint32_t remote_session, void *context,
                                   ferry_link_t **link_out)
{
    struct unix_transport *transport = transport_of(base);
    if (bytes > sizeof(struct sockaddr_un) || bytes < sizeof(sa_family_t) ||
        transport_find_link(transport, local_session) != NULL) {
        return ferry_transport_raise(FERRY_ERR_INVALID_ARGUMENT,
                                     "unix: no address, or session %u is in use", local_session);
    }
    struct unix_link *link = calloc(1, sizeof(*link));
    if (link == NULL) {
        return ferry_transport_raise(FERRY_ERR_NO_MEMORY, "unix: no memory for a link");
    }
    link->base = (ferry_link_t){.transport = base, .context = context};
    link->transport = transport;
    link->session = local_session;
    ferry_status_t status = link_dial(link, address, bytes, remote_session);
    if (status != FERRY_OK) {
        link_free(link);
        return status;
    }
    link->next = transport->links;
    transport->links = link;
    link_claim_stranger(link);
    *link_out = &link->base;
    return FERRY_OK;
}

static void unix_disconnect(ferry_link_t *base)
{
    struct unix_link *link = link_of(base);
    struct unix_link **at = &link->transport->links;
    while (*at != link) {
        at = &(*at)->next;
    }
    *at = link->next;
    ferry_status_t status = link->down ? FERRY_ERR_PEER_LOST : FERRY_ERR_CANCELLED;
    link->down = true; /* a completion may try to post */
    ferry_transport_raise(status, "unix: the link was closed");
    list_finish(&link->outgoing, status);
    list_finish(&link->sends, status);
    list_finish(&link->receives, status);
    link_free(link);
}

static void unix_describe(const ferry_link_t *base, char *text, size_t capacity)
{
    (void)base;
    if (capacity > 0) {
        snprintf(text, capacity, "seqpacket");
    }
}

/* ---- posting ---- */

static ferry_status_t link_check(const struct unix_link *link, const ferry_memory_t *memory)
{
    if (memory != NULL && memory->device.device_type != kDLCPU &&
        memory->device.device_type != kDLCUDAHost) {
        return ferry_transport_raise(FERRY_ERR_UNSUPPORTED, "unix: moves host memory only");
    }
    return link->down ? ferry_transport_raise(FERRY_ERR_PEER_LOST, "unix: the other end is closed")
                      : FERRY_OK;
}

static void link_post(struct unix_link *link, ferry_operation_t *operation, enum kind kind,
                      uint32_t segment, void *data, size_t bytes)
{
    *post_of(operation) = (struct post){
        .link = link, .data = data, .bytes = bytes, .segment = segment, .kind = (uint16_t)kind};
    link->transport->pending++;
}

/* Queues what has a frame to write; progress() writes it. */
static ferry_status_t link_queue(struct unix_link *link, ferry_operation_t *operation)
{
    list_append(&link->outgoing, operation);
    return FERRY_PENDING;
}

static ferry_status_t unix_send_message(ferry_link_t *base, const void *data, size_t bytes,
                                        ferry_operation_t *operation)
{
    struct unix_link *link = link_of(base);
    ferry_status_t status = link_check(link, NULL);
    if (status == FERRY_OK && bytes > link->transport->message_bytes) {
        status = ferry_transport_raise(FERRY_ERR_LIMIT, "unix: a message of %zu bytes", bytes);
    }
    if (status != FERRY_OK) {
        return status;
    }
    if (link->outgoing == NULL) { /* nobody to overtake */
        status = frame_write(link, (struct frame){FRAME_MESSAGE, 0, bytes}, data, bytes);
        if (status != FERRY_PENDING) {
            return status;
        }
    }
    link_post(link, operation, FRAME_MESSAGE, 0, (void *)(uintptr_t)data, bytes);
    return link_queue(link, operation);
}

static ferry_status_t unix_send(ferry_link_t *base, uint32_t segment, const ferry_memory_t *memory,
                                ferry_operation_t *operation)
{
    struct unix_link *link = link_of(base);
    ferry_status_t status = link_check(link, memory);
    if (status != FERRY_OK) {
        return status;
    }
    struct ask **at = &link->asks;
    while (*at != NULL && (*at)->frame.number != segment) {
        at = &(*at)->next;
    }
    struct ask *ask = *at;
    if (ask != NULL && ask->frame.kind == FRAME_DROP) {
        *at = ask->next;
        free(ask);
        return FERRY_OK;
    }
    link_post(link, operation, FRAME_DATA, segment, memory->data, memory->bytes);
    if (ask == NULL) {
        list_append(&link->sends, operation);
        return FERRY_PENDING;
    }
    *at = ask->next;
    send_answer(operation, &ask->frame);
    free(ask);
    return FERRY_PENDING;
}

static ferry_status_t unix_receive(ferry_link_t *base, uint32_t segment,
                                   const ferry_memory_t *memory, ferry_operation_t *operation)
{
    struct unix_link *link = link_of(base);
    ferry_status_t status = link_check(link, memory);
    if (status != FERRY_OK) {
        return status;
    }
    link_post(link, operation, FRAME_ASK, segment, memory->data, memory->bytes);
    return link_queue(link, operation);
}

static ferry_status_t unix_decline(ferry_link_t *base, uint32_t segment, size_t bytes,
                                   ferry_operation_t *operation)
{
    struct unix_link *link = link_of(base);
    ferry_status_t status = link_check(link, NULL);
    if (status != FERRY_OK) {
        return status;
    }
    link_post(link, operation, FRAME_DROP, segment, NULL, bytes);
    return link_queue(link, operation);
}

/* ---- progress ---- */

static unsigned source_ready(struct unix_transport *transport, struct source *source,
                             uint32_t events)
{
    struct unix_link *link = source->link;
    if (source == &transport->listener) {
        transport_accept(transport);
    } else if (link == NULL) {
        stranger_read(transport, source);
    } else if (link->down) {
        epoll_ctl(transport->epoll, EPOLL_CTL_DEL, source->fd, NULL);
    } else if (source == link->in) {
        return link_read(link);
    } else if ((events & EPOLLHUP) != 0 && link->in == NULL) {
        link_fail(link, "the other end is closed"); /* and never dialled */
    } else {
        return 0; /* room to write */
    }
    return 1;
}

static unsigned unix_progress(ferry_transport_t *base)
{
    struct unix_transport *transport = transport_of(base);
    struct epoll_event events[EVENTS];
    unsigned happened = 0;
    int count = epoll_wait(transport->epoll, events, EVENTS, 0);
    for (int i = 0; i < count; i++) {
        happened += source_ready(transport, events[i].data.ptr, events[i].events);
    }
    for (struct unix_link *link = transport->links; link != NULL; link = link->next) {
        happened += link_write(link);
    }
    return happened;
}

/* The epoll set says all but that there are frames which nobody has tried to write yet. */
static ferry_status_t unix_arm(ferry_transport_t *base)
{
    for (const struct unix_link *link = transport_of(base)->links; link != NULL;
         link = link->next) {
        if (link->outgoing != NULL && !link->blocked && !link->down) {
            return FERRY_PENDING;
        }
    }
    return FERRY_OK;
}

static int unix_wait_fd(const ferry_transport_t *base)
{
    return transport_of(base)->epoll;
}

static size_t unix_pending(const ferry_transport_t *base)
{
    return transport_of(base)->pending;
}

const ferry_transport_ops_t unix_transport_ops = {
    .struct_bytes = sizeof(ferry_transport_ops_t),
    .abi = FERRY_TRANSPORT_ABI,
    .name = "unix",
    .open = unix_open,
    .close = unix_close,
    .capabilities = unix_capabilities,
    .identity = unix_identity,
    .address = unix_address,
    .connect = unix_connect,
    .disconnect = unix_disconnect,
    .send_message = unix_send_message,
    .send = unix_send,
    .receive = unix_receive,
    .decline = unix_decline,
    .progress = unix_progress,
    .arm = unix_arm,
    .wait_fd = unix_wait_fd,
    .pending = unix_pending,
    .describe = unix_describe,
};
