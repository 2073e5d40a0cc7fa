/* Moves segments: the visible elements of one tensor, or plain bytes, between local memory on any
 * device and a link, as one or several transport operations. Memory that the transport takes goes
 * straight to it (host and direct); other device memory goes through pinned chunks (staged), so
 * that the copy of chunk k+1 overlaps the wire time of chunk k. Nothing here blocks or allocates on
 * the steady path; all calls are under the agent's lock. */
#ifndef FERRY_RPC_TRANSFER_H
#define FERRY_RPC_TRANSFER_H

#include <stdbool.h>

#include <ferry/tensor.h>
#include <ferry/transport.h>

#include "core/clock.h"
#include "core/config.h"
#include "device/memory_pool.h"
#include "rpc/tensor.h"

/* What a transport may say of device memory. */
#define TRANSFER_DEVICE_CAPABILITIES (FERRY_TRANSPORT_CUDA | FERRY_TRANSPORT_SIM)

struct transfer_engine; /* one an agent */
struct transfer;        /* one segment under way; recycled by the engine after `done` */

/* How this end moves a segment; travels in one byte, values are fixed. */
enum transfer_path {
    TRANSFER_NONE = 0,   /* nothing to move: no elements, or inside the control message */
    TRANSFER_HOST = 1,   /* host memory, straight to the transport */
    TRANSFER_DIRECT = 2, /* device memory, straight to the transport */
    TRANSFER_STAGED = 3, /* device memory through pinned chunks */
    TRANSFER_PACKED = 4  /* host memory, packed in chunks: a strided view, or many small tensors */
};

ferry_status_t transfer_engine_create(struct memory_pool *pool, const struct config_values *config,
                                      struct clock clock, struct transfer_engine **engine_out);
/* Every transfer must have ended. Waits for the engine's own streams. */
void transfer_engine_destroy(struct transfer_engine *engine);

/* The size of one operation for a segment of this many bytes that starts on `source`: the whole for
 * a direct device tensor when the peer can take any size (peer_operation_bytes 0), else at most the
 * smaller of FERRY_CHUNK and the peer's bound; a direct one is bounded by the peer alone. Never 0
 * for bytes > 0; a uint32_t is too small for it. */
uint64_t transfer_operation_bytes(const struct transfer_engine *engine, uint32_t link_capabilities,
                                  DLDevice source, uint64_t bytes, uint64_t peer_operation_bytes);
/* How many operations, hence segment numbers, that makes: 0 for 0 bytes. */
uint64_t transfer_operation_count(uint64_t bytes, uint64_t operation_bytes);

/* What to tell peers in the hello: the largest operation this process can take into any of its
 * devices over a transport of these capabilities; 0: any size. */
uint64_t transfer_receive_bound(const struct transfer_engine *engine, uint32_t link_capabilities);

/* Which path this end would take, without moving anything; reason gets one short phrase ("the
 * transport takes cuda memory; 8 MiB >= FERRY_DIRECT_MIN"). operation_bytes 0: not known yet, the
 * sender's question. TRANSFER_NONE with bytes > 0: FERRY_PATHS leaves no way. reason may be NULL
 * with reason_bytes 0. */
enum transfer_path transfer_choose(const struct transfer_engine *engine, uint32_t link_capabilities,
                                   DLDevice device, uint64_t bytes, uint64_t operation_bytes,
                                   char *reason, size_t reason_bytes);

struct transfer_spec {
    ferry_link_t *link;     /* borrowed until done */
    uint32_t first_segment; /* operations take first_segment, +1, ... (wrapping) */
    uint64_t operation_bytes;
    const DLTensor *view; /* copied, shape and strides too; its memory is borrowed until done */
    /* The other end is host memory, which UCX 1.22 reads from and writes to device memory at anything from 0.7 to 10 GB/s
     * (one H200, shared memory), while staging reaches the wire's 6 to 8: staged, if the operations
     * fit. */
    bool host_peer;
    uintptr_t stream; /* send: read after what it has queued; receive: written after it; 0 = now */
    /* A send whose bytes lie in several places of host memory: writes `bytes` of them, from `offset`
     * on, into an operation's buffer. Called in order, until done, with spec->context; the view
     * then
     * only says how many there are. NULL: the view's memory is sent. */
    void (*pack)(void *context, uint64_t offset, size_t bytes, void *buffer);
    /* Exactly once when start returned FERRY_PENDING, from transfer_engine_progress() or the
     * transport's progress()/disconnect(), under the agent's lock. The memory is the caller's
     * again: no byte is read or written any more, and what was received is visible to every
     * stream. `done` may start other transfers. The error is the thread's last error then. */
    void (*done)(void *context, ferry_status_t status);
    void *context;
};

/* Start. FERRY_OK: finished already, no `done`. FERRY_PENDING: transfer_out (may be NULL) is valid
 * until done. Errors (nothing started, no `done`, nothing declined): FERRY_ERR_NO_MEMORY,
 * FERRY_ERR_DEVICE, FERRY_ERR_UNKNOWN_DEVICE, FERRY_ERR_TRANSPORT, FERRY_ERR_PEER_LOST,
 * FERRY_ERR_UNSUPPORTED (FERRY_PATHS leaves no way), FERRY_ERR_PROTOCOL (operations larger than
 * transfer_receive_bound()). A failure after the first operation is reported by `done`, when what
 * was posted has ended; a receive has then declined what it never posted. */
ferry_status_t transfer_send(struct transfer_engine *engine, const struct transfer_spec *spec,
                             struct transfer **transfer_out);
ferry_status_t transfer_receive(struct transfer_engine *engine, const struct transfer_spec *spec,
                                struct transfer **transfer_out);
/* Puts bytes that are here already (`data`, in C order, borrowed until done) into spec->view, as a
 * receive would; link, first_segment and operation_bytes are not looked at. Host memory is written
 * before it returns. */
ferry_status_t transfer_unpack(struct transfer_engine *engine, const void *data,
                               const struct transfer_spec *spec, struct transfer **transfer_out);
/* Declines all operations of a segment nobody will receive; completes by itself, needs no memory.
 * FERRY_OK when all are declined or on their way. */
ferry_status_t transfer_decline(struct transfer_engine *engine, ferry_link_t *link,
                                uint32_t first_segment, uint64_t bytes, uint64_t operation_bytes);
/* A receive: writes no more than what is posted already, declines the rest; `done` comes with
 * FERRY_ERR_CANCELLED, from the next progress at the earliest. A send goes on. */
void transfer_cancel(struct transfer *transfer);

/* To be called before disconnect(): from here on no transfer touches the link. Those that use it
 * end with this status and the thread's last error, as soon as what they posted has ended;
 * `done` comes from progress or disconnect(), never from in here. */
void transfer_link_lost(struct transfer_engine *engine, const ferry_link_t *link,
                        ferry_status_t status);

/* `bytes` of a view's packed form, from `offset` on, to or from a buffer. */
void transfer_pack_piece(const struct tensor_layout *layout, uint64_t offset, size_t bytes,
                         void *buffer);
void transfer_unpack_piece(const struct tensor_layout *layout, uint64_t offset, size_t bytes,
                           const void *buffer);

enum transfer_path transfer_path_of(const struct transfer *transfer);

/* Polls device events, posts what became ready, calls `done`. Returns how many things happened. */
unsigned transfer_engine_progress(struct transfer_engine *engine);
/* Something is outstanding of which nothing but transfer_engine_progress() will tell (a device
 * event, a place in the staging memory, an end not reported yet): the engine must not sleep longer
 * than a poll interval. */
bool transfer_engine_polls(const struct transfer_engine *engine);
/* Transfers that have not ended, declines included. */
size_t transfer_engine_active(const struct transfer_engine *engine);

/* Memory given back once every listed stream has passed this point: a kernel that outlives the
 * reply never reads recycled memory. Takes the block at once; streams belong to the block's device.
 * Stream 0 is ignored. With no streams the block goes to the pool at once. Any failure to record is
 * logged and answered by synchronising that stream. */
void transfer_give_after(struct transfer_engine *engine, const struct memory_block *block,
                         const uintptr_t *streams, size_t stream_count);

#endif
