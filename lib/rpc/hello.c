#include "rpc/hello.h"

#include <string.h>

#include "rpc/wire_pack.h"

static const char HELLO[] = "the hello";
static const char ADDRESS[] = "the agent's address";

/* Nothing that fits a size of the contract can fail to fit its bytes, so this is about the caller's
 * buffer. */
static ferry_status_t finish(const struct pack_buffer *buffer, const char *what, size_t *bytes_out)
{
    if (buffer->bytes > buffer->capacity) {
        return error_raise(FERRY_ERR_LIMIT, "%s takes %zu bytes, there is room for %zu", what,
                           buffer->bytes, buffer->capacity);
    }
    *bytes_out = buffer->bytes;
    return FERRY_OK;
}

ferry_status_t hello_address_pack(const struct hello_address *address, void *buffer,
                                  size_t capacity, size_t *bytes_out)
{
    struct pack_buffer target = {.data = buffer, .capacity = capacity};
    msgpack_packer packer;
    pack_init(&packer, &target);
    msgpack_pack_map(&packer, 5);
    pack_field_text(&packer, "host", address->host);
    pack_field_unsigned(&packer, "port", address->port);
    pack_field_signed(&packer, "pid", address->pid);
    pack_field_bytes(&packer, "process", address->process, sizeof address->process);
    pack_field_bytes(&packer, "agent", address->agent, sizeof address->agent);
    return finish(&target, ADDRESS, bytes_out);
}

static ferry_status_t read_address_field(const msgpack_object_kv *entry,
                                         struct hello_address *address)
{
    const msgpack_object *value = &entry->val;
    if (pack_key_is(entry, "host")) {
        return pack_copy_text(value, ADDRESS, "host", address->host, sizeof address->host);
    }
    if (pack_key_is(entry, "port")) {
        uint64_t port;
        ferry_status_t status = pack_read_unsigned(value, ADDRESS, "port", UINT16_MAX, &port);
        if (status == FERRY_OK) {
            address->port = (uint16_t)port;
        }
        return status;
    }
    if (pack_key_is(entry, "pid")) {
        return pack_read_signed(value, ADDRESS, "pid", 0, INT32_MAX, &address->pid);
    }
    if (pack_key_is(entry, "process")) {
        return pack_copy_exactly(value, ADDRESS, "process", address->process, 16);
    }
    if (pack_key_is(entry, "agent")) {
        return pack_copy_exactly(value, ADDRESS, "agent", address->agent, 16);
    }
    return FERRY_OK;
}

ferry_status_t hello_address_unpack(const void *data, size_t bytes,
                                    struct hello_address *address_out)
{
    if (bytes > HELLO_ADDRESS_BYTES_MAX) {
        return error_raise(FERRY_ERR_PROTOCOL, "%s has %zu bytes, at most %d are allowed", ADDRESS,
                           bytes, HELLO_ADDRESS_BYTES_MAX);
    }
    msgpack_unpacked unpacked;
    ferry_status_t status = pack_unpack_map(data, bytes, ADDRESS, &unpacked);
    if (status != FERRY_OK) {
        return status;
    }
    struct hello_address address = {.port = 0};
    const msgpack_object_map *map = &unpacked.data.via.map;
    for (uint32_t i = 0; i < map->size && status == FERRY_OK; i++) {
        status = read_address_field(&map->ptr[i], &address);
    }
    msgpack_unpacked_destroy(&unpacked);
    if (status == FERRY_OK && (address.host[0] == '\0' || address.port == 0)) {
        status = error_raise(FERRY_ERR_PROTOCOL, "%s lacks its host or its port", ADDRESS);
    }
    if (status == FERRY_OK) {
        *address_out = address;
    }
    return status;
}

/* Arrays of [type, id, uuid], so that they too can grow at their end. */
static void pack_devices(msgpack_packer *packer, const struct hello *hello)
{
    pack_key(packer, "devices");
    msgpack_pack_array(packer, hello->device_count);
    for (size_t i = 0; i < hello->device_count; i++) {
        msgpack_pack_array(packer, 3);
        msgpack_pack_int64(packer, (int64_t)hello->devices[i].device_type);
        msgpack_pack_int64(packer, hello->devices[i].device_id);
        msgpack_pack_bin(packer, sizeof hello->device_uuid[i]);
        msgpack_pack_bin_body(packer, hello->device_uuid[i], sizeof hello->device_uuid[i]);
    }
}

static void pack_transports(msgpack_packer *packer, const struct hello *hello)
{
    pack_key(packer, "transports");
    msgpack_pack_array(packer, hello->transport_count);
    for (size_t i = 0; i < hello->transport_count; i++) {
        const struct hello_transport *transport = &hello->transports[i];
        msgpack_pack_map(packer, 5);
        pack_field_text(packer, "name", transport->name);
        pack_field_text(packer, "identity", transport->identity);
        pack_field_bytes(packer, "address", transport->address, transport->address_bytes);
        pack_field_unsigned(packer, "capabilities", transport->capabilities);
        pack_field_unsigned(packer, "operation", transport->operation_bytes_max);
    }
}

ferry_status_t hello_pack(enum hello_kind kind, const struct hello *hello, void *buffer,
                          size_t capacity, size_t *bytes_out)
{
    if (hello->device_count > HELLO_DEVICES_MAX || hello->transport_count > HELLO_TRANSPORTS_MAX) {
        return error_raise(FERRY_ERR_LIMIT,
                           "%s has %zu devices and %zu transports, at most %d and %d are allowed",
                           HELLO, hello->device_count, hello->transport_count, HELLO_DEVICES_MAX,
                           HELLO_TRANSPORTS_MAX);
    }
    struct pack_buffer target = {.data = buffer, .capacity = capacity};
    msgpack_packer packer;
    pack_init(&packer, &target);
    msgpack_pack_map(&packer, 17);
    pack_field_unsigned(&packer, "kind", kind);
    pack_field_unsigned(&packer, "version", hello->version);
    pack_field_text(&packer, "ferry", hello->ferry_version);
    pack_field_text(&packer, "name", hello->name);
    pack_field_text(&packer, "wanted", hello->wanted);
    pack_field_bytes(&packer, "process", hello->process, sizeof hello->process);
    pack_field_bytes(&packer, "agent", hello->agent, sizeof hello->agent);
    pack_field_signed(&packer, "pid", hello->pid);
    pack_field_unsigned(&packer, "epoch", hello->epoch);
    pack_field_unsigned(&packer, "session", hello->session);
    pack_field_unsigned(&packer, "eager", hello->eager_bytes);
    pack_field_unsigned(&packer, "inline", hello->inline_bytes);
    pack_field_unsigned(&packer, "tensors", hello->max_tensors);
    pack_field_unsigned(&packer, "message", hello->max_message_bytes);
    pack_devices(&packer, hello);
    pack_transports(&packer, hello);
    pack_field_text(&packer, "chosen", hello->chosen);
    return finish(&target, HELLO, bytes_out);
}

ferry_status_t hello_pack_short(enum hello_kind kind, ferry_status_t status, const char *text,
                                void *buffer, size_t capacity, size_t *bytes_out)
{
    struct pack_buffer target = {.data = buffer, .capacity = capacity};
    msgpack_packer packer;
    pack_init(&packer, &target);
    msgpack_pack_map(&packer, 3);
    pack_field_unsigned(&packer, "kind", kind);
    pack_field_unsigned(&packer, "status", status);
    pack_key(&packer, "text");
    pack_text(&packer, text, strnlen(text, ERROR_TEXT_BYTES - 1));
    return finish(&target, HELLO, bytes_out);
}
