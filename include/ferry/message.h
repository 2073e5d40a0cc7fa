/* Messages: a body and tensors, both ways of a call. The body is opaque bytes to Ferry; a handler
 * that needs no serializer of its own writes and reads typed fields in it with the helpers below.
 *
 *   ferry_writer_int64(writer, "step", 7);
 *   ferry_writer_begin_array(writer, "sizes");
 *   ferry_writer_int64(writer, NULL, 4096);
 *   ferry_writer_end(writer);
 *   status = ferry_writer_finish(writer, &message);
 *
 *   ferry_reader_t reader = ferry_reader(message);
 *   int64_t step = ferry_reader_int64(&reader, "step");
 *   double rate = ferry_reader_double_or(&reader, "rate", 0.1);
 *   const ferry_tensor_t *gradient = ferry_reader_tensor(&reader, "gradient", F32);
 *   status = ferry_reader_status(&reader);
 *
 * A typed body is one msgpack map from field names to values, so any msgpack library makes and
 * reads it; a tensor field is an extension of type FERRY_BODY_TENSOR_EXT that holds the slot's
 * name. */
#ifndef FERRY_MESSAGE_H
#define FERRY_MESSAGE_H

#include <ferry/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Plain data, usually on the stack; it owns nothing. What it points to is the caller's (sending) or
 * the request's or future's (receiving). */
typedef struct {
    const void *body; /* may be NULL when body_bytes is 0 */
    size_t body_bytes;
    const ferry_tensor_t *tensors;
    size_t tensor_count;
} ferry_message_t;

/* The first tensor of this slot name, or NULL: none, or an argument is NULL. Lives as long as the
 * message's tensors. */
FERRY_API const ferry_tensor_t *ferry_message_tensor(const ferry_message_t *message,
                                                     const char *slot);

/* What a body may be: maps and arrays inside one another, and a field's name. */
#define FERRY_BODY_DEPTH_MAX 32
#define FERRY_BODY_NAME_BYTES_MAX 255
#define FERRY_BODY_TENSOR_EXT 1

/* ---- Writing ------------------------------------------------------------------------------------
 *
 * A writer begins inside the body's map. In a map every value has a name; in an array the name is
 * NULL. The first mistake is kept, later calls do nothing, and ferry_writer_finish() reports it, so
 * that one check ends a sequence. One thread at a time. */
typedef struct ferry_writer ferry_writer_t;

/* Owned by the caller: ferry_writer_destroy(). FERRY_ERR_NO_MEMORY. FERRY_ERR_INVALID_ARGUMENT:
 * writer_out is NULL. */
FERRY_API ferry_status_t ferry_writer_create(ferry_writer_t **writer_out);
/* NULL is taken. The bodies it wrote are gone with it. */
FERRY_API void ferry_writer_destroy(ferry_writer_t *writer);
/* Begins a new body in the same memory, errors forgotten: a loop that writes small bodies allocates
 * nothing. */
FERRY_API void ferry_writer_reset(ferry_writer_t *writer);

FERRY_API void ferry_writer_nil(ferry_writer_t *writer, const char *name);
FERRY_API void ferry_writer_bool(ferry_writer_t *writer, const char *name, bool value);
FERRY_API void ferry_writer_int64(ferry_writer_t *writer, const char *name, int64_t value);
FERRY_API void ferry_writer_uint64(ferry_writer_t *writer, const char *name, uint64_t value);
FERRY_API void ferry_writer_double(ferry_writer_t *writer, const char *name, double value);
/* text is NUL-terminated UTF-8 and copied. */
FERRY_API void ferry_writer_string(ferry_writer_t *writer, const char *name, const char *text);
/* Copied; data may be NULL when bytes is 0. At most 4 GiB - 1; tensors carry more, and without a
 * copy. */
FERRY_API void ferry_writer_bytes(ferry_writer_t *writer, const char *name, const void *data,
                                  size_t bytes);
/* Says that the tensor of this slot name belongs here: for tensors inside maps and arrays. A tensor
 * whose slot name is the field's needs no entry in the body. */
FERRY_API void ferry_writer_tensor(ferry_writer_t *writer, const char *name, const char *slot);
/* What follows goes into the new map or array until its ferry_writer_end(). */
FERRY_API void ferry_writer_begin_map(ferry_writer_t *writer, const char *name);
FERRY_API void ferry_writer_begin_array(ferry_writer_t *writer, const char *name);
FERRY_API void ferry_writer_end(ferry_writer_t *writer);

/* Ends the body and sets message->body and message->body_bytes, nothing else. They live until the
 * writer is reset or destroyed. Another value after it is a mistake; another finish gives the same
 * body.
 * FERRY_ERR_INVALID_ARGUMENT: a name where none may be, or none or one of no or too many bytes
 * where one must be; a NULL text; an end without a begin, or a begin without its end.
 * FERRY_ERR_STATE: a value after the end. FERRY_ERR_LIMIT: too deep or too long.
 * FERRY_ERR_NO_MEMORY. */
FERRY_API ferry_status_t ferry_writer_finish(ferry_writer_t *writer, ferry_message_t *message);

/* ---- Reading ------------------------------------------------------------------------------------
 *
 * A reader looks fields of a map up by name, in any order, and takes the elements of an array in
 * turn, with NULL for the name. Fields that nobody asks for are ignored; where a name comes twice
 * the first counts; nil is as good as missing. An integer is taken from any number that it equals,
 * and so is a double. The first mistake is kept with the path of the field ("args.sizes[3]") and
 * the two types; from then on every read gives 0, false, "" or NULL, or the fallback of an ..._or.
 * Nothing is allocated. The message, its body and its tensors must outlive the reader; a child must
 * not outlive its parent, which must stay where it is. One thread at a time. */
typedef struct ferry_reader_state {
    /* Ferry's own: not to be touched. */
    const ferry_message_t *message;
    struct ferry_reader_state *parent; /* NULL: the root, which keeps the error */
    const char *name; /* of this map or array in the parent; NULL: its index says it */
    size_t index;
    const unsigned char *first, *at, *end;
    uint64_t count, next;
    bool is_array;
    ferry_status_t status;
    char text[256];
} ferry_reader_t;

/* A reader of the message's body, which is checked as a whole: every later read is of well-formed
 * bytes. No body (also a NULL message) is an empty map. Mistakes kept: FERRY_ERR_TYPE: the body is
 * no msgpack map, or is cut off, or goes on behind it. FERRY_ERR_LIMIT: maps and arrays inside one
 * another beyond FERRY_BODY_DEPTH_MAX. */
FERRY_API ferry_reader_t ferry_reader(const ferry_message_t *message);

/* The first mistake of this reader, its parents and its children; also made the thread's last
 * error, so that a handler can return it. FERRY_OK: every read so far was good.
 * FERRY_ERR_NOT_FOUND: a field, an element or a tensor is missing.
 * FERRY_ERR_TYPE: it has another type, a number cannot be had without loss, or a tensor has another
 * dtype.
 * FERRY_ERR_LIMIT: a string is too long for its buffer. FERRY_ERR_INVALID_ARGUMENT: a name for an
 * array's element, none for a map's field, or a NULL argument. */
FERRY_API ferry_status_t ferry_reader_status(const ferry_reader_t *reader);

/* Has the body such a field (or a next element) that is not nil? No mistake either way. A tensor
 * without a field in the body is asked for with ferry_message_tensor(). */
FERRY_API bool ferry_reader_has(ferry_reader_t *reader, const char *name);

FERRY_API bool ferry_reader_bool(ferry_reader_t *reader, const char *name);
FERRY_API int64_t ferry_reader_int64(ferry_reader_t *reader, const char *name);
FERRY_API uint64_t ferry_reader_uint64(ferry_reader_t *reader, const char *name);
FERRY_API double ferry_reader_double(ferry_reader_t *reader, const char *name);
/* Copies the string with a NUL behind it and returns buffer; a string that does not fit, or has a
 * NUL inside, is a mistake. capacity is at least 1. */
FERRY_API const char *ferry_reader_string(ferry_reader_t *reader, const char *name, char *buffer,
                                          size_t capacity);
/* Bytes, or a string's without a NUL behind it; they lie in the message's body. Never NULL. */
FERRY_API const void *ferry_reader_bytes(ferry_reader_t *reader, const char *name,
                                         size_t *bytes_out);
/* The tensor that the field names, or, where the field is missing or nil, the tensor whose slot
 * name this is. A dtype of 0 bits takes any. NULL after a mistake. */
FERRY_API const ferry_tensor_t *ferry_reader_tensor(ferry_reader_t *reader, const char *name,
                                                    DLDataType dtype);

/* The fallback stands for a missing or nil field (or element); another type is a mistake all the
 * same. */
FERRY_API bool ferry_reader_bool_or(ferry_reader_t *reader, const char *name, bool fallback);
FERRY_API int64_t ferry_reader_int64_or(ferry_reader_t *reader, const char *name, int64_t fallback);
FERRY_API uint64_t ferry_reader_uint64_or(ferry_reader_t *reader, const char *name,
                                          uint64_t fallback);
FERRY_API double ferry_reader_double_or(ferry_reader_t *reader, const char *name, double fallback);
/* A fallback that does not fit the buffer is a mistake too. */
FERRY_API const char *ferry_reader_string_or(ferry_reader_t *reader, const char *name,
                                             const char *fallback, char *buffer, size_t capacity);

/* A reader of a nested map or array; after a mistake it is empty. ferry_reader_count() says how
 * many elements are left to take. name is borrowed by the child. */
FERRY_API ferry_reader_t ferry_reader_map(ferry_reader_t *reader, const char *name);
FERRY_API ferry_reader_t ferry_reader_array(ferry_reader_t *reader, const char *name);
/* An array's elements not yet taken; 0 for a map and after a mistake. */
FERRY_API size_t ferry_reader_count(const ferry_reader_t *reader);

#ifdef __cplusplus
}
#endif

#endif
