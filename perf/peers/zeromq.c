/* Latency and bandwidth of ZeroMQ between two processes: a PAIR of sockets, buffers reused.
 *
 *   zeromq ipc|tcp [BYTES...] */
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

#include "peers/peers.h"

#define ENDPOINT_BYTES 256

static void must(int result, const char *what)
{
    if (result < 0) {
        peers_give_up(what, zmq_strerror(zmq_errno()));
    }
}

static void send_bytes(void *socket, const void *data, size_t bytes)
{
    must(zmq_send(socket, data, bytes, 0), "zmq_send");
}

static void receive_bytes(void *socket, void *data, size_t bytes)
{
    int got = zmq_recv(socket, data, bytes, 0);
    must(got, "zmq_recv");
    if ((size_t)got != bytes) {
        peers_give_up("zmq_recv", "a message of another size");
    }
}

/* ---- the server ---- */

static void serve(void *socket, unsigned char *data, size_t bytes)
{
    uint64_t answered = peers_warm_up(bytes) + peers_operations(bytes);
    for (uint64_t i = 0; i < answered; i++) {
        receive_bytes(socket, data, bytes);
        send_bytes(socket, data, bytes);
    }
    for (uint64_t i = 0; i < peers_operations(bytes); i++) {
        receive_bytes(socket, data, bytes);
    }
    send_bytes(socket, data, 1);
}

/* ---- the client ---- */

static void ping(void *socket, unsigned char *data, size_t bytes, uint64_t times)
{
    for (uint64_t i = 0; i < times; i++) {
        send_bytes(socket, data, bytes);
        receive_bytes(socket, data, bytes);
    }
}

static void measure(void *socket, const char *kind, unsigned char *data, size_t bytes)
{
    char test[64];
    ping(socket, data, bytes, peers_warm_up(bytes));
    double start_us = peers_now_us();
    ping(socket, data, bytes, peers_operations(bytes));
    snprintf(test, sizeof(test), "zeromq_%s_lat", kind);
    peers_latency(test, bytes, peers_now_us() - start_us);

    start_us = peers_now_us();
    for (uint64_t i = 0; i < peers_operations(bytes); i++) {
        send_bytes(socket, data, bytes);
    }
    receive_bytes(socket, data, 1);
    snprintf(test, sizeof(test), "zeromq_%s_bw", kind);
    peers_bandwidth(test, bytes, peers_now_us() - start_us);
}

/* ---- both ---- */

/* A socket with few messages in its queues, so that memory is bounded. */
static void *open_pair(void *context)
{
    int window = PEERS_WINDOW;
    void *socket = zmq_socket(context, ZMQ_PAIR);
    if (socket == NULL) {
        must(-1, "zmq_socket");
    }
    must(zmq_setsockopt(socket, ZMQ_SNDHWM, &window, sizeof(window)), "ZMQ_SNDHWM");
    must(zmq_setsockopt(socket, ZMQ_RCVHWM, &window, sizeof(window)), "ZMQ_RCVHWM");
    return socket;
}

/* The server binds to a free place and tells the client where. */
static void meet(void *socket, const char *kind, int server, int tell)
{
    char endpoint[ENDPOINT_BYTES] = "";
    size_t bytes = sizeof(endpoint);
    if (server) {
        const char *wildcard = strcmp(kind, "tcp") == 0 ? "tcp://127.0.0.1:*" : "ipc://*";
        must(zmq_bind(socket, wildcard), wildcard);
        must(zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, endpoint, &bytes), "ZMQ_LAST_ENDPOINT");
        if (write(tell, endpoint, sizeof(endpoint)) != sizeof(endpoint)) {
            peers_give_up("zeromq", "the client is gone");
        }
        return;
    }
    if (read(tell, endpoint, sizeof(endpoint)) != sizeof(endpoint)) {
        peers_give_up("zeromq", "the server is gone");
    }
    must(zmq_connect(socket, endpoint), endpoint);
}

int main(int argc, char **argv)
{
    size_t sizes[PEERS_SIZES_MAX], largest = 1;
    int told[2];
    if (argc < 2 || (strcmp(argv[1], "ipc") != 0 && strcmp(argv[1], "tcp") != 0)) {
        fprintf(stderr, "usage: zeromq ipc|tcp [BYTES...]\n");
        return 2;
    }
    size_t count = peers_sizes(argc, argv, sizes);
    for (size_t i = 0; i < count; i++) {
        largest = sizes[i] > largest ? sizes[i] : largest;
    }
    pid_t server = pipe(told) < 0 ? -1 : fork();
    if (server < 0) {
        peers_give_up("zeromq", strerror(errno));
    }
    if (server == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    }
    void *context = zmq_ctx_new();
    void *socket = open_pair(context);
    unsigned char *data = malloc(largest);
    if (data == NULL) {
        peers_give_up("zeromq", "no memory");
    }
    memset(data, 0x5a, largest);
    meet(socket, argv[1], server == 0, told[server == 0]);
    for (size_t i = 0; i < count; i++) {
        if (server == 0) {
            serve(socket, data, sizes[i]);
        } else {
            measure(socket, argv[1], data, sizes[i]);
        }
    }
    zmq_close(socket);
    zmq_ctx_term(context);
    free(data);
    if (server > 0) {
        waitpid(server, NULL, 0);
    }
    return 0;
}
