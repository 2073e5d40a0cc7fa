#include "support/transport_contract.h"

#include <criterion/criterion.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include <ferry/error.h>

#include "core/clock.h"
#include "rpc/transport_registry.h"
#include "support/wire.h"

#define DEADLINE_NS INT64_C(30000000000)
#define QUIET_ROUNDS 2000 /* of progress() without an event, until nothing more is expected */

static void on_message(void *context, ferry_link_t *link, const void *data, size_t bytes)
{
    struct contract_party *party = context;
    size_t count = party->message_count++;
    party->messages = realloc(party->messages, (count + 1) * sizeof *party->messages);
    party->messages[count] =
        (struct contract_message){.link = link, .bytes = bytes, .data = malloc(bytes + 1)};
    memcpy(party->messages[count].data, data, bytes);
}

static void on_link_down(void *context, ferry_link_t *link, ferry_status_t status, const char *text)
{
    struct contract_party *party = context;
    party->downs++;
    party->down_link = link;
    party->down_status = status;
    (void)text;
}

void contract_party_open(struct contract_party *party, const char *transport)
{
    struct wire wire = wire_find(transport);
    *party = (struct contract_party){.ops = wire.ops};
    cr_assert_not_null(party->ops, "there is no transport '%s'", transport);
    ferry_transport_options_t options = {
        .struct_bytes = sizeof options,
        .events = {.context = party, .message = on_message, .link_down = on_link_down},
        .interface = "",
        .protocol = wire.protocol,
        .message_bytes = CONTRACT_MESSAGE_BYTES,
    };
    ferry_status_t status = transport_open(party->ops, &options, &party->transport);
    cr_assert_eq(status, FERRY_OK, "open: %s", ferry_last_error()->text);
}

void contract_party_close(struct contract_party *party)
{
    contract_party_disconnect(party);
    int64_t deadline = clock_monotonic_ns() + DEADLINE_NS;
    while (party->ops->pending(party->transport) > 0) {
        cr_assert_lt(clock_monotonic_ns(), deadline, "%zu operations never end",
                     party->ops->pending(party->transport));
        party->ops->progress(party->transport);
    }
    party->ops->close(party->transport);
    contract_party_forget_messages(party);
    party->transport = NULL;
}

ferry_link_t *contract_party_connect_to(struct contract_party *party, const void *address,
                                        size_t bytes, uint32_t local_session,
                                        uint32_t remote_session)
{
    ferry_link_t *link = NULL;
    ferry_status_t status = party->ops->connect(party->transport, address, bytes, local_session,
                                                remote_session, party, &link);
    cr_assert_eq(status, FERRY_OK, "connect: %s", ferry_last_error()->text);
    cr_assert_eq(link->context, party);
    cr_assert_eq(link->transport, party->transport);
    return link;
}

ferry_link_t *contract_party_connect(struct contract_party *party,
                                     const struct contract_party *other, uint32_t local_session,
                                     uint32_t remote_session)
{
    const void *address;
    size_t bytes;
    other->ops->address(other->transport, &address, &bytes);
    return contract_party_connect_to(party, address, bytes, local_session, remote_session);
}

void contract_party_disconnect(struct contract_party *party)
{
    if (party->link != NULL) {
        party->ops->disconnect(party->link);
        party->link = NULL;
    }
}

void contract_party_forget_messages(struct contract_party *party)
{
    for (size_t i = 0; i < party->message_count; i++) {
        free(party->messages[i].data);
    }
    free(party->messages);
    party->messages = NULL;
    party->message_count = 0;
}

bool contract_party_sleep(struct contract_party *party, int timeout_ms)
{
    while (party->ops->arm(party->transport) != FERRY_OK) {
        if (party->ops->progress(party->transport) > 0) {
            return true;
        }
    }
    struct pollfd sleep = {.fd = party->ops->wait_fd(party->transport), .events = POLLIN};
    return poll(&sleep, 1, timeout_ms) == 1;
}

void contract_pair_open(struct contract_pair *pair, const char *transport, const char *tls)
{
    if (tls[0] != '\0') {
        setenv("UCX_TLS", tls, 1);
    }
    contract_party_open(&pair->parties[0], transport);
    contract_party_open(&pair->parties[1], transport);
}

void contract_pair_connected(struct contract_pair *pair, const char *transport, const char *tls)
{
    contract_pair_open(pair, transport, tls);
    struct contract_party *parties = pair->parties;
    parties[0].link = contract_party_connect(&parties[0], &parties[1], 0x10a0, 0xffff10a1);
    parties[1].link = contract_party_connect(&parties[1], &parties[0], 0xffff10a1, 0x10a0);
}

/* Both ends at once, as two agents would: one end waits for the other's part in letting go. */
void contract_pair_close(struct contract_pair *pair)
{
    contract_party_disconnect(&pair->parties[0]);
    contract_party_disconnect(&pair->parties[1]);
    int64_t deadline = clock_monotonic_ns() + DEADLINE_NS;
    while (pair->parties[0].ops->pending(pair->parties[0].transport) +
               pair->parties[1].ops->pending(pair->parties[1].transport) >
           0) {
        cr_assert_lt(clock_monotonic_ns(), deadline, "operations never end");
        contract_pair_progress(pair);
    }
    contract_party_close(&pair->parties[0]);
    contract_party_close(&pair->parties[1]);
}

unsigned contract_pair_progress(struct contract_pair *pair)
{
    return pair->parties[0].ops->progress(pair->parties[0].transport) +
           pair->parties[1].ops->progress(pair->parties[1].transport);
}

static void pair_step(struct contract_pair *pair, int64_t deadline, const char *what)
{
    if (contract_pair_progress(pair) == 0) {
        cr_assert_lt(clock_monotonic_ns(), deadline, "%s does not come", what);
        sched_yield();
    }
}

void contract_pair_await(struct contract_pair *pair, const struct contract_post *post)
{
    int64_t deadline = clock_monotonic_ns() + DEADLINE_NS;
    while (post->done == 0) {
        pair_step(pair, deadline, "an operation's completion");
    }
    cr_assert_eq(post->done, 1);
}

void contract_pair_await_messages(struct contract_pair *pair, int party, size_t count)
{
    int64_t deadline = clock_monotonic_ns() + DEADLINE_NS;
    while (pair->parties[party].message_count < count) {
        pair_step(pair, deadline, "a message");
    }
    cr_assert_eq(pair->parties[party].message_count, count);
}

void contract_pair_settle(struct contract_pair *pair)
{
    for (int quiet = 0; quiet < QUIET_ROUNDS;) {
        quiet = contract_pair_progress(pair) > 0 ? 0 : quiet + 1;
    }
}

static void post_completed(ferry_operation_t *operation, ferry_status_t status, size_t bytes)
{
    struct contract_post *post = operation->context;
    post->done++;
    post->status = status;
    post->bytes = bytes;
}

static ferry_status_t post_by_kind(struct contract_post *post, ferry_link_t *link,
                                   enum contract_kind kind, uint32_t segment,
                                   const ferry_memory_t *memory)
{
    const ferry_transport_ops_t *ops = link->transport->ops;
    switch (kind) {
    case CONTRACT_MESSAGE:
        return ops->send_message(link, memory->data, memory->bytes, &post->operation);
    case CONTRACT_SEND:
        return ops->send(link, segment, memory, &post->operation);
    case CONTRACT_RECEIVE:
        return ops->receive(link, segment, memory, &post->operation);
    default:
        return ops->decline(link, segment, memory->bytes, &post->operation);
    }
}

void contract_post(struct contract_post *post, ferry_link_t *link, enum contract_kind kind,
                   uint32_t segment, const void *data, size_t bytes)
{
    ferry_memory_t memory = {
        .data = (void *)(uintptr_t)data, .bytes = bytes, .device = {.device_type = kDLCPU}};
    memset(post, 0xa5, sizeof *post); /* reserved is the transport's to initialise */
    post->operation.complete = post_completed;
    post->operation.context = post;
    post->done = 0;
    ferry_status_t status = post_by_kind(post, link, kind, segment, &memory);
    cr_assert_eq(post->done, 0, "complete() was called inside the slot");
    if (status != FERRY_PENDING) {
        post->done = 1;
        post->status = status;
        post->bytes = status == FERRY_OK ? bytes : 0;
    }
}

/* The word at that place; a shift or a swap of pieces shows, too. */
static uint64_t word_at(size_t place, uint32_t seed)
{
    return (place + 1) * UINT64_C(0x9e3779b97f4a7c15) ^ seed * UINT64_C(0xc2b2ae3d27d4eb4f);
}

void contract_fill(void *data, size_t bytes, uint32_t seed)
{
    unsigned char *at = data;
    for (size_t i = 0; i < bytes; i += sizeof(uint64_t)) {
        uint64_t word = word_at(i, seed);
        memcpy(at + i, &word, bytes - i < sizeof word ? bytes - i : sizeof word);
    }
}

bool contract_filled(const void *data, size_t bytes, uint32_t seed)
{
    const unsigned char *at = data;
    for (size_t i = 0; i < bytes; i += sizeof(uint64_t)) {
        uint64_t word = word_at(i, seed);
        if (memcmp(at + i, &word, bytes - i < sizeof word ? bytes - i : sizeof word) != 0) {
            return false;
        }
    }
    return true;
}
