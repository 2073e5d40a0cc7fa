/* The inproc transport's inside. */
#ifndef FERRY_TRANSPORTS_INPROC_INTERNAL_H
#define FERRY_TRANSPORTS_INPROC_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <uthash.h>

#include <ferry/transport.h>

#define BUCKETS 256

/* A posted operation's state, in ferry_operation_t.reserved. */
struct parcel {
    ferry_operation_t *next;
    struct inproc_link *link; /* who posted it */
    void *data;               /* NULL: a declined receive */
    size_t bytes;
    uint32_t session, segment; /* as the receiver names them */
    int32_t status;            /* once completed */
    int32_t busy;              /* being copied */
};

struct message {
    struct message *next;
    uint32_t session;
    size_t bytes;
    uint64_t data[]; /* aligned to 8 */
};

struct inproc_link {
    ferry_link_t base;     /* first */
    struct inproc *inproc; /* borrowed */
    struct inproc *peer;   /* borrowed; NULL once it is closed */
    uint32_t local_session, remote_session;
    bool gone, told; /* an end left: nothing can be posted; the event was given */
    UT_hash_handle hh;
};

/* Random, so that an address from another process names nobody here. */
struct inproc_address {
    uint64_t words[2];
};

struct inproc {
    ferry_transport_t base; /* first */
    ferry_transport_events_t events;
    struct inproc_address address;
    size_t message_bytes;
    int wait_fd;
    atomic_bool news; /* something for progress() */
    bool armed;
    size_t posted;
    struct inproc_link *links; /* hash by local_session */
    struct message *messages, **messages_tail;
    size_t early; /* of these, for links that are not made yet, at least */
    ferry_operation_t *completed, **completed_tail;
    ferry_operation_t *sends[BUCKETS],
        *receives[BUCKETS]; /* waiting for the other half, by segment */
    struct inproc *next;
};

/* What the instances of this process see of each other is guarded by the mutex. */
struct inproc_shared {
    pthread_mutex_t mutex;
    pthread_cond_t copied; /* a pair was joined */
    struct inproc *instances;
};

extern struct inproc_shared inproc_shared;

static inline struct inproc *inproc_of(const ferry_transport_t *transport)
{
    return (struct inproc *)(uintptr_t)(const void *)transport;
}

static inline struct inproc_link *link_of(ferry_link_t *link)
{
    return (struct inproc_link *)(void *)link;
}

/* With the mutex: there is something for the instance's next progress(). */
void inproc_signal(struct inproc *inproc);

/* inproc_segment.c */
ferry_status_t inproc_send(ferry_link_t *base, uint32_t segment, const ferry_memory_t *memory,
                           ferry_operation_t *operation);
ferry_status_t inproc_receive(ferry_link_t *base, uint32_t segment, const ferry_memory_t *memory,
                              ferry_operation_t *operation);
ferry_status_t inproc_decline(ferry_link_t *base, uint32_t segment, size_t bytes,
                              ferry_operation_t *operation);
/* With the mutex, let go while others copy: takes out all that is posted on a link. */
ferry_operation_t *link_take_operations(struct inproc_link *link);
/* With the mutex: what others have sent to a session that is over, and to an instance that closes. */
void link_return_sends(struct inproc_link *link);
void inproc_return_sends(struct inproc *inproc);
/* Completes a list of the instance's own operations; without the mutex. */
void operations_finish(struct inproc *inproc, ferry_operation_t *operations);

#endif
