/* Frames over a non-blocking socket. */
#include "core/channel.h"

#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/fork_guard.h"

#define HEADER_BYTES 4
#define READ_BYTES_FIRST 4096
#define KEPT_BYTES_MAX 16384 /* an idle channel keeps no larger buffer */
#define PEER_BYTES 300
#define CANDIDATES_MAX 8

/* An address that the dialled host resolves to; they are tried in turn. */
struct candidate {
    struct sockaddr_storage address;
    socklen_t bytes;
};

struct channel {
    struct poller *poller; /* borrowed */
    struct channel_events events;
    struct poller_source source; /* its fd is owned; -1 when closed */
    struct poller_timer outcome; /* brings a failure that dialling met at once */
    struct error_record failure; /* what it brings */
    char peer[PEER_BYTES];

    struct candidate *candidates; /* owned; dialling only */
    size_t candidate_count;
    size_t candidate_next;

    uint8_t *in; /* owned: the frame being read */
    size_t in_bytes;
    size_t in_capacity;
    uint8_t *out; /* owned: unsent bytes are out[out_begin .. out_end) */
    size_t out_begin;
    size_t out_end;
    size_t out_capacity;

    bool connected;
    bool closed;
    bool write_failed; /* nothing more can be sent; what the peer sent before may still be read */
    bool reading;      /* a frame's callback runs: a dispatch inside it must not read on */
    bool destroyed;
    unsigned depth; /* callbacks on the stack that will touch the channel again */
};

/* ---- life ---- */

static void channel_free(struct channel *channel)
{
    free(channel->candidates);
    free(channel->in);
    free(channel->out);
    free(channel);
}

static void channel_leave(struct channel *channel)
{
    channel->depth--;
    if (channel->depth == 0 && channel->destroyed) {
        channel_free(channel);
    }
}

static void fd_close(struct channel *channel)
{
    poller_remove(channel->poller, &channel->source);
    if (channel->source.fd >= 0) {
        fork_guard_remove(channel->source.fd);
        close(channel->source.fd);
        channel->source.fd = -1;
    }
}

void channel_destroy(struct channel *channel)
{
    if (channel == NULL || channel->destroyed) {
        return;
    }
    poller_timer_clear(channel->poller, &channel->outcome);
    fd_close(channel);
    channel->destroyed = true;
    channel->closed = true;
    if (channel->depth == 0) {
        channel_free(channel);
    }
}

/* The last event. The caller holds depth, so the channel outlives it. */
static void channel_close(struct channel *channel, const struct error_record *error)
{
    if (channel->closed) {
        return;
    }
    channel->closed = true;
    fd_close(channel);
    channel->events.closed(channel->events.context, error);
}

static void channel_ready(void *context, uint32_t events);

static void outcome_fire(void *context)
{
    struct channel *channel = context;
    channel->depth++;
    channel_close(channel, &channel->failure);
    channel_leave(channel);
}

static struct channel *channel_new(struct poller *poller, const struct channel_events *events)
{
    struct channel *channel = calloc(1, sizeof *channel);
    if (channel == NULL) {
        error_raise(FERRY_ERR_NO_MEMORY, "no memory for a channel");
        return NULL;
    }
    channel->poller = poller;
    channel->events = *events;
    channel->source = (struct poller_source){.fd = -1, .ready = channel_ready, .context = channel};
    channel->outcome.fire = outcome_fire;
    channel->outcome.context = channel;
    return channel;
}

/* Small messages must not wait for each other, and a host that vanished without a word must be
 * noticed. Sockets that are not TCP take none of this, which does no harm. */
static void socket_tune(int fd)
{
    int yes = 1;
    int idle_s = 10;
    int interval_s = 5;
    int probes = 3;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

void channel_set_silence(struct channel *channel, int64_t silence_ns)
{
    int fd = channel->source.fd;
    int probe = silence_ns != FERRY_FOREVER;
    int64_t milliseconds = silence_ns / 1000000;
    unsigned user_ms = !probe ? 0 : milliseconds > INT_MAX ? INT_MAX : (unsigned)milliseconds;
    int third_s = user_ms / 3000 > 0 ? (int)(user_ms / 3000) : 1;
    int probes = 2; /* after the first idle third, so that the last one is due at the end */
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &probe, sizeof probe);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &third_s, sizeof third_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &third_s, sizeof third_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &user_ms, sizeof user_ms);
}

static void peer_describe(int fd, char *text, size_t capacity)
{
    struct sockaddr_storage address;
    socklen_t bytes = sizeof address;
    char host[INET6_ADDRSTRLEN];
    memset(&address, 0, sizeof address);
    if (getpeername(fd, (struct sockaddr *)&address, &bytes) == 0) {
        if (address.ss_family == AF_INET) {
            const struct sockaddr_in *v4 = (const struct sockaddr_in *)&address;
            inet_ntop(AF_INET, &v4->sin_addr, host, sizeof host);
            snprintf(text, capacity, "%s:%u", host, ntohs(v4->sin_port));
            return;
        }
        if (address.ss_family == AF_INET6) {
            const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)&address;
            inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof host);
            snprintf(text, capacity, "[%s]:%u", host, ntohs(v6->sin6_port));
            return;
        }
    }
    snprintf(text, capacity, "a local socket");
}

ferry_status_t channel_create(struct poller *poller, int fd, const struct channel_events *events,
                              struct channel **channel_out)
{
    struct channel *channel = channel_new(poller, events);
    if (channel == NULL) {
        close(fd);
        return FERRY_ERR_NO_MEMORY;
    }
    socket_tune(fd);
    peer_describe(fd, channel->peer, sizeof channel->peer);
    channel->connected = true;
    channel->source.fd = fd;
    channel->source.events = EPOLLIN;
    fork_guard_add(fd);
    ferry_status_t status = poller_add(poller, &channel->source);
    if (status != FERRY_OK) {
        channel_destroy(channel);
        return status;
    }
    *channel_out = channel;
    return FERRY_OK;
}

const char *channel_peer(const struct channel *channel)
{
    return channel->peer;
}

/* ---- dialling ---- */

static ferry_status_t candidates_find(struct channel *channel, const char *host, uint16_t port)
{
    char service[8];
    struct addrinfo *found = NULL;
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    snprintf(service, sizeof service, "%u", port);
    int failed = getaddrinfo(host, service, &hints, &found);
    if (failed != 0) {
        error_record_set(&channel->failure, FERRY_ERR_UNREACHABLE, FERRY_NOT_RUN,
                         "%s: cannot resolve '%s': %s", channel->peer, host, gai_strerror(failed));
        return FERRY_OK;
    }
    channel->candidates = calloc(CANDIDATES_MAX, sizeof *channel->candidates);
    if (channel->candidates == NULL) {
        freeaddrinfo(found);
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory to connect to %s", channel->peer);
    }
    for (const struct addrinfo *a = found; a != NULL && channel->candidate_count < CANDIDATES_MAX;
         a = a->ai_next) {
        if (a->ai_addrlen <= sizeof(struct sockaddr_storage)) {
            struct candidate *candidate = &channel->candidates[channel->candidate_count++];
            memcpy(&candidate->address, a->ai_addr, a->ai_addrlen);
            candidate->bytes = a->ai_addrlen;
        }
    }
    freeaddrinfo(found);
    return FERRY_OK;
}

static void dial_failed(struct channel *channel, int error_number)
{
    error_record_set(&channel->failure, FERRY_ERR_UNREACHABLE, FERRY_NOT_RUN,
                     "cannot connect to %s: %s", channel->peer, strerror(error_number));
}

/* Starts on the next candidate; false when none is left, with the reason in channel->failure. */
static bool dial_next(struct channel *channel)
{
    while (channel->candidate_next < channel->candidate_count) {
        const struct candidate *candidate = &channel->candidates[channel->candidate_next++];
        int fd =
            socket(candidate->address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0) {
            dial_failed(channel, errno);
            continue;
        }
        socket_tune(fd);
        if (connect(fd, (const struct sockaddr *)&candidate->address, candidate->bytes) != 0 &&
            errno != EINPROGRESS) {
            dial_failed(channel, errno);
            close(fd);
            continue;
        }
        channel->source.fd = fd;
        channel->source.events = EPOLLOUT;
        fork_guard_add(fd);
        if (poller_add(channel->poller, &channel->source) == FERRY_OK) {
            return true;
        }
        error_record_take(&channel->failure);
        fd_close(channel);
    }
    return false;
}

ferry_status_t channel_dial(struct poller *poller, const char *host, uint16_t port,
                            const struct channel_events *events, struct channel **channel_out)
{
    struct channel *channel = channel_new(poller, events);
    if (channel == NULL) {
        return FERRY_ERR_NO_MEMORY;
    }
    bool is_v6 = strchr(host, ':') != NULL;
    snprintf(channel->peer, sizeof channel->peer, is_v6 ? "[%.250s]:%u" : "%.250s:%u", host, port);
    ferry_status_t status = candidates_find(channel, host, port);
    if (status == FERRY_OK && !dial_next(channel)) {
        /* The outcome comes by event, never from inside this function. */
        status = poller_timer_set(poller, &channel->outcome, 0);
        poller_wake(poller);
    }
    if (status != FERRY_OK) {
        channel_destroy(channel);
        return status;
    }
    *channel_out = channel;
    return FERRY_OK;
}

/* ---- sending ---- */

static void events_update(struct channel *channel)
{
    bool unsent = channel->out_begin < channel->out_end;
    if (!channel->connected) {
        return; /* EPOLLOUT is what dialling waits for */
    }
    poller_change(channel->poller, &channel->source,
                  unsent ? (uint32_t)EPOLLIN | EPOLLOUT : (uint32_t)EPOLLIN);
}

/* Sends what the socket takes. A failure only ends the sending: the end of the stream, or what the
 * peer said before it went, is for the reader to find. */
static void out_flush(struct channel *channel)
{
    while (channel->out_begin < channel->out_end && !channel->write_failed) {
        ssize_t sent = send(channel->source.fd, channel->out + channel->out_begin,
                            channel->out_end - channel->out_begin, MSG_NOSIGNAL);
        if (sent >= 0) {
            channel->out_begin += (size_t)sent;
        } else if (errno == EAGAIN) {
            break;
        } else if (errno != EINTR) {
            channel->write_failed = true;
        }
    }
    if (channel->write_failed || channel->out_begin == channel->out_end) {
        channel->out_begin = 0;
        channel->out_end = 0;
        if (channel->out_capacity > KEPT_BYTES_MAX) {
            free(channel->out);
            channel->out = NULL;
            channel->out_capacity = 0;
        }
    }
    events_update(channel);
}

/* Makes room for bytes more at the end of the queue. */
static ferry_status_t out_reserve(struct channel *channel, size_t bytes)
{
    size_t unsent = channel->out_end - channel->out_begin;
    if (channel->out_end + bytes <= channel->out_capacity) {
        return FERRY_OK;
    }
    if (channel->out_begin > 0) {
        memmove(channel->out, channel->out + channel->out_begin, unsent);
        channel->out_begin = 0;
        channel->out_end = unsent;
    }
    if (unsent + bytes > channel->out_capacity) {
        size_t capacity = channel->out_capacity == 0 ? 1024 : channel->out_capacity;
        while (capacity < unsent + bytes) {
            capacity *= 2;
        }
        uint8_t *out = realloc(channel->out, capacity);
        if (out == NULL) {
            return error_raise(FERRY_ERR_NO_MEMORY, "no memory for %zu bytes to %s", bytes,
                               channel->peer);
        }
        channel->out = out;
        channel->out_capacity = capacity;
    }
    return FERRY_OK;
}

ferry_status_t channel_send(struct channel *channel, const void *data, size_t bytes)
{
    if (channel->closed) {
        return error_raise(FERRY_ERR_STATE, "the connection to %s is closed", channel->peer);
    }
    if (bytes > CHANNEL_FRAME_BYTES_MAX) {
        return error_raise(FERRY_ERR_LIMIT, "a frame of %zu bytes to %s is over the bound of %d",
                           bytes, channel->peer, CHANNEL_FRAME_BYTES_MAX);
    }
    size_t unsent = channel->out_end - channel->out_begin;
    if (unsent + HEADER_BYTES + bytes > CHANNEL_QUEUE_BYTES_MAX) {
        return error_raise(FERRY_ERR_LIMIT,
                           "%s does not read: %zu bytes to it are unsent, the bound is %d",
                           channel->peer, unsent, CHANNEL_QUEUE_BYTES_MAX);
    }
    if (channel->write_failed) {
        return FERRY_OK; /* lost, as if it had been under way; `closed` follows */
    }
    ferry_status_t status = out_reserve(channel, HEADER_BYTES + bytes);
    if (status != FERRY_OK) {
        return status;
    }
    uint8_t *frame = channel->out + channel->out_end;
    for (unsigned i = 0; i < HEADER_BYTES; i++) {
        frame[i] = (uint8_t)(bytes >> (8 * i));
    }
    if (bytes > 0) {
        memcpy(frame + HEADER_BYTES, data, bytes);
    }
    channel->out_end += HEADER_BYTES + bytes;
    if (channel->connected && unsent == 0) {
        out_flush(channel);
    }
    return FERRY_OK;
}

void channel_flush_blocking(struct channel *channel, int64_t timeout_ns)
{
    int64_t deadline_ns = clock_deadline_ns(clock_monotonic_ns(), timeout_ns);
    while (channel->connected && !channel->closed && channel->out_begin < channel->out_end) {
        int64_t left_ns = deadline_ns - clock_monotonic_ns();
        struct pollfd writable = {.fd = channel->source.fd, .events = POLLOUT};
        if (left_ns <= 0 || poll(&writable, 1, (int)(left_ns / 1000000) + 1) <= 0) {
            return;
        }
        out_flush(channel);
    }
}

/* ---- receiving ---- */

static uint32_t header_length(const uint8_t *header)
{
    return (uint32_t)header[0] | (uint32_t)header[1] << 8 | (uint32_t)header[2] << 16 |
           (uint32_t)header[3] << 24;
}

/* Hands out the complete frames in the buffer and keeps the rest. Stops when a callback closed or
 * destroyed the channel. */
static void frames_deliver(struct channel *channel)
{
    size_t at = 0;
    channel->reading = true;
    while (channel->in_bytes - at >= HEADER_BYTES) {
        uint32_t length = header_length(channel->in + at);
        if (length > CHANNEL_FRAME_BYTES_MAX) {
            struct error_record error;
            error_record_set(&error, FERRY_ERR_PROTOCOL, FERRY_NOT_RUN,
                             "%s announced a frame of %u bytes; the bound is %d", channel->peer,
                             length, CHANNEL_FRAME_BYTES_MAX);
            channel_close(channel, &error);
            break;
        }
        if (channel->in_bytes - at - HEADER_BYTES < length) {
            break;
        }
        channel->events.frame(channel->events.context, channel->in + at + HEADER_BYTES, length);
        if (channel->closed) {
            break;
        }
        at += HEADER_BYTES + length;
    }
    channel->reading = false;
    if (!channel->closed && at > 0) {
        channel->in_bytes -= at;
        memmove(channel->in, channel->in + at, channel->in_bytes);
        if (channel->in_bytes == 0 && channel->in_capacity > KEPT_BYTES_MAX) {
            free(channel->in);
            channel->in = NULL;
            channel->in_capacity = 0;
        }
    }
}

/* Room for the rest of the frame that is being read. It grows with what a peer really sends, since
 * anybody may announce a large frame. */
static ferry_status_t in_reserve(struct channel *channel)
{
    if (channel->in_bytes < channel->in_capacity) {
        return FERRY_OK;
    }
    size_t capacity = channel->in_capacity == 0 ? READ_BYTES_FIRST : 2 * channel->in_capacity;
    uint8_t *in = realloc(channel->in, capacity);
    if (in == NULL) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory for a frame from %s", channel->peer);
    }
    channel->in = in;
    channel->in_capacity = capacity;
    return FERRY_OK;
}

static void channel_read(struct channel *channel)
{
    struct error_record error;
    if (in_reserve(channel) != FERRY_OK) {
        error_record_take(&error);
        channel_close(channel, &error);
        return;
    }
    ssize_t got = recv(channel->source.fd, channel->in + channel->in_bytes,
                       channel->in_capacity - channel->in_bytes, 0);
    if (got > 0) {
        channel->in_bytes += (size_t)got;
        frames_deliver(channel);
        return;
    }
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
        return;
    }
    error_record_set(
        &error, FERRY_ERR_PEER_LOST, FERRY_NOT_RUN, "the connection to %s %s%s", channel->peer,
        got == 0 ? "was closed by the peer" : "failed: ", got == 0 ? "" : strerror(errno));
    channel_close(channel, &error);
}

/* Dialling a local port that nobody listens on may meet itself, when the system picks that very
 * port for the dialling end. */
static bool is_connected_to_itself(int fd)
{
    struct sockaddr_storage here;
    struct sockaddr_storage there;
    socklen_t here_bytes = sizeof here;
    socklen_t there_bytes = sizeof there;
    memset(&here, 0, sizeof here);
    memset(&there, 0, sizeof there);
    return getsockname(fd, (struct sockaddr *)&here, &here_bytes) == 0 &&
           getpeername(fd, (struct sockaddr *)&there, &there_bytes) == 0 &&
           here_bytes == there_bytes && memcmp(&here, &there, here_bytes) == 0;
}

static void dial_finish(struct channel *channel)
{
    int failed = 0;
    socklen_t bytes = sizeof failed;
    getsockopt(channel->source.fd, SOL_SOCKET, SO_ERROR, &failed, &bytes);
    if (failed == 0 && is_connected_to_itself(channel->source.fd)) {
        failed = ECONNREFUSED;
    }
    if (failed != 0) {
        dial_failed(channel, failed);
        fd_close(channel);
        if (!dial_next(channel)) {
            channel_close(channel, &channel->failure);
        }
        return;
    }
    channel->connected = true;
    events_update(channel);
    if (channel->events.connected != NULL) {
        channel->events.connected(channel->events.context);
    }
    if (!channel->closed) {
        out_flush(channel);
    }
}

static void channel_ready(void *context, uint32_t events)
{
    struct channel *channel = context;
    channel->depth++;
    if (!channel->connected) {
        dial_finish(channel);
    } else {
        if ((events & EPOLLOUT) != 0) {
            out_flush(channel);
        }
        if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0 && !channel->reading) {
            channel_read(channel);
        }
    }
    channel_leave(channel);
}
