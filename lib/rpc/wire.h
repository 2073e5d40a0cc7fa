/* The bytes of control messages: the only code that knows them. A fixed, versioned little-endian header, then a variable part: method, error map,
 * tensor table, inline data. Decoding checks every length, count and range before it is believed,
 * and allocates nothing but to read the error map of a reply. */
#ifndef FERRY_RPC_WIRE_H
#define FERRY_RPC_WIRE_H

#include <stdbool.h>

#include <ferry/tensor.h>

#include "core/error.h"

#define WIRE_VERSION 2
#define WIRE_METHOD_BYTES_MAX 127
#define WIRE_METADATA_BYTES_MAX 1024
#define WIRE_HEADER_BYTES 64
/* Where a tensor begins in the joint segment: at a multiple of this. */
#define WIRE_JOINT_ALIGN 64
/* Segment numbers have 32 bits and wrap: a message travels in fewer operations than this. */
#define WIRE_OPERATIONS_MAX (1u << 24)

enum wire_kind {
    WIRE_CALL = 1,
    WIRE_REPLY = 2,
    WIRE_CANCEL = 3, /* caller to callee: nobody waits for this call any more; header only */
    WIRE_PING = 4,   /* header only; answered by WIRE_PONG with the same call_id */
    WIRE_PONG = 5,
    WIRE_BYE = 6 /* the sender shuts down: no new calls, please; header only */
};

enum wire_flags {
    WIRE_ONE_WAY = 1u << 0,  /* reserved: refused by this version */
    WIRE_STREAMED = 1u << 1, /* reserved: refused by this version */
    WIRE_TABLE_SEGMENT =
        1u
        << 2, /* method, metadata, error and table travel as the first segment, of one operation */
    WIRE_BODY_SEGMENT = 1u << 3 /* the body travels as a segment, after the table's */
};

/* What both ends agree on; a peer's bytes beyond these are FERRY_ERR_PROTOCOL. */
struct wire_limits {
    size_t eager_bytes;  /* largest control message */
    size_t inline_bytes; /* largest tensor inside it */
    uint64_t max_tensors;
    uint64_t max_message_bytes; /* body and tensors together */
};

struct wire_tensor {
    const char *name; /* name_bytes long, not NUL-terminated; NULL when unnamed */
    size_t name_bytes;
    DLDataType dtype;
    int32_t ndim;
    const int64_t *shape; /* encode: the caller's; decode: into shape_storage */
    DLDevice source;      /* where it is at the sender */
    DLDevice
        target;     /* WIRE_CALL: where it shall arrive at the callee; WIRE_REPLY: same as source */
    uint64_t bytes; /* packed */
    uint64_t operation_bytes; /* 0 when inline, joint or empty */
    uint8_t sender_path;      /* enum transfer_path */
    const void *
        inline_data; /* encode: NULL unless it shall ride inside (wire_plan decides); decode: inside the message */
    bool
        joint; /* encode: it may travel in the joint segment (wire_plan decides); decode: it does */
    uint64_t joint_offset; /* where it begins there */
    int64_t shape_storage[FERRY_TENSOR_NDIM_MAX];
};

struct wire_message {
    enum wire_kind kind;
    uint32_t flags;
    uint64_t call_id;
    uint32_t
        first_segment; /* numbers are used in this order: table, body (1 or more operations), tensors (inline, joint and empty ones use none), joint segment */

    /* WIRE_CALL */
    const char *method; /* method_bytes long */
    size_t method_bytes;
    int64_t timeout_ns;   /* remaining; FERRY_FOREVER: none */
    const void *metadata; /* bounded area for trace context and the like; may be empty */
    size_t metadata_bytes;
    bool results_direct; /* results made on a device will land on devices: none in host memory */

    /* WIRE_REPLY */
    ferry_status_t status; /* anything but FERRY_OK: error is there, body and tensors are not */
    ferry_effect_t effect;
    int32_t code;
    const char *
        error_text; /* in a msgpack map on the wire, together with origin and method, so that it can grow */
    size_t error_text_bytes;
    const char *error_origin; /* the agent that decided; needs not be the callee */
    size_t error_origin_bytes;
    uint64_t queue_ns, handler_ns, receive_ns; /* the callee's times for ferry_future_stats() */
    const uint8_t *
        argument_paths; /* one enum transfer_path for each argument, the callee's end; argument_count may be 0 */
    size_t argument_count;

    const void *body; /* encode: always; decode: NULL with WIRE_BODY_SEGMENT */
    uint64_t body_bytes;
    uint64_t body_operation_bytes;
    /* One segment for many small tensors, in table order with zeros up to the next aligned place; in
     * a decoded message only once its last tensor was read. */
    uint64_t joint_bytes; /* 0: there is none */
    uint64_t joint_operation_bytes;
    uint64_t tensor_count;
};

/* Decides what rides inside: sets flags WIRE_TABLE_SEGMENT and WIRE_BODY_SEGMENT and clears inline_data of tensors that do not fit, so that the control message stays
 * within limits->eager_bytes. Candidates for inline are tensors whose inline_data is set (host
 * memory, C order, at most inline_bytes). Small things first come, first served in table order; the
 * body is preferred. operation_bytes are to be set as if nothing rode inside; the plan makes them 0
 * where a tensor does or has no bytes, and the whole size where they are 0 or larger. Tensors whose
 * `joint` is set and that stay outside share the joint segment, in operations of at most
 * joint_operation_bytes; one alone does not. A reply that is an error always fits: its text is cut,
 * and its argument paths are dropped if need be.
 * FERRY_ERR_LIMIT: too many tensors, bytes, a too long name: the text says which bound and which
 * option. table_bytes_out: size of the table segment (0: none). */
ferry_status_t wire_plan(struct wire_message *message, struct wire_tensor *tensors,
                         const struct wire_limits *limits, size_t *message_bytes_out,
                         size_t *table_bytes_out);
/* Writes a planned message. buffer has message_bytes, table has table_bytes (NULL when 0). */
void wire_encode(const struct wire_message *message, const struct wire_tensor *tensors,
                 void *buffer, void *table);

/* A decoder walks a message: header first; then, once the table segment is there when the flag says
 * so, the variable part; then tensor after tensor. This is on every call's path, so the last two
 * fill their outputs as they go: after an error only what the header gave is of use. */
struct wire_decoder {
    const uint8_t *data;
    size_t bytes;
    const uint8_t *inline_area;
    size_t inline_bytes;
    size_t cursor, inline_cursor;
    uint64_t remaining;
    uint64_t total_bytes;
    const struct wire_limits *limits;
    uint64_t operations;                         /* of the segments so far */
    uint64_t joint_bytes, joint_operation_bytes; /* so far */
    enum wire_kind kind;
};

/* Reads and checks the fixed header. Raises FERRY_ERR_PROTOCOL with what is wrong. With WIRE_TABLE_SEGMENT, *table_bytes_out is how many bytes to receive before
 * wire_decode_variable(). */
ferry_status_t wire_decode_header(const void *data, size_t bytes, const struct wire_limits *limits,
                                  struct wire_message *message_out, size_t *table_bytes_out);
/* Reads method, metadata, error, paths and body. Pointers in message_out lie in data or table, which must outlive it. */
ferry_status_t wire_decode_variable(const void *data, size_t bytes, const void *table,
                                    size_t table_bytes, const struct wire_limits *limits,
                                    struct wire_message *message, struct wire_decoder *decoder_out);
/* The next of tensor_count tensors: shape, dtype, bytes (must be what shape and dtype make), devices, operation sizes all checked.
 * With the last one message gets what there is of a joint segment. */
ferry_status_t wire_decode_tensor(struct wire_decoder *decoder, struct wire_message *message,
                                  struct wire_tensor *tensor_out);

#endif
