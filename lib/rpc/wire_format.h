/* The layout of control messages, shared by the encoder and the decoder. All numbers are little-endian
 * and are read and written with memcpy, so nothing needs to be aligned.
 *
 *   header     64 bytes, so that an empty call fits into a transport's shortest message
 *   variable   behind the header, or in the table segment:
 *              u64 body_operation_bytes         with WIRE_BODY_SEGMENT
 *              u32 count, u8 path[count]        with WIRE_BIT_PATHS
 *              method                           calls
 *              metadata                         calls
 *              msgpack map                      replies that are errors
 *              tensor entries                   each 40 bytes, then i64 shape[ndim], then the name
 *   inline     body, then tensors in table order, each at a multiple of 8 bytes from the message's start;
 *              the gaps are zero
 *   joint      a segment after all others: small tensors in table order, each at a multiple of 64 bytes;
 *              the gaps are zero
 */
#ifndef FERRY_RPC_WIRE_FORMAT_H
#define FERRY_RPC_WIRE_FORMAT_H

#include <endian.h>
#include <string.h>

#include "rpc/transfer.h"
#include "rpc/wire.h"

#define WIRE_MAGIC 0x59525246u /* "FRRY" */
#define WIRE_INLINE_ALIGN 8u
#define WIRE_PATH_LAST TRANSFER_PACKED

/* Of the header. */
enum {
    WIRE_AT_MAGIC = 0,           /* u32 */
    WIRE_AT_VERSION = 4,         /* u8 */
    WIRE_AT_KIND = 5,            /* u8 */
    WIRE_AT_FLAGS = 6,           /* u16: enum wire_flags and the bits below */
    WIRE_AT_CALL_ID = 8,         /* u64 */
    WIRE_AT_FIRST_SEGMENT = 16,  /* u32 */
    WIRE_AT_VARIABLE_BYTES = 20, /* u32 */
    WIRE_AT_BODY_BYTES = 24,     /* u64 */
    WIRE_AT_TENSOR_COUNT = 32,   /* u32 */
    WIRE_AT_TEXT_BYTES = 36,     /* u16: of the method, or of the error's map */
    WIRE_AT_METADATA_BYTES = 38, /* u16, calls */
    WIRE_AT_STATUS = 38,         /* u16, replies */
    WIRE_AT_TIMEOUT = 40,        /* i64, calls; the 16 bytes behind it are zero */
    WIRE_AT_RESERVED = 48,       /* 16 bytes, calls */
    WIRE_AT_QUEUE = 40,          /* u64, replies */
    WIRE_AT_HANDLER = 48,        /* u64, replies */
    WIRE_AT_RECEIVE = 56         /* u64, replies */
};

/* Header flags that are fields of struct wire_message. */
#define WIRE_BIT_RESULTS_DIRECT (1u << 8)
#define WIRE_BIT_PATHS (1u << 9)

/* Of a tensor's entry. */
enum {
    WIRE_TENSOR_NAME_BYTES = 0,  /* u8; 0: unnamed */
    WIRE_TENSOR_NDIM = 1,        /* u8 */
    WIRE_TENSOR_FLAGS = 2,       /* u8: WIRE_TENSOR_INLINE or WIRE_TENSOR_JOINT */
    WIRE_TENSOR_PATH = 3,        /* u8 */
    WIRE_TENSOR_DTYPE_CODE = 4,  /* u8 */
    WIRE_TENSOR_DTYPE_BITS = 5,  /* u8 */
    WIRE_TENSOR_DTYPE_LANES = 6, /* u16 */
    WIRE_TENSOR_SOURCE = 8,      /* i32 type, i32 id */
    WIRE_TENSOR_TARGET = 16,     /* i32 type, i32 id */
    WIRE_TENSOR_BYTES = 24,      /* u64 */
    WIRE_TENSOR_OPERATION = 32,  /* u64: of a joint one the joint segment's, so the same in all */
    WIRE_TENSOR_ENTRY_BYTES = 40
};
#define WIRE_TENSOR_INLINE 1u
#define WIRE_TENSOR_JOINT 2u

static inline void wire_put_u16(uint8_t *at, uint16_t value)
{
    value = htole16(value);
    memcpy(at, &value, sizeof value);
}

static inline void wire_put_u32(uint8_t *at, uint32_t value)
{
    value = htole32(value);
    memcpy(at, &value, sizeof value);
}

static inline void wire_put_u64(uint8_t *at, uint64_t value)
{
    value = htole64(value);
    memcpy(at, &value, sizeof value);
}

static inline uint16_t wire_get_u16(const uint8_t *at)
{
    uint16_t value;
    memcpy(&value, at, sizeof value);
    return le16toh(value);
}

static inline uint32_t wire_get_u32(const uint8_t *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return le32toh(value);
}

static inline uint64_t wire_get_u64(const uint8_t *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return le64toh(value);
}

static inline size_t wire_align(size_t offset)
{
    return (offset + WIRE_INLINE_ALIGN - 1) & ~(size_t)(WIRE_INLINE_ALIGN - 1);
}

static inline uint64_t wire_joint_align(uint64_t offset)
{
    return (offset + WIRE_JOINT_ALIGN - 1) & ~(uint64_t)(WIRE_JOINT_ALIGN - 1);
}

static inline bool wire_is_header_only(enum wire_kind kind)
{
    return kind != WIRE_CALL && kind != WIRE_REPLY;
}

/* operation_bytes is not 0 where bytes is not. */
static inline uint64_t wire_operations(uint64_t bytes, uint64_t operation_bytes)
{
    return bytes == 0 ? 0 : (bytes - 1) / operation_bytes + 1;
}

static inline bool wire_all_zero(const uint8_t *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        if (data[i] != 0) {
            return false;
        }
    }
    return true;
}

/* The next `bytes` of the variable part, or NULL. */
static inline const uint8_t *wire_take(struct wire_decoder *decoder, size_t bytes)
{
    if (bytes > decoder->bytes - decoder->cursor) {
        return NULL;
    }
    const uint8_t *at = decoder->data + decoder->cursor;
    decoder->cursor += bytes;
    return at;
}

/* The next piece that rides inside, or NULL. */
static inline const uint8_t *wire_take_inside(struct wire_decoder *decoder, uint64_t bytes)
{
    size_t start = wire_align(decoder->inline_cursor);
    if (start > decoder->inline_bytes || bytes > decoder->inline_bytes - start ||
        !wire_all_zero(decoder->inline_area + decoder->inline_cursor,
                       start - decoder->inline_cursor)) {
        return NULL;
    }
    decoder->inline_cursor = start + (size_t)bytes;
    return decoder->inline_area + start;
}

/* The decoder's steps that its two files share, in wire_decode.c. */

/* Counts a segment's operations. FERRY_ERR_PROTOCOL: they make no sense or are too many. */
ferry_status_t wire_add_operations(struct wire_decoder *decoder, uint64_t bytes,
                                   uint64_t operation_bytes);
/* Both areas must have been used up by the time the last tensor was read: FERRY_ERR_PROTOCOL. */
ferry_status_t wire_check_end(const struct wire_decoder *decoder);

#endif
