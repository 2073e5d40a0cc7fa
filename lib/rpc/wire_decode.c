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

static ferry_status_t check_header_only(const uint8_t *data, size_t bytes)
{
    if (bytes != WIRE_HEADER_BYTES || wire_get_u16(data + WIRE_AT_FLAGS) != 0 ||
        !wire_all_zero(data + WIRE_AT_FIRST_SEGMENT, WIRE_HEADER_BYTES - WIRE_AT_FIRST_SEGMENT)) {
        return error_raise(FERRY_ERR_PROTOCOL,
                           "a control message of kind %u is more than its bare header",
                           data[WIRE_AT_KIND]);
    }
    return FERRY_OK;
}

static ferry_status_t check_flags(const uint8_t *data)
{
    unsigned flags = wire_get_u16(data + WIRE_AT_FLAGS);
    unsigned allowed =
        KNOWN_FLAGS & ~(data[WIRE_AT_KIND] == WIRE_CALL ? WIRE_BIT_PATHS : WIRE_BIT_RESULTS_DIRECT);
    if (flags & ~allowed) {
        return error_raise(FERRY_ERR_PROTOCOL, "a control message has the unknown flags 0x%x",
                           flags & ~allowed);
    }
    if ((flags & WIRE_BODY_SEGMENT) && wire_get_u64(data + WIRE_AT_BODY_BYTES) == 0) {
        return error_raise(FERRY_ERR_PROTOCOL, "an empty body claims to be a segment");
    }
    return FERRY_OK;
}

static ferry_status_t check_call(const uint8_t *data)
{
    unsigned method_bytes = wire_get_u16(data + WIRE_AT_TEXT_BYTES);
    unsigned metadata_bytes = wire_get_u16(data + WIRE_AT_METADATA_BYTES);
    int64_t timeout_ns = (int64_t)wire_get_u64(data + WIRE_AT_TIMEOUT);
    if (method_bytes == 0 || method_bytes > WIRE_METHOD_BYTES_MAX) {
        return error_raise(FERRY_ERR_PROTOCOL, "a method's name has %u bytes, 1 to %d make sense",
                           method_bytes, WIRE_METHOD_BYTES_MAX);
    }
    if (metadata_bytes > WIRE_METADATA_BYTES_MAX) {
        return error_raise(FERRY_ERR_PROTOCOL, "metadata of %u bytes, at most %d make sense",
                           metadata_bytes, WIRE_METADATA_BYTES_MAX);
    }
    if (timeout_ns < 0 || wire_get_u64(data + WIRE_AT_RESERVED) != 0 ||
        wire_get_u64(data + WIRE_AT_RESERVED + 8) != 0) {
        return error_raise(FERRY_ERR_PROTOCOL,
                           "a call has a negative timeout or a reserved field that is not 0");
    }
    return FERRY_OK;
}

static ferry_status_t check_reply(const uint8_t *data)
{
    unsigned map_bytes = wire_get_u16(data + WIRE_AT_TEXT_BYTES);
    unsigned status = wire_get_u16(data + WIRE_AT_STATUS);
    uint32_t tensor_count = wire_get_u32(data + WIRE_AT_TENSOR_COUNT);
    uint64_t body_bytes = wire_get_u64(data + WIRE_AT_BODY_BYTES);
    bool is_error = status != FERRY_OK;
    if (status == FERRY_PENDING || is_error != (map_bytes > 0) ||
        (is_error && (tensor_count > 0 || body_bytes > 0))) {
        return error_raise(FERRY_ERR_PROTOCOL,
                           "a reply of status %u with an error map of %u bytes, %" PRIu32
                           " tensors and a body of %" PRIu64 " bytes",
                           status, map_bytes, tensor_count, body_bytes);
    }
    return FERRY_OK;
}

static ferry_status_t check_counts(const uint8_t *data, const struct wire_limits *limits)
{
    uint32_t tensor_count = wire_get_u32(data + WIRE_AT_TENSOR_COUNT);
    uint64_t body_bytes = wire_get_u64(data + WIRE_AT_BODY_BYTES);
    if (tensor_count > limits->max_tensors || body_bytes > limits->max_message_bytes) {
        return error_raise(FERRY_ERR_PROTOCOL,
                           "a message of %" PRIu32 " tensors and a body of %" PRIu64
                           " bytes, allowed are %" PRIu64 " and %" PRIu64,
                           tensor_count, body_bytes, limits->max_tensors,
                           limits->max_message_bytes);
    }
    return FERRY_OK;
}

/* The variable part's claimed size must be one that its contents can have. */
static ferry_status_t check_variable_bytes(const uint8_t *data, size_t bytes,
                                           const struct wire_limits *limits)
{
    unsigned flags = wire_get_u16(data + WIRE_AT_FLAGS);
    uint64_t tensor_count = wire_get_u32(data + WIRE_AT_TENSOR_COUNT);
    uint64_t body_bytes = wire_get_u64(data + WIRE_AT_BODY_BYTES);
    uint64_t claimed = wire_get_u32(data + WIRE_AT_VARIABLE_BYTES);
    uint64_t least =
        wire_get_u16(data + WIRE_AT_TEXT_BYTES) + tensor_count * WIRE_TENSOR_ENTRY_BYTES;
    least += data[WIRE_AT_KIND] == WIRE_CALL ? wire_get_u16(data + WIRE_AT_METADATA_BYTES) : 0;
    least += flags & WIRE_BODY_SEGMENT ? 8 : 0;
    least += flags & WIRE_BIT_PATHS ? 4 + 1 : 0;
    uint64_t paths_max = limits->max_tensors < UINT32_MAX ? limits->max_tensors : UINT32_MAX;
    uint64_t most = least + (flags & WIRE_BIT_PATHS ? paths_max : 0) +
                    tensor_count * (FERRY_SLOT_BYTES_MAX + 8 * FERRY_TENSOR_NDIM_MAX);
    uint64_t room = bytes - WIRE_HEADER_BYTES;
    bool outside = flags & WIRE_TABLE_SEGMENT;
    if (claimed < least || claimed > most || (outside ? claimed == 0 : claimed > room)) {
        return error_raise(FERRY_ERR_PROTOCOL,
                           "a control message of %zu bytes with %" PRIu64 " tensors claims %" PRIu64
                           " bytes of names and table",
                           bytes, tensor_count, claimed);
    }
    if (!(flags & WIRE_BODY_SEGMENT) && body_bytes > room) {
        return error_raise(FERRY_ERR_PROTOCOL,
                           "a control message of %zu bytes claims a body of %" PRIu64
                           " bytes inside",
                           bytes, body_bytes);
    }
    return FERRY_OK;
}

static ferry_status_t check_header(const uint8_t *data, size_t bytes,
                                   const struct wire_limits *limits)
{
    ferry_status_t status = check_preamble(data, bytes, limits);
    if (status != FERRY_OK) {
        return status;
    }
    if (wire_is_header_only((enum wire_kind)data[WIRE_AT_KIND])) {
        return check_header_only(data, bytes);
    }
    status = check_counts(data, limits);
    if (status == FERRY_OK) {
        status = check_flags(data);
    }
    if (status == FERRY_OK) {
        status = data[WIRE_AT_KIND] == WIRE_CALL ? check_call(data) : check_reply(data);
    }
    return status == FERRY_OK ? check_variable_bytes(data, bytes, limits) : status;
}

ferry_status_t wire_decode_header(const void *data, size_t bytes, const struct wire_limits *limits,
                                  struct wire_message *message_out, size_t *table_bytes_out)
{
    const uint8_t *at = data;
    ferry_status_t status = check_header(at, bytes, limits);
    if (status != FERRY_OK) {
        return status;
    }
    unsigned flags = wire_get_u16(at + WIRE_AT_FLAGS);
    memset(message_out, 0, sizeof *message_out);
    message_out->kind = (enum wire_kind)at[WIRE_AT_KIND];
    message_out->call_id = wire_get_u64(at + WIRE_AT_CALL_ID);
    message_out->flags = flags & (WIRE_TABLE_SEGMENT | WIRE_BODY_SEGMENT);
    message_out->first_segment = wire_get_u32(at + WIRE_AT_FIRST_SEGMENT);
    message_out->body_bytes = wire_get_u64(at + WIRE_AT_BODY_BYTES);
    message_out->tensor_count = wire_get_u32(at + WIRE_AT_TENSOR_COUNT);
    if (message_out->kind == WIRE_CALL) {
        message_out->results_direct = (flags & WIRE_BIT_RESULTS_DIRECT) != 0;
        message_out->method_bytes = wire_get_u16(at + WIRE_AT_TEXT_BYTES);
        message_out->metadata_bytes = wire_get_u16(at + WIRE_AT_METADATA_BYTES);
        message_out->timeout_ns = (int64_t)wire_get_u64(at + WIRE_AT_TIMEOUT);
    } else if (message_out->kind == WIRE_REPLY) {
        message_out->status = (ferry_status_t)wire_get_u16(at + WIRE_AT_STATUS);
        message_out->queue_ns = wire_get_u64(at + WIRE_AT_QUEUE);
        message_out->handler_ns = wire_get_u64(at + WIRE_AT_HANDLER);
        message_out->receive_ns = wire_get_u64(at + WIRE_AT_RECEIVE);
    }
    *table_bytes_out = flags & WIRE_TABLE_SEGMENT ? wire_get_u32(at + WIRE_AT_VARIABLE_BYTES) : 0;
    return FERRY_OK;
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

/* What names and error there are, then the body. */
static ferry_status_t read_variable(struct wire_decoder *decoder, const uint8_t *header,
                                    struct wire_message *message)
{
    ferry_status_t status = read_front(decoder, wire_get_u16(header + WIRE_AT_FLAGS), message);
    if (status == FERRY_OK && message->kind == WIRE_CALL) {
        status = read_names(decoder, message);
    } else if (status == FERRY_OK && message->status != FERRY_OK) {
        status = read_error(decoder, wire_get_u16(header + WIRE_AT_TEXT_BYTES), message);
    }
    if (status == FERRY_OK) {
        status = read_body(decoder, message);
    }
    return status == FERRY_OK ? wire_check_end(decoder) : status;
}

ferry_status_t wire_decode_variable(const void *data, size_t bytes, const void *table,
                                    size_t table_bytes, const struct wire_limits *limits,
                                    struct wire_message *message, struct wire_decoder *decoder_out)
{
    const uint8_t *header = data;
    struct wire_decoder *decoder = decoder_out;
    *decoder = (struct wire_decoder){.limits = limits,
                                     .kind = message->kind,
                                     .inline_area = header,
                                     .inline_bytes = bytes,
                                     .inline_cursor = WIRE_HEADER_BYTES};
    if (wire_is_header_only(message->kind)) {
        return FERRY_OK;
    }
    decoder->bytes = wire_get_u32(header + WIRE_AT_VARIABLE_BYTES);
    decoder->remaining = message->tensor_count;
    decoder->total_bytes = message->body_bytes;
    if (message->flags & WIRE_TABLE_SEGMENT) {
        if (table == NULL || table_bytes != decoder->bytes) {
            return error_raise(FERRY_ERR_PROTOCOL, "a table of %zu bytes arrived as %zu",
                               decoder->bytes, table_bytes);
        }
        decoder->data = table;
        decoder->operations = 1;
    } else {
        decoder->data = header + WIRE_HEADER_BYTES;
        decoder->inline_cursor += decoder->bytes;
    }
    return read_variable(decoder, header, message);
}
