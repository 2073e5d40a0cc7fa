/* The sending half of a call or a reply: one control message, then its segments. All under the agent's lock. */
#ifndef FERRY_RPC_OUTGOING_H
#define FERRY_RPC_OUTGOING_H

#include <ferry/message.h>

#include "rpc/agent.h"
#include "rpc/tensor.h"

/* What every tensor has comes first: a message may have thousands, and each touched line costs. */
struct outgoing_tensor {
    uintptr_t stream;
    void (*release)(void *context);
    void *context;
    enum transfer_path path; /* this end's */
    struct tensor_view view; /* a copy; the memory is borrowed until done */
    char name[FERRY_SLOT_BYTES_MAX + 1];
};

/* Lives in its owner and keeps its buffers from use to use. */
struct outgoing {
    struct wire_message message;
    struct wire_tensor *wire;        /* tensor_count of message; owned */
    struct outgoing_tensor *tensors; /* owned */
    size_t capacity;
    uint8_t *control, *table, *body; /* owned; body: a copy, when the owner asked for one */
    size_t control_capacity, table_capacity, body_capacity;
    size_t table_bytes; /* of the table segment; 0: none */
    size_t joint_next;  /* the tensor whose bytes go into the joint segment next */
    ferry_operation_t operation;
    bool host_peer;            /* a reply whose results may land in host memory */
    bool copy_body;            /* a body that travels as a segment is copied first */
    size_t outstanding;        /* operations and transfers under way */
    ferry_status_t status;     /* the first failure */
    struct error_record error; /* of that failure */
    uint64_t staged_bytes, direct_bytes;
    void (*done)(
        struct outgoing *
            outgoing); /* once when outgoing_post() returned FERRY_PENDING: nothing is read any more */
};

/* Copies the tensors' descriptions and sets body and tensor_count; each tensor's target is its own device until the caller says otherwise in
 * wire[i].target. role ("argument", "result") is for error texts. FERRY_ERR_INVALID_ARGUMENT,
 * FERRY_ERR_UNKNOWN_DEVICE, FERRY_ERR_NO_MEMORY. */
ferry_status_t outgoing_fill(struct outgoing *outgoing, const ferry_message_t *message,
                             const char *role);
/* Posts everything. FERRY_OK: all is sent, no `done`. FERRY_PENDING. Errors: nothing was sent, no `done`. */
ferry_status_t outgoing_post(struct outgoing *outgoing, struct link *link);
/* Runs each tensor's release, without the lock; then forgets them. */
void outgoing_run_releases(struct outgoing *outgoing);
bool outgoing_has_releases(const struct outgoing *outgoing);
/* Whether memory that the program only lent may still be read. */
bool outgoing_borrows(const struct outgoing *outgoing);
/* Frees the buffers. */
void outgoing_finish(struct outgoing *outgoing);

#endif
