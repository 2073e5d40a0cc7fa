/* UCX between processes: what one process with two instances cannot show. The children are forked
 * before UCX is used, as UCX wants it. */
#include <criterion/criterion.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ferry/error.h>

#include "core/clock.h"
#include "support/transport_contract.h"

#define PEERS 6
#define LARGE ((size_t)64 << 20)
#define DEADLINE_NS INT64_C(30000000000)

/* The other process. */
struct peer {
    pid_t pid;
    int socket;
};

typedef void (*peer_fn)(struct contract_party *party, int socket);

static void must(bool holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "%s: %s\n", what, strerror(errno));
        _exit(3);
    }
}

static void socket_put(int socket, const void *data, size_t bytes)
{
    must(send(socket, data, bytes, MSG_NOSIGNAL) == (ssize_t)bytes, "send");
}

static void socket_get(int socket, void *data, size_t bytes)
{
    must(recv(socket, data, bytes, MSG_WAITALL) == (ssize_t)bytes, "recv");
}

/* Opens, gives the other process the address, and connects to what it gave. */
static void join(struct contract_party *party, int socket, uint32_t local, uint32_t remote)
{
    unsigned char theirs[FERRY_TRANSPORT_ADDRESS_BYTES_MAX];
    const void *mine;
    size_t bytes;
    party->ops->address(party->transport, &mine, &bytes);
    socket_put(socket, &bytes, sizeof bytes);
    socket_put(socket, mine, bytes);
    socket_get(socket, &bytes, sizeof bytes);
    must(bytes <= sizeof theirs, "address");
    socket_get(socket, theirs, bytes);
    party->link = contract_party_connect_to(party, theirs, bytes, local, remote);
}

static struct peer peer_start(peer_fn play, const char *transport, const char *tls)
{
    int sockets[2];
#ifdef __SANITIZE_ADDRESS__
    /* Its interceptor of process_vm_readv(), with which UCX tries CMA, reads where it must not. */
    tls = tls[0] == '\0' ? "^cma" : tls;
#endif
    if (tls[0] != '\0') {
        setenv("UCX_TLS", tls, 1);
    }
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
    struct peer peer = {.pid = fork(), .socket = sockets[0]};
    cr_assert_geq(peer.pid, 0);
    if (peer.pid == 0) {
        struct contract_party party;
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that failed leaves nobody behind */
        close(sockets[0]);
        char start;
        socket_get(sockets[1], &start, 1);
        contract_party_open(&party, transport);
        join(&party, sockets[1], 22, 11);
        play(&party, sockets[1]);
        contract_party_close(&party);
        _exit(0);
    }
    close(sockets[1]);
    return peer;
}

static void peer_join(struct contract_party *party, const struct peer *peer)
{
    socket_put(peer->socket, "s", 1);
    join(party, peer->socket, 11, 22);
}

static int peer_end(const struct peer *peer)
{
    int status;
    cr_assert_eq(waitpid(peer->pid, &status, 0), peer->pid);
    close(peer->socket);
    return status;
}

static void await(struct contract_party *party, const int *done)
{
    int64_t deadline = clock_monotonic_ns() + DEADLINE_NS;
    while (*done == 0) {
        if (party->ops->progress(party->transport) == 0) {
            cr_assert_lt(clock_monotonic_ns(), deadline, "the other process's half never comes");
            sched_yield();
        }
    }
}

/* Both send and receive the same sizes at once, each with bytes of its own. */
static void exchange_all(struct contract_party *party, uint32_t own, uint32_t others)
{
    static const size_t sizes[] = {0, 1, 8, 7999, 8001, 70000, 1 << 20, LARGE};
    unsigned char *data = malloc(LARGE), *got = malloc(LARGE);
    for (uint32_t i = 0; i < 58; i++) {
        size_t bytes = i < 56 ? sizes[i % 7] : LARGE;
        struct contract_post send, receive, message;
        contract_fill(data, bytes, own + i);
        contract_post(&message, party->link, CONTRACT_MESSAGE, 0, data, bytes % 8000);
        contract_post(&send, party->link, CONTRACT_SEND, i, data, bytes);
        contract_post(&receive, party->link, CONTRACT_RECEIVE, i, got, bytes);
        await(party, &receive.done);
        await(party, &send.done);
        await(party, &message.done);
        cr_assert_eq(receive.status, FERRY_OK);
        cr_assert(contract_filled(got, bytes, others + i), "%zu bytes", bytes);
    }
    int64_t deadline = clock_monotonic_ns() + DEADLINE_NS;
    while (party->message_count < 58) {
        party->ops->progress(party->transport);
        cr_assert_lt(clock_monotonic_ns(), deadline, "messages are missing");
    }
    free(data);
    free(got);
}

static void say_when_done(struct contract_party *party, int socket)
{
    char other;
    (void)party;
    socket_put(socket, "d", 1);
    socket_get(socket, &other, 1);
}

static void exchange_as_peer(struct contract_party *party, int socket)
{
    exchange_all(party, 1000, 0);
    say_when_done(party, socket);
}

static void two_processes(const char *transport, const char *tls)
{
    struct contract_party party;
    struct peer peer = peer_start(exchange_as_peer, transport, tls);
    contract_party_open(&party, transport);
    peer_join(&party, &peer);
    exchange_all(&party, 0, 1000);
    say_when_done(&party, peer.socket);
    contract_party_close(&party);
    int status = peer_end(&peer);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the other process failed: %x",
              status);
}

Test(transport_processes, ucx_tag_exchange, .timeout = 100)
{
    two_processes("ucx:tag", "");
}

Test(transport_processes, ucx_am_exchange, .timeout = 100)
{
    two_processes("ucx:am", "");
}

Test(transport_processes, ucx_stream_exchange, .timeout = 100)
{
    two_processes("ucx:stream", "");
}

Test(transport_processes, ucx_tag_exchange_over_tcp, .timeout = 100)
{
    two_processes("ucx:tag", "tcp,self");
}

Test(transport_processes, ucx_am_exchange_over_tcp, .timeout = 100)
{
    two_processes("ucx:am", "tcp,self");
}

Test(transport_processes, ucx_stream_exchange_over_tcp, .timeout = 100)
{
    two_processes("ucx:stream", "tcp,self");
}

static volatile sig_atomic_t told_to_die;

static void note_told_to_die(int number)
{
    (void)number;
    told_to_die = 1;
}

/* Sends what it never lives to finish: says how far it is, and works on until it is killed. */
static void send_until_killed(struct contract_party *party, int socket)
{
    signal(SIGUSR1, note_told_to_die);
    struct contract_post small, large, many[20];
    unsigned char *data = malloc(LARGE);
    memset(data, 0x11, LARGE);
    contract_post(&small, party->link, CONTRACT_SEND, 1, data, 8);
    await(party, &small.done);
    contract_post(&large, party->link, CONTRACT_SEND, 2, data, LARGE);
    for (uint32_t i = 0; i < 20; i++) {
        contract_post(&many[i], party->link, CONTRACT_SEND, 10 + i, data, 50000);
    }
    socket_put(socket, "g", 1);
    while (!told_to_die) {
        party->ops->progress(party->transport);
    }
    raise(SIGKILL);
}

/* Cuts the link at once, as an agent does that was told of the death by its own socket. */
static void survive(struct contract_party *party, const struct peer *peer, int steps, int deadly)
{
    struct contract_post small, large, many[20], never;
    unsigned char *got = malloc(LARGE), eight[8], *parts = malloc(20 * 50000);
    char going;
    peer_join(party, peer);
    contract_post(&small, party->link, CONTRACT_RECEIVE, 1, eight, 8);
    await(party, &small.done);
    cr_assert_eq(small.status, FERRY_OK);
    contract_post(&never, party->link, CONTRACT_RECEIVE, 99, eight, 8);
    contract_post(&large, party->link, CONTRACT_RECEIVE, 2, got, LARGE);
    for (uint32_t i = 0; i < 20; i++) {
        contract_post(&many[i], party->link, CONTRACT_RECEIVE, 10 + i, parts + i * 50000, 50000);
    }
    socket_get(peer->socket, &going, 1);
    for (int i = 0; i < steps; i++) {
        party->ops->progress(party->transport);
    }
    cr_assert_eq(kill(peer->pid, deadly), 0);
    cr_assert(WIFSIGNALED(peer_end(peer)));
    for (int i = 0; i < steps; i++) {
        party->ops->progress(party->transport);
    }
    contract_party_disconnect(party);
    await(party, &never.done);
    await(party, &large.done);
    for (int i = 0; i < 20; i++) {
        await(party, &many[i].done);
    }
    cr_assert_neq(never.status, FERRY_OK);
    cr_assert_eq(party->ops->pending(party->transport), 0);
    memset(got, 0x5a, LARGE);
    memset(parts, 0x5a, 20 * 50000);
    for (int i = 0; i < 2000; i++) {
        party->ops->progress(party->transport);
    }
    cr_assert(got[0] == 0x5a && memcmp(got, got + 1, LARGE - 1) == 0);
    cr_assert(parts[0] == 0x5a && memcmp(parts, parts + 1, 20 * 50000 - 1) == 0);
    free(got);
    free(parts);
}

/*
 * Over shared memory the peers die between two steps of their own. UCX cannot do without that: a
 * sender that is killed between taking a place in the reader's queue and filling it leaves a gap
 * that the reader never passes (uct_mm_ep.c, up to 1.22 at least), and all that other peers send
 * comes behind it.
 */
static void peers_are_killed(const char *transport, const char *tls)
{
    static const int steps[PEERS] = {0, 3, 20, 60, 300, 2000};
    int deadly = *tls == 0 ? SIGUSR1 : SIGKILL;
    struct contract_party party;
    struct peer peers[PEERS];
    for (int i = 0; i < PEERS; i++) {
        peers[i] = peer_start(send_until_killed, transport, tls);
    }
    contract_party_open(&party, transport);
    for (int i = 0; i < PEERS; i++) {
        survive(&party, &peers[i], steps[i], deadly);
    }
    contract_party_close(&party);
}

Test(transport_processes, ucx_tag_killed_peers, .timeout = 100)
{
    peers_are_killed("ucx:tag", "");
}

Test(transport_processes, ucx_am_killed_peers, .timeout = 100)
{
    peers_are_killed("ucx:am", "");
}

Test(transport_processes, ucx_stream_killed_peers, .timeout = 100)
{
    peers_are_killed("ucx:stream", "");
}

Test(transport_processes, ucx_tag_killed_peers_over_tcp, .timeout = 100)
{
    peers_are_killed("ucx:tag", "tcp,self");
}

Test(transport_processes, ucx_am_killed_peers_over_tcp, .timeout = 100)
{
    peers_are_killed("ucx:am", "tcp,self");
}

Test(transport_processes, ucx_stream_killed_peers_over_tcp, .timeout = 100)
{
    peers_are_killed("ucx:stream", "tcp,self");
}

Test(transport_processes, a_forked_child_is_told_so)
{
    struct contract_party party;
    contract_party_open(&party, "ucx");
    pid_t pid = fork();
    if (pid == 0) {
        ferry_transport_options_t options = {.struct_bytes = sizeof options, .message_bytes = 100};
        ferry_transport_t *transport = NULL;
        ferry_status_t status = party.ops->open(&options, &transport);
        _exit(status == FERRY_ERR_FORKED && transport == NULL ? 0 : 1);
    }
    int status;
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    contract_party_close(&party);
}
