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
    struct inproc_link *link; /* borrowed: the receiving end; NULL of an early one */
    uint32_t session;         /* the receiving end's */
    uint32_t bytes;
    uint64_t data[]; /* aligned to 8 */
};

struct message_queue {
    struct message *head, **tail;
    size_t count;
};

/* opposite and gone are written with both ends' mutexes and read with either. */
struct inproc_link {
    ferry_link_t base;            /* first */
    struct inproc *inproc;        /* borrowed */
    struct inproc *peer;          /* retained */
    struct inproc_link *opposite; /* borrowed; the other end, once it is made and while it lives */
    uint32_t local_session, remote_session;
    bool gone;                                     /* an end left: nothing can be posted */
    struct inproc_link *facing_prev, *facing_next; /* peer->facing */
    struct inproc_link *lost_prev, *lost_next;     /* inproc->lost */
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
    size_t posted;         /* its own agent's */
    atomic_int references; /* the agent's and every link's that leads here */

    atomic_bool news, armed; /* there is something for progress(); whose agent sleeps */
    _Atomic(ferry_operation_t *) completed; /* for progress(), the last one first */

    pthread_mutex_t mutex;                /* guards what follows */
    pthread_cond_t copied;                /* a pair was joined */
    struct message_queue messages, early; /* early: for links that are not made yet */
    struct inproc_link *links;            /* hash by local_session; changed by its own agent only */
    struct inproc_link *lost;             /* of these, what link_down is still to be said of */
    ferry_operation_t *sends[BUCKETS],
        *receives[BUCKETS]; /* waiting for the other half, by segment */

    /* with the process's mutex */
    struct inproc_link *facing; /* other instances' links that lead here */
    UT_hash_handle hh;
};

static inline struct inproc *inproc_of(const ferry_transport_t *transport)
{
    return (struct inproc *)(uintptr_t)(const void *)transport;
}

static inline struct inproc_link *link_of(ferry_link_t *link)
{
    return (struct inproc_link *)(void *)link;
}

/* There is something for the instance's next progress(). The caller holds what keeps it open. */
void inproc_signal(struct inproc *inproc);

/* inproc_message.c */
ferry_status_t inproc_send_message(ferry_link_t *base, const void *data, size_t bytes,
                                   ferry_operation_t *operation);
/* With the instance's mutex. */
void messages_init(struct inproc *inproc);
void messages_meet(struct inproc *inproc,
                   struct inproc_link *link); /* early ones have a link now */
void messages_drop(struct message_queue *queue, const struct inproc_link *link, uint32_t session);
struct message *messages_take(struct inproc *inproc);
/* Without it. */
unsigned messages_deliver(struct inproc *inproc, struct message *messages);
void messages_free(struct inproc *inproc);

/* inproc_segment.c */
ferry_status_t inproc_send(ferry_link_t *base, uint32_t segment, const ferry_memory_t *memory,
                           ferry_operation_t *operation);
ferry_status_t inproc_receive(ferry_link_t *base, uint32_t segment, const ferry_memory_t *memory,
                              ferry_operation_t *operation);
ferry_status_t inproc_decline(ferry_link_t *base, uint32_t segment, size_t bytes,
                              ferry_operation_t *operation);
/* Takes out all that is posted on a link that is gone; waits for those that others copy. */
ferry_operation_t *link_take_operations(struct inproc_link *link);
/* What others have sent to a session that is over, and to an instance that closes. */
void link_return_sends(struct inproc_link *link);
void inproc_return_sends(struct inproc *inproc);
/* What others have completed, in order; the instance's own agent. */
ferry_operation_t *completed_take(struct inproc *inproc);
/* Completes a list of the instance's own operations. */
void operations_finish(struct inproc *inproc, ferry_operation_t *operations);

#endif
