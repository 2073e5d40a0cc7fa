/* Opaque addresses in error texts. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "naming/fields.h"
#include "naming/naming_backend.h"

/* Appends one "key=value" of the kinds that say something to a reader; ids and the like are left out. */
static size_t field_print(const msgpack_object_kv *pair, char *text, size_t used)
{
    size_t room = NAMING_ADDRESS_TEXT_BYTES - used;
    const char *gap = used == 0 ? "" : " ";
    int wrote = 0;
    if (pair->key.type != MSGPACK_OBJECT_STR) {
        return used;
    }
    int key_bytes = pair->key.via.str.size > 32 ? 32 : (int)pair->key.via.str.size;
    if (pair->val.type == MSGPACK_OBJECT_STR) {
        int value_bytes = pair->val.via.str.size > 100 ? 100 : (int)pair->val.via.str.size;
        wrote = snprintf(text + used, room, "%s%.*s=%.*s", gap, key_bytes, pair->key.via.str.ptr,
                         value_bytes, pair->val.via.str.ptr);
    } else if (pair->val.type == MSGPACK_OBJECT_POSITIVE_INTEGER) {
        wrote = snprintf(text + used, room, "%s%.*s=%llu", gap, key_bytes, pair->key.via.str.ptr,
                         (unsigned long long)pair->val.via.u64);
    }
    if (wrote < 0 || (size_t)wrote >= room) {
        text[used] = '\0';
        return used;
    }
    return used + (size_t)wrote;
}

static void bytes_print(const unsigned char *address, size_t bytes, char *text)
{
    size_t used = 0;
    for (size_t i = 0; i < bytes && used + 5 < NAMING_ADDRESS_TEXT_BYTES; i++) {
        const char *format = isprint(address[i]) ? "%c" : "\\x%02x";
        used += (size_t)snprintf(text + used, NAMING_ADDRESS_TEXT_BYTES - used, format, address[i]);
    }
}

const char *naming_address_text(const void *address, size_t bytes,
                                char text[NAMING_ADDRESS_TEXT_BYTES])
{
    struct fields fields;
    size_t used = 0;
    text[0] = '\0';
    if (fields_open(&fields, address, bytes)) {
        for (uint32_t i = 0; i < fields.map.size; i++) {
            used = field_print(&fields.map.ptr[i], text, used);
        }
        fields_close(&fields);
    }
    if (used == 0) {
        bytes_print(address, bytes, text);
    }
    return text;
}

void naming_taken_error(struct error_record *error, const char *name, const void *address,
                        size_t bytes)
{
    char text[NAMING_ADDRESS_TEXT_BYTES];
    error_record_set(error, FERRY_ERR_NAME_TAKEN, FERRY_NOT_RUN,
                     "the name '%s' is taken by the live agent at %s", name,
                     naming_address_text(address, bytes, text));
}
