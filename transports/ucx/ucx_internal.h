/* The UCX transport's inside, shared by transports/ucx only. */
#ifndef FERRY_TRANSPORTS_UCX_INTERNAL_H
#define FERRY_TRANSPORTS_UCX_INTERNAL_H

#include <ucp/api/ucp.h>
#include <uthash.h>

#include <ferry/transport.h>

/* What a link's first messages wait in until this end has connected. */
#define UCX_EARLY_MESSAGES_MAX 4096
#define UCX_ENDED_SESSIONS 16

/* The id under which control messages travel as active messages. */
#define UCX_MESSAGE_ID 0xf

/* What a posted operation keeps in ferry_operation_t.reserved while UCX has it. */
struct ucx_operation {
    void *request;                      /* UCX's */
    struct ucx_link *link;              /* whose it is; NULL while it is being posted */
    ferry_operation_t *previous, *next; /* in the link's list of receives */
    uint64_t header; /* a message's session number, read by UCX until completion; the bytes that a
                        segment should have, or has */
    uint8_t kind;    /* enum ucx_kind */
    bool arrived;    /* a receive that ended while it was posted; with this status */
    int8_t status;
};

enum ucx_kind { UCX_MESSAGE, UCX_SEND, UCX_RECEIVE, UCX_DECLINE };

struct ucx_link {
    ferry_link_t base; /* first */
    struct ucx *ucx;   /* borrowed */
    ucp_ep_h endpoint;
    uint32_t local_session, remote_session;
    bool failed;                 /* link_down was or need not be told */
    bool disconnected;           /* only its operations and its closing endpoint are left */
    void *closing;               /* the endpoint's close request, or NULL */
    size_t posted;               /* operations that UCX has */
    ferry_operation_t *receives; /* list of those that wait for a segment */
    struct ucx_link *next;       /* ucx->leaving */
    UT_hash_handle hh;           /* by local_session */
};

struct ucx_early_message {
    struct ucx_early_message *prev, *next;
    uint32_t session;
    size_t bytes;
    uint64_t data[];
};

struct ucx {
    ferry_transport_t base; /* first */
    ferry_transport_events_t events;
    ucp_context_h context;
    ucp_worker_h worker;
    void *address; /* owned: a checksum, then UCX's address */
    size_t address_bytes;
    size_t message_bytes;
    char identity[64];
    uint32_t capabilities;
    uint64_t memory_types; /* bits, by ucs_memory_type_t */
    int wait_fd;
    struct ucx_link *links;          /* hash by local_session */
    struct ucx_link *leaving;        /* disconnected, not yet let go of by UCX */
    size_t posted;                   /* operations that UCX has, all links */
    size_t leftovers;                /* receives that take out what nobody wanted */
    unsigned happened;               /* during the present progress() */
    struct ucx_early_message *early; /* owned, oldest first: of sessions that have no link yet */
    size_t early_count;
    bool early_due;                    /* a link was made since they were last looked at */
    int64_t ended[UCX_ENDED_SESSIONS]; /* sessions that are over; -1: none */
    unsigned ended_next;
    unsigned sweep_rounds;
    int64_t sweep_at_ns, sweep_gap_ns; /* when to look for new descriptors; gap 0: not at all */
    uint64_t aligned[1024];            /* a message that UCX hands over at an odd address */
};

static inline struct ucx_operation *ucx_operation(ferry_operation_t *operation)
{
    _Static_assert(sizeof(struct ucx_operation) <= sizeof(operation->reserved),
                   "a posted operation keeps its state in place");
    return (struct ucx_operation *)(void *)operation->reserved;
}

/* ucx_descriptors.c: children that the program execs must not keep UCX's descriptors, for a killed
 * peer would be noticed late. */
struct ucx_descriptors {
    uint64_t open[64]; /* bits */
};
/* What is open now; and marks, as closed on exec, what was opened since. One that another thread
 * opened meanwhile is marked, too. */
void ucx_descriptors_note(struct ucx_descriptors *before);
void ucx_descriptors_mark_new(const struct ucx_descriptors *before);
/* UCX accepts and makes connections at times of its own: after each connect() progress() looks a
 * few times for them. */
void ucx_descriptors_expect(struct ucx *ucx);
void ucx_descriptors_sweep(struct ucx *ucx);

/* ucx_context.c: UCX's configuration, context and worker. */
ferry_status_t ucx_context_open(struct ucx *ucx, const ferry_transport_options_t *options);
void ucx_context_close(struct ucx *ucx);
/* UCX believes whatever address it is given. The address proper, or NULL: not one of
 * ucx_context_open(). */
const ucp_address_t *ucx_address_check(const void *address, size_t bytes);

/* ucx_link.c */
ferry_status_t ucx_connect(ferry_transport_t *transport, const void *address, size_t bytes,
                           uint32_t local_session, uint32_t remote_session, void *context,
                           ferry_link_t **link_out);
void ucx_disconnect(ferry_link_t *link);
/* Frees disconnected links that UCX has let go of. */
void ucx_reap(struct ucx *ucx);
void ucx_describe(const ferry_link_t *link, char *text, size_t capacity);

/* ucx_message.c: control messages, as eager active messages. */
ferry_status_t ucx_message_listen(struct ucx *ucx);
/* Gives links what came before them. */
void ucx_early_deliver(struct ucx *ucx);
void ucx_early_drop(struct ucx *ucx, uint32_t session);
void ucx_early_drop_all(struct ucx *ucx);
ferry_status_t ucx_send_message(ferry_link_t *link, const void *data, size_t bytes,
                                ferry_operation_t *operation);

/* ucx_tag.c: segments, as tagged messages. */
ferry_status_t ucx_send(ferry_link_t *link, uint32_t segment, const ferry_memory_t *memory,
                        ferry_operation_t *operation);
ferry_status_t ucx_receive(ferry_link_t *link, uint32_t segment, const ferry_memory_t *memory,
                           ferry_operation_t *operation);
ferry_status_t ucx_decline(ferry_link_t *link, uint32_t segment, size_t bytes,
                           ferry_operation_t *operation);
/* Withdraws receives that nothing has matched yet. */
void ucx_withdraw(struct ucx_link *link);
/* Takes what arrived for a session and was never received out of UCX's list. */
void ucx_drain(struct ucx *ucx, uint32_t session);
void ucx_drain_all(struct ucx *ucx);

/* ucx_memory.c */
ferry_status_t ucx_register_memory(ferry_transport_t *transport, const ferry_memory_t *memory,
                                   void **handle_out);
void ucx_unregister_memory(ferry_transport_t *transport, void *handle);
/* UCX's word for the memory of a device; UCS_MEMORY_TYPE_LAST where it has none. */
ucs_memory_type_t ucx_memory_type(DLDevice device);

/* ucx_status.c */
/* Raises what UCX said about `what`. */
ferry_status_t ucx_raise(ucs_status_t status, const char *what);
/* For what a completion tries to post on the link that is being disconnected. */
ferry_status_t ucx_raise_disconnected(void);
/* What UCX said in Ferry's words, without raising. */
ferry_status_t ucx_status(ucs_status_t status);
/* Sends UCX's log to Ferry's sink and undoes what loading UCX did to the program's signals; once a
 * process. */
void ucx_tame(void);

/* Accounting of operations that UCX has. */
void ucx_posted(struct ucx_link *link, ferry_operation_t *operation, void *request,
                enum ucx_kind kind, uint64_t wanted);
void ucx_completed(ferry_operation_t *operation, ucs_status_t status, size_t bytes);

#endif
