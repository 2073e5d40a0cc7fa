/* Typed bodies, read in place: the walk of message_scan.c finds a value, msgpack-c decodes it. */
#include <math.h>
#include <msgpack.h>
#include <stdio.h>
#include <string.h>

#include "rpc/message.h"

#define PATH_BYTES 128

static ferry_reader_t *root_of(const ferry_reader_t *reader)
{
    while (reader->parent != NULL) {
        reader = reader->parent;
    }
    return (ferry_reader_t *)reader;
}

/* Writes the path of the value `name` (or of element `index`) of this reader: "args.sizes[3]". */
static size_t path_print(const ferry_reader_t *reader, const char *name, uint64_t index,
                         char path[PATH_BYTES])
{
    size_t length = 0;
    path[0] = '\0';
    if (reader->parent != NULL) {
        length = path_print(reader->parent, reader->name, reader->index, path);
    }
    int written = name == NULL ? snprintf(path + length, PATH_BYTES - length, "[%llu]",
                                          (unsigned long long)index)
                               : snprintf(path + length, PATH_BYTES - length, "%s%.100s",
                                          length == 0 ? "" : ".", name);
    length += written < 0 ? 0 : (size_t)written;
    return length < PATH_BYTES ? length : PATH_BYTES - 1;
}

/* Keeps the first mistake in the root. */
static void fail(ferry_reader_t *reader, ferry_status_t status, const char *format, ...)
    FERRY_PRINTF(3, 4);

static void fail(ferry_reader_t *reader, ferry_status_t status, const char *format, ...)
{
    ferry_reader_t *root = root_of(reader);
    if (root->status != FERRY_OK) {
        return;
    }
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(root->text, sizeof root->text, format, arguments);
    va_end(arguments);
    root->status = status;
}

/* A value that was looked up, with its place for a message. */
struct value {
    const unsigned char *at;
    struct item item;
    const char *name;
    uint64_t index;
};

static void fail_value(ferry_reader_t *reader, const struct value *value, const char *wanted)
{
    static const char *const kinds[] = {"nil",      "a bool",   "a number",
                                        "a string", "bytes",    "an array",
                                        "a map",    "a tensor", "an unknown extension"};
    char path[PATH_BYTES];
    path_print(reader, value->name, value->index, path);
    fail(reader, FERRY_ERR_TYPE, "field '%s' is %s, wanted %s", path, kinds[value->item.kind],
         wanted);
}

ferry_reader_t ferry_reader(const ferry_message_t *message)
{
    ferry_reader_t reader = {.message = message};
    if (message == NULL || message->body_bytes == 0) {
        return reader;
    }
    reader.status = message->body == NULL ? error_raise(FERRY_ERR_INVALID_ARGUMENT,
                                                        "the message's body is NULL, of "
                                                        "%zu bytes",
                                                        message->body_bytes)
                                          : body_check(message->body, message->body_bytes);
    if (reader.status != FERRY_OK) {
        snprintf(reader.text, sizeof reader.text, "%s", ferry_last_error()->text);
        return reader;
    }
    struct item item;
    const unsigned char *body = message->body;
    reader.end = body + message->body_bytes;
    if (item_read(body, reader.end, &item)) {
        reader.first = reader.at = body + item.head_bytes;
        reader.count = item.children / 2;
    }
    return reader;
}

ferry_status_t ferry_reader_status(const ferry_reader_t *reader)
{
    const ferry_reader_t *root = root_of(reader);
    return root->status == FERRY_OK ? FERRY_OK : error_raise(root->status, "%s", root->text);
}

/* The map's first value of this name. */
static bool find_field(const ferry_reader_t *reader, const char *name, struct value *value)
{
    size_t bytes = strlen(name);
    const unsigned char *at = reader->first;
    for (uint64_t i = 0; i < reader->count; i++) {
        struct item key;
        if (!item_read(at, reader->end, &key)) {
            return false;
        }
        const unsigned char *behind = item_skip(at, reader->end);
        if (key.kind == ITEM_STRING && key.payload_bytes == bytes &&
            memcmp(at + key.head_bytes, name, bytes) == 0) {
            value->at = behind;
            return item_read(behind, reader->end, &value->item);
        }
        at = item_skip(behind, reader->end);
    }
    return false;
}

/* Takes the array's next element. */
static bool next_element(ferry_reader_t *reader, struct value *value)
{
    if (reader->next >= reader->count || !item_read(reader->at, reader->end, &value->item)) {
        return false;
    }
    value->at = reader->at;
    value->index = reader->next++;
    reader->at = item_skip(reader->at, reader->end);
    return true;
}

enum found { FOUND, MISSING, MISTAKE };

/* Looks a value up. A nil is as good as missing. */
static enum found look_up(ferry_reader_t *reader, const char *name, struct value *value)
{
    *value = (struct value){.name = name, .index = reader->next};
    if (root_of(reader)->status != FERRY_OK) {
        return MISTAKE;
    }
    if (reader->is_array && name != NULL) {
        fail(reader, FERRY_ERR_INVALID_ARGUMENT, "'%.100s' names an array's element", name);
        return MISTAKE;
    }
    if (!reader->is_array && name == NULL) {
        fail(reader, FERRY_ERR_INVALID_ARGUMENT, "a map's field needs a name");
        return MISTAKE;
    }
    bool found = name == NULL ? next_element(reader, value) : find_field(reader, name, value);
    return found && value->item.kind != ITEM_NIL ? FOUND : MISSING;
}

static void fail_missing(ferry_reader_t *reader, const struct value *value, const char *wanted)
{
    char path[PATH_BYTES];
    if (value->at != NULL) {
        fail_value(reader, value, wanted); /* it is nil */
        return;
    }
    path_print(reader, value->name, value->index, path);
    fail(reader, FERRY_ERR_NOT_FOUND, "there is no field '%s', wanted %s", path, wanted);
}

/* The same where the value must be there. */
static bool look_up_needed(ferry_reader_t *reader, const char *name, struct value *value,
                           const char *wanted)
{
    enum found found = look_up(reader, name, value);
    if (found == MISSING) {
        fail_missing(reader, value, wanted);
    }
    return found == FOUND;
}

bool ferry_reader_has(ferry_reader_t *reader, const char *name)
{
    struct value value;
    ferry_reader_t before = *reader; /* an element is looked at, not taken */
    if (root_of(reader)->status != FERRY_OK || reader->is_array != (name == NULL)) {
        return false;
    }
    bool found = look_up(reader, name, &value) == FOUND;
    reader->at = before.at;
    reader->next = before.next;
    return found;
}

/* A bool or a number, which msgpack-c decodes without allocating. */
static msgpack_object decode(const ferry_reader_t *reader, const struct value *value)
{
    msgpack_zone unused = {.finalizer_array = {.tail = NULL}};
    msgpack_object object = {.type = MSGPACK_OBJECT_NIL};
    size_t offset = 0;
    msgpack_unpack((const char *)value->at, (size_t)(reader->end - value->at), &offset, &unused,
                   &object);
    return object;
}

static bool take_bool(ferry_reader_t *reader, const struct value *value)
{
    if (value->item.kind != ITEM_BOOL) {
        fail_value(reader, value, "a bool");
        return false;
    }
    return decode(reader, value).via.boolean;
}

/* Says why the number cannot be had as it is. */
static void fail_number(ferry_reader_t *reader, const struct value *value,
                        const msgpack_object *number, const char *wanted)
{
    char path[PATH_BYTES], text[40];
    path_print(reader, value->name, value->index, path);
    if (number->type == MSGPACK_OBJECT_POSITIVE_INTEGER) {
        snprintf(text, sizeof text, "%llu", (unsigned long long)number->via.u64);
    } else if (number->type == MSGPACK_OBJECT_NEGATIVE_INTEGER) {
        snprintf(text, sizeof text, "%lld", (long long)number->via.i64);
    } else {
        snprintf(text, sizeof text, "%.17g", number->via.f64);
    }
    fail(reader, FERRY_ERR_TYPE, "field '%s' is %s, wanted %s", path, text, wanted);
}

/* Numbers of every kind, for the three takers. */
static bool decode_number(ferry_reader_t *reader, const struct value *value, const char *wanted,
                          msgpack_object *number_out)
{
    if (value->item.kind != ITEM_NUMBER) {
        fail_value(reader, value, wanted);
        return false;
    }
    *number_out = decode(reader, value);
    return true;
}

/* The double as an integer of [lowest, limit), if it is one. */
static bool double_is_integer(double value, double lowest, double limit)
{
    return value >= lowest && value < limit && trunc(value) == value;
}

static int64_t take_int64(ferry_reader_t *reader, const struct value *value)
{
    msgpack_object number;
    if (!decode_number(reader, value, "an integer", &number)) {
        return 0;
    }
    if (number.type == MSGPACK_OBJECT_NEGATIVE_INTEGER) {
        return number.via.i64;
    }
    if (number.type == MSGPACK_OBJECT_POSITIVE_INTEGER && number.via.u64 <= INT64_MAX) {
        return (int64_t)number.via.u64;
    }
    if (number.type != MSGPACK_OBJECT_POSITIVE_INTEGER &&
        double_is_integer(number.via.f64, -0x1p63, 0x1p63)) {
        return (int64_t)number.via.f64;
    }
    fail_number(reader, value, &number, "an integer of 64 bits");
    return 0;
}

static uint64_t take_uint64(ferry_reader_t *reader, const struct value *value)
{
    msgpack_object number;
    if (!decode_number(reader, value, "an integer of no sign", &number)) {
        return 0;
    }
    if (number.type == MSGPACK_OBJECT_POSITIVE_INTEGER) {
        return number.via.u64;
    }
    if (number.type != MSGPACK_OBJECT_NEGATIVE_INTEGER &&
        double_is_integer(number.via.f64, 0, 0x1p64)) {
        return (uint64_t)number.via.f64;
    }
    fail_number(reader, value, &number, "an integer of 64 bits without a sign");
    return 0;
}

static double take_double(ferry_reader_t *reader, const struct value *value)
{
    msgpack_object number;
    if (!decode_number(reader, value, "a double", &number)) {
        return 0;
    }
    if (number.type == MSGPACK_OBJECT_POSITIVE_INTEGER) {
        double result = (double)number.via.u64;
        if (result < 0x1p64 && (uint64_t)result == number.via.u64) {
            return result;
        }
    } else if (number.type == MSGPACK_OBJECT_NEGATIVE_INTEGER) {
        double result = (double)number.via.i64; /* never below -2^63, so it goes back */
        if ((int64_t)result == number.via.i64) {
            return result;
        }
    } else {
        return number.via.f64;
    }
    fail_number(reader, value, &number, "a double, which cannot hold it exactly");
    return 0;
}

static const char *copy_string(ferry_reader_t *reader, const struct value *value, const char *text,
                               size_t bytes, char *buffer, size_t capacity)
{
    if (bytes < capacity && memchr(text, '\0', bytes) == NULL) {
        memcpy(buffer, text, bytes);
        buffer[bytes] = '\0';
        return buffer;
    }
    char path[PATH_BYTES];
    buffer[0] = '\0';
    path_print(reader, value->name, value->index, path);
    if (bytes >= capacity) {
        fail(reader, FERRY_ERR_LIMIT, "field '%s' is a string of %zu bytes, at most %zu fit", path,
             bytes, capacity - 1);
    } else {
        fail(reader, FERRY_ERR_TYPE, "field '%s' is a string with a NUL inside, wanted text", path);
    }
    return buffer;
}

/* A string's, bytes' or tensor's payload. */
static const char *payload(const struct value *value)
{
    return (const char *)value->at + value->item.head_bytes;
}

static const char *take_string(ferry_reader_t *reader, const struct value *value, char *buffer,
                               size_t capacity)
{
    if (value->item.kind != ITEM_STRING) {
        fail_value(reader, value, "a string");
        return buffer;
    }
    return copy_string(reader, value, payload(value), (size_t)value->item.payload_bytes, buffer,
                       capacity);
}

bool ferry_reader_bool(ferry_reader_t *reader, const char *name)
{
    struct value value;
    return look_up_needed(reader, name, &value, "a bool") && take_bool(reader, &value);
}

int64_t ferry_reader_int64(ferry_reader_t *reader, const char *name)
{
    struct value value;
    return look_up_needed(reader, name, &value, "an integer") ? take_int64(reader, &value) : 0;
}

uint64_t ferry_reader_uint64(ferry_reader_t *reader, const char *name)
{
    struct value value;
    return look_up_needed(reader, name, &value, "an integer") ? take_uint64(reader, &value) : 0;
}

double ferry_reader_double(ferry_reader_t *reader, const char *name)
{
    struct value value;
    return look_up_needed(reader, name, &value, "a double") ? take_double(reader, &value) : 0;
}

const char *ferry_reader_string(ferry_reader_t *reader, const char *name, char *buffer,
                                size_t capacity)
{
    struct value value;
    if (buffer == NULL || capacity == 0) {
        fail(reader, FERRY_ERR_INVALID_ARGUMENT, "ferry_reader_string: no room for a string");
        return "";
    }
    buffer[0] = '\0';
    if (!look_up_needed(reader, name, &value, "a string")) {
        return buffer;
    }
    return take_string(reader, &value, buffer, capacity);
}

const void *ferry_reader_bytes(ferry_reader_t *reader, const char *name, size_t *bytes_out)
{
    struct value value;
    if (bytes_out == NULL) {
        fail(reader, FERRY_ERR_INVALID_ARGUMENT, "ferry_reader_bytes: bytes_out is NULL");
        return "";
    }
    *bytes_out = 0;
    if (!look_up_needed(reader, name, &value, "bytes")) {
        return "";
    }
    if (value.item.kind != ITEM_BYTES && value.item.kind != ITEM_STRING) {
        fail_value(reader, &value, "bytes");
        return "";
    }
    *bytes_out = (size_t)value.item.payload_bytes;
    return payload(&value);
}

bool ferry_reader_bool_or(ferry_reader_t *reader, const char *name, bool fallback)
{
    struct value value;
    return look_up(reader, name, &value) == FOUND ? take_bool(reader, &value) : fallback;
}

int64_t ferry_reader_int64_or(ferry_reader_t *reader, const char *name, int64_t fallback)
{
    struct value value;
    return look_up(reader, name, &value) == FOUND ? take_int64(reader, &value) : fallback;
}

uint64_t ferry_reader_uint64_or(ferry_reader_t *reader, const char *name, uint64_t fallback)
{
    struct value value;
    return look_up(reader, name, &value) == FOUND ? take_uint64(reader, &value) : fallback;
}

double ferry_reader_double_or(ferry_reader_t *reader, const char *name, double fallback)
{
    struct value value;
    return look_up(reader, name, &value) == FOUND ? take_double(reader, &value) : fallback;
}

const char *ferry_reader_string_or(ferry_reader_t *reader, const char *name, const char *fallback,
                                   char *buffer, size_t capacity)
{
    struct value value;
    if (buffer == NULL || capacity == 0 || fallback == NULL) {
        fail(reader, FERRY_ERR_INVALID_ARGUMENT, "ferry_reader_string_or: %s",
             fallback == NULL ? "the fallback is NULL" : "no room for a string");
        return "";
    }
    buffer[0] = '\0';
    if (look_up(reader, name, &value) == FOUND) {
        return take_string(reader, &value, buffer, capacity);
    }
    return copy_string(reader, &value, fallback, strlen(fallback), buffer, capacity);
}

/* Takes a looked-up tensor of the message over, or keeps the mistake with the field's path. */
static const ferry_tensor_t *take_slot(ferry_reader_t *reader, const struct value *value,
                                       const char *slot, DLDataType dtype)
{
    const ferry_tensor_t *tensor = NULL;
    ferry_status_t status = message_tensor(reader->message, slot, dtype, &tensor);
    if (status != FERRY_OK) {
        char path[PATH_BYTES];
        path_print(reader, value->name, value->index, path);
        if (strcmp(path, slot) == 0) {
            fail(reader, status, "%s", ferry_last_error()->text);
        } else {
            fail(reader, status, "field '%s': %s", path, ferry_last_error()->text);
        }
    }
    return tensor;
}

const ferry_tensor_t *ferry_reader_tensor(ferry_reader_t *reader, const char *name,
                                          DLDataType dtype)
{
    struct value value;
    enum found found = look_up(reader, name, &value);
    if (found == MISTAKE) {
        return NULL;
    }
    if (found == MISSING && name != NULL) {
        return take_slot(reader, &value, name, dtype);
    }
    if (found == MISSING) {
        fail_missing(reader, &value, "a tensor");
        return NULL;
    }
    if (value.item.kind != ITEM_TENSOR) {
        fail_value(reader, &value, "a tensor");
        return NULL;
    }
    char slot[FERRY_SLOT_BYTES_MAX + 1];
    copy_string(reader, &value, payload(&value), (size_t)value.item.payload_bytes, slot,
                sizeof slot);
    return root_of(reader)->status == FERRY_OK ? take_slot(reader, &value, slot, dtype) : NULL;
}

/* A child over a nested map or array; empty after a mistake. */
static ferry_reader_t open_child(ferry_reader_t *reader, const char *name, enum item_kind kind)
{
    const char *wanted = kind == ITEM_MAP ? "a map" : "an array";
    ferry_reader_t child = {
        .message = reader->message, .parent = reader, .name = name, .is_array = kind == ITEM_ARRAY};
    struct value value;
    if (!look_up_needed(reader, name, &value, wanted)) {
        return child;
    }
    if (value.item.kind != kind) {
        fail_value(reader, &value, wanted);
        return child;
    }
    child.index = (size_t)value.index;
    child.first = child.at = value.at + value.item.head_bytes;
    child.end = reader->end;
    child.count = kind == ITEM_MAP ? value.item.children / 2 : value.item.children;
    return child;
}

ferry_reader_t ferry_reader_map(ferry_reader_t *reader, const char *name)
{
    return open_child(reader, name, ITEM_MAP);
}

ferry_reader_t ferry_reader_array(ferry_reader_t *reader, const char *name)
{
    return open_child(reader, name, ITEM_ARRAY);
}

size_t ferry_reader_count(const ferry_reader_t *reader)
{
    if (!reader->is_array || root_of(reader)->status != FERRY_OK) {
        return 0;
    }
    return (size_t)(reader->count - reader->next);
}
