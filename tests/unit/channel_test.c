/* Channels: frames in order, whatever the socket does with them, and peers that do not keep the rules. */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/channel.h"
#include "core/clock.h"

#define PATIENCE_NS 10000000000

/* One end, and what it saw. */
struct end {
    struct channel *channel;
    unsigned connected, frames, closed;
    size_t frame_bytes, all_bytes;
    uint8_t last[CHANNEL_FRAME_BYTES_MAX];
    uint32_t sum; /* of the frames' own numbers: shows their order */
    struct error_record error;
    bool destroy_in_frame, destroy_in_connected, destroy_in_closed, echo;
};

static struct poller *poller;

static void on_connected(void *context)
{
    struct end *end = context;
    end->connected++;
    if (end->destroy_in_connected) {
        channel_destroy(end->channel);
    }
}

static void on_frame(void *context, const void *data, size_t bytes)
{
    struct end *end = context;
    end->frame_bytes = bytes;
    end->all_bytes += bytes;
    if (bytes > 0) {
        memcpy(end->last, data, bytes);
    }
    if (bytes >= 4) {
        uint32_t number;
        memcpy(&number, data, sizeof number);
        end->sum = end->sum * 31 + number;
    }
    end->frames++;
    if (end->echo) {
        cr_assert_eq(channel_send(end->channel, data, bytes), FERRY_OK);
    }
    if (end->destroy_in_frame) {
        channel_destroy(end->channel);
    }
}

static void on_closed(void *context, const struct error_record *error)
{
    struct end *end = context;
    end->closed++;
    end->error = *error;
    if (end->destroy_in_closed) {
        channel_destroy(end->channel);
    }
}

static struct channel_events events_of(struct end *end)
{
    return (struct channel_events){
        .context = end, .connected = on_connected, .frame = on_frame, .closed = on_closed};
}

static void setup(void)
{
    cr_assert_eq(poller_create(clock_monotonic(), &poller), FERRY_OK);
}

static void teardown(void)
{
    poller_destroy(poller);
}

TestSuite(channel, .init = setup, .fini = teardown, .timeout = 60);

/* Serves the poller until *counter reaches wanted. */
static void run_until(const unsigned *counter, unsigned wanted)
{
    int64_t deadline = clock_monotonic_ns() + PATIENCE_NS;
    while (*counter < wanted && clock_monotonic_ns() < deadline) {
        int64_t timer = poller_next_deadline_ns(poller);
        poller_wait(poller, timer == FERRY_FOREVER ? 50000000 : 0);
        poller_dispatch(poller);
    }
    cr_assert_geq(*counter, wanted, "%u of %u", *counter, wanted);
}

/* A channel at one end of a socket pair; returns the raw other end. */
static int end_create(struct end *end)
{
    int fds[2];
    struct channel_events events = events_of(end);
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
    cr_assert_eq(channel_create(poller, fds[0], &events, &end->channel), FERRY_OK);
    return fds[1];
}

static void raw_write(int fd, const void *data, size_t bytes)
{
    cr_assert_eq(write(fd, data, bytes), (ssize_t)bytes);
}

static struct end *end_new(void)
{
    struct end *end = calloc(1, sizeof *end);
    cr_assert_not_null(end);
    return end;
}

Test(channel, frames_arrive_whole_and_in_order_over_tcp)
{
    char host[INET6_ADDRSTRLEN];
    uint16_t port;
    int listen_fd;
    struct end *client = end_new();
    struct end *server = end_new();
    cr_assert_eq(socket_listen("", 0, &listen_fd, host, &port), FERRY_OK);
    cr_assert_str_eq(host, "127.0.0.1");
    struct channel_events events = events_of(client);
    int fd;
    cr_assert_eq(socket_accept(listen_fd, &fd), FERRY_PENDING);
    cr_assert_eq(channel_dial(poller, host, port, &events, &client->channel), FERRY_OK);
    cr_assert_eq(client->connected, 0, "the outcome comes by event");

    /* Sent before the connection is there, and of all sizes up to the bound. */
    static uint8_t data[CHANNEL_FRAME_BYTES_MAX];
    uint32_t sum = 0;
    size_t total = 0;
    unsigned count = 0;
    for (size_t bytes = 4; bytes <= sizeof data; bytes *= 2) {
        for (uint32_t k = 0; k < 3; k++) {
            memcpy(data, &count, sizeof count);
            sum = sum * 31 + count;
            cr_assert_eq(channel_send(client->channel, data, bytes), FERRY_OK);
            count++;
            total += bytes;
        }
    }
    cr_assert_eq(channel_send(client->channel, NULL, 0), FERRY_OK);

    run_until(&client->connected, 1);
    cr_assert_eq(socket_accept(listen_fd, &fd), FERRY_OK);
    events = events_of(server);
    cr_assert_eq(channel_create(poller, fd, &events, &server->channel), FERRY_OK);
    unsigned silence_ms = 0;
    int idle_s = 0;
    socklen_t size = sizeof silence_ms;
    channel_set_silence(server->channel, 6000000000);
    cr_assert_eq(getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &silence_ms, &size), 0);
    cr_assert_eq(silence_ms, 6000);
    cr_assert_eq(getsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, &size), 0);
    cr_assert_eq(idle_s, 2);
    run_until(&server->frames, count + 1);
    cr_assert_eq(server->frames, count + 1);
    cr_assert_eq(server->sum, sum);
    cr_assert_eq(server->all_bytes, total);
    cr_assert_eq(server->frame_bytes, 0);

    char peer[64];
    snprintf(peer, sizeof peer, "127.0.0.1:%u", port);
    cr_assert_str_eq(channel_peer(client->channel), peer);

    channel_destroy(server->channel);
    run_until(&client->closed, 1);
    cr_assert_eq(client->error.status, FERRY_ERR_PEER_LOST);
    cr_assert_not_null(strstr(client->error.text, peer), "%s", client->error.text);
    cr_assert_eq(channel_send(client->channel, "x", 1), FERRY_ERR_STATE);
    channel_destroy(client->channel);
    close(listen_fd);
    free(client);
    free(server);
}

Test(channel, a_frame_may_come_byte_by_byte)
{
    struct end *end = end_new();
    int raw = end_create(end);
    static const uint8_t bytes[] = {5, 0, 0, 0, 'h', 'e', 'l', 'l', 'o', 1, 0, 0, 0, '!'};
    for (size_t i = 0; i < sizeof bytes; i++) {
        raw_write(raw, bytes + i, 1);
        poller_dispatch(poller);
        cr_assert_eq(end->frames, i < 8 ? 0 : i < 13 ? 1 : 2);
    }
    cr_assert_eq(end->last[0], '!');
    channel_destroy(end->channel);
    close(raw);
    free(end);
}

Test(channel, an_oversized_frame_ends_the_channel)
{
    struct end *end = end_new();
    int raw = end_create(end);
    static const uint8_t good_then_bad[] = {1, 0, 0, 0, 'a', 1, 0, 1, 0};
    raw_write(raw, good_then_bad, sizeof good_then_bad);
    run_until(&end->closed, 1);
    cr_assert_eq(end->frames, 1);
    cr_assert_eq(end->error.status, FERRY_ERR_PROTOCOL);
    cr_assert_not_null(strstr(end->error.text, "65537"), "%s", end->error.text);
    poller_dispatch(poller);
    cr_assert_eq(end->closed, 1);
    channel_destroy(end->channel);
    close(raw);
    free(end);
}

Test(channel, random_bytes_do_no_harm)
{
    srand(11);
    for (int round = 0; round < 300; round++) {
        struct end *end = end_new();
        int raw = end_create(end);
        uint8_t noise[256];
        for (size_t i = 0; i < sizeof noise; i++) {
            /* Small values now and then, so that some headers are within the bound. */
            noise[i] = (uint8_t)(rand() % 4 == 0 ? rand() : rand() % 2);
        }
        raw_write(raw, noise, sizeof noise);
        close(raw);
        run_until(&end->closed, 1);
        cr_assert(end->error.status == FERRY_ERR_PROTOCOL ||
                  end->error.status == FERRY_ERR_PEER_LOST);
        channel_destroy(end->channel);
        free(end);
    }
}

Test(channel, bounds_of_sending)
{
    struct end *end = end_new();
    int raw = end_create(end);
    static uint8_t data[CHANNEL_FRAME_BYTES_MAX + 1];
    cr_assert_eq(channel_send(end->channel, data, sizeof data), FERRY_ERR_LIMIT);
    unsigned sent = 0;
    ferry_status_t status;
    while ((status = channel_send(end->channel, data, CHANNEL_FRAME_BYTES_MAX)) == FERRY_OK) {
        cr_assert_lt(++sent, 100);
    }
    cr_assert_eq(status, FERRY_ERR_LIMIT);
    cr_assert_not_null(strstr(ferry_last_error()->text, "does not read"));
    cr_assert_geq(sent, 15);

    /* Every frame that was taken arrives once the peer reads. */
    size_t expected = (size_t)sent * (CHANNEL_FRAME_BYTES_MAX + 4);
    int64_t deadline = clock_monotonic_ns() + PATIENCE_NS;
    while (expected > 0 && clock_monotonic_ns() < deadline) {
        ssize_t got = read(raw, data, sizeof data);
        if (got > 0) {
            expected -= (size_t)got;
        }
        poller_dispatch(poller);
    }
    cr_assert_eq(expected, 0);
    cr_assert_eq(read(raw, data, sizeof data), -1);
    channel_destroy(end->channel);
    close(raw);
    free(end);
}

Test(channel, flush_blocking_sends_what_is_queued_and_gives_up_in_time)
{
    struct end *end = end_new();
    int raw = end_create(end);
    static uint8_t data[CHANNEL_FRAME_BYTES_MAX];
    for (int i = 0; i < 12; i++) {
        cr_assert_eq(channel_send(end->channel, data, sizeof data), FERRY_OK);
    }
    int64_t before = clock_monotonic_ns();
    channel_flush_blocking(end->channel, 5000000);
    cr_assert_lt(clock_monotonic_ns() - before, 2000000000);
    channel_destroy(end->channel);
    close(raw);
    free(end);
}

Test(channel, nobody_listens)
{
    char host[INET6_ADDRSTRLEN];
    uint16_t port;
    int fd;
    struct end *end = end_new();
    struct channel_events events = events_of(end);
    cr_assert_eq(socket_listen("127.0.0.1", 0, &fd, host, &port), FERRY_OK);
    close(fd);
    cr_assert_eq(channel_dial(poller, host, port, &events, &end->channel), FERRY_OK);
    cr_assert_eq(end->closed, 0, "the outcome comes by event");
    run_until(&end->closed, 1);
    cr_assert_eq(end->connected, 0);
    cr_assert_eq(end->error.status, FERRY_ERR_UNREACHABLE);
    char peer[64];
    snprintf(peer, sizeof peer, "127.0.0.1:%u: Connection refused", port);
    cr_assert_not_null(strstr(end->error.text, peer), "%s", end->error.text);
    channel_destroy(end->channel);
    free(end);
}

Test(channel, a_host_that_does_not_exist)
{
    struct end *end = end_new();
    struct channel_events events = events_of(end);
    cr_assert_eq(channel_dial(poller, "no-such-host.invalid", 9, &events, &end->channel), FERRY_OK);
    run_until(&end->closed, 1);
    cr_assert_eq(end->error.status, FERRY_ERR_UNREACHABLE);
    cr_assert_not_null(strstr(end->error.text, "no-such-host.invalid"), "%s", end->error.text);
    channel_destroy(end->channel);
    free(end);
}

Test(channel, destroy_inside_its_own_events)
{
    struct end *end = end_new();
    int raw = end_create(end);
    static const uint8_t two_frames[] = {1, 0, 0, 0, 'a', 1, 0, 0, 0, 'b'};
    end->destroy_in_frame = true;
    raw_write(raw, two_frames, sizeof two_frames);
    run_until(&end->frames, 1);
    poller_dispatch(poller);
    cr_assert_eq(end->frames, 1);
    cr_assert_eq(end->closed, 0);
    close(raw);
    memset(end, 0, sizeof *end);

    end->destroy_in_closed = true;
    raw = end_create(end);
    close(raw);
    run_until(&end->closed, 1);
    memset(end, 0, sizeof *end);

    char host[INET6_ADDRSTRLEN];
    uint16_t port;
    int fd;
    struct channel_events events = events_of(end);
    end->destroy_in_connected = true;
    cr_assert_eq(socket_listen("", 0, &fd, host, &port), FERRY_OK);
    cr_assert_eq(channel_dial(poller, host, port, &events, &end->channel), FERRY_OK);
    run_until(&end->connected, 1);
    poller_dispatch(poller);
    cr_assert_eq(end->closed, 0);
    close(fd);
    channel_destroy(NULL);
    free(end);
}

/* The peer says something and goes; what it said is heard although our answer cannot be sent. */
Test(channel, last_words_are_heard)
{
    struct end *end = end_new();
    int raw = end_create(end);
    static const uint8_t frames[] = {1, 0, 0, 0, 'a', 1, 0, 0, 0, 'b'};
    end->echo = true;
    raw_write(raw, frames, sizeof frames);
    close(raw);
    run_until(&end->closed, 1);
    cr_assert_eq(end->frames, 2);
    channel_destroy(end->channel);
    free(end);
}

Test(channel, listening_addresses)
{
    char host[INET6_ADDRSTRLEN];
    uint16_t port;
    uint16_t again;
    int fd;
    int second;
    cr_assert_eq(socket_listen("lo", 0, &fd, host, &port), FERRY_OK, "%s",
                 ferry_last_error()->text);
    cr_assert_str_eq(host, "127.0.0.1");
    cr_assert_neq(port, 0);
    cr_assert_eq(socket_listen("127.0.0.1", port, &second, host, &again), FERRY_ERR_SYSTEM);
    cr_assert_not_null(strstr(ferry_last_error()->text, "in use"));
    cr_assert_eq(socket_listen("no0such", 0, &second, host, &again), FERRY_ERR_CONFIG);
    cr_assert_not_null(strstr(ferry_last_error()->text, "no0such"));
    cr_assert_not_null(strstr(ferry_last_error()->text, "lo (127.0.0.1)"));
    cr_assert_eq(socket_listen("203.0.113.7", 0, &second, host, &again), FERRY_ERR_SYSTEM);
    close(fd);
}

Test(channel, resolving)
{
    char numeric[INET6_ADDRSTRLEN];
    cr_assert_eq(socket_resolve("127.0.0.1", numeric), FERRY_OK);
    cr_assert_str_eq(numeric, "127.0.0.1");
    cr_assert_eq(socket_resolve("::1", numeric), FERRY_OK);
    cr_assert_str_eq(numeric, "::1");
    cr_assert_eq(socket_resolve("localhost", numeric), FERRY_OK);
    cr_assert_eq(socket_resolve("no-such-host.invalid", numeric), FERRY_ERR_UNREACHABLE);
}
