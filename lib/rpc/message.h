/* Messages inside the library: slots looked up with an error that tells what there is, and the
 * shape of msgpack bytes that nobody has checked yet. */
#ifndef FERRY_RPC_MESSAGE_H
#define FERRY_RPC_MESSAGE_H

#include <ferry/message.h>

#include "core/error.h"

/* ferry_message_tensor() with the reasons: FERRY_ERR_NOT_FOUND names the slots there are,
 * FERRY_ERR_TYPE both dtypes. A dtype of 0 bits takes any. */
ferry_status_t message_tensor(const ferry_message_t *message, const char *slot, DLDataType dtype,
                              const ferry_tensor_t **tensor_out);

enum item_kind {
    ITEM_NIL,
    ITEM_BOOL,
    ITEM_NUMBER,
    ITEM_STRING,
    ITEM_BYTES,
    ITEM_ARRAY,
    ITEM_MAP,
    ITEM_TENSOR, /* the extension FERRY_BODY_TENSOR_EXT */
    ITEM_OTHER   /* another extension */
};

/* One msgpack object's head. */
struct item {
    enum item_kind kind;
    size_t head_bytes;      /* up to the payload or the first child */
    uint64_t payload_bytes; /* 0 for maps and arrays */
    uint64_t children;      /* a map's keys and values both count */
};

/* The object at `at`; false when the bytes up to `end` do not hold its head and payload, or begin
 * none. */
bool item_read(const unsigned char *at, const unsigned char *end, struct item *item_out);

/* Behind the object and everything in it; `at` begins a checked object. */
const unsigned char *item_skip(const unsigned char *at, const unsigned char *end);

/* Checks that the bytes are one msgpack map and nothing else, without believing any length or
 * count. Raises FERRY_ERR_TYPE, FERRY_ERR_LIMIT (deeper than FERRY_BODY_DEPTH_MAX). */
ferry_status_t body_check(const void *body, size_t bytes);

#endif
