/* The inside of the transfer engine, shared by transfer*.c only. */
#ifndef FERRY_RPC_TRANSFER_INTERNAL_H
#define FERRY_RPC_TRANSFER_INTERNAL_H

#include "core/error.h"
#include "device/registry.h"
#include "rpc/transfer.h"

/* After this long without any staging memory coming back, the longest waiting transfer that holds
 * none gets one slot over the bound: two processes whose slots wait for each other's would stand
 * still for ever otherwise. */
#define TRANSFER_STALL_NS INT64_C(20000000)

enum transfer_kind { TRANSFER_SEND = 0, TRANSFER_RECEIVE = 1, TRANSFER_DECLINE = 2 };

enum transfer_phase {
    PHASE_STREAM, /* waits for what the user's stream had queued */
    PHASE_PACK,   /* waits until a strided device view is packed, before the wire reads it */
    PHASE_MOVE,   /* operations and copies are under way */
    PHASE_UNPACK, /* waits until a strided device view is written */
    PHASE_DRAIN,  /* failed: waits until the device has let go of the memory */
    PHASE_ENDED
};

/* Streams and events of one device. */
struct transfer_device {
    DLDevice device;
    const ferry_device_backend_t *backend;
    uintptr_t streams[2]; /* owned; by transfer_kind: send, receive */
    bool has_stream[2];
    ferry_event_t **events; /* owned, unused */
    size_t event_count, event_capacity;
    struct transfer_device *next;
};

/* One operation of a transfer and the buffer it goes through, if any. */
struct transfer_piece {
    ferry_operation_t operation; /* first; its context is the transfer */
    size_t bytes;
    uint64_t index;
    struct memory_block block;   /* a staging slot or packing buffer; data NULL: none */
    ferry_event_t *event;        /* while its device copy is under way */
    struct transfer_piece *next; /* in the transfer's free or copying list */
};

struct transfer {
    struct transfer_engine *engine; /* borrowed */
    ferry_link_t *link;             /* borrowed; NULL once it is lost */
    enum transfer_kind kind;
    enum transfer_path path;
    enum transfer_phase phase;
    ferry_status_t status; /* the first failure */
    uint32_t first_segment;
    uint64_t bytes, operation_bytes;
    uint64_t count, next; /* operations, and which starts next */
    uint32_t in_flight;   /* pieces in use */
    bool accepted;        /* the transport or a stream has taken something */
    bool starting;        /* inside transfer_send() or transfer_receive() */
    bool strided;
    bool dirty; /* work was queued on the engine's stream that no passed event covers */
    bool polled, waiting, granted;

    const char *source; /* of transfer_unpack(), in the wire\'s place; borrowed until done */
    char *data;         /* where the bytes lie in a row: the user's or the packed copy's */
    struct transfer_device *device; /* borrowed; NULL for host memory */
    ferry_event_t *event;           /* the phase's */
    struct memory_block packed;     /* a strided device view's packed copy */

    void (*pack)(void *context, uint64_t offset, size_t bytes, void *buffer);
    void (*done)(void *context, ferry_status_t status);
    void *context;

    struct transfer *active_prev, *active_next; /* not ended */
    struct transfer *poll_prev, *poll_next;     /* device events outstanding */
    struct transfer *queue_prev, *queue_next;   /* waits for staging memory, or ended */
    struct transfer_piece *free;
    struct transfer_piece *copying, **copying_tail; /* in the order of the stream */
    struct tensor_view view;                        /* strided only */
    struct tensor_layout layout;                    /* TRANSFER_PACKED only */
    struct error_record error;                      /* of status */
    struct transfer_piece pieces[];                 /* one each operation in flight */
};

/* One stream that a given-back block waits for. */
struct transfer_wait {
    struct transfer_device *device;
    ferry_event_t *event;
    struct transfer_wait *next;
};

struct transfer_give {
    struct memory_block block;
    struct transfer_wait *waits;
    struct transfer_give *next;
};

struct transfer_engine {
    struct memory_pool *pool; /* borrowed */
    struct clock clock;
    uint64_t chunk_bytes, direct_min_bytes, staging_bytes;
    int64_t release_timeout_ns;
    uint32_t window;
    bool no_direct, no_staged; /* FERRY_PATHS */

    struct transfer *active, *polled, *ended, *unused;
    size_t active_count;
    struct transfer *waiting[2]; /* for staging memory, in order; by kind */
    uint64_t staged[2];          /* bytes of staging memory in use, by kind */
    int64_t staging_moved_ns;    /* when one last came back or the first began to wait */
    bool settling;

    struct transfer_device *devices;
    struct transfer_give *gives, *unused_gives;
    struct transfer_wait *unused_waits;
};

/* transfer_choose.c */
void transfer_paths_parse(struct transfer_engine *engine, const char *paths);

/* transfer_device.c */
ferry_status_t transfer_device_find(struct transfer_engine *engine, DLDevice device,
                                    const ferry_device_backend_t *backend,
                                    struct transfer_device **device_out);
void transfer_devices_finish(struct transfer_engine *engine);
/* Makes the engine's stream for the direction, at the first use. */
ferry_status_t transfer_device_stream(struct transfer_device *device, enum transfer_kind kind,
                                      uintptr_t *stream_out);
/* Marks where `stream` is now; *event_out is to be given back with transfer_device_forget(). */
ferry_status_t transfer_device_mark(struct transfer_device *device, uintptr_t stream,
                                    ferry_event_t **event_out);
void transfer_device_forget(struct transfer_device *device, ferry_event_t *event);
unsigned transfer_gives_progress(struct transfer_engine *engine);
void transfer_gives_finish(struct transfer_engine *engine);

/* transfer_buffer.c */
/* A buffer for the next operation. FERRY_PENDING: the transfer waits for staging memory. */
ferry_status_t transfer_buffer_take(struct transfer *transfer, struct memory_block *block);
void transfer_buffer_give(struct transfer *transfer, struct memory_block *block);
bool transfer_buffers_wanted(const struct transfer_engine *engine);
void transfer_buffer_unwait(struct transfer *transfer);
/* Lets waiting transfers go on as far as staging memory allows; returns how many did. */
unsigned transfer_buffers_grant(struct transfer_engine *engine);
void transfer_buffers_unstall(struct transfer_engine *engine);

/* transfer_move.c: what happens between start and end. */
ferry_status_t transfer_begin(struct transfer *transfer);
void transfer_pump(struct transfer *transfer);
void transfer_poll(struct transfer *transfer, unsigned *happened);
void transfer_watch(struct transfer *transfer);
/* The thread's last error becomes the transfer's, unless it has one. link_usable: a receive tells
 * the sender what it will not take. */
void transfer_fail(struct transfer *transfer, ferry_status_t status, bool link_usable);
/* The same from outside; ends the transfer as soon as nothing of it is under way. */
void transfer_abort(struct transfer *transfer, ferry_status_t status);

/* transfer_engine.c */
struct transfer *transfer_take(struct transfer_engine *engine);
void transfer_recycle(struct transfer *transfer); /* one that is in no list but `active` */
void transfer_end(struct transfer *transfer);     /* to `ended`, for transfer_settle() */
/* Grants staging memory and reports what ended. */
unsigned transfer_settle(struct transfer_engine *engine);

#endif
