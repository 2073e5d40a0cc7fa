#include <inttypes.h>

#include "rpc/wire_format.h"
#include "rpc/wire_pack.h"

#define KNOWN_FLAGS                                                                                \
    (WIRE_TABLE_SEGMENT | WIRE_BODY_SEGMENT | WIRE_BIT_RESULTS_DIRECT | WIRE_BIT_PATHS)

static ferry_status_t check_preamble(const uint8_t *data, size_t bytes,
                                     const struct wire_limits *limits)
{
    if (bytes < WIRE_HEADER_BYTES || bytes > limits->eager_bytes) {
        return error_raise(FERRY_ERR_PROTOCOL,
                           "a control message has %zu bytes, %d to %zu make sense", bytes,
                           WIRE_HEADER_BYTES, limits->eager_bytes);
    }
    uint32_t magic = wire_get_u32(data + WIRE_AT_MAGIC);
    if (magic != WIRE_MAGIC) {
        return error_raise(FERRY_ERR_PROTOCOL,
                           "a control message begins with 0x%08" PRIx32 " and not 0x%08x", magic,
                           WIRE_MAGIC);
    }
    if (data[WIRE_AT_VERSION] != WIRE_VERSION) {
        return error_raise(FERRY_ERR_PROTOCOL, "a control message has the version %u, known is %d",
                           data[WIRE_AT_VERSION], WIRE_VERSION);
    }
    uint8_t kind = data[WIRE_AT_KIND];
    if (kind < WIRE_CALL || kind > WIRE_BYE) {
        return error_raise(FERRY_ERR_PROTOCOL, "a control message has the unknown kind %u", kind);
    }
    return FERRY_OK;
}

static bool all_zero(const uint8_t *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        if (data[i] != 0) {
            return false;
        }
    }
    return true;
}

static ferry_status_t check_header_only(const uint8_t *data, size_t bytes)
{
    if (bytes != WIRE_HEADER_BYTES || wire_get_u16(data + WIRE_AT_FLAGS) != 0 ||
        !all_zero(data + WIRE_AT_FIRST_SEGMENT, WIRE_HEADER_BYTES - WIRE_AT_FIRST_SEGMENT)) {
        return error_raise(FERRY_ERR_PROTOCOL,
                           "a control message of kind %u is more than its bare header",
                           data[WIRE_AT_KIND]);
    }
    return FERRY_OK;
}

static ferry_status_t check_flags(const struct wire_message *message, unsigned flags)
{
    unsigned allowed =
        KNOWN_FLAGS & ~(message->kind == WIRE_CALL ? WIRE_BIT_PATHS : WIRE_BIT_RESULTS_DIRECT);
    if (flags & ~allowed) {
        return error_raise(FERRY_ERR_PROTOCOL, "a control message has the unknown flags 0x%x",
                           flags & ~allowed);
    }
    if ((flags & WIRE_BODY_SEGMENT) && message->body_bytes == 0) {
        return error_raise(FERRY_ERR_PROTOCOL, "an empty body claims to be a segment");
    }
    return FERRY_OK;
}

static ferry_status_t read_call(const uint8_t *data, struct wire_message *message)
{
    message->method_bytes = wire_get_u16(data + WIRE_AT_TEXT_BYTES);
    message->metadata_bytes = wire_get_u16(data + WIRE_AT_METADATA_BYTES);
    message->timeout_ns = (int64_t)wire_get_u64(data + WIRE_AT_TIMEOUT);
    if (message->method_bytes == 0 || message->method_bytes > WIRE_METHOD_BYTES_MAX) {
        return error_raise(FERRY_ERR_PROTOCOL, "a method's name has %zu bytes, 1 to %d make sense",
                           message->method_bytes, WIRE_METHOD_BYTES_MAX);
    }
    if (message->metadata_bytes > WIRE_METADATA_BYTES_MAX) {
        return error_raise(FERRY_ERR_PROTOCOL, "metadata of %zu bytes, at most %d make sense",
                           message->metadata_bytes, WIRE_METADATA_BYTES_MAX);
    }
    if (message->timeout_ns < 0 || !all_zero(data + WIRE_AT_RESERVED, 16)) {
        return error_raise(FERRY_ERR_PROTOCOL,
                           "a call has a negative timeout or a reserved field that is not 0");
    }
    return FERRY_OK;
}

static ferry_status_t read_reply(const uint8_t *data, struct wire_message *message)
{
    size_t map_bytes = wire_get_u16(data + WIRE_AT_TEXT_BYTES);
    message->status = (ferry_status_t)wire_get_u16(data + WIRE_AT_STATUS);
    message->queue_ns = wire_get_u64(data + WIRE_AT_QUEUE);
    message->handler_ns = wire_get_u64(data + WIRE_AT_HANDLER);
    message->receive_ns = wire_get_u64(data + WIRE_AT_RECEIVE);
    bool is_error = message->status != FERRY_OK;
    if (message->status == FERRY_PENDING || is_error != (map_bytes > 0) ||
        (is_error && (message->tensor_count > 0 || message->body_bytes > 0))) {
        return error_raise(FERRY_ERR_PROTOCOL,
                           "a reply of status %d with an error map of %zu bytes, %" PRIu64
                           " tensors and a body of "
                           "%" PRIu64 " bytes",
                           (int)message->status, map_bytes, message->tensor_count,
                           message->body_bytes);
    }
    return FERRY_OK;
}

/* The variable part's claimed size must be one that its contents can have. */
static ferry_status_t check_variable_bytes(const uint8_t *data, size_t bytes, unsigned flags,
                                           const struct wire_message *message,
                                           const struct wire_limits *limits)
{
    uint64_t claimed = wire_get_u32(data + WIRE_AT_VARIABLE_BYTES);
    uint64_t least = wire_get_u16(data + WIRE_AT_TEXT_BYTES) + message->metadata_bytes +
                     message->tensor_count * WIRE_TENSOR_ENTRY_BYTES;
    least += flags & WIRE_BODY_SEGMENT ? 8 : 0;
    least += flags & WIRE_BIT_PATHS ? 4 + 1 : 0;
    uint64_t paths_max = limits->max_tensors < UINT32_MAX ? limits->max_tensors : UINT32_MAX;
    uint64_t most = least + (flags & WIRE_BIT_PATHS ? paths_max : 0) +
                    message->tensor_count * (FERRY_SLOT_BYTES_MAX + 8 * FERRY_TENSOR_NDIM_MAX);
    uint64_t room = bytes - WIRE_HEADER_BYTES;
    if (claimed < least || claimed > most || (!(flags & WIRE_TABLE_SEGMENT) && claimed > room)) {
        return error_raise(FERRY_ERR_PROTOCOL,
                           "a control message of %zu bytes with %" PRIu64 " tensors claims %" PRIu64
                           " bytes of names and table",
                           bytes, message->tensor_count, claimed);
    }
    if ((flags & WIRE_TABLE_SEGMENT) && claimed == 0) {
        return error_raise(FERRY_ERR_PROTOCOL, "an empty table claims to be a segment");
    }
    if (!(flags & WIRE_BODY_SEGMENT) && message->body_bytes > room) {
        return error_raise(FERRY_ERR_PROTOCOL,
                           "a control message of %zu bytes claims a body of %" PRIu64
                           " bytes inside",
                           bytes, message->body_bytes);
    }
    return FERRY_OK;
}

ferry_status_t wire_decode_header(const void *data, size_t bytes, const struct wire_limits *limits,
                                  struct wire_message *message_out, size_t *table_bytes_out)
{
    const uint8_t *at = data;
    ferry_status_t status = check_preamble(at, bytes, limits);
    if (status != FERRY_OK) {
        return status;
    }
    struct wire_message message = {.kind = (enum wire_kind)at[WIRE_AT_KIND],
                                   .call_id = wire_get_u64(at + WIRE_AT_CALL_ID)};
    if (wire_is_header_only(message.kind)) {
        status = check_header_only(at, bytes);
        if (status == FERRY_OK) {
            *message_out = message;
            *table_bytes_out = 0;
        }
        return status;
    }
    unsigned flags = wire_get_u16(at + WIRE_AT_FLAGS);
    message.flags = flags & (WIRE_TABLE_SEGMENT | WIRE_BODY_SEGMENT);
    message.results_direct = (flags & WIRE_BIT_RESULTS_DIRECT) != 0;
    message.first_segment = wire_get_u32(at + WIRE_AT_FIRST_SEGMENT);
    message.body_bytes = wire_get_u64(at + WIRE_AT_BODY_BYTES);
    message.tensor_count = wire_get_u32(at + WIRE_AT_TENSOR_COUNT);
    if (message.tensor_count > limits->max_tensors ||
        message.body_bytes > limits->max_message_bytes) {
        return error_raise(FERRY_ERR_PROTOCOL,
                           "a message of %" PRIu64 " tensors and a body of %" PRIu64
                           " bytes, allowed are %" PRIu64 " and %" PRIu64,
                           message.tensor_count, message.body_bytes, limits->max_tensors,
                           limits->max_message_bytes);
    }
    status = check_flags(&message, flags);
    if (status == FERRY_OK) {
        status = message.kind == WIRE_CALL ? read_call(at, &message) : read_reply(at, &message);
    }
    if (status == FERRY_OK) {
        status = check_variable_bytes(at, bytes, flags, &message, limits);
    }
    if (status != FERRY_OK) {
        return status;
    }
    *message_out = message;
    *table_bytes_out = flags & WIRE_TABLE_SEGMENT ? wire_get_u32(at + WIRE_AT_VARIABLE_BYTES) : 0;
    return FERRY_OK;
}

const uint8_t *wire_take(struct wire_decoder *decoder, size_t bytes)
{
    if (bytes > decoder->bytes - decoder->cursor) {
        return NULL;
    }
    const uint8_t *at = decoder->data + decoder->cursor;
    decoder->cursor += bytes;
    return at;
}

const uint8_t *wire_take_inside(struct wire_decoder *decoder, uint64_t bytes)
{
    size_t start = wire_align(decoder->inline_cursor);
    if (start > decoder->inline_bytes || bytes > decoder->inline_bytes - start ||
        !all_zero(decoder->inline_area + decoder->inline_cursor, start - decoder->inline_cursor)) {
        return NULL;
    }
    decoder->inline_cursor = start + (size_t)bytes;
    return decoder->inline_area + start;
}

ferry_status_t wire_add_operations(struct wire_decoder *decoder, uint64_t bytes,
                                   uint64_t operation_bytes)
{
    if (bytes > 0 && (operation_bytes == 0 || operation_bytes > bytes)) {
        return error_raise(FERRY_ERR_PROTOCOL,
                           "a segment of %" PRIu64 " bytes in operations of %" PRIu64 " bytes",
                           bytes, operation_bytes);
    }
    decoder->operations += wire_operations(bytes, operation_bytes);
    if (decoder->operations >= WIRE_OPERATIONS_MAX) {
        return error_raise(FERRY_ERR_PROTOCOL,
                           "a message in %" PRIu64 " operations, fewer than %u make sense",
                           decoder->operations, WIRE_OPERATIONS_MAX);
    }
    return FERRY_OK;
}

static ferry_status_t read_paths(struct wire_decoder *decoder, struct wire_message *message)
{
    const uint8_t *at = wire_take(decoder, 4);
    uint64_t count = at == NULL ? 0 : wire_get_u32(at);
    at = count == 0 || count > decoder->limits->max_tensors ? NULL : wire_take(decoder, count);
    if (at == NULL) {
        return error_raise(FERRY_ERR_PROTOCOL, "a reply names the paths of %" PRIu64 " arguments",
                           count);
    }
    for (size_t i = 0; i < count; i++) {
        if (at[i] > WIRE_PATH_LAST) {
            return error_raise(FERRY_ERR_PROTOCOL, "a reply names the unknown path %u", at[i]);
        }
    }
    message->argument_paths = at;
    message->argument_count = count;
    return FERRY_OK;
}

static ferry_status_t read_names(struct wire_decoder *decoder, struct wire_message *message)
{
    message->method = (const char *)wire_take(decoder, message->method_bytes);
    message->metadata = wire_take(decoder, message->metadata_bytes);
    if (message->method == NULL || message->metadata == NULL ||
        memchr(message->method, '\0', message->method_bytes) != NULL) {
        return error_raise(FERRY_ERR_PROTOCOL, "a method's name is cut off or holds a NUL");
    }
    return FERRY_OK;
}

static ferry_status_t read_error_field(const msgpack_object_kv *entry, struct wire_message *message)
{
    static const char WHAT[] = "a reply's error";
    int64_t number;
    ferry_status_t status = FERRY_OK;
    if (pack_key_is(entry, "text")) {
        status = pack_read_text(&entry->val, WHAT, "text", SIZE_MAX, &message->error_text,
                                &message->error_text_bytes);
    } else if (pack_key_is(entry, "origin")) {
        status = pack_read_text(&entry->val, WHAT, "origin", ERROR_NAME_BYTES - 1,
                                &message->error_origin, &message->error_origin_bytes);
    } else if (pack_key_is(entry, "method")) {
        status = pack_read_text(&entry->val, WHAT, "method", WIRE_METHOD_BYTES_MAX,
                                &message->method, &message->method_bytes);
    } else if (pack_key_is(entry, "effect")) {
        status = pack_read_signed(&entry->val, WHAT, "effect", INT64_MIN, INT64_MAX, &number);
        if (status == FERRY_OK && (number == FERRY_NOT_RUN || number == FERRY_RAN)) {
            message->effect = (ferry_effect_t)number; /* what is unknown here: it may have run */
        }
    } else if (pack_key_is(entry, "code")) {
        status = pack_read_signed(&entry->val, WHAT, "code", INT32_MIN, INT32_MAX, &number);
        if (status == FERRY_OK) {
            message->code = (int32_t)number;
        }
    }
    return status;
}

static ferry_status_t read_error(struct wire_decoder *decoder, size_t map_bytes,
                                 struct wire_message *message)
{
    const uint8_t *at = wire_take(decoder, map_bytes);
    if (at == NULL) {
        return error_raise(FERRY_ERR_PROTOCOL, "a reply's error is cut off");
    }
    msgpack_unpacked unpacked;
    ferry_status_t status = pack_unpack_map(at, map_bytes, "a reply's error", &unpacked);
    if (status != FERRY_OK) {
        return status;
    }
    message->effect = FERRY_MAY_HAVE_RUN;
    message->error_text = message->error_origin = message->method = "";
    const msgpack_object_map *map = &unpacked.data.via.map;
    for (uint32_t i = 0; i < map->size && status == FERRY_OK; i++) {
        status = read_error_field(&map->ptr[i], message);
    }
    msgpack_unpacked_destroy(&unpacked);
    return status;
}

ferry_status_t wire_check_end(const struct wire_decoder *decoder)
{
    if (decoder->remaining == 0 &&
        (decoder->cursor != decoder->bytes || decoder->inline_cursor != decoder->inline_bytes)) {
        return error_raise(
            FERRY_ERR_PROTOCOL, "a message has %zu bytes behind its table and %zu behind its data",
            decoder->bytes - decoder->cursor, decoder->inline_bytes - decoder->inline_cursor);
    }
    return FERRY_OK;
}

static ferry_status_t read_body(struct wire_decoder *decoder, struct wire_message *message)
{
    if (message->body_bytes > 0 && !(message->flags & WIRE_BODY_SEGMENT)) {
        message->body = wire_take_inside(decoder, message->body_bytes);
        if (message->body == NULL) {
            return error_raise(FERRY_ERR_PROTOCOL, "a body of %" PRIu64 " bytes is cut off",
                               message->body_bytes);
        }
    }
    return FERRY_OK;
}

/* What stands in the variable part before the method or the error. */
static ferry_status_t read_front(struct wire_decoder *decoder, unsigned flags,
                                 struct wire_message *message)
{
    ferry_status_t status = FERRY_OK;
    if (flags & WIRE_BODY_SEGMENT) {
        const uint8_t *at = wire_take(decoder, 8);
        message->body_operation_bytes = at == NULL ? 0 : wire_get_u64(at);
        status = wire_add_operations(decoder, message->body_bytes, message->body_operation_bytes);
    }
    if (status == FERRY_OK && (flags & WIRE_BIT_PATHS)) {
        status = read_paths(decoder, message);
    }
    return status;
}

ferry_status_t wire_decode_variable(const void *data, size_t bytes, const void *table,
                                    size_t table_bytes, const struct wire_limits *limits,
                                    struct wire_message *message, struct wire_decoder *decoder_out)
{
    const uint8_t *header = data;
    struct wire_decoder decoder = {.limits = limits,
                                   .kind = message->kind,
                                   .inline_area = header,
                                   .inline_bytes = bytes,
                                   .inline_cursor = WIRE_HEADER_BYTES};
    if (wire_is_header_only(message->kind)) {
        *decoder_out = decoder;
        return FERRY_OK;
    }
    unsigned flags = wire_get_u16(header + WIRE_AT_FLAGS);
    decoder.bytes = wire_get_u32(header + WIRE_AT_VARIABLE_BYTES);
    decoder.remaining = message->tensor_count;
    decoder.total_bytes = message->body_bytes;
    if (flags & WIRE_TABLE_SEGMENT) {
        if (table == NULL || table_bytes != decoder.bytes) {
            return error_raise(FERRY_ERR_PROTOCOL, "a table of %zu bytes arrived as %zu",
                               decoder.bytes, table_bytes);
        }
        decoder.data = table;
        decoder.operations = 1;
    } else {
        decoder.data = header + WIRE_HEADER_BYTES;
        decoder.inline_cursor += decoder.bytes;
    }
    struct wire_message filled = *message;
    ferry_status_t status = read_front(&decoder, flags, &filled);
    if (status == FERRY_OK && filled.kind == WIRE_CALL) {
        status = read_names(&decoder, &filled);
    } else if (status == FERRY_OK && filled.status != FERRY_OK) {
        status = read_error(&decoder, wire_get_u16(header + WIRE_AT_TEXT_BYTES), &filled);
    }
    if (status == FERRY_OK) {
        status = read_body(&decoder, &filled);
    }
    if (status == FERRY_OK) {
        status = wire_check_end(&decoder);
    }
    if (status == FERRY_OK) {
        *message = filled;
        *decoder_out = decoder;
    }
    return status;
}
