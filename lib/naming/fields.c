/* msgpack maps of the naming protocol. */
#include "naming/fields.h"

#include <string.h>

/* ---- checking ---- */

struct cursor {
    const uint8_t *at;
    size_t left;
};

static bool cursor_skip(struct cursor *cursor, uint64_t bytes)
{
    if (bytes > cursor->left) {
        return false;
    }
    cursor->at += bytes;
    cursor->left -= (size_t)bytes;
    return true;
}

/* A big-endian number of the given width. */
static bool cursor_number(struct cursor *cursor, unsigned width, uint64_t *number_out)
{
    const uint8_t *at = cursor->at;
    uint64_t number = 0;
    if (!cursor_skip(cursor, width)) {
        return false;
    }
    for (unsigned i = 0; i < width; i++) {
        number = number << 8 | at[i];
    }
    *number_out = number;
    return true;
}

/* What follows a value's first byte. */
struct shape {
    unsigned length_width; /* bytes of a length or count, 0: it is in `fixed` */
    uint64_t fixed;
    uint64_t items_each; /* a container's values per count; 0: the length counts bytes */
    bool valid;
};

static struct shape shape_of(uint8_t first)
{
    static const uint8_t scalar_bytes[] = {
        [0xca - 0xc0] = 4, [0xcb - 0xc0] = 8, [0xcc - 0xc0] = 1, [0xcd - 0xc0] = 2,
        [0xce - 0xc0] = 4, [0xcf - 0xc0] = 8, [0xd0 - 0xc0] = 1, [0xd1 - 0xc0] = 2,
        [0xd2 - 0xc0] = 4, [0xd3 - 0xc0] = 8,
    };
    if (first < 0x80 || first >= 0xe0) {
        return (struct shape){.valid = true};
    }
    if (first < 0x90) {
        return (struct shape){.fixed = first & 0x0f, .items_each = 2, .valid = true};
    }
    if (first < 0xa0) {
        return (struct shape){.fixed = first & 0x0f, .items_each = 1, .valid = true};
    }
    if (first < 0xc0) {
        return (struct shape){.fixed = first & 0x1f, .valid = true};
    }
    switch (first) {
    case 0xc0: /* nil, false, true */
    case 0xc2:
    case 0xc3:
        return (struct shape){.valid = true};
    case 0xc4: /* bin and str */
    case 0xd9:
        return (struct shape){.length_width = 1, .valid = true};
    case 0xc5:
    case 0xda:
        return (struct shape){.length_width = 2, .valid = true};
    case 0xc6:
    case 0xdb:
        return (struct shape){.length_width = 4, .valid = true};
    case 0xdc: /* array */
        return (struct shape){.length_width = 2, .items_each = 1, .valid = true};
    case 0xdd:
        return (struct shape){.length_width = 4, .items_each = 1, .valid = true};
    case 0xde: /* map */
        return (struct shape){.length_width = 2, .items_each = 2, .valid = true};
    case 0xdf:
        return (struct shape){.length_width = 4, .items_each = 2, .valid = true};
    default: /* numbers; extension types are not part of the protocol */
        return first >= 0xca && first <= 0xd3
                   ? (struct shape){.fixed = scalar_bytes[first - 0xc0], .valid = true}
                   : (struct shape){.valid = false};
    }
}

bool fields_sane(const void *data, size_t bytes)
{
    struct cursor cursor = {.at = data, .left = bytes};
    uint64_t open[FIELDS_DEPTH_MAX]; /* values still to come in each container */
    unsigned depth = 0;
    do {
        uint64_t first;
        if (!cursor_number(&cursor, 1, &first)) {
            return false;
        }
        struct shape shape = shape_of((uint8_t)first);
        uint64_t length = shape.fixed;
        if (!shape.valid ||
            (shape.length_width > 0 && !cursor_number(&cursor, shape.length_width, &length))) {
            return false;
        }
        if (shape.items_each == 0) {
            if (!cursor_skip(&cursor, length)) {
                return false;
            }
        } else if (length > 0) {
            /* Every value takes a byte at least, so a count over what is left is a lie. */
            if (depth == FIELDS_DEPTH_MAX || length * shape.items_each > cursor.left) {
                return false;
            }
            open[depth++] = length * shape.items_each;
            continue;
        }
        while (depth > 0 && --open[depth - 1] == 0) {
            depth--;
        }
    } while (depth > 0);
    return cursor.left == 0;
}

/* ---- reading ---- */

bool fields_open(struct fields *fields, const void *data, size_t bytes)
{
    if (!fields_sane(data, bytes)) {
        return false;
    }
    msgpack_unpacked_init(&fields->unpacked);
    size_t offset = 0;
    if (msgpack_unpack_next(&fields->unpacked, data, bytes, &offset) != MSGPACK_UNPACK_SUCCESS ||
        fields->unpacked.data.type != MSGPACK_OBJECT_MAP) {
        msgpack_unpacked_destroy(&fields->unpacked);
        return false;
    }
    fields->map = fields->unpacked.data.via.map;
    return true;
}

void fields_close(struct fields *fields)
{
    msgpack_unpacked_destroy(&fields->unpacked);
}

static const msgpack_object *field_find(const struct fields *fields, const char *key)
{
    size_t length = strlen(key);
    for (uint32_t i = 0; i < fields->map.size; i++) {
        const msgpack_object *name = &fields->map.ptr[i].key;
        if (name->type == MSGPACK_OBJECT_STR && name->via.str.size == length &&
            memcmp(name->via.str.ptr, key, length) == 0) {
            return &fields->map.ptr[i].val;
        }
    }
    return NULL;
}

bool fields_text(const struct fields *fields, const char *key, char *buffer, size_t capacity)
{
    const msgpack_object *value = field_find(fields, key);
    if (value == NULL || value->type != MSGPACK_OBJECT_STR || value->via.str.size >= capacity ||
        memchr(value->via.str.ptr, '\0', value->via.str.size) != NULL) {
        return false;
    }
    memcpy(buffer, value->via.str.ptr, value->via.str.size);
    buffer[value->via.str.size] = '\0';
    return true;
}

bool fields_bytes(const struct fields *fields, const char *key, const void **data_out,
                  size_t *bytes_out)
{
    const msgpack_object *value = field_find(fields, key);
    if (value == NULL || value->type != MSGPACK_OBJECT_BIN) {
        return false;
    }
    *data_out = value->via.bin.ptr;
    *bytes_out = value->via.bin.size;
    return true;
}

bool fields_number(const struct fields *fields, const char *key, uint64_t *number_out)
{
    const msgpack_object *value = field_find(fields, key);
    if (value == NULL || value->type != MSGPACK_OBJECT_POSITIVE_INTEGER) {
        return false;
    }
    *number_out = value->via.u64;
    return true;
}

bool fields_flag(const struct fields *fields, const char *key, bool *flag_out)
{
    const msgpack_object *value = field_find(fields, key);
    if (value == NULL || value->type != MSGPACK_OBJECT_BOOLEAN) {
        return false;
    }
    *flag_out = value->via.boolean;
    return true;
}

/* ---- writing ---- */

static void note(struct fields_writer *writer, int result)
{
    writer->failed = writer->failed || result != 0;
}

static void write_str(struct fields_writer *writer, const char *text)
{
    size_t length = strlen(text);
    note(writer, msgpack_pack_str(&writer->packer, length));
    note(writer, msgpack_pack_str_body(&writer->packer, text, length));
}

void fields_write(struct fields_writer *writer, size_t count)
{
    msgpack_sbuffer_init(&writer->buffer);
    msgpack_packer_init(&writer->packer, &writer->buffer, msgpack_sbuffer_write);
    writer->failed = false;
    note(writer, msgpack_pack_map(&writer->packer, count));
}

void fields_write_text(struct fields_writer *writer, const char *key, const char *text)
{
    write_str(writer, key);
    write_str(writer, text);
}

void fields_write_bytes(struct fields_writer *writer, const char *key, const void *data,
                        size_t bytes)
{
    write_str(writer, key);
    note(writer, msgpack_pack_bin(&writer->packer, bytes));
    if (bytes > 0) {
        note(writer, msgpack_pack_bin_body(&writer->packer, data, bytes));
    }
}

void fields_write_number(struct fields_writer *writer, const char *key, uint64_t number)
{
    write_str(writer, key);
    note(writer, msgpack_pack_uint64(&writer->packer, number));
}

void fields_write_flag(struct fields_writer *writer, const char *key, bool flag)
{
    write_str(writer, key);
    note(writer, flag ? msgpack_pack_true(&writer->packer) : msgpack_pack_false(&writer->packer));
}

void fields_write_finish(struct fields_writer *writer)
{
    msgpack_sbuffer_destroy(&writer->buffer);
}
