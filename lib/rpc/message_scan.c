/* The shape of msgpack bytes. msgpack-c's own unpacker allocates what a count promises before it
 * has seen one element; this walk believes nothing, allocates nothing, and lets the reader pick
 * single values, which msgpack-c then decodes. */
#include "rpc/message.h"

static uint64_t big_endian(const unsigned char *at, size_t bytes)
{
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; i++) {
        value = value << 8 | at[i];
    }
    return value;
}

/* What the byte behind 0xc0 says: a kind, how many bytes its length takes, or its fixed payload. */
static const struct {
    enum item_kind kind;
    unsigned char length_bytes, payload_bytes;
} heads[32] = {
    [0x00] = {ITEM_NIL, 0, 0},    [0x02] = {ITEM_BOOL, 0, 0},   [0x03] = {ITEM_BOOL, 0, 0},
    [0x04] = {ITEM_BYTES, 1, 0},  [0x05] = {ITEM_BYTES, 2, 0},  [0x06] = {ITEM_BYTES, 4, 0},
    [0x07] = {ITEM_OTHER, 1, 0},  [0x08] = {ITEM_OTHER, 2, 0},  [0x09] = {ITEM_OTHER, 4, 0},
    [0x0a] = {ITEM_NUMBER, 0, 4}, [0x0b] = {ITEM_NUMBER, 0, 8}, [0x0c] = {ITEM_NUMBER, 0, 1},
    [0x0d] = {ITEM_NUMBER, 0, 2}, [0x0e] = {ITEM_NUMBER, 0, 4}, [0x0f] = {ITEM_NUMBER, 0, 8},
    [0x10] = {ITEM_NUMBER, 0, 1}, [0x11] = {ITEM_NUMBER, 0, 2}, [0x12] = {ITEM_NUMBER, 0, 4},
    [0x13] = {ITEM_NUMBER, 0, 8}, [0x14] = {ITEM_OTHER, 0, 1},  [0x15] = {ITEM_OTHER, 0, 2},
    [0x16] = {ITEM_OTHER, 0, 4},  [0x17] = {ITEM_OTHER, 0, 8},  [0x18] = {ITEM_OTHER, 0, 16},
    [0x19] = {ITEM_STRING, 1, 0}, [0x1a] = {ITEM_STRING, 2, 0}, [0x1b] = {ITEM_STRING, 4, 0},
    [0x1c] = {ITEM_ARRAY, 2, 0},  [0x1d] = {ITEM_ARRAY, 4, 0},  [0x1e] = {ITEM_MAP, 2, 0},
    [0x1f] = {ITEM_MAP, 4, 0},
};

/* Heads whose low bits are the value or the length. */
static bool item_read_short(unsigned char head, struct item *item)
{
    item->head_bytes = 1;
    if (head < 0x80 || head >= 0xe0) {
        item->kind = ITEM_NUMBER;
    } else if (head < 0x90) {
        item->kind = ITEM_MAP;
        item->children = UINT64_C(2) * (head & 0x0fu);
    } else if (head < 0xa0) {
        item->kind = ITEM_ARRAY;
        item->children = head & 0x0fu;
    } else if (head < 0xc0) {
        item->kind = ITEM_STRING;
        item->payload_bytes = head & 0x1fu;
    } else {
        return false;
    }
    return true;
}

bool item_read(const unsigned char *at, const unsigned char *end, struct item *item_out)
{
    size_t left = (size_t)(end - at);
    struct item item = {.kind = ITEM_NIL};
    if (left == 0 || at[0] == 0xc1) { /* 0xc1 is no msgpack */
        return false;
    }
    if (!item_read_short(at[0], &item)) {
        size_t index = at[0] - 0xc0u, length_bytes = heads[index].length_bytes;
        item.kind = heads[index].kind;
        item.head_bytes = 1 + length_bytes + (item.kind == ITEM_OTHER);
        if (left < item.head_bytes) {
            return false;
        }
        uint64_t length = big_endian(at + 1, length_bytes);
        if (item.kind == ITEM_MAP || item.kind == ITEM_ARRAY) {
            item.children = item.kind == ITEM_MAP ? 2 * length : length;
        } else {
            item.payload_bytes = length_bytes > 0 ? length : heads[index].payload_bytes;
        }
        if (item.kind == ITEM_OTHER && at[item.head_bytes - 1] == FERRY_BODY_TENSOR_EXT) {
            item.kind = ITEM_TENSOR;
        }
    }
    if (item.payload_bytes > left - item.head_bytes) {
        return false;
    }
    *item_out = item;
    return true;
}

const unsigned char *item_skip(const unsigned char *at, const unsigned char *end)
{
    struct item item;
    for (uint64_t pending = 1; pending > 0 && item_read(at, end, &item); pending--) {
        pending += item.children;
        at += item.head_bytes + item.payload_bytes;
    }
    return at;
}

ferry_status_t body_check(const void *body, size_t bytes)
{
    const unsigned char *at = body, *end = at + bytes;
    uint64_t pending[FERRY_BODY_DEPTH_MAX + 1] = {1};
    size_t depth = 0;
    struct item item;
    if (!item_read(at, end, &item) || item.kind != ITEM_MAP) {
        return error_raise(FERRY_ERR_TYPE,
                           "the body is no msgpack map (it begins with byte 0x%02x)",
                           (unsigned)at[0]);
    }
    for (;;) {
        while (pending[depth] == 0) {
            if (depth == 0) {
                return at == end ? FERRY_OK
                                 : error_raise(FERRY_ERR_TYPE,
                                               "the body goes on for %zu bytes behind its map",
                                               (size_t)(end - at));
            }
            depth--;
        }
        pending[depth]--;
        if (!item_read(at, end, &item)) {
            return error_raise(FERRY_ERR_TYPE,
                               "the body is cut off or no msgpack at byte %zu of %zu",
                               (size_t)(at - (const unsigned char *)body), bytes);
        }
        at += item.head_bytes + item.payload_bytes;
        if (item.children > 0) {
            if (depth == FERRY_BODY_DEPTH_MAX) {
                return error_raise(FERRY_ERR_LIMIT,
                                   "the body has more than %d maps and arrays inside one another",
                                   FERRY_BODY_DEPTH_MAX);
            }
            pending[++depth] = item.children;
        }
    }
}
