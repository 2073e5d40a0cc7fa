/* The contract's cases on how links and instances begin, sleep and end. */
#include "support/transport_contract.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ferry/error.h>

#include "core/clock.h"

#define DESCRIPTORS 1024
#define LINKS 40

static void exchange(struct contract_pair *pair, size_t bytes, uint32_t segment)
{
    unsigned char *data = malloc(bytes), *got = malloc(bytes);
    struct contract_post send, receive, message;
    contract_fill(data, bytes, segment);
    contract_post(&message, pair->parties[1].link, CONTRACT_MESSAGE, 0, data, 16);
    contract_post(&receive, pair->parties[1].link, CONTRACT_RECEIVE, segment, got, bytes);
    contract_post(&send, pair->parties[0].link, CONTRACT_SEND, segment, data, bytes);
    contract_pair_await(pair, &receive);
    contract_pair_await(pair, &send);
    contract_pair_await(pair, &message);
    cr_assert_eq(receive.status, FERRY_OK);
    cr_assert(contract_filled(got, bytes, segment));
    free(data);
    free(got);
}

/* Which descriptors are open: 2 inherited over exec, 1 not, 0 closed. */
static size_t descriptors(unsigned char *open_out)
{
    size_t count = 0;
    for (int fd = 0; fd < DESCRIPTORS; fd++) {
        int flags = fcntl(fd, F_GETFD);
        open_out[fd] = flags < 0 ? 0 : (flags & FD_CLOEXEC) != 0 ? 1 : 2;
        count += flags >= 0;
    }
    return count;
}

/* A new descriptor that a child would inherit over exec, or -1. */
static int inherited(const unsigned char *before)
{
    unsigned char now[DESCRIPTORS];
    descriptors(now);
    for (int fd = 0; fd < DESCRIPTORS; fd++) {
        if (before[fd] == 0 && now[fd] == 2) {
            return fd;
        }
    }
    return -1;
}

static void dispositions(struct sigaction *actions)
{
    for (int number = 1; number < SIGRTMAX; number++) {
        memset(&actions[number], 0, sizeof actions[number]);
        sigaction(number, NULL, &actions[number]);
    }
}

static void expect_dispositions(const struct sigaction *before)
{
    struct sigaction now[SIGRTMAX];
    dispositions(now);
    for (int number = 1; number < SIGRTMAX; number++) {
        cr_assert_eq((uintptr_t)now[number].sa_handler, (uintptr_t)before[number].sa_handler,
                     "signal %d has another handler", number);
        cr_assert_eq(now[number].sa_flags, before[number].sa_flags);
    }
}

/* stdout into a file of its own; returns what brings it back. */
static int stdout_away(FILE **file_out)
{
    fflush(stdout);
    *file_out = tmpfile();
    int kept = dup(STDOUT_FILENO);
    dup2(fileno(*file_out), STDOUT_FILENO);
    return kept;
}

static off_t stdout_back(int kept, FILE *file)
{
    struct stat written;
    fflush(stdout);
    fstat(STDOUT_FILENO, &written);
    dup2(kept, STDOUT_FILENO);
    close(kept);
    fclose(file);
    return written.st_size;
}

/* What a host program must not notice: stdout, signals, descriptors that its children inherit or
 * that are never closed. */
void contract_opens_again_and_again(const char *transport, const char *tls)
{
    unsigned char before[DESCRIPTORS], during[DESCRIPTORS];
    struct sigaction signals[SIGRTMAX];
    size_t after_first = 0;
    FILE *file;
    dispositions(signals);
    cr_assert_eq((uintptr_t)signals[SIGHUP].sa_handler, (uintptr_t)SIG_DFL);
    int kept = stdout_away(&file);
    descriptors(before);
    for (int round = 0; round < 6; round++) {
        struct contract_pair pair;
        contract_pair_connected(&pair, transport, tls);
        exchange(&pair, 1 << 20, 1);
        expect_dispositions(signals);
        int64_t deadline = clock_monotonic_ns() + INT64_C(10000000000);
        for (int fd = inherited(before); fd >= 0; fd = inherited(before)) {
            cr_assert_lt(clock_monotonic_ns(), deadline, "children inherit descriptor %d", fd);
            contract_pair_progress(&pair);
        }
        contract_pair_close(&pair);
        size_t open_now = descriptors(during);
        after_first = round == 0 ? open_now : after_first;
        cr_assert_eq(open_now, after_first, "%zu descriptors instead of %zu", open_now,
                     after_first);
    }
    cr_assert_eq(stdout_back(kept, file), 0, "something was written to stdout");
    expect_dispositions(signals);
}

void contract_refuses_bad_connects(const char *transport, const char *tls)
{
    struct contract_pair pair;
    contract_pair_connected(&pair, transport, tls);
    struct contract_party *first = &pair.parties[0];
    const void *address;
    size_t bytes;
    ferry_link_t *link = NULL;
    pair.parties[1].ops->address(pair.parties[1].transport, &address, &bytes);
    ferry_status_t status =
        first->ops->connect(first->transport, address, bytes, 0x10a0, 77, NULL, &link);
    cr_assert_eq(status, FERRY_ERR_INVALID_ARGUMENT, "a session in use");
    unsigned char *other = malloc(bytes);
    for (size_t length = 0; length <= bytes; length += length < 8 ? 1 : bytes / 7 + 1) {
        memcpy(other, address, bytes);
        if (length == bytes) {
            other[bytes / 2] ^= 0x40;
        }
        status = first->ops->connect(first->transport, other, length, 5, 6, NULL, &link);
        cr_assert(status == FERRY_ERR_INVALID_ARGUMENT || status == FERRY_ERR_UNREACHABLE,
                  "%zu bytes of an address: %d", length, (int)status);
    }
    memcpy(other, address, bytes);
    other[bytes - 1] ^= 1;
    status = first->ops->connect(first->transport, other, bytes, 5, 6, NULL, &link);
    cr_assert(status == FERRY_ERR_INVALID_ARGUMENT || status == FERRY_ERR_UNREACHABLE);
    cr_assert_null(link);
    free(other);
    exchange(&pair, 100, 1);
    contract_pair_close(&pair);
}

/* An instance may be both ends: two links that face each other, and one that faces itself. */
void contract_links_to_itself(const char *transport, const char *tls)
{
    struct contract_pair pair;
    unsigned char data[3000], got[3000];
    struct contract_post send, receive, message;
    contract_pair_open(&pair, transport, tls);
    struct contract_party *own = &pair.parties[0];
    ferry_link_t *links[3] = {contract_party_connect(own, own, 1, 2),
                              contract_party_connect(own, own, 2, 1),
                              contract_party_connect(own, own, 3, 3)};
    for (uint32_t i = 0; i < 3; i++) {
        ferry_link_t *from = links[i], *to = links[i == 2 ? 2 : 1 - i];
        contract_party_forget_messages(own);
        contract_fill(data, sizeof data, i);
        memset(got, 0, sizeof got);
        contract_post(&message, from, CONTRACT_MESSAGE, 0, data, 40);
        contract_post(&send, from, CONTRACT_SEND, 7, data, sizeof data);
        contract_post(&receive, to, CONTRACT_RECEIVE, 7, got, sizeof got);
        contract_pair_await_messages(&pair, 0, 1);
        contract_pair_await(&pair, &message);
        contract_pair_await(&pair, &receive);
        contract_pair_await(&pair, &send);
        cr_assert_eq(own->messages[0].link, to);
        cr_assert(contract_filled(got, sizeof got, i));
    }
    contract_post(&receive, links[0], CONTRACT_RECEIVE, 8, got, sizeof got);
    contract_post(&send, links[2], CONTRACT_SEND, 8, data, sizeof data);
    for (int i = 0; i < 3; i++) {
        own->ops->disconnect(links[i]);
    }
    contract_pair_await(&pair, &receive);
    contract_pair_await(&pair, &send);
    cr_assert_eq(receive.status, FERRY_ERR_CANCELLED);
    contract_pair_close(&pair);
}

/* The same segment numbers on many links between the same instances. */
void contract_keeps_links_apart(const char *transport, const char *tls)
{
    struct contract_pair pair;
    ferry_link_t *links[2][LINKS];
    struct contract_post sends[LINKS], receives[LINKS], messages[LINKS];
    uint32_t data[LINKS], got[LINKS];
    contract_pair_open(&pair, transport, tls);
    for (uint32_t i = 0; i < LINKS; i++) {
        links[0][i] = contract_party_connect(&pair.parties[0], &pair.parties[1], i, 1000 - i);
        links[1][i] = contract_party_connect(&pair.parties[1], &pair.parties[0], 1000 - i, i);
    }
    for (uint32_t i = 0; i < LINKS; i++) {
        data[i] = i * 3;
        contract_post(&sends[i], links[0][i], CONTRACT_SEND, 1, &data[i], sizeof data[i]);
        contract_post(&messages[i], links[0][i], CONTRACT_MESSAGE, 0, &data[i], sizeof data[i]);
    }
    for (uint32_t i = LINKS; i-- > 0;) {
        contract_post(&receives[i], links[1][i], CONTRACT_RECEIVE, 1, &got[i], sizeof got[i]);
    }
    contract_pair_await_messages(&pair, 1, LINKS);
    for (uint32_t i = 0; i < LINKS; i++) {
        contract_pair_await(&pair, &receives[i]);
        contract_pair_await(&pair, &sends[i]);
        contract_pair_await(&pair, &messages[i]);
        cr_assert_eq(got[i], i * 3);
        const struct contract_message *message = &pair.parties[1].messages[i];
        uint32_t number;
        memcpy(&number, message->data, sizeof number);
        cr_assert_eq(message->link, links[1][number / 3]);
    }
    for (int i = 0; i < LINKS; i++) {
        pair.parties[i % 2].ops->disconnect(links[i % 2][i]);
        pair.parties[1 - i % 2].ops->disconnect(links[1 - i % 2][i]);
    }
    contract_pair_close(&pair);
}

/* Nothing wakes an idle end; each thing that comes does. */
void contract_sleeps_and_wakes(const char *transport, const char *tls)
{
    struct contract_pair pair;
    unsigned char data[50000], got[50000];
    contract_pair_connected(&pair, transport, tls);
    struct contract_party *sender = &pair.parties[0], *sleeper = &pair.parties[1];
    exchange(&pair, 1000, 99);
    contract_pair_settle(&pair);
    int idle = 0;
    while (contract_party_sleep(sleeper, 0)) { /* UCX's own messages may still be under way */
        contract_pair_settle(&pair);
        cr_assert_lt(idle++, 1000, "an idle instance is never at rest");
    }
    for (uint32_t i = 0; i < 30; i++) {
        struct contract_post post, receive = {.done = 0};
        size_t bytes = i % 3 == 0 ? 8 : i % 3 == 1 ? 5000 : sizeof data;
        contract_party_forget_messages(sleeper);
        if (i % 2 == 0) {
            contract_post(&receive, sleeper->link, CONTRACT_RECEIVE, i, got, bytes);
        }
        sleeper->ops->progress(sleeper->transport);
        contract_post(&post, sender->link, i % 2 == 0 ? CONTRACT_SEND : CONTRACT_MESSAGE, i, data,
                      i % 2 == 0 ? bytes : bytes % 8000);
        int64_t deadline = clock_monotonic_ns() + INT64_C(20000000000);
        while (receive.done == 0 && sleeper->message_count == 0) {
            sender->ops->progress(sender->transport);
            cr_assert(contract_party_sleep(sleeper, 20000),
                      "nothing wakes the receiver of %zu bytes", bytes);
            sleeper->ops->progress(sleeper->transport);
            cr_assert_lt(clock_monotonic_ns(), deadline);
        }
        contract_pair_await(&pair, &post);
        cr_assert_eq(post.status, FERRY_OK);
    }
    contract_pair_close(&pair);
}

/* Receives that nothing was sent to. */
void contract_disconnects_idle_receives(const char *transport, const char *tls)
{
    struct contract_pair pair;
    struct contract_post receives[50], decline;
    unsigned char got[50];
    contract_pair_connected(&pair, transport, tls);
    const ferry_transport_ops_t *ops = pair.parties[1].ops;
    for (uint32_t i = 0; i < 50; i++) {
        contract_post(&receives[i], pair.parties[1].link, CONTRACT_RECEIVE, i, &got[i], 1);
    }
    contract_post(&decline, pair.parties[1].link, CONTRACT_DECLINE, 70, NULL, 10);
    cr_assert_eq(ops->pending(pair.parties[1].transport), 51);
    contract_pair_settle(&pair);
    contract_party_disconnect(&pair.parties[1]);
    contract_pair_await(&pair, &decline);
    for (int i = 0; i < 50; i++) {
        contract_pair_await(&pair, &receives[i]);
        cr_assert_eq(receives[i].status, FERRY_ERR_CANCELLED);
        cr_assert_eq(receives[i].bytes, 0);
    }
    cr_assert_eq(ops->pending(pair.parties[1].transport), 0);
    contract_pair_close(&pair);
}

/* One link whose ends are cut after so many steps, amid segments of many sizes: what completed is
 * not touched again, neither read nor written. */
static void cut_after(struct contract_pair *pair, int steps, int first)
{
    static const size_t sizes[] = {8, 9000, 60000, 300000, 4 << 20};
    enum { SIZES = sizeof sizes / sizeof sizes[0], COUNT = 3 * SIZES };
    struct contract_post sends[COUNT], receives[COUNT];
    unsigned char *data[COUNT], *got[COUNT];
    for (uint32_t i = 0; i < COUNT; i++) {
        data[i] = malloc(sizes[i % SIZES]);
        got[i] = malloc(sizes[i % SIZES]);
        contract_fill(data[i], sizes[i % SIZES], i);
        contract_post(&sends[i], pair->parties[0].link, CONTRACT_SEND, i, data[i],
                      sizes[i % SIZES]);
        if (i % 4 == 3) {
            pair->parties[1].ops->progress(pair->parties[1].transport);
        }
        contract_post(&receives[i], pair->parties[1].link, CONTRACT_RECEIVE, i, got[i],
                      sizes[i % SIZES]);
    }
    for (int i = 0; i < steps; i++) {
        contract_pair_progress(pair);
    }
    contract_party_disconnect(&pair->parties[first]);
    for (int i = 0; i < steps % 5; i++) {
        contract_pair_progress(pair);
    }
    contract_party_disconnect(&pair->parties[1 - first]);
    for (uint32_t i = 0; i < COUNT; i++) {
        contract_pair_await(pair, &sends[i]);
        contract_pair_await(pair, &receives[i]);
        cr_assert(receives[i].status != FERRY_OK || contract_filled(got[i], sizes[i % SIZES], i),
                  "a segment that was taken is wrong");
        memset(got[i], 0x5a, sizes[i % SIZES]);
        free(data[i]);
    }
    contract_pair_settle(pair);
    for (int i = 0; i < COUNT; i++) {
        cr_assert(got[i][0] == 0x5a && memcmp(got[i], got[i] + 1, sizes[i % SIZES] - 1) == 0,
                  "written after its completion");
        free(got[i]);
    }
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(pair->parties[i].ops->pending(pair->parties[i].transport), 0);
    }
}

/* A sender that stands still has filled all buffers on the way: some segments are there, one is
 * there in part, some are not. The receiver gets away without its help. */
void contract_disconnects_from_a_stopped_sender(const char *transport, const char *tls)
{
    enum { COUNT = 300, BYTES = 50000 };
    struct contract_pair pair;
    struct contract_post *sends = calloc(COUNT, sizeof *sends);
    struct contract_post *receives = calloc(COUNT, sizeof *receives);
    unsigned char *data = calloc(COUNT, BYTES), *got = calloc(COUNT, BYTES);
    contract_pair_connected(&pair, transport, tls);
    struct contract_party *sender = &pair.parties[0], *receiver = &pair.parties[1];
    exchange(&pair, 100, 1000);
    for (uint32_t i = 0; i < COUNT; i++) {
        contract_post(&sends[i], sender->link, CONTRACT_SEND, i, data, BYTES);
    }
    for (uint32_t i = 0; i < COUNT; i++) {
        contract_post(&receives[i], receiver->link, CONTRACT_RECEIVE, i, got + i * BYTES, BYTES);
    }
    for (int quiet = 0; quiet < 1000;) {
        quiet = receiver->ops->progress(receiver->transport) > 0 ? 0 : quiet + 1;
    }
    contract_party_disconnect(receiver);
    int64_t deadline = clock_monotonic_ns() + INT64_C(20000000000);
    while (receiver->ops->pending(receiver->transport) > 0) {
        cr_assert_lt(clock_monotonic_ns(), deadline, "%zu receives never end",
                     receiver->ops->pending(receiver->transport));
        receiver->ops->progress(receiver->transport);
    }
    for (int i = 0; i < COUNT; i++) {
        cr_assert_eq(receives[i].done, 1);
    }
    memset(got, 0x5a, COUNT * BYTES);
    contract_pair_settle(&pair);
    cr_assert(got[0] == 0x5a && memcmp(got, got + 1, COUNT * BYTES - 1) == 0,
              "written after its completion");
    contract_pair_close(&pair);
    free(sends);
    free(receives);
    free(data);
    free(got);
}

void contract_disconnects_amid_segments(const char *transport, const char *tls)
{
    struct contract_pair pair;
    contract_pair_open(&pair, transport, tls);
    struct contract_party *parties = pair.parties;
    for (int round = 0; round < 24; round++) {
        uint32_t session = 100 * (uint32_t)round;
        parties[0].link = contract_party_connect(&parties[0], &parties[1], session, session + 1);
        parties[1].link = contract_party_connect(&parties[1], &parties[0], session + 1, session);
        if (round % 3 != 0) {
            exchange(&pair, 100, 1000); /* else the link is not yet wired */
        }
        cut_after(&pair, round * 2 / 3, round % 2);
    }
    contract_pair_close(&pair);
}

/* The segments and messages that nobody took of one session never reach the next, whose numbers
 * are the same. */
void contract_starts_sessions_afresh(const char *transport, const char *tls)
{
    static const size_t sizes[] = {8, 5000, 200000};
    struct contract_pair pair;
    unsigned char *data = malloc(200000), *got = malloc(200000);
    contract_pair_open(&pair, transport, tls);
    struct contract_party *parties = pair.parties;
    for (uint32_t round = 0; round < 12; round++) {
        struct contract_post stale[3], messages[2], receive, send;
        size_t bytes = sizes[round % 3];
        parties[0].link = contract_party_connect(&parties[0], &parties[1], 50 + round, 80 + round);
        parties[1].link = contract_party_connect(&parties[1], &parties[0], 80 + round, 50 + round);
        contract_fill(data, bytes, round);
        contract_post(&send, parties[0].link, CONTRACT_SEND, 4, data, bytes);
        contract_post(&receive, parties[1].link, CONTRACT_RECEIVE, 4, got, bytes);
        contract_pair_await(&pair, &receive);
        cr_assert_eq(receive.status, FERRY_OK);
        cr_assert(contract_filled(got, bytes, round), "from another session");
        contract_pair_await(&pair, &send);
        cr_assert_eq(parties[1].message_count, 0);
        memset(data, 0xee, bytes);
        for (uint32_t i = 0; i < 3; i++) {
            contract_post(&stale[i], parties[0].link, CONTRACT_SEND, 4, data, sizes[i]);
        }
        for (int i = 0; i < 2; i++) {
            contract_post(&messages[i], parties[0].link, CONTRACT_MESSAGE, 0, data, 100);
        }
        if (round % 2 == 0) {
            parties[0].ops->progress(parties[0].transport);
        }
        contract_party_disconnect(&parties[1]);
        contract_party_disconnect(&parties[0]);
        for (int i = 0; i < 5; i++) {
            contract_pair_await(&pair, i < 3 ? &stale[i] : &messages[i - 3]);
        }
    }
    free(data);
    free(got);
    contract_pair_close(&pair);
}

/* The other instance goes while this end has operations posted and things lie unread. */
void contract_outlives_the_other_instance(const char *transport, const char *tls)
{
    struct contract_pair pair;
    static unsigned char data[300000], got[100], unread[300000];
    struct contract_post sends[3], receive, message, other;
    contract_pair_connected(&pair, transport, tls);
    struct contract_party *left = &pair.parties[0], *right = &pair.parties[1];
    exchange(&pair, 1000, 1);
    contract_post(&sends[0], left->link, CONTRACT_SEND, 10, data, 8);
    contract_post(&sends[1], left->link, CONTRACT_SEND, 11, data, 9000);
    contract_post(&sends[2], left->link, CONTRACT_SEND, 12, data, sizeof data);
    contract_post(&receive, left->link, CONTRACT_RECEIVE, 13, got, sizeof got);
    contract_post(&message, left->link, CONTRACT_MESSAGE, 0, data, 100);
    contract_post(&other, right->link, CONTRACT_SEND, 77, unread, sizeof unread);
    contract_pair_progress(&pair);
    contract_party_close(right);
    cr_assert_eq(other.done, 1);
    if ((left->ops->capabilities(left->transport) & FERRY_TRANSPORT_LOCAL) != 0) {
        int64_t deadline = clock_monotonic_ns() + INT64_C(10000000000);
        while (left->downs == 0) {
            cr_assert_lt(clock_monotonic_ns(), deadline, "the other end's close is not seen");
            left->ops->progress(left->transport);
        }
        cr_assert_eq(left->down_link, left->link);
        cr_assert_eq(left->down_status, FERRY_ERR_PEER_LOST);
        contract_post(&other, left->link, CONTRACT_MESSAGE, 0, data, 8);
        cr_assert_eq(other.status, FERRY_ERR_PEER_LOST);
        contract_post(&other, left->link, CONTRACT_SEND, 20, data, 8);
        cr_assert_eq(other.status, FERRY_ERR_PEER_LOST);
    }
    for (int i = 0; i < 1000; i++) {
        left->ops->progress(left->transport);
    }
    cr_assert_leq(left->downs, 1);
    contract_party_close(left);
    cr_assert_eq(sends[0].done + sends[1].done + sends[2].done + receive.done + message.done, 5);
    cr_assert_neq(receive.status, FERRY_OK);
}

/* ---- two threads, as two agents are ---- */

#define VOLLEYS 300

struct player {
    pthread_t thread;
    struct contract_party *party, *other;
    pthread_barrier_t *barrier;
    uint32_t number;
};

/* Only a party's own thread touches it; that is what a contract without locks is for. */
static void player_await(struct player *player, const int *done)
{
    int64_t deadline = clock_monotonic_ns() + INT64_C(30000000000);
    while (*done == 0) {
        if (player->party->ops->progress(player->party->transport) == 0) {
            cr_assert_lt(clock_monotonic_ns(), deadline, "the other thread's half never comes");
            contract_party_sleep(player->party, 5);
        }
    }
}

/* Sends and receives of both at once; at the end of each round both cut the link with a segment
 * under way. */
static void *player_play(void *context)
{
    struct player *player = context;
    struct contract_party *party = player->party;
    unsigned char *data = malloc(100000), *got = malloc(100000);
    for (uint32_t round = 0; round < 8; round++) {
        uint32_t mine = 2 * round + player->number, theirs = 2 * round + 1 - player->number;
        party->link = contract_party_connect(party, player->other, mine, theirs);
        for (uint32_t i = 0; i < VOLLEYS / 8; i++) {
            size_t bytes = i % 5 == 0 ? 100000 : i * 31;
            struct contract_post send, receive;
            contract_fill(data, bytes, i + round + player->number);
            contract_post(&send, party->link, CONTRACT_SEND, i, data, bytes);
            contract_post(&receive, party->link, CONTRACT_RECEIVE, i, got, bytes);
            player_await(player, &receive.done);
            player_await(player, &send.done);
            cr_assert_eq(receive.status, FERRY_OK);
            cr_assert(contract_filled(got, bytes, i + round + 1 - player->number));
        }
        pthread_barrier_wait(player->barrier);
        struct contract_post send, receive;
        contract_post(&send, party->link, CONTRACT_SEND, 5000, data, 100000);
        contract_post(&receive, party->link, CONTRACT_RECEIVE, 5000, got, 100000);
        contract_party_disconnect(party);
        player_await(player, &send.done);
        player_await(player, &receive.done);
    }
    free(data);
    free(got);
    return NULL;
}

void contract_runs_in_two_threads(const char *transport, const char *tls)
{
    struct contract_pair pair;
    pthread_barrier_t barrier;
    struct player players[2];
    pthread_barrier_init(&barrier, NULL, 2);
    contract_pair_open(&pair, transport, tls);
    for (uint32_t i = 0; i < 2; i++) {
        players[i] = (struct player){.party = &pair.parties[i],
                                     .other = &pair.parties[1 - i],
                                     .barrier = &barrier,
                                     .number = i};
        cr_assert_eq(pthread_create(&players[i].thread, NULL, player_play, &players[i]), 0);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(players[i].thread, NULL);
    }
    pthread_barrier_destroy(&barrier);
    contract_pair_close(&pair);
}
