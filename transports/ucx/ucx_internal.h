/* The UCX transport's inside, shared by transports/ucx only. */
#ifndef FERRY_TRANSPORTS_UCX_INTERNAL_H
#define FERRY_TRANSPORTS_UCX_INTERNAL_H

#include <ucp/api/ucp.h>
#include <uthash.h>

#include <ferry/transport.h>

/* What a link's first messages wait in until this end has connected. */
#define UCX_EARLY_MESSAGES_MAX 4096
#define UCX_ENDED_SESSIONS 16
#define UCX_MESSAGE_BYTES_MAX 8192 /* of a control message: UCX sends it eagerly */

/* Segments above this go by rendezvous. UCX would send those up to some 50 KB eagerly, in several
 * packets; but a receive that got the first of them and never gets the last cannot be ended,
 * neither by cancelling it nor by closing the endpoint (1.22). One packet holds a segment of this
 * size over tcp, shared memory and RC. */
#define UCX_EAGER_BYTES 8000

/* The ids under which active messages travel. */
#define UCX_MESSAGE_ID 0xf /* control messages */
#define UCX_SEGMENT_ID 0xe /* am, stream: segments, or of am the offers of larger ones */
#define UCX_OFFER_ID 0xd   /* stream: offers of segments */
#define UCX_GRANT_ID 0xc   /* stream: what the receiver says of an offer */

/* Segments of a link whose bytes are on their way here. Each puts an answer into the peer's shared
 * memory queue, which has 64 places; and an endpoint whose peer's queue is full cannot be closed
 * while the peer does not read it, so that its receives would never end. Of stream, these are the
 * credits. */
#define UCX_FETCHING_MAX 32

/* A segment's name: at the receiver, by the session that it receives under. */
struct ucx_segment {
    uint32_t session;
    uint32_t number;
};

enum ucx_kind { UCX_MESSAGE, UCX_SEND, UCX_RECEIVE, UCX_DECLINE };

/* What a posted operation keeps in ferry_operation_t.reserved while the transport has it. */
struct ucx_operation {
    struct ucx_link *link; /* whose it is */
    uint8_t kind;          /* enum ucx_kind */
    bool starting;         /* tag: a receive that is being handed to UCX */
    bool arrived;          /* tag: it ended while it was; with this status */
    int8_t status;
    size_t bytes; /* that a segment has, or should have */
    union {
        struct {
            void *request;                      /* UCX's */
            ferry_operation_t *previous, *next; /* in the link's list of receives */
        } tag;
        /* What goes before an active message's data; UCX reads it until completion. */
        uint64_t message;           /* the session's number */
        struct ucx_segment segment; /* the segment's name */
    };
};

/* stream: before a frame's bytes. */
struct ucx_frame {
    struct ucx_segment name;
    uint64_t bytes;
};

/* stream: what one link reads its frames with. Frames of another link's segments may come, too:
 * UCX pairs the endpoints between two workers in the order of their creation, whoever made them. */
struct ucx_reader {
    bool posted;   /* UCX has a receive of it */
    bool in_frame; /* the header was read, its bytes come next */
    struct ucx_frame frame;
    struct ucx_half *half; /* whose bytes come next; NULL: nobody's */
    size_t length;
};

struct ucx_link {
    ferry_link_t base; /* first */
    struct ucx *ucx;   /* borrowed */
    ucp_ep_h endpoint;
    uint32_t local_session, remote_session;
    bool failed;                 /* link_down was or need not be told */
    bool disconnected;           /* only its operations and its closing endpoint are left */
    void *closing;               /* the endpoint's close request, or NULL */
    size_t posted;               /* operations that are accepted and not completed */
    ferry_operation_t *receives; /* tag: list of those that wait for a segment */
    size_t fetching;             /* halves of it that are being fetched */
    struct ucx_half *waiting;    /* list of those that wait for their turn */
    struct ucx_half *sending;    /* stream: list of segments that have frames left to send */
    bool in_frame;               /* stream: UCX has a frame to send */
    struct ucx_reader reader;    /* stream */
    struct ucx_link *next;       /* ucx->leaving */
    UT_hash_handle hh;           /* by local_session */
};

struct ucx_early_message {
    struct ucx_early_message *prev, *next;
    uint32_t session;
    size_t bytes;
    uint64_t data[];
};

/* am, stream: a segment that is matched here. At the receiver a posted receive that waits for its
 * segment, a segment that waits for its receive, or both; of stream also, at the sender, a segment
 * that was offered. */
struct ucx_half {
    struct ucx_half_key {
        uint64_t session; /* the link's local one */
        uint64_t number;
    } key;
    ferry_operation_t *operation; /* borrowed; NULL: none was posted yet, or it is over */
    ferry_memory_t memory;        /* the operation's */
    bool arrived;                 /* at the receiver: the segment did */
    bool offered;                 /* its bytes are still at the sender */
    bool held;                    /* am: UCX left the data to us */
    bool fetching;                /* the bytes are on their way, or of stream may be sent */
    bool starting, ended;         /* am: ended with `status` while it was handed to UCX */
    bool over;                    /* stream: only `parts` are left */
    struct ucx *ucx;              /* stream: borrowed; of one that was granted or declined */
    bool in_frame;                /* stream: a reader writes to the memory */
    ucs_status_t status;
    void *data;                   /* what UCX gave, or NULL */
    size_t bytes;                 /* of the segment that arrived */
    size_t moved;                 /* stream: bytes sent or read */
    unsigned parts;               /* stream: requests that UCX has of the half */
    struct ucx_frame note;        /* stream: an offer or a grant */
    struct ucx_frame frame;       /* stream: header of the frame that is sent */
    ucp_dt_iov_t pieces[2];       /* stream: header and bytes of it */
    struct ucx_half *prev, *next; /* link->waiting, link->sending, or the spare ones */
    UT_hash_handle hh;
};

struct ucx {
    ferry_transport_t base; /* first */
    ferry_transport_events_t events;
    ucp_context_h context;
    ucp_worker_h worker;
    const struct ucx_protocol *protocol;
    void *address; /* owned: a checksum, then UCX's address */
    size_t address_bytes;
    size_t message_bytes;
    char identity[64];
    uint32_t capabilities;
    uint64_t memory_types; /* bits, by ucs_memory_type_t */
    int wait_fd;
    struct ucx_link *links;          /* hash by local_session */
    struct ucx_link *recent;         /* the one that was found last, or NULL */
    struct ucx_link *leaving;        /* disconnected, not yet let go of by UCX */
    size_t posted;                   /* operations of all links */
    size_t leftovers;                /* receives that take out what nobody wanted */
    unsigned happened;               /* during the present progress() */
    struct ucx_early_message *early; /* owned, oldest first: of sessions that have no link yet */
    size_t early_count;
    struct ucx_half *halves;           /* am, stream: owned, hash by key */
    struct ucx_half *spare;            /* owned: list of unused ones */
    size_t arrivals;                   /* segments that wait for a receive */
    bool receive_releases;             /* am: UCX lets go of eager data that it has received */
    void *sink;                        /* stream: owned, for frames that nobody wants any more */
    bool early_due;                    /* a link was made since they were last looked at */
    int64_t ended[UCX_ENDED_SESSIONS]; /* sessions that are over; -1: none */
    unsigned ended_next;
    unsigned sweep_rounds;
    int64_t sweep_at_ns, sweep_gap_ns; /* when to look for new descriptors; gap 0: not at all */
};

/* How segments travel. send, receive and decline are the contract's slots, on links that are not
 * disconnected and with memory that UCX knows. */
struct ucx_protocol {
    const char *name;
    uint64_t features;                       /* of UCX's, beside active messages */
    bool devices;                            /* takes device memory */
    ferry_status_t (*open)(struct ucx *ucx); /* before the address is known to anybody */
    void (*close)(struct ucx *ucx);          /* after the worker is gone */
    ferry_status_t (*send)(struct ucx_link *link, uint32_t segment, const ferry_memory_t *memory,
                           ferry_operation_t *operation);
    ferry_status_t (*receive)(struct ucx_link *link, uint32_t segment, const ferry_memory_t *memory,
                              ferry_operation_t *operation);
    ferry_status_t (*decline)(struct ucx_link *link, uint32_t segment, size_t bytes,
                              ferry_operation_t *operation);
    /* Takes back what UCX does not have yet: before the link's endpoint closes. */
    void (*withdraw)(struct ucx_link *link);
    /* Drops what came for a session that is over, whose endpoint is closed, and for any. */
    void (*drain)(struct ucx *ucx, uint32_t session);
    void (*drain_all)(struct ucx *ucx);
    /* The link has its endpoint; NULL: nothing to begin. */
    void (*begin)(struct ucx_link *link);

    /* For ucx_match.c. Fetches what arrived into its memory. FERRY_PENDING: ucx_match_fetched()
     * comes later; otherwise the outcome, which was raised. */
    ferry_status_t (*fetch)(struct ucx_link *link, struct ucx_half *half);
    /* Lets go of what arrived and is not wanted, and frees the half, which is in no table any more.
     * link: NULL when the session is over. */
    void (*drop)(struct ucx *ucx, struct ucx_link *link, struct ucx_half *half);
};

extern const struct ucx_protocol ucx_tag;    /* ucx_tag.c */
extern const struct ucx_protocol ucx_am;     /* ucx_am.c */
extern const struct ucx_protocol ucx_stream; /* ucx_stream.c */

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
/* UCX accepts and makes connections, and its timer, at times of its own: after each connect()
 * progress() looks a few times for them. */
void ucx_descriptors_expect(struct ucx *ucx);
void ucx_descriptors_sweep(struct ucx *ucx);

/* ucx_context.c: UCX's configuration, context and worker. */
/* Sets what Ferry needs in what ucp_config_read() gave, except what the user has set: in the
 * environment or a ucx.conf. `interface` and errors as of interface_name(); NULL is "". */
ferry_status_t ucx_configure(ucp_config_t *config, const char *interface);
/* These two are for ferry_perf, too: its tests of UCX alone run with what the transport asks. */
ferry_status_t ucx_context_create(const char *interface, uint64_t features,
                                  ucp_context_h *context_out);
ferry_status_t ucx_worker_create(ucp_context_h context, ucp_worker_h *worker_out);
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
/* Tells that the link failed, once. */
void ucx_link_fail(struct ucx_link *link, ferry_status_t status, const char *text);
struct ucx_link *ucx_link_find(struct ucx *ucx, uint32_t session);
/* Whether that session was a link's not long ago. */
bool ucx_session_ended(const struct ucx *ucx, uint32_t session);

/* ucx_halves.c: the table of halves. */
ferry_status_t ucx_halves_open(struct ucx *ucx);
void ucx_halves_close(struct ucx *ucx);
/* sent: the segment that this end sends; the other way may be one of the same name. */
struct ucx_half *ucx_half_find(struct ucx *ucx, struct ucx_segment segment, bool sent);
/* A new one, with nothing but its name. FERRY_ERR_NO_MEMORY. */
ferry_status_t ucx_half_add(struct ucx *ucx, struct ucx_segment segment, bool sent,
                            struct ucx_half **half_out);
bool ucx_half_sent(const struct ucx_half *half);
/* Takes it out of the table; it stays whole until ucx_half_free(). */
void ucx_half_remove(struct ucx *ucx, struct ucx_half *half);
void ucx_half_free(struct ucx *ucx, struct ucx_half *half);
/* The first after `half`, or of all where that is NULL, that belongs to the session. */
struct ucx_half *ucx_half_next(struct ucx *ucx, uint32_t session, struct ucx_half *half);

/* ucx_match.c: receives and what arrives for them, as slots of a protocol. */
ferry_status_t ucx_match_receive(struct ucx_link *link, uint32_t segment,
                                 const ferry_memory_t *memory, ferry_operation_t *operation);
ferry_status_t ucx_match_decline(struct ucx_link *link, uint32_t segment, size_t bytes,
                                 ferry_operation_t *operation);
void ucx_match_withdraw(struct ucx_link *link);
void ucx_match_drain(struct ucx *ucx, uint32_t session);
void ucx_match_drain_all(struct ucx *ucx);
/* A segment, or the offer of one. Whether its data is kept. */
bool ucx_match_arrived(struct ucx *ucx, struct ucx_segment name, void *data, size_t bytes,
                       bool offered);
/* A half that was being fetched is done; frees it unless it has parts left. */
void ucx_match_fetched(struct ucx_half *half, ucs_status_t status);
/* The handler of UCX_SEGMENT_ID (ucx_am.c), and whether UCX lets go of eager data itself. */
ferry_status_t ucx_am_listen(struct ucx *ucx);
/* Fetches segments that came with or as an active message. */
ferry_status_t ucx_am_fetch(struct ucx_link *link, struct ucx_half *half);

/* ucx_message.c: control messages, as eager active messages. */
/* Has active messages of that id given to `arrived`, whole, with `flags` of UCX's beside. */
ferry_status_t ucx_listen(struct ucx *ucx, unsigned id, uint32_t flags,
                          ucp_am_recv_callback_t arrived);
ferry_status_t ucx_message_listen(struct ucx *ucx);
/* Gives links what came before them. */
void ucx_early_deliver(struct ucx *ucx);
void ucx_early_drop(struct ucx *ucx, uint32_t session);
void ucx_early_drop_all(struct ucx *ucx);
ferry_status_t ucx_send_message(ferry_link_t *link, const void *data, size_t bytes,
                                ferry_operation_t *operation);

/* ucx_memory.c */
ferry_status_t ucx_register_memory(ferry_transport_t *transport, const ferry_memory_t *memory,
                                   void **handle_out);
void ucx_unregister_memory(ferry_transport_t *transport, void *handle);
/* UCX's word for the memory of a device; UCS_MEMORY_TYPE_LAST where it has none. */
ucs_memory_type_t ucx_memory_type(DLDevice device);
/* Names a segment's memory to UCX. */
void ucx_memory_set(ucp_request_param_t *params, ucs_memory_type_t type, ucp_mem_h handle);

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

/* ucx_operation.c: the accounting of operations, and the contract's slots for segments. */
void ucx_posted(struct ucx_link *link, ferry_operation_t *operation, enum ucx_kind kind,
                size_t bytes);
/* Takes back ucx_posted(), for an operation that was finished before its slot returned. */
void ucx_unposted(ferry_operation_t *operation);
/* Completes an operation that was accepted: with what UCX says, or with what has been raised. */
void ucx_completed(ferry_operation_t *operation, ucs_status_t status, size_t bytes);
void ucx_finished(ferry_operation_t *operation, ferry_status_t outcome, size_t bytes);
/* The outcome of a receive whose segment had another number of bytes. */
ferry_status_t ucx_raise_other_size(size_t bytes);
ferry_status_t ucx_send(ferry_link_t *link, uint32_t segment, const ferry_memory_t *memory,
                        ferry_operation_t *operation);
ferry_status_t ucx_receive(ferry_link_t *link, uint32_t segment, const ferry_memory_t *memory,
                           ferry_operation_t *operation);
ferry_status_t ucx_decline(ferry_link_t *link, uint32_t segment, size_t bytes,
                           ferry_operation_t *operation);

#endif
