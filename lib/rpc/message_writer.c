/* Typed bodies, written with msgpack-c into one growing buffer. */
#include <msgpack.h>
#include <stdlib.h>
#include <string.h>

#include "rpc/message.h"

/* Room for a map's or array's longest head (count of 32 bits). */
#define HEAD_BYTES_MAX 5

struct container {
    size_t head; /* where its head lies: one byte until the count is known */
    uint64_t count;
    bool is_array;
};

struct ferry_writer {
    msgpack_packer packer;
    unsigned char *data; /* owned */
    size_t bytes, capacity;
    struct container open[FERRY_BODY_DEPTH_MAX]; /* open[0] is the body's map */
    size_t depth;                                /* containers open; 0: finished */
    struct error_record error;                   /* the first mistake */
};

/* Keeps the first mistake without making it the thread's last error yet. */
static void fail(ferry_writer_t *writer, ferry_status_t status, const char *format, ...)
    FERRY_PRINTF(3, 4);

static void fail(ferry_writer_t *writer, ferry_status_t status, const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (writer->error.status == FERRY_OK) {
        error_record_set(&writer->error, status, FERRY_NOT_RUN, "writing a body: %s", text);
    }
}

static bool reserve(ferry_writer_t *writer, size_t more)
{
    size_t needed;
    if (__builtin_add_overflow(writer->bytes, more, &needed)) {
        return false;
    }
    if (needed <= writer->capacity) {
        return true;
    }
    size_t capacity = writer->capacity == 0 ? 256 : writer->capacity;
    while (capacity < needed) {
        capacity = capacity > SIZE_MAX / 2 ? needed : capacity * 2;
    }
    unsigned char *data = realloc(writer->data, capacity);
    if (data == NULL) {
        return false;
    }
    writer->data = data;
    writer->capacity = capacity;
    return true;
}

/* msgpack-c's sink. */
static int append(void *context, const char *bytes, size_t count)
{
    ferry_writer_t *writer = context;
    if (!reserve(writer, count)) {
        fail(writer, FERRY_ERR_NO_MEMORY, "no memory for %zu bytes more", count);
        return -1;
    }
    if (count > 0) {
        memcpy(writer->data + writer->bytes, bytes, count);
        writer->bytes += count;
    }
    return 0;
}

/* Opens a container: its head is one byte for now, filled in when the count is known. */
static void open_container(ferry_writer_t *writer, bool is_array)
{
    writer->open[writer->depth++] = (struct container){.head = writer->bytes, .is_array = is_array};
    append(writer, "", 1);
}

ferry_status_t ferry_writer_create(ferry_writer_t **writer_out)
{
    if (writer_out == NULL) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT, "ferry_writer_create: writer_out is NULL");
    }
    ferry_writer_t *writer = calloc(1, sizeof *writer);
    if (writer == NULL || !reserve(writer, 1)) {
        free(writer);
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory for a writer");
    }
    msgpack_packer_init(&writer->packer, writer, append);
    ferry_writer_reset(writer);
    *writer_out = writer;
    return FERRY_OK;
}

void ferry_writer_destroy(ferry_writer_t *writer)
{
    if (writer != NULL) {
        free(writer->data);
        free(writer);
    }
}

void ferry_writer_reset(ferry_writer_t *writer)
{
    writer->bytes = 0;
    writer->depth = 0;
    writer->error.status = FERRY_OK;
    open_container(writer, false);
}

static void pack_string(ferry_writer_t *writer, const char *text, size_t bytes)
{
    msgpack_pack_str(&writer->packer, bytes);
    msgpack_pack_str_body(&writer->packer, text, bytes);
}

/* Writes the name that the value needs here, and counts the value. False after any mistake. */
static bool begin_value(ferry_writer_t *writer, const char *name)
{
    if (writer->error.status != FERRY_OK) {
        return false;
    }
    if (writer->depth == 0) {
        fail(writer, FERRY_ERR_STATE, "the body is finished; ferry_writer_reset() begins another");
        return false;
    }
    struct container *container = &writer->open[writer->depth - 1];
    if (container->count == UINT32_MAX) {
        fail(writer, FERRY_ERR_LIMIT, "a map or array has too many values");
        return false;
    }
    if (container->is_array != (name == NULL)) {
        if (name == NULL) {
            fail(writer, FERRY_ERR_INVALID_ARGUMENT, "a map's value needs a name");
        } else {
            fail(writer, FERRY_ERR_INVALID_ARGUMENT, "'%.100s' names an array's element", name);
        }
        return false;
    }
    if (name != NULL) {
        size_t bytes = strnlen(name, FERRY_BODY_NAME_BYTES_MAX + 1);
        if (bytes == 0 || bytes > FERRY_BODY_NAME_BYTES_MAX) {
            fail(writer, FERRY_ERR_INVALID_ARGUMENT, "'%.100s' is no name: 1 to %d bytes are", name,
                 FERRY_BODY_NAME_BYTES_MAX);
            return false;
        }
        pack_string(writer, name, bytes);
    }
    container->count++;
    return writer->error.status == FERRY_OK;
}

void ferry_writer_nil(ferry_writer_t *writer, const char *name)
{
    if (begin_value(writer, name)) {
        msgpack_pack_nil(&writer->packer);
    }
}

void ferry_writer_bool(ferry_writer_t *writer, const char *name, bool value)
{
    if (begin_value(writer, name)) {
        if (value) {
            msgpack_pack_true(&writer->packer);
        } else {
            msgpack_pack_false(&writer->packer);
        }
    }
}

void ferry_writer_int64(ferry_writer_t *writer, const char *name, int64_t value)
{
    if (begin_value(writer, name)) {
        msgpack_pack_int64(&writer->packer, value);
    }
}

void ferry_writer_uint64(ferry_writer_t *writer, const char *name, uint64_t value)
{
    if (begin_value(writer, name)) {
        msgpack_pack_uint64(&writer->packer, value);
    }
}

void ferry_writer_double(ferry_writer_t *writer, const char *name, double value)
{
    if (begin_value(writer, name)) {
        msgpack_pack_double(&writer->packer, value);
    }
}

void ferry_writer_string(ferry_writer_t *writer, const char *name, const char *text)
{
    size_t bytes = text == NULL ? 0 : strlen(text);
    if (!begin_value(writer, name)) {
        return;
    }
    if (text == NULL) {
        fail(writer, FERRY_ERR_INVALID_ARGUMENT, "the string '%.100s' is NULL",
             name == NULL ? "" : name);
    } else if (bytes > UINT32_MAX) {
        fail(writer, FERRY_ERR_LIMIT, "a string of %zu bytes", bytes);
    } else {
        pack_string(writer, text, bytes);
    }
}

void ferry_writer_bytes(ferry_writer_t *writer, const char *name, const void *data, size_t bytes)
{
    if (!begin_value(writer, name)) {
        return;
    }
    if (data == NULL && bytes > 0) {
        fail(writer, FERRY_ERR_INVALID_ARGUMENT, "'%.100s' is NULL, of %zu bytes",
             name == NULL ? "" : name, bytes);
    } else if (bytes > UINT32_MAX) {
        fail(writer, FERRY_ERR_LIMIT, "%zu bytes in one value; a tensor carries as many", bytes);
    } else {
        msgpack_pack_bin(&writer->packer, bytes);
        msgpack_pack_bin_body(&writer->packer, data, bytes);
    }
}

void ferry_writer_tensor(ferry_writer_t *writer, const char *name, const char *slot)
{
    size_t bytes = slot == NULL ? 0 : strnlen(slot, FERRY_SLOT_BYTES_MAX + 1);
    if (!begin_value(writer, name)) {
        return;
    }
    if (bytes == 0 || bytes > FERRY_SLOT_BYTES_MAX) {
        fail(writer, FERRY_ERR_INVALID_ARGUMENT, "'%.100s' is no slot name: 1 to %d bytes are",
             slot == NULL ? "(NULL)" : slot, FERRY_SLOT_BYTES_MAX);
        return;
    }
    msgpack_pack_ext(&writer->packer, bytes, FERRY_BODY_TENSOR_EXT);
    msgpack_pack_ext_body(&writer->packer, slot, bytes);
}

static void begin_container(ferry_writer_t *writer, const char *name, bool is_array)
{
    if (!begin_value(writer, name)) {
        return;
    }
    if (writer->depth == FERRY_BODY_DEPTH_MAX) {
        fail(writer, FERRY_ERR_LIMIT, "more than %d maps and arrays inside one another",
             FERRY_BODY_DEPTH_MAX);
        return;
    }
    open_container(writer, is_array);
}

void ferry_writer_begin_map(ferry_writer_t *writer, const char *name)
{
    begin_container(writer, name, false);
}

void ferry_writer_begin_array(ferry_writer_t *writer, const char *name)
{
    begin_container(writer, name, true);
}

/* Puts the head in, now that the count is known: most need no more than the byte that was kept. */
static void close_container(ferry_writer_t *writer)
{
    struct container *container = &writer->open[--writer->depth];
    size_t end = writer->bytes, contents = container->head + 1;
    if (!reserve(writer, HEAD_BYTES_MAX)) {
        fail(writer, FERRY_ERR_NO_MEMORY, "no memory for %d bytes more", HEAD_BYTES_MAX);
        return;
    }
    /* The packer writes the head behind the contents, from where its bytes go to the front. */
    if (container->is_array) {
        msgpack_pack_array(&writer->packer, container->count);
    } else {
        msgpack_pack_map(&writer->packer, container->count);
    }
    unsigned char head[HEAD_BYTES_MAX];
    size_t head_bytes = writer->bytes - end;
    memcpy(head, writer->data + end, head_bytes);
    memmove(writer->data + container->head + head_bytes, writer->data + contents, end - contents);
    memcpy(writer->data + container->head, head, head_bytes);
    writer->bytes = end - 1 + head_bytes;
}

void ferry_writer_end(ferry_writer_t *writer)
{
    if (writer->error.status != FERRY_OK) {
        return;
    }
    if (writer->depth <= 1) {
        fail(writer, FERRY_ERR_INVALID_ARGUMENT, "an end without a begin");
        return;
    }
    close_container(writer);
}

ferry_status_t ferry_writer_finish(ferry_writer_t *writer, ferry_message_t *message)
{
    if (writer == NULL || message == NULL) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT, "ferry_writer_finish: %s is NULL",
                           writer == NULL ? "writer" : "message");
    }
    if (writer->error.status == FERRY_OK && writer->depth > 1) {
        fail(writer, FERRY_ERR_INVALID_ARGUMENT, "%zu maps or arrays lack their end",
             writer->depth - 1);
    }
    if (writer->error.status == FERRY_OK && writer->depth == 1) {
        close_container(writer);
    }
    if (writer->error.status != FERRY_OK) {
        return error_raise_record(&writer->error);
    }
    message->body = writer->data;
    message->body_bytes = writer->bytes;
    return FERRY_OK;
}
