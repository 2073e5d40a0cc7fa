#include <stdlib.h>
#include <string.h>

#include "rpc/hello.h"
#include "rpc/wire_pack.h"

static const char HELLO[] = "the hello";

/* Everything that one hello of any kind may say; on the heap, since it is too large for a stack that the
 * user may have made small. */
struct reading {
    int64_t kind; /* 0: not said */
    uint64_t status;
    const char *text; /* in the input */
    size_t text_bytes;
    struct hello hello;
};

static ferry_status_t read_u32(const msgpack_object *object, const char *key, uint32_t *value_out)
{
    uint64_t value;
    ferry_status_t status = pack_read_unsigned(object, HELLO, key, UINT32_MAX, &value);
    if (status == FERRY_OK) {
        *value_out = (uint32_t)value;
    }
    return status;
}

static ferry_status_t read_identifier(const msgpack_object *object, const char *key,
                                      uint8_t identifier[16])
{
    return pack_copy_exactly(object, HELLO, key, identifier, 16);
}

/* NULL: raised. */
static const msgpack_object_array *read_array(const msgpack_object *object, const char *key,
                                              uint32_t max)
{
    if (object->type != MSGPACK_OBJECT_ARRAY || object->via.array.size > max) {
        error_raise(FERRY_ERR_PROTOCOL, "%s: \"%s\" is not a list of at most %u", HELLO, key, max);
        return NULL;
    }
    return &object->via.array;
}

static ferry_status_t read_device(const msgpack_object *object, DLDevice *device, uint8_t uuid[16])
{
    if (object->type != MSGPACK_OBJECT_ARRAY || object->via.array.size < 2) {
        return error_raise(FERRY_ERR_PROTOCOL, "%s: one of the \"devices\" lacks its type or index",
                           HELLO);
    }
    const msgpack_object_array *fields = &object->via.array;
    int64_t type = 0, id = 0;
    ferry_status_t status =
        pack_read_signed(&fields->ptr[0], HELLO, "device type", 1, INT32_MAX, &type);
    if (status == FERRY_OK) {
        status = pack_read_signed(&fields->ptr[1], HELLO, "device index", 0, INT32_MAX, &id);
    }
    if (status == FERRY_OK && fields->size > 2) {
        status = read_identifier(&fields->ptr[2], "device uuid", uuid);
    }
    *device = (DLDevice){.device_type = (DLDeviceType)type, .device_id = (int32_t)id};
    return status;
}

static ferry_status_t read_devices(const msgpack_object *object, struct hello *hello)
{
    const msgpack_object_array *array = read_array(object, "devices", HELLO_DEVICES_MAX);
    if (array == NULL) {
        return FERRY_ERR_PROTOCOL;
    }
    ferry_status_t status = FERRY_OK;
    hello->device_count = array->size;
    for (uint32_t i = 0; i < array->size && status == FERRY_OK; i++) {
        memset(hello->device_uuid[i], 0, sizeof hello->device_uuid[i]);
        status = read_device(&array->ptr[i], &hello->devices[i], hello->device_uuid[i]);
    }
    return status;
}

static ferry_status_t read_transport_field(const msgpack_object_kv *entry,
                                           struct hello_transport *transport)
{
    const msgpack_object *value = &entry->val;
    if (pack_key_is(entry, "name")) {
        return pack_copy_text(value, HELLO, "name", transport->name, sizeof transport->name);
    }
    if (pack_key_is(entry, "identity")) {
        return pack_copy_text(value, HELLO, "identity", transport->identity,
                              sizeof transport->identity);
    }
    if (pack_key_is(entry, "address")) {
        return pack_copy_bytes(value, HELLO, "address", transport->address,
                               sizeof transport->address, &transport->address_bytes);
    }
    if (pack_key_is(entry, "capabilities")) {
        return read_u32(value, "capabilities", &transport->capabilities);
    }
    if (pack_key_is(entry, "operation")) {
        return pack_read_unsigned(value, HELLO, "operation", UINT64_MAX,
                                  &transport->operation_bytes_max);
    }
    return FERRY_OK;
}

static ferry_status_t read_transports(const msgpack_object *object, struct hello *hello)
{
    const msgpack_object_array *array = read_array(object, "transports", HELLO_TRANSPORTS_MAX);
    if (array == NULL) {
        return FERRY_ERR_PROTOCOL;
    }
    ferry_status_t status = FERRY_OK;
    hello->transport_count = array->size;
    memset(hello->transports, 0, sizeof hello->transports);
    for (uint32_t i = 0; i < array->size && status == FERRY_OK; i++) {
        if (array->ptr[i].type != MSGPACK_OBJECT_MAP) {
            return error_raise(FERRY_ERR_PROTOCOL, "%s: one of the \"transports\" is no map",
                               HELLO);
        }
        const msgpack_object_map *map = &array->ptr[i].via.map;
        for (uint32_t j = 0; j < map->size && status == FERRY_OK; j++) {
            status = read_transport_field(&map->ptr[j], &hello->transports[i]);
        }
    }
    return status;
}

/* One of the hello's texts; FERRY_PENDING: the field is none of them. */
static ferry_status_t read_text_field(const msgpack_object_kv *entry, struct reading *reading)
{
    struct hello *hello = &reading->hello;
    struct {
        const char *key;
        char *text;
        size_t capacity;
    } fields[] = {{"ferry", hello->ferry_version, sizeof hello->ferry_version},
                  {"name", hello->name, sizeof hello->name},
                  {"wanted", hello->wanted, sizeof hello->wanted},
                  {"chosen", hello->chosen, sizeof hello->chosen}};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        if (pack_key_is(entry, fields[i].key)) {
            return pack_copy_text(&entry->val, HELLO, fields[i].key, fields[i].text,
                                  fields[i].capacity);
        }
    }
    if (pack_key_is(entry, "text")) {
        return pack_read_text(&entry->val, HELLO, "text", SIZE_MAX, &reading->text,
                              &reading->text_bytes);
    }
    return FERRY_PENDING;
}

/* One of its numbers; FERRY_PENDING: the field is none of them. */
static ferry_status_t read_number_field(const msgpack_object_kv *entry, struct reading *reading)
{
    struct hello *hello = &reading->hello;
    struct {
        const char *key;
        uint32_t *value;
    } narrow[] = {{"version", &hello->version},
                  {"session", &hello->session},
                  {"eager", &hello->eager_bytes},
                  {"inline", &hello->inline_bytes}};
    for (size_t i = 0; i < sizeof narrow / sizeof narrow[0]; i++) {
        if (pack_key_is(entry, narrow[i].key)) {
            return read_u32(&entry->val, narrow[i].key, narrow[i].value);
        }
    }
    struct {
        const char *key;
        uint64_t max;
        uint64_t *value;
    } wide[] = {{"epoch", UINT64_MAX, &hello->epoch},
                {"tensors", UINT64_MAX, &hello->max_tensors},
                {"message", UINT64_MAX, &hello->max_message_bytes},
                {"status", UINT16_MAX, &reading->status}};
    for (size_t i = 0; i < sizeof wide / sizeof wide[0]; i++) {
        if (pack_key_is(entry, wide[i].key)) {
            return pack_read_unsigned(&entry->val, HELLO, wide[i].key, wide[i].max, wide[i].value);
        }
    }
    if (pack_key_is(entry, "kind")) {
        return pack_read_signed(&entry->val, HELLO, "kind", HELLO_DIAL, HELLO_BYE, &reading->kind);
    }
    if (pack_key_is(entry, "pid")) {
        return pack_read_signed(&entry->val, HELLO, "pid", 0, INT32_MAX, &hello->pid);
    }
    return FERRY_PENDING;
}

static ferry_status_t read_field(const msgpack_object_kv *entry, struct reading *reading)
{
    ferry_status_t status = read_text_field(entry, reading);
    if (status == FERRY_PENDING) {
        status = read_number_field(entry, reading);
    }
    if (status != FERRY_PENDING) {
        return status;
    }
    if (pack_key_is(entry, "process")) {
        return read_identifier(&entry->val, "process", reading->hello.process);
    }
    if (pack_key_is(entry, "agent")) {
        return read_identifier(&entry->val, "agent", reading->hello.agent);
    }
    if (pack_key_is(entry, "devices")) {
        return read_devices(&entry->val, &reading->hello);
    }
    if (pack_key_is(entry, "transports")) {
        return read_transports(&entry->val, &reading->hello);
    }
    return FERRY_OK;
}

/* What the kind asks for, into the outputs. */
static ferry_status_t deliver(const struct reading *reading, enum hello_kind *kind_out,
                              struct hello *hello_out, struct error_record *error_out)
{
    int text_bytes =
        (int)(reading->text_bytes < ERROR_TEXT_BYTES ? reading->text_bytes : ERROR_TEXT_BYTES);
    ferry_status_t said = (ferry_status_t)reading->status;
    if (reading->kind == HELLO_REFUSE && (said == FERRY_OK || said == FERRY_PENDING)) {
        said = FERRY_ERR_REFUSED; /* the peer did refuse, whatever it calls that */
    }
    switch (reading->kind) {
    case HELLO_DIAL:
    case HELLO_ACCEPT:
        *hello_out = reading->hello;
        break;
    case HELLO_REFUSE:
    case HELLO_BYE:
        error_record_set(error_out, said, FERRY_NOT_RUN, "%.*s", text_bytes, reading->text);
        break;
    case HELLO_READY:
        break;
    default:
        return error_raise(FERRY_ERR_PROTOCOL, "%s does not say its kind", HELLO);
    }
    *kind_out = (enum hello_kind)reading->kind;
    return FERRY_OK;
}

ferry_status_t hello_unpack(const void *data, size_t bytes, enum hello_kind *kind_out,
                            struct hello *hello_out, struct error_record *error_out)
{
    if (bytes > HELLO_BYTES_MAX) {
        return error_raise(FERRY_ERR_PROTOCOL, "%s has %zu bytes, at most %d are allowed", HELLO,
                           bytes, HELLO_BYTES_MAX);
    }
    msgpack_unpacked unpacked;
    ferry_status_t status = pack_unpack_map(data, bytes, HELLO, &unpacked);
    if (status != FERRY_OK) {
        return status;
    }
    struct reading *reading = calloc(1, sizeof *reading);
    if (reading == NULL) {
        status = error_raise(FERRY_ERR_NO_MEMORY, "no memory to read %s", HELLO);
        goto destroy_unpacked;
    }
    reading->text = "";
    const msgpack_object_map *map = &unpacked.data.via.map;
    for (uint32_t i = 0; i < map->size && status == FERRY_OK; i++) {
        status = read_field(&map->ptr[i], reading);
    }
    if (status == FERRY_OK) {
        status = deliver(reading, kind_out, hello_out, error_out);
    }
    free(reading);
destroy_unpacked:
    msgpack_unpacked_destroy(&unpacked);
    return status;
}
