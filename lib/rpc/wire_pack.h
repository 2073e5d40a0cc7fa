/* What the msgpack maps of the wire and of the hello share: writing into a buffer of fixed size, and
 * reading bytes that a peer sent. */
#ifndef FERRY_RPC_WIRE_PACK_H
#define FERRY_RPC_WIRE_PACK_H

#include <msgpack.h>
#include <stdbool.h>

#include <ferry/status.h>

/* A msgpack_packer's target. bytes goes on counting past capacity, so that a buffer of capacity 0
 * measures. */
struct pack_buffer {
    uint8_t *data;
    size_t capacity;
    size_t bytes;
};

void pack_init(msgpack_packer *packer, struct pack_buffer *buffer);
void pack_text(msgpack_packer *packer, const char *text, size_t bytes);
void pack_key(msgpack_packer *packer, const char *key);
void pack_field_text(msgpack_packer *packer, const char *key, const char *text);
void pack_field_bytes(msgpack_packer *packer, const char *key, const void *data, size_t bytes);
void pack_field_unsigned(msgpack_packer *packer, const char *key, uint64_t value);
void pack_field_signed(msgpack_packer *packer, const char *key, int64_t value);

/* Unpacks one msgpack map that fills the bytes exactly. Every length and count is first held against
 * the bytes that are there, and the nesting against a bound, so that what is allocated is of the
 * input's size. Texts and byte strings of the result lie in data. Raises FERRY_ERR_PROTOCOL with
 * `what` ("the hello") in front, or FERRY_ERR_NO_MEMORY. After FERRY_OK msgpack_unpacked_destroy()
 * is owed. */
ferry_status_t pack_unpack_map(const void *data, size_t bytes, const char *what,
                               msgpack_unpacked *unpacked_out);

/* Is the key of this map entry that text? Keys that are no text equal none. */
bool pack_key_is(const msgpack_object_kv *entry, const char *key);

/* Read one value; each raises FERRY_ERR_PROTOCOL with `what` and `key` when it has another type, is out
 * of the range, or (texts) holds a NUL. Integers count by value, not by their msgpack form. */
ferry_status_t pack_read_unsigned(const msgpack_object *object, const char *what, const char *key,
                                  uint64_t max, uint64_t *value_out);
ferry_status_t pack_read_signed(const msgpack_object *object, const char *what, const char *key,
                                int64_t min, int64_t max, int64_t *value_out);
/* A pointer into the input, not NUL-terminated. */
ferry_status_t pack_read_text(const msgpack_object *object, const char *what, const char *key,
                              size_t bytes_max, const char **text_out, size_t *bytes_out);
/* A copy with a NUL behind it. */
ferry_status_t pack_copy_text(const msgpack_object *object, const char *what, const char *key,
                              char *text, size_t capacity);
/* At most capacity bytes. */
ferry_status_t pack_copy_bytes(const msgpack_object *object, const char *what, const char *key,
                               uint8_t *data, size_t capacity, size_t *bytes_out);
ferry_status_t pack_copy_exactly(const msgpack_object *object, const char *what, const char *key,
                                 uint8_t *data, size_t bytes);

#endif
