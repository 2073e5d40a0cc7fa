/* The connection beside the measured path: frames over one socket, each a kind and its bytes. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/channel.h"
#include "core/clock.h"
#include "core/error.h"
#include "ferry_perf/frame.h"

#define CONNECT_NS INT64_C(5000000000)
#define FLUSH_NS INT64_C(1000000000)
#define SILENCE_NS INT64_C(4000000000)

enum { FRAME_DATA = 'd', FRAME_ERROR = 'e' };

struct frame {
    struct frame *next;
    size_t bytes;
    unsigned char data[];
};

struct perf_control {
    bool client;
    struct poller *poller;
    struct channel *channel;
    struct frame *first, **last;
    bool closed, failed; /* failed: the other end said what went wrong */
    struct error_record error;
    char host[INET6_ADDRSTRLEN];
};

static const char *other_end(const struct perf_control *control)
{
    return control->client ? "server" : "client";
}

static void on_frame(void *context, const void *data, size_t bytes)
{
    struct perf_control *control = context;
    const char *text = data;
    if (bytes > 0 && text[0] == FRAME_ERROR) {
        control->failed = true;
        error_record_set(&control->error, FERRY_ERR_PEER_LOST, FERRY_NOT_RUN, "the %s: %.*s",
                         other_end(control), (int)bytes - 1, text + 1);
        return;
    }
    struct frame *frame = malloc(sizeof *frame + bytes);
    if (frame == NULL || bytes == 0) {
        free(frame);
        control->failed = true;
        error_record_set(&control->error, FERRY_ERR_PROTOCOL, FERRY_NOT_RUN,
                         "a frame of the %s cannot be taken", other_end(control));
        return;
    }
    frame->next = NULL;
    frame->bytes = bytes - 1;
    memcpy(frame->data, text + 1, bytes - 1);
    *control->last = frame;
    control->last = &frame->next;
}

static void on_closed(void *context, const struct error_record *error)
{
    struct perf_control *control = context;
    control->closed = true;
    if (!control->failed) {
        error_record_set(&control->error, FERRY_ERR_PEER_LOST, FERRY_NOT_RUN, "the %s is gone: %s",
                         other_end(control), error->text);
    }
}

static ferry_status_t frame_send(struct perf_control *control, char kind, const void *data,
                                 size_t bytes)
{
    char frame[CHANNEL_FRAME_BYTES_MAX];
    if (bytes >= sizeof frame) {
        return error_raise(FERRY_ERR_LIMIT, "%zu bytes are too many for one frame", bytes);
    }
    frame[0] = kind;
    if (bytes > 0) {
        memcpy(frame + 1, data, bytes);
    }
    return channel_send(control->channel, frame, bytes + 1);
}

ferry_status_t perf_control_send(struct perf_control *control, const void *data, size_t bytes)
{
    ferry_status_t status = control->closed || control->failed
                                ? FERRY_ERR_PEER_LOST
                                : frame_send(control, FRAME_DATA, data, bytes);
    return status == FERRY_ERR_PEER_LOST ? error_raise_record(&control->error) : status;
}

ferry_status_t perf_control_receive(struct perf_control *control, void *data, size_t capacity,
                                    size_t *bytes_out)
{
    while (control->first == NULL && !control->closed && !control->failed) {
        poller_wait(control->poller,
                    poller_next_deadline_ns(control->poller) == FERRY_FOREVER ? FERRY_FOREVER : 0);
        poller_dispatch(control->poller);
    }
    struct frame *frame = control->first;
    if (frame == NULL) {
        return error_raise_record(&control->error);
    }
    if (frame->bytes > capacity) {
        return error_raise(FERRY_ERR_PROTOCOL, "the %s sent %zu bytes where %zu were expected",
                           other_end(control), frame->bytes, capacity);
    }
    if (frame->bytes > 0) {
        memcpy(data, frame->data, frame->bytes);
    }
    if (bytes_out != NULL) {
        *bytes_out = frame->bytes;
    }
    control->first = frame->next;
    if (control->first == NULL) {
        control->last = &control->first;
    }
    free(frame);
    return FERRY_OK;
}

ferry_status_t perf_exchange(struct perf_control *control, const void *mine, size_t bytes,
                             void *theirs, size_t capacity, size_t *bytes_out)
{
    ferry_status_t status = perf_control_send(control, mine, bytes);
    return status == FERRY_OK ? perf_control_receive(control, theirs, capacity, bytes_out) : status;
}

ferry_status_t perf_barrier(struct perf_control *control)
{
    return perf_exchange(control, NULL, 0, NULL, 0, NULL);
}

bool perf_control_lost(struct perf_control *control)
{
    poller_dispatch(control->poller);
    return control->closed || control->failed;
}

const char *perf_control_host(const struct perf_control *control)
{
    return control->host;
}

int64_t perf_now_ns(void)
{
    return clock_monotonic_ns();
}

void perf_control_tell_error(struct perf_control *control)
{
    const char *text = ferry_last_error()->text;
    if (!control->closed && !control->failed) {
        frame_send(control, FRAME_ERROR, text, strlen(text));
        channel_flush_blocking(control->channel, FLUSH_NS);
    }
}

/* ---- meeting ---- */

/* The server's address in this connection: its own end of it, or the client's other one. */
static void host_find(bool client, int fd, char host[INET6_ADDRSTRLEN])
{
    struct sockaddr_storage address = {0};
    socklen_t bytes = sizeof address;
    struct sockaddr *any = (struct sockaddr *)&address;
    int failed = client ? getpeername(fd, any, &bytes) : getsockname(fd, any, &bytes);
    const void *raw = address.ss_family == AF_INET6
                          ? (const void *)&((struct sockaddr_in6 *)&address)->sin6_addr
                          : (const void *)&((struct sockaddr_in *)&address)->sin_addr;
    if (failed || inet_ntop(address.ss_family, raw, host, INET6_ADDRSTRLEN) == NULL) {
        strcpy(host, "127.0.0.1");
    }
}

static ferry_status_t control_create(bool client, int fd, struct perf_control **control_out)
{
    struct perf_control *control = calloc(1, sizeof *control);
    if (control == NULL) {
        close(fd);
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory for the control connection");
    }
    control->client = client;
    control->last = &control->first;
    host_find(client, fd, control->host);
    ferry_status_t status = perf_watch_start(fd, other_end(control));
    if (status == FERRY_OK) {
        status = poller_create(clock_monotonic(), &control->poller);
    }
    if (status != FERRY_OK) {
        close(fd);
        perf_control_destroy(control);
        return status;
    }
    struct channel_events events = {.context = control, .frame = on_frame, .closed = on_closed};
    status = channel_create(control->poller, fd, &events, &control->channel);
    if (status != FERRY_OK) {
        perf_control_destroy(control);
        return status;
    }
    channel_set_silence(control->channel, SILENCE_NS);
    *control_out = control;
    return FERRY_OK;
}

void perf_control_destroy(struct perf_control *control)
{
    if (control == NULL) {
        return;
    }
    perf_watch_stop();
    if (control->channel != NULL) {
        channel_flush_blocking(control->channel, FLUSH_NS);
        channel_destroy(control->channel);
    }
    while (control->first != NULL) {
        struct frame *next = control->first->next;
        free(control->first);
        control->first = next;
    }
    if (control->poller != NULL) {
        poller_destroy(control->poller);
    }
    free(control);
}

ferry_status_t perf_control_accept(int listen_fd, struct perf_control **control_out)
{
    int fd = -1;
    ferry_status_t status;
    while ((status = socket_accept(listen_fd, &fd)) == FERRY_PENDING) {
        struct pollfd waiting = {.fd = listen_fd, .events = POLLIN};
        poll(&waiting, 1, -1);
    }
    return status == FERRY_OK ? control_create(false, fd, control_out) : status;
}

static int connect_bounded(int fd, const struct sockaddr *address, socklen_t bytes)
{
    if (connect(fd, address, bytes) == 0) {
        return 0;
    }
    struct pollfd waiting = {.fd = fd, .events = POLLOUT};
    int failed = errno;
    socklen_t length = sizeof failed;
    if (failed == EINPROGRESS) {
        failed = ETIMEDOUT;
        if (poll(&waiting, 1, (int)(CONNECT_NS / 1000000)) == 1) {
            getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &length);
        }
    }
    return failed;
}

ferry_status_t perf_control_connect(const char *host, uint16_t port,
                                    struct perf_control **control_out)
{
    char numeric[INET6_ADDRSTRLEN];
    ferry_status_t status = socket_resolve(host, numeric);
    if (status != FERRY_OK) {
        return status;
    }
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    bool is_v4 = inet_pton(AF_INET, numeric, &v4.sin_addr) == 1;
    if (!is_v4) {
        inet_pton(AF_INET6, numeric, &v6.sin6_addr);
    }
    int fd = socket(is_v4 ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return error_raise_errno(errno, "cannot create a socket");
    }
    int failed = is_v4 ? connect_bounded(fd, (struct sockaddr *)&v4, sizeof v4)
                       : connect_bounded(fd, (struct sockaddr *)&v6, sizeof v6);
    if (failed != 0) {
        close(fd);
        return error_raise(FERRY_ERR_UNREACHABLE,
                           "no server at %s port %u (%s): start ferry_perf there first, with "
                           "FERRY_INTERFACE set where it is another machine",
                           host, port, strerror(failed));
    }
    return control_create(true, fd, control_out);
}
