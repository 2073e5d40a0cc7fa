/* Channels inside the process. A frame lies with the end that it is for until that one's port is
 * served; a port keeps a list of its ends that have something, so that the rest cost nothing.
 *
 * One mutex guards all of it: it is taken for moments, and only while links are made and ended. It
 * is held in no callback. */
#include "core/local_channel.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <uthash.h>
#include <utlist.h>

#define BURST 256 /* events handed out in one go, so that other descriptors have their turn */

struct frame {
    struct frame *next;
    size_t bytes;
    uint64_t data[];
};

struct local_channel {
    struct local_port *port;           /* borrowed */
    struct channel_events events;      /* frame NULL: not taken yet */
    struct local_channel *opposite;    /* borrowed; NULL: it has left */
    struct frame *frames, **tail;      /* owned; what came in */
    size_t frame_bytes;                /* of these */
    bool accepted;                     /* its owner knows of it */
    bool told;                         /* of the other end's leaving */
    bool ready;                        /* in port->ready */
    struct local_channel *prev, *next; /* port->ready */
};

struct local_port {
    uint8_t id[LOCAL_PORT_ID_BYTES];
    struct poller *poller; /* borrowed */
    struct local_port_events events;
    struct poller_source signal;         /* its fd is owned */
    struct local_channel *ready;         /* with something to hand out, the longest waiting first */
    const struct local_channel *serving; /* whose event runs; NULL: none, or it was destroyed */
    bool dispatching;
    bool signalled;
    UT_hash_handle hh;
};

static struct {
    pthread_mutex_t mutex;
    struct local_port *ports; /* hash by id; borrowed */
} process = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* ---- with the mutex ---- */

static void port_signal(struct local_port *port)
{
    if (!port->signalled) {
        uint64_t one = 1;
        ssize_t put = write(port->signal.fd, &one, sizeof one);
        (void)put; /* full means that it is readable already */
        port->signalled = true;
    }
}

static bool has_news(const struct local_channel *channel)
{
    return !channel->accepted || channel->frames != NULL ||
           (channel->opposite == NULL && !channel->told);
}

static void channel_ready(struct local_channel *channel)
{
    if (!channel->ready) {
        channel->ready = true;
        DL_APPEND(channel->port->ready, channel);
        port_signal(channel->port);
    }
}

static void channel_unready(struct local_channel *channel)
{
    if (channel->ready) {
        channel->ready = false;
        DL_DELETE(channel->port->ready, channel);
    }
}

/* ---- forked children ---- */

static void fork_prepare(void)
{
    pthread_mutex_lock(&process.mutex);
}

static void fork_parent(void)
{
    pthread_mutex_unlock(&process.mutex);
}

/* The parent's ports do not exist for the child. */
static void fork_child(void)
{
    process.ports = NULL;
    pthread_mutex_init(&process.mutex, NULL);
}

static void fork_watch(void)
{
    pthread_atfork(fork_prepare, fork_parent, fork_child);
}

/* ---- channels ---- */

static struct local_channel *channel_new(struct local_port *port)
{
    struct local_channel *channel = calloc(1, sizeof *channel);
    if (channel == NULL) {
        error_raise(FERRY_ERR_NO_MEMORY, "no memory for a connection within the process");
        return NULL;
    }
    channel->port = port;
    channel->tail = &channel->frames;
    return channel;
}

ferry_status_t local_channel_dial(struct local_port *port, const uint8_t id[LOCAL_PORT_ID_BYTES],
                                  const struct channel_events *events,
                                  struct local_channel **channel_out)
{
    struct local_channel *here = channel_new(port);
    struct local_channel *there = here == NULL ? NULL : channel_new(NULL);
    if (there == NULL) {
        free(here);
        return FERRY_ERR_NO_MEMORY;
    }
    here->accepted = true;
    here->events = *events;
    here->opposite = there;
    there->opposite = here;
    pthread_mutex_lock(&process.mutex);
    HASH_FIND(hh, process.ports, id, LOCAL_PORT_ID_BYTES, there->port);
    bool found = there->port != NULL;
    if (found) {
        channel_ready(there);
    }
    pthread_mutex_unlock(&process.mutex);
    if (!found) {
        free(there);
        free(here);
        return error_raise(FERRY_ERR_UNREACHABLE, "that agent of this process is gone");
    }
    *channel_out = here;
    return FERRY_OK;
}

void local_channel_take(struct local_channel *channel, const struct channel_events *events)
{
    channel->events = *events;
}

ferry_status_t local_channel_send(struct local_channel *channel, const void *data, size_t bytes)
{
    if (bytes > CHANNEL_FRAME_BYTES_MAX) {
        return error_raise(FERRY_ERR_LIMIT, "a frame of %zu bytes is over the bound of %d", bytes,
                           CHANNEL_FRAME_BYTES_MAX);
    }
    struct frame *frame = malloc(sizeof *frame + bytes);
    if (frame == NULL) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory for a frame of %zu bytes", bytes);
    }
    frame->next = NULL;
    frame->bytes = bytes;
    if (bytes > 0) {
        memcpy(frame->data, data, bytes);
    }
    pthread_mutex_lock(&process.mutex);
    struct local_channel *other = channel->opposite;
    size_t waiting = other == NULL ? 0 : other->frame_bytes;
    bool full = waiting + bytes > CHANNEL_QUEUE_BYTES_MAX;
    bool kept = other != NULL && !full;
    if (kept) {
        *other->tail = frame;
        other->tail = &frame->next;
        other->frame_bytes += bytes;
        channel_ready(other);
    }
    pthread_mutex_unlock(&process.mutex);
    if (!kept) {
        free(frame);
    }
    return !full ? FERRY_OK
                 : error_raise(FERRY_ERR_LIMIT,
                               "the other end does not read: %zu bytes wait for it, the bound "
                               "is %d",
                               waiting, CHANNEL_QUEUE_BYTES_MAX);
}

void local_channel_destroy(struct local_channel *channel)
{
    if (channel == NULL) {
        return;
    }
    pthread_mutex_lock(&process.mutex);
    if (channel->opposite != NULL) {
        channel->opposite->opposite = NULL;
        channel_ready(channel->opposite);
    }
    channel_unready(channel);
    if (channel->port->serving == channel) {
        channel->port->serving = NULL;
    }
    pthread_mutex_unlock(&process.mutex);
    while (channel->frames != NULL) {
        struct frame *frame = channel->frames;
        channel->frames = frame->next;
        free(frame);
    }
    free(channel);
}

/* ---- serving ---- */

/* With the mutex: the frame that came first. */
static struct frame *frame_take(struct local_channel *channel)
{
    struct frame *frame = channel->frames;
    if (frame != NULL) {
        channel->frames = frame->next;
        channel->frame_bytes -= frame->bytes;
        if (channel->frames == NULL) {
            channel->tail = &channel->frames;
        }
    }
    return frame;
}

/* With the mutex, let go meanwhile: one event of a channel that has news. It may be gone after it. */
static void channel_serve(struct local_channel *channel)
{
    struct local_port *port = channel->port;
    channel_unready(channel);
    bool accepts = !channel->accepted;
    channel->accepted = true;
    struct frame *frame = accepts ? NULL : frame_take(channel);
    bool closes = !accepts && frame == NULL;
    channel->told = closes;
    port->serving = channel;
    pthread_mutex_unlock(&process.mutex);
    if (accepts) {
        port->events.accept(port->events.context, channel);
    } else if (frame != NULL) {
        channel->events.frame(channel->events.context, frame->data, frame->bytes);
    } else {
        struct error_record error;
        error_record_set(&error, FERRY_ERR_PEER_LOST, FERRY_NOT_RUN,
                         "the connection within the process was closed by the peer");
        channel->events.closed(channel->events.context, &error);
    }
    free(frame);
    pthread_mutex_lock(&process.mutex);
    if (port->serving == channel && has_news(channel)) {
        channel_ready(channel);
    }
    port->serving = NULL;
}

static void port_ready(void *context, uint32_t events)
{
    struct local_port *port = context;
    uint64_t count;
    (void)events;
    if (port->dispatching) {
        return; /* frames come one after another, not one inside another */
    }
    ssize_t got = read(port->signal.fd, &count, sizeof count);
    (void)got;
    port->dispatching = true;
    pthread_mutex_lock(&process.mutex);
    port->signalled = false;
    for (int i = 0; i < BURST && port->ready != NULL; i++) {
        channel_serve(port->ready);
    }
    if (port->ready != NULL) {
        port_signal(port);
    }
    pthread_mutex_unlock(&process.mutex);
    port->dispatching = false;
}

/* ---- ports ---- */

ferry_status_t local_port_open(struct poller *poller, const uint8_t id[LOCAL_PORT_ID_BYTES],
                               const struct local_port_events *events, struct local_port **port_out)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fork_watch);
    struct local_port *port = calloc(1, sizeof *port);
    if (port == NULL) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory for a port within the process");
    }
    memcpy(port->id, id, sizeof port->id);
    port->poller = poller;
    port->events = *events;
    port->signal = (struct poller_source){.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
                                          .events = EPOLLIN,
                                          .ready = port_ready,
                                          .context = port};
    ferry_status_t status = port->signal.fd < 0
                                ? error_raise_errno(errno, "cannot create an event descriptor")
                                : poller_add(poller, &port->signal);
    if (status != FERRY_OK) {
        if (port->signal.fd >= 0) {
            close(port->signal.fd);
        }
        free(port);
        return status;
    }
    pthread_mutex_lock(&process.mutex);
    HASH_ADD(hh, process.ports, id, sizeof port->id, port);
    pthread_mutex_unlock(&process.mutex);
    *port_out = port;
    return FERRY_OK;
}

void local_port_close(struct local_port *port)
{
    if (port == NULL) {
        return;
    }
    struct local_port *listed;
    pthread_mutex_lock(&process.mutex);
    HASH_FIND(hh, process.ports, port->id, sizeof port->id, listed);
    if (listed == port) { /* not in a child that was forked since */
        HASH_DEL(process.ports, port);
    }
    pthread_mutex_unlock(&process.mutex);
    while (port->ready != NULL) { /* nobody can connect any more: only those not accepted */
        local_channel_destroy(port->ready);
    }
    poller_remove(port->poller, &port->signal);
    close(port->signal.fd);
    free(port);
}
