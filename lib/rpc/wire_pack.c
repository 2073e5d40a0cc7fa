#include "rpc/wire_pack.h"

#include <string.h>

#include "core/error.h"

/* Maps within arrays within maps, and some room for fields of later versions. */
#define NESTING_MAX 16

static int buffer_write(void *context, const char *data, size_t bytes)
{
    struct pack_buffer *buffer = context;
    if (bytes > 0 && buffer->bytes <= buffer->capacity &&
        bytes <= buffer->capacity - buffer->bytes) {
        memcpy(buffer->data + buffer->bytes, data, bytes);
    }
    buffer->bytes += bytes;
    return 0;
}

void pack_init(msgpack_packer *packer, struct pack_buffer *buffer)
{
    msgpack_packer_init(packer, buffer, buffer_write);
}

void pack_text(msgpack_packer *packer, const char *text, size_t bytes)
{
    msgpack_pack_str(packer, bytes);
    msgpack_pack_str_body(packer, text, bytes);
}

void pack_key(msgpack_packer *packer, const char *key)
{
    pack_text(packer, key, strlen(key));
}

void pack_field_text(msgpack_packer *packer, const char *key, const char *text)
{
    pack_key(packer, key);
    pack_text(packer, text, strlen(text));
}

void pack_field_bytes(msgpack_packer *packer, const char *key, const void *data, size_t bytes)
{
    pack_key(packer, key);
    msgpack_pack_bin(packer, bytes);
    msgpack_pack_bin_body(packer, data, bytes);
}

void pack_field_unsigned(msgpack_packer *packer, const char *key, uint64_t value)
{
    pack_key(packer, key);
    msgpack_pack_uint64(packer, value);
}

void pack_field_signed(msgpack_packer *packer, const char *key, int64_t value)
{
    pack_key(packer, key);
    msgpack_pack_int64(packer, value);
}

/* One object's head: how many length bytes follow the first, and what the length counts. */
struct head {
    uint8_t length_bytes;
    uint64_t payload;    /* bytes, without a length */
    uint64_t children;   /* objects, without a length */
    uint64_t per_length; /* objects per unit of length; 0: the length counts bytes */
};

/* False for the one byte that msgpack never uses. */
static bool head_read(uint8_t first, struct head *head)
{
    *head = (struct head){0};
    if (first <= 0x7f || first >= 0xe0) { /* small integers */
        return true;
    }
    if (first <= 0x8f) {
        head->children = 2 * (uint64_t)(first & 0x0f);
        return true;
    }
    if (first <= 0x9f) {
        head->children = first & 0x0f;
        return true;
    }
    if (first <= 0xbf) {
        head->payload = first & 0x1f;
        return true;
    }
    static const struct head HEADS[32] = {
        [0x04] = {.length_bytes = 1}, /* bin */
        [0x05] = {.length_bytes = 2},
        [0x06] = {.length_bytes = 4},
        [0x07] = {.length_bytes = 1, .payload = 1}, /* ext and its type */
        [0x08] = {.length_bytes = 2, .payload = 1},
        [0x09] = {.length_bytes = 4, .payload = 1},
        [0x0a] = {.payload = 4}, /* floats */
        [0x0b] = {.payload = 8},
        [0x0c] = {.payload = 1}, /* unsigned */
        [0x0d] = {.payload = 2},
        [0x0e] = {.payload = 4},
        [0x0f] = {.payload = 8},
        [0x10] = {.payload = 1}, /* signed */
        [0x11] = {.payload = 2},
        [0x12] = {.payload = 4},
        [0x13] = {.payload = 8},
        [0x14] = {.payload = 2}, /* fixext */
        [0x15] = {.payload = 3},
        [0x16] = {.payload = 5},
        [0x17] = {.payload = 9},
        [0x18] = {.payload = 17},
        [0x19] = {.length_bytes = 1}, /* str */
        [0x1a] = {.length_bytes = 2},
        [0x1b] = {.length_bytes = 4},
        [0x1c] = {.length_bytes = 2, .per_length = 1}, /* array */
        [0x1d] = {.length_bytes = 4, .per_length = 1},
        [0x1e] = {.length_bytes = 2, .per_length = 2}, /* map */
        [0x1f] = {.length_bytes = 4, .per_length = 2}};
    *head = HEADS[first - 0xc0];
    return first != 0xc1;
}

/* Walks the objects without unpacking them. NULL when all is well, else what is not. */
static const char *problem_of(const uint8_t *data, size_t bytes)
{
    uint64_t open[NESTING_MAX]; /* objects still to come in each container around the cursor */
    size_t depth = 1, cursor = 0;
    open[0] = 1;
    while (depth > 0) {
        if (open[depth - 1] == 0) {
            depth--;
            continue;
        }
        open[depth - 1]--;
        struct head head;
        if (cursor == bytes) {
            return "ends too early";
        }
        if (!head_read(data[cursor++], &head)) {
            return "has a byte that is no msgpack";
        }
        if (head.length_bytes > bytes - cursor) {
            return "ends too early";
        }
        uint64_t length = 0;
        for (int i = 0; i < head.length_bytes; i++) {
            length = length << 8 | data[cursor++];
        }
        uint64_t payload = head.payload + (head.per_length == 0 ? length : 0);
        uint64_t children = head.children + head.per_length * length;
        if (payload > bytes - cursor || children > bytes - cursor) {
            return "has a length that is more than its bytes";
        }
        cursor += payload;
        if (children > 0) {
            if (depth == NESTING_MAX) {
                return "is nested too deeply";
            }
            open[depth++] = children;
        }
    }
    return cursor == bytes ? NULL : "has bytes behind its end";
}

ferry_status_t pack_unpack_map(const void *data, size_t bytes, const char *what,
                               msgpack_unpacked *unpacked_out)
{
    const char *problem = problem_of(data, bytes);
    if (problem != NULL) {
        return error_raise(FERRY_ERR_PROTOCOL, "%s of %zu bytes %s", what, bytes, problem);
    }
    msgpack_unpacked unpacked;
    msgpack_unpacked_init(&unpacked);
    size_t offset = 0;
    msgpack_unpack_return result = msgpack_unpack_next(&unpacked, data, bytes, &offset);
    if (result == MSGPACK_UNPACK_SUCCESS && unpacked.data.type == MSGPACK_OBJECT_MAP) {
        *unpacked_out = unpacked;
        return FERRY_OK;
    }
    msgpack_unpacked_destroy(&unpacked);
    if (result == MSGPACK_UNPACK_NOMEM_ERROR) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory to unpack %s of %zu bytes", what, bytes);
    }
    return error_raise(FERRY_ERR_PROTOCOL, "%s of %zu bytes is no msgpack map", what, bytes);
}

bool pack_key_is(const msgpack_object_kv *entry, const char *key)
{
    return entry->key.type == MSGPACK_OBJECT_STR && entry->key.via.str.size == strlen(key) &&
           memcmp(entry->key.via.str.ptr, key, entry->key.via.str.size) == 0;
}

static ferry_status_t raise_type(const char *what, const char *key, const char *wanted)
{
    return error_raise(FERRY_ERR_PROTOCOL, "%s: \"%s\" is not %s", what, key, wanted);
}

ferry_status_t pack_read_unsigned(const msgpack_object *object, const char *what, const char *key,
                                  uint64_t max, uint64_t *value_out)
{
    if (object->type != MSGPACK_OBJECT_POSITIVE_INTEGER) {
        return raise_type(what, key, "an integer of 0 or more");
    }
    if (object->via.u64 > max) {
        return error_raise(FERRY_ERR_PROTOCOL, "%s: \"%s\" is %llu, at most %llu is allowed", what,
                           key, (unsigned long long)object->via.u64, (unsigned long long)max);
    }
    *value_out = object->via.u64;
    return FERRY_OK;
}

ferry_status_t pack_read_signed(const msgpack_object *object, const char *what, const char *key,
                                int64_t min, int64_t max, int64_t *value_out)
{
    int64_t value;
    if (object->type == MSGPACK_OBJECT_NEGATIVE_INTEGER) {
        value = object->via.i64;
    } else if (object->type == MSGPACK_OBJECT_POSITIVE_INTEGER && object->via.u64 <= INT64_MAX) {
        value = (int64_t)object->via.u64;
    } else {
        return raise_type(what, key, "an integer of 64 bits with a sign");
    }
    if (value < min || value > max) {
        return error_raise(FERRY_ERR_PROTOCOL, "%s: \"%s\" is %lld, %lld to %lld is allowed", what,
                           key, (long long)value, (long long)min, (long long)max);
    }
    *value_out = value;
    return FERRY_OK;
}

ferry_status_t pack_read_text(const msgpack_object *object, const char *what, const char *key,
                              size_t bytes_max, const char **text_out, size_t *bytes_out)
{
    if (object->type != MSGPACK_OBJECT_STR) {
        return raise_type(what, key, "text");
    }
    const char *text = object->via.str.ptr;
    size_t bytes = object->via.str.size;
    if (bytes > bytes_max) {
        return error_raise(FERRY_ERR_PROTOCOL, "%s: \"%s\" has %zu bytes, at most %zu are allowed",
                           what, key, bytes, bytes_max);
    }
    if (bytes > 0 && memchr(text, '\0', bytes) != NULL) {
        return raise_type(what, key, "text without NUL");
    }
    *text_out = text;
    *bytes_out = bytes;
    return FERRY_OK;
}

ferry_status_t pack_copy_text(const msgpack_object *object, const char *what, const char *key,
                              char *text, size_t capacity)
{
    const char *source = "";
    size_t bytes = 0;
    ferry_status_t status = pack_read_text(object, what, key, capacity - 1, &source, &bytes);
    if (status == FERRY_OK) {
        memcpy(text, source, bytes);
        text[bytes] = '\0';
    }
    return status;
}

ferry_status_t pack_copy_bytes(const msgpack_object *object, const char *what, const char *key,
                               uint8_t *data, size_t capacity, size_t *bytes_out)
{
    if (object->type != MSGPACK_OBJECT_BIN) {
        return raise_type(what, key, "a byte string");
    }
    size_t bytes = object->via.bin.size;
    if (bytes > capacity) {
        return error_raise(FERRY_ERR_PROTOCOL, "%s: \"%s\" has %zu bytes, at most %zu are allowed",
                           what, key, bytes, capacity);
    }
    if (bytes > 0) {
        memcpy(data, object->via.bin.ptr, bytes);
    }
    *bytes_out = bytes;
    return FERRY_OK;
}

ferry_status_t pack_copy_exactly(const msgpack_object *object, const char *what, const char *key,
                                 uint8_t *data, size_t bytes)
{
    if (object->type == MSGPACK_OBJECT_BIN && object->via.bin.size != bytes) {
        return error_raise(FERRY_ERR_PROTOCOL, "%s: \"%s\" has %u bytes and not %zu", what, key,
                           object->via.bin.size, bytes);
    }
    return pack_copy_bytes(object, what, key, data, bytes, &bytes);
}
