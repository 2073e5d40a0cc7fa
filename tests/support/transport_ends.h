/* Two instances of a transport with a link between them, driven by the test's thread or by a thread each, as agents drive theirs. Whatever
 * breaks the contract's rules on completions stops the process. No Criterion here: the thread
 * sanitizer's programs use it, too. */
#ifndef TESTS_SUPPORT_TRANSPORT_ENDS_H
#define TESTS_SUPPORT_TRANSPORT_ENDS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <ferry/transport.h>

#include "support/pair.h"
#include "support/wire.h"

#define ENDS_MESSAGE_BYTES 8192

struct ends_message {
    ferry_link_t *link;
    size_t bytes;
    unsigned char *data; /* owned */
};

struct end {
    const ferry_transport_ops_t *ops;
    ferry_transport_t *instance; /* NULL: closed */
    ferry_link_t *link;          /* NULL: disconnected */
    pthread_mutex_t mutex;       /* the agent's lock */
    pthread_t thread;
    bool driven; /* by its thread */
    bool stop;
    int kick; /* an eventfd that wakes the thread */
    bool in_slot;
    struct ends_message *messages; /* owned; with the mutex */
    size_t message_count, message_capacity;
    int downs;
    ferry_status_t down_status;
    bool echo; /* messages go back as they came */
    size_t slept;
};

struct ends {
    struct end end[2];
    uint32_t next_session;
    int64_t deadline_ns; /* of the step under way; 0: none yet */
};

/* A posted operation and how it ended. */
struct post {
    ferry_operation_t operation;
    struct end *end;
    bool pending;
    atomic_int done;
    ferry_status_t status;
    size_t bytes;
};

enum post_kind { POST_MESSAGE, POST_SEND, POST_RECEIVE, POST_DECLINE };

void end_open(struct end *end, const struct wire *wire, bool threaded);
/* Waits until nothing is pending; the link must be disconnected. */
void end_close(struct end *end);
/* Links the end to the address under these sessions. */
void end_connect(struct end *end, const void *address, size_t bytes, uint32_t local_session,
                 uint32_t remote_session);
void end_disconnect(struct end *end);
/* Progresses once, unless a thread does; sleeps no longer than a moment. */
void end_step(struct end *end);
size_t end_pending(struct end *end);
size_t end_message_count(struct end *end);
void end_forget_messages(struct end *end);

void ends_open(struct ends *ends, const struct wire *wire, bool threaded);
void ends_connect(struct ends *ends); /* with new sessions */
void ends_connected(struct ends *ends, const struct wire *wire, bool threaded);
void ends_close(struct ends *ends); /* disconnects first */
/* One step of whoever waits; stops the process when the same wait lasts a minute. */
void ends_step(struct ends *ends);
void ends_wait_post(struct ends *ends, const struct post *post);
void ends_wait_messages(struct ends *ends, int end, size_t count);
/* Lets things happen that should not: until nothing is pending and a message went each way, if the link is up. */
void ends_settle(struct ends *ends);

/* A slot that finishes or refuses at once leaves a post that is done. */
void post_to(struct post *post, struct end *end, enum post_kind kind, uint32_t segment,
             const void *data, size_t bytes);
void post_memory(struct post *post, struct end *end, enum post_kind kind, uint32_t segment,
                 const ferry_memory_t *memory);
bool post_done(const struct post *post);

/* Memory with a pattern of its seed. */
unsigned char *filled(size_t bytes, uint32_t seed);
bool is_filled(const void *data, size_t bytes, uint32_t seed);
bool is_all(const void *data, size_t bytes, unsigned char value);

#endif
