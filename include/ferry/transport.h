/* The contract between Ferry and a transport: for authors of transports only. A transport moves
 * control messages (small, eager, delivered to whoever listens) and segments (any size, straight
 * into memory that the receiver names) over links. It knows nothing of calls, names or device
 * maps. Every transport passes tests/contract.
 *
 * One agent opens one instance; two agents of one process open two. All slots of one instance are
 * called with the agent's lock held, so an instance needs no lock of its own except against other
 * instances. No slot may block, call user code, or write to stdout.
 *
 * Who connects to whom, with which address, is agreed outside, over Ferry's own socket: both ends
 * of a link call connect() with the other's address, and each names the session number that it
 * wants to receive under. */
#ifndef FERRY_TRANSPORT_H
#define FERRY_TRANSPORT_H

#include <dlpack/dlpack.h>
#include <stdbool.h>
#include <stddef.h>

#include <ferry/status.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FERRY_TRANSPORT_ABI 1
#define FERRY_TRANSPORT_ADDRESS_BYTES_MAX 3072
#define FERRY_TRANSPORT_NAME_BYTES_MAX 31
#define FERRY_TRANSPORT_IDENTITY_BYTES_MAX 127

/* An open instance and a link: the transport embeds these as the first member of its own structs. */
typedef struct ferry_transport {
    const struct ferry_transport_ops *ops;
} ferry_transport_t;

typedef struct ferry_link {
    ferry_transport_t *transport;
    void *context; /* the caller's, given back in events; the transport does not touch it */
} ferry_link_t;

/* One posted send or receive. Owned by the caller, who keeps it and the memory it names until
 * complete() was called. A slot that returns FERRY_PENDING has accepted the operation and calls
 * complete() exactly once, from progress() or disconnect(), never from inside the slot itself; one
 * that returns FERRY_OK has finished it and one that returns an error has not taken it, and
 * neither calls complete(). */
typedef struct ferry_operation {
    /* FERRY_OK: bytes were moved. FERRY_ERR_CANCELLED: declined or disconnected here.
     * FERRY_ERR_PEER_LOST, FERRY_ERR_TRANSPORT: the link failed. FERRY_ERR_PROTOCOL: the peer sent
     * another number of bytes. After the call the memory is the caller's again: no byte of it is
     * read or written any more. */
    void (*complete)(struct ferry_operation *operation, ferry_status_t status, size_t bytes);
    void *context;     /* the caller's */
    void *reserved[6]; /* the transport's while the operation is posted */
} ferry_operation_t;

/* Memory for a segment. handle is from register_memory() or NULL. */
typedef struct {
    void *data;
    size_t bytes;
    DLDevice device;
    void *handle;
} ferry_memory_t;

/* Events, called from progress() and disconnect() with the agent's lock held. They only note what
 * happened; they may post operations but not disconnect() the link or close(). */
typedef struct {
    void *context;
    /* A control message; data is valid during the call, at any address. */
    void (*message)(void *context, ferry_link_t *link, const void *data, size_t bytes);
    /* The link failed; text says why. Once a link; operations still posted complete after it, at
     * the latest in disconnect(), which the caller owes. */
    void (*link_down)(void *context, ferry_link_t *link, ferry_status_t status, const char *text);
} ferry_transport_events_t;

typedef struct {
    size_t struct_bytes;
    ferry_transport_events_t events;
    const char *
        interface; /* network interface that links should use, "" or NULL: the transport's choice */
    const char *protocol; /* FERRY_UCX_PROTOCOL, for ucx; others have no use for it */
    size_t message_bytes; /* the largest control message that will be sent */
} ferry_transport_options_t;

/* Capabilities, one bit a property. */
#define FERRY_TRANSPORT_HOST (1u << 0)    /* segments may be host memory; every transport */
#define FERRY_TRANSPORT_CUDA (1u << 1)    /* segments may be CUDA device memory at either end */
#define FERRY_TRANSPORT_ORDERED (1u << 2) /* control messages of a link arrive in order */
#define FERRY_TRANSPORT_ZERO_COPY                                                                  \
    (1u << 3) /* large host segments are not copied through a buffer of the transport's */
#define FERRY_TRANSPORT_DETECTS (1u << 4) /* link_down comes by itself when the peer dies */
#define FERRY_TRANSPORT_SAFE_ABORT                                                                 \
    (1u << 5) /* disconnect() completes posted receives with no later write to their memory */
#define FERRY_TRANSPORT_REGISTERS (1u << 6) /* register_memory() is worth calling */
#define FERRY_TRANSPORT_LOCAL (1u << 7)     /* reaches agents of this process only */
#define FERRY_TRANSPORT_SIM (1u << 8)       /* segments may be simulated device memory: tests */

typedef struct ferry_transport_ops {
    size_t struct_bytes;
    uint32_t abi;     /* FERRY_TRANSPORT_ABI */
    const char *name; /* "inproc", "ucx"; at most FERRY_TRANSPORT_NAME_BYTES_MAX, case is ignored */

    /* Errors: FERRY_ERR_TRANSPORT, FERRY_ERR_NO_MEMORY, FERRY_ERR_CONFIG (protocol, interface),
     * FERRY_ERR_FORKED. May block for milliseconds. */
    ferry_status_t (*open)(const ferry_transport_options_t *options,
                           ferry_transport_t **transport_out);
    /* All links must be disconnected. NULL is taken. */
    void (*close)(ferry_transport_t *transport);

    uint32_t (*capabilities)(const ferry_transport_t *transport);
    /* What must be equal at both ends for a link to be safe ("ucx 1.22 tag"); refused by name
     * otherwise. At most FERRY_TRANSPORT_IDENTITY_BYTES_MAX; lives as long as the instance. */
    const char *(*identity)(const ferry_transport_t *transport);
    /* The instance's own address, opaque, at most FERRY_TRANSPORT_ADDRESS_BYTES_MAX; lives as long
     * as the instance. */
    void (*address)(const ferry_transport_t *transport, const void **address_out,
                    size_t *bytes_out);

    /* Makes this end of a link. local_session: what the peer will put on what it sends here,
     * unique within the instance while the link lives; remote_session: what the peer chose. Both
     * ends' sessions come from the hello. Does not wait for the other end: what is sent before it
     * exists is kept or arrives late. link->context is set to context. FERRY_ERR_UNREACHABLE,
     * FERRY_ERR_NO_MEMORY, FERRY_ERR_TRANSPORT, FERRY_ERR_INVALID_ARGUMENT (session in use,
     * address makes no sense). */
    ferry_status_t (*connect)(ferry_transport_t *transport, const void *address, size_t bytes,
                              uint32_t local_session, uint32_t remote_session, void *context,
                              ferry_link_t **link_out);
    /* Ends the link at once: completes every operation still posted on it (FERRY_ERR_CANCELLED, or
     * the failure's status) before it returns or, where the transport must first let go of memory,
     * from later progress() calls; pending() says when none is left. The link pointer is dead on
     * return. Messages of the session that come later are dropped. */
    void (*disconnect)(ferry_link_t *link);

    /* Posts a control message, at most options.message_bytes. data is read until completion.
     * FERRY_OK, FERRY_PENDING; FERRY_ERR_PEER_LOST, FERRY_ERR_TRANSPORT, FERRY_ERR_LIMIT. */
    ferry_status_t (*send_message)(ferry_link_t *link, const void *data, size_t bytes,
                                   ferry_operation_t *operation);
    /* Posts one segment under a number that is unique on this link and direction while in flight.
     * A completed send is no delivery. FERRY_OK, FERRY_PENDING; FERRY_ERR_UNSUPPORTED (memory
     * kind), FERRY_ERR_PEER_LOST, FERRY_ERR_TRANSPORT. */
    ferry_status_t (*send)(ferry_link_t *link, uint32_t segment, const ferry_memory_t *memory,
                           ferry_operation_t *operation);
    /* Posts the memory for the segment of that number; send and receive may come in either order.
     * memory->bytes must be what the sender sends. FERRY_PENDING or FERRY_OK with exactly
     * memory->bytes written; errors as send(). */
    ferry_status_t (*receive)(ferry_link_t *link, uint32_t segment, const ferry_memory_t *memory,
                              ferry_operation_t *operation);
    /* Says that the segment of that number and size, not posted for receive, is not wanted: the
     * sender's operation completes and the bytes are dropped. FERRY_PENDING, FERRY_OK (done). */
    ferry_status_t (*decline)(ferry_link_t *link, uint32_t segment, size_t bytes,
                              ferry_operation_t *operation);

    /* Moves things on and calls events and completions. Returns how many things happened; 0 means
     * idle. No system call when idle if the transport can. */
    unsigned (*progress)(ferry_transport_t *transport);
    /* Prepares to sleep: FERRY_OK, wait_fd() becomes readable when progress() has work;
     * FERRY_PENDING, there is work now: progress first. */
    ferry_status_t (*arm)(ferry_transport_t *transport);
    int (*wait_fd)(const ferry_transport_t *transport);
    /* Operations accepted and not completed, those of disconnected links included. */
    size_t (*pending)(const ferry_transport_t *transport);

    /* A handle for memory that will be used many times. FERRY_ERR_UNSUPPORTED where it is of no
     * use. */
    ferry_status_t (*register_memory)(ferry_transport_t *transport, const ferry_memory_t *memory,
                                      void **handle_out);
    void (*unregister_memory)(ferry_transport_t *transport, void *handle);

    /* One line on how the link's bytes travel, e.g. "posix/memory, cma/memory" or "tcp/lo";
     * NUL-terminated, cut to capacity. */
    void (*describe)(const ferry_link_t *link, char *text, size_t capacity);
} ferry_transport_ops_t;

/* Adds a transport to this process, for FERRY_TRANSPORT=name; before the first agent that uses it.
 * The table is copied, the name must live on. FERRY_ERR_INVALID_ARGUMENT: a slot is missing, the
 * abi another, or the name none. FERRY_ERR_NAME_TAKEN, FERRY_ERR_LIMIT. */
FERRY_API ferry_status_t ferry_transport_register(const ferry_transport_ops_t *ops);

/* Makes this the thread's last error and returns status: how a slot says why it fails. */
FERRY_API ferry_status_t ferry_transport_raise(ferry_status_t status, const char *format, ...)
    FERRY_PRINTF(2, 3);

#ifdef __cplusplus
}
#endif

#endif
