/* What every transport promises (ferry/transport.h), as cases that run over any of them. Each case
 * is a function that opens what it needs, asserts with Criterion, and closes it. */
#ifndef TESTS_SUPPORT_TRANSPORT_CONTRACT_H
#define TESTS_SUPPORT_TRANSPORT_CONTRACT_H

#include <stdint.h>

#include <ferry/transport.h>

#define CONTRACT_MESSAGE_BYTES 8192

/* A control message that arrived. */
struct contract_message {
    ferry_link_t *link;
    size_t bytes;
    unsigned char *data; /* owned */
};

/* One instance and what its events said. */
struct contract_party {
    const ferry_transport_ops_t *ops;
    ferry_transport_t *transport;
    ferry_link_t *link; /* to the other party; NULL: none */
    struct contract_message *messages;
    size_t message_count;
    ferry_link_t *down_link;
    ferry_status_t down_status;
    int downs;
};

/* A posted operation and how it ended. */
struct contract_post {
    ferry_operation_t operation;
    int done; /* times */
    ferry_status_t status;
    size_t bytes;
};

/* Two instances of one transport, driven by the test's thread. */
struct contract_pair {
    struct contract_party parties[2];
};

enum contract_kind { CONTRACT_MESSAGE, CONTRACT_SEND, CONTRACT_RECEIVE, CONTRACT_DECLINE };

void contract_party_open(struct contract_party *party, const char *transport);
/* Disconnects what is left, waits until nothing is pending, and closes. */
void contract_party_close(struct contract_party *party);
/* Links `party` to the instance at that address; sessions as in connect(). */
ferry_link_t *contract_party_connect(struct contract_party *party,
                                     const struct contract_party *other, uint32_t local_session,
                                     uint32_t remote_session);
ferry_link_t *contract_party_connect_to(struct contract_party *party, const void *address,
                                        size_t bytes, uint32_t local_session,
                                        uint32_t remote_session);
void contract_party_disconnect(struct contract_party *party);
void contract_party_forget_messages(struct contract_party *party);
/* Sleeps as an agent does until there is work: false when none came within the time. */
bool contract_party_sleep(struct contract_party *party, int timeout_ms);

/* tls: UCX_TLS for this process, "" for UCX's choice. */
void contract_pair_open(struct contract_pair *pair, const char *transport, const char *tls);
/* The same with a link between them. */
void contract_pair_connected(struct contract_pair *pair, const char *transport, const char *tls);
void contract_pair_close(struct contract_pair *pair);
unsigned contract_pair_progress(struct contract_pair *pair);
/* Until the post is done, or `count` messages are at that party; asserts that it comes about. */
void contract_pair_await(struct contract_pair *pair, const struct contract_post *post);
void contract_pair_await_messages(struct contract_pair *pair, int party, size_t count);
/* Until nothing happened for a good while: for what must not come. */
void contract_pair_settle(struct contract_pair *pair);

/* Posts on a link; a slot that finishes or refuses at once counts as done. */
void contract_post(struct contract_post *post, ferry_link_t *link, enum contract_kind kind,
                   uint32_t segment, const void *data, size_t bytes);
void contract_fill(void *data, size_t bytes, uint32_t seed);
bool contract_filled(const void *data, size_t bytes, uint32_t seed);

/* The cases. */
void contract_describes_itself(const char *transport, const char *tls);
void contract_opens_again_and_again(const char *transport, const char *tls);
void contract_carries_messages(const char *transport, const char *tls);
void contract_keeps_early_messages(const char *transport, const char *tls);
void contract_carries_segments(const char *transport, const char *tls);
void contract_carries_many_at_once(const char *transport, const char *tls);
void contract_takes_registered_memory(const char *transport, const char *tls);
void contract_declines(const char *transport, const char *tls);
void contract_refuses_other_sizes(const char *transport, const char *tls);
void contract_refuses_other_memory(const char *transport, const char *tls);
void contract_refuses_bad_connects(const char *transport, const char *tls);
void contract_links_to_itself(const char *transport, const char *tls);
void contract_keeps_links_apart(const char *transport, const char *tls);
void contract_sleeps_and_wakes(const char *transport, const char *tls);
void contract_disconnects_idle_receives(const char *transport, const char *tls);
void contract_disconnects_from_a_stopped_sender(const char *transport, const char *tls);
void contract_disconnects_amid_segments(const char *transport, const char *tls);
void contract_starts_sessions_afresh(const char *transport, const char *tls);
void contract_outlives_the_other_instance(const char *transport, const char *tls);
void contract_runs_in_two_threads(const char *transport, const char *tls);

#endif
