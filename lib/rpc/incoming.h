/* The receiving half of a call or a reply: a control message and its segments, received into memory that the owner places. All under the
 * agent's lock, but for placing, which may call the user's allocator and says so. */
#ifndef FERRY_RPC_INCOMING_H
#define FERRY_RPC_INCOMING_H

#include <ferry/message.h>

#include "rpc/agent.h"
#include "rpc/tensor.h"

struct incoming;

/* What every tensor has comes first, as in struct outgoing_tensor. */
struct incoming_tensor {
    uintptr_t stream;            /* written after it */
    struct memory_block block;   /* owned unless data is NULL */
    ferry_allocator_t allocator; /* who takes block back; deallocate NULL: the agent's pool */
    DLDevice source, target;     /* at the sender; as the sender's map says (calls) */
    uint64_t bytes, operation_bytes;
    const void *inline_data; /* of a joint tensor once that segment is there */
    bool joint, in_joint;    /* it came in the joint segment; it is a view of its memory */
    uint64_t joint_offset;
    uint32_t first_segment;
    enum transfer_path sender_path, path;
    bool declined;
    struct transfer *transfer; /* while under way */
    struct incoming *incoming;
    struct tensor_view view; /* where it arrives */
    char name[FERRY_SLOT_BYTES_MAX + 1];
};

/* Lives in its owner and keeps its buffers from use to use. */
struct incoming {
    struct ferry_agent *agent; /* borrowed */
    struct link *link;         /* kept by the owner's reference; segments come over it */
    uint8_t *control;          /* a copy of the control message; owned */
    size_t control_bytes, control_capacity;
    uint8_t *table; /* owned */
    size_t table_bytes, table_capacity;
    struct wire_message wire;
    struct memory_block body;        /* of a body that came as a segment */
    struct memory_block joint;       /* of the joint segment */
    uint32_t joint_segment;          /* its number */
    struct transfer *joint_transfer; /* while under way */
    size_t joint_views;              /* tensors that lie in it */
    size_t joint_wanted;             /* tensors of it that are not declined */
    struct incoming_tensor *tensors; /* owned */
    ferry_tensor_t *views;           /* what the user sees; owned */
    size_t capacity;
    ferry_message_t message; /* valid once complete */
    size_t outstanding;
    ferry_status_t status; /* the first failure */
    struct error_record error;
    bool receiving; /* incoming_receive() was called */
    bool immediate; /* complete with the control message: nothing had to be waited for */
    bool lost;      /* a segment could not arrive: link failure or cancel, not a choice of ours */
    uint64_t staged_bytes, direct_bytes, total_bytes;
    /* The table is there (at once in incoming_open(), or later): the owner places and calls incoming_receive(). */
    void (*described)(struct incoming *incoming);
    /* Everything has arrived or failed: status says which. Once, from incoming_receive() or later. */
    void (*complete)(struct incoming *incoming);
};

/* Takes a decoded header's message: copies data. FERRY_OK: `described` was or will be called, unless the table is lost (`complete` then). FERRY_ERR_PROTOCOL, FERRY_ERR_NO_MEMORY: nothing
 * was kept. */
ferry_status_t incoming_open(struct incoming *incoming, struct link *link, const void *data,
                             size_t bytes, const struct wire_message *header, size_t table_bytes);

/* Memory of the right size on the device for tensor i, in C order, from the allocator or (NULL) the agent's pool. Without the lock when allocator is given. */
ferry_status_t incoming_place(struct incoming *incoming, size_t index, DLDevice device,
                              const ferry_allocator_t *allocator);
/* The user's own buffer; it has been checked. */
void incoming_place_buffer(struct incoming *incoming, size_t index, const DLTensor *view,
                           uintptr_t stream);
/* Nowhere: its bytes are dropped; the thread's last error becomes the incoming's if it is the first. */
void incoming_decline(struct incoming *incoming, size_t index);

/* The thread's last error becomes the incoming's if it is the first. */
void incoming_note_failure(struct incoming *incoming);

/* Posts all receives. */
void incoming_receive(struct incoming *incoming);
/* Declines everything of a message nobody wants, before incoming_receive(). */
void incoming_refuse(struct incoming *incoming);
/* Stops what can be stopped; `complete` comes when the transport has let go. */
void incoming_cancel(struct incoming *incoming);
/* Memory for the joint segment, once. FERRY_ERR_NO_MEMORY. */
ferry_status_t incoming_take_joint(struct incoming *incoming);
/* All of it has been copied to where it belongs: back to the pool, unless tensors are views of it. */
void incoming_give_unseen_joint(struct incoming *incoming);
/* Received memory goes back once the streams have passed. */
void incoming_release(struct incoming *incoming, const DLDevice *devices, const uintptr_t *streams,
                      size_t stream_count);
/* One block back to the pool once the streams have passed. */
void incoming_give(struct ferry_agent *agent, const struct memory_block *block,
                   const uintptr_t *streams, size_t count);
/* Gives back what the user's allocators gave; without the lock. */
void incoming_run_deallocators(struct incoming *incoming);
/* Whether the above has anything to do. */
bool incoming_has_deallocators(const struct incoming *incoming);
/* Frees the buffers. */
void incoming_finish(struct incoming *incoming);

#endif
