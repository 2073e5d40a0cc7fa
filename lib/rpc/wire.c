#include "rpc/wire.h"

#include <assert.h>

#include "rpc/wire_format.h"
#include "rpc/wire_pack.h"

static bool is_error_reply(const struct wire_message *message)
{
    return message->kind == WIRE_REPLY && message->status != FERRY_OK;
}

static bool has_paths(const struct wire_message *message)
{
    return message->kind == WIRE_REPLY && message->argument_count > 0;
}

/* The map of an error reply. capacity 0 only measures. */
static size_t error_map_put(const struct wire_message *message, uint8_t *data, size_t capacity)
{
    struct pack_buffer buffer = {.data = data, .capacity = capacity};
    msgpack_packer packer;
    pack_init(&packer, &buffer);
    msgpack_pack_map(&packer, 5);
    pack_key(&packer, "text");
    pack_text(&packer, message->error_text, message->error_text_bytes);
    pack_key(&packer, "origin");
    pack_text(&packer, message->error_origin, message->error_origin_bytes);
    pack_key(&packer, "method");
    pack_text(&packer, message->method, message->method_bytes);
    pack_field_signed(&packer, "effect", message->effect);
    pack_field_signed(&packer, "code", message->code);
    return buffer.bytes;
}

/* What a call's or a reply's variable part takes without its tensor entries and without the size of
 * the body's operations. */
static size_t fixed_bytes(const struct wire_message *message)
{
    if (message->kind == WIRE_CALL) {
        return message->method_bytes + message->metadata_bytes;
    }
    size_t bytes = message->status == FERRY_OK ? 0 : error_map_put(message, NULL, 0);
    return bytes + (message->argument_count > 0 ? 4 + message->argument_count : 0);
}

static size_t cut_at_character(const char *text, size_t bytes, size_t bytes_max)
{
    if (bytes <= bytes_max) {
        return bytes;
    }
    while (bytes_max > 0 && ((uint8_t)text[bytes_max] & 0xc0) == 0x80) {
        bytes_max--;
    }
    return bytes_max;
}

/* An error must arrive even where it says that segments do not work, so it needs none. */
static void error_fit(struct wire_message *message, size_t eager_bytes)
{
    message->error_text_bytes =
        cut_at_character(message->error_text, message->error_text_bytes, ERROR_TEXT_BYTES - 1);
    message->error_origin_bytes =
        cut_at_character(message->error_origin, message->error_origin_bytes, ERROR_NAME_BYTES - 1);
    message->method_bytes =
        cut_at_character(message->method, message->method_bytes, WIRE_METHOD_BYTES_MAX);
    size_t bytes = WIRE_HEADER_BYTES + fixed_bytes(message);
    if (bytes > eager_bytes && message->argument_count > 0) {
        bytes -= 4 + message->argument_count;
        message->argument_count = 0;
    }
    if (bytes > eager_bytes) {
        size_t excess = bytes - eager_bytes;
        size_t text_bytes = message->error_text_bytes;
        message->error_text_bytes = cut_at_character(message->error_text, text_bytes,
                                                     text_bytes > excess ? text_bytes - excess : 0);
    }
}

static ferry_status_t check_counts(const struct wire_message *message,
                                   const struct wire_limits *limits)
{
    if (message->kind == WIRE_CALL &&
        (message->method_bytes == 0 || message->method_bytes > WIRE_METHOD_BYTES_MAX)) {
        return error_raise(FERRY_ERR_LIMIT, "a method's name has %zu bytes, 1 to %d are allowed",
                           message->method_bytes, WIRE_METHOD_BYTES_MAX);
    }
    if (message->kind == WIRE_CALL && message->metadata_bytes > WIRE_METADATA_BYTES_MAX) {
        return error_raise(FERRY_ERR_LIMIT, "the metadata have %zu bytes, at most %d are allowed",
                           message->metadata_bytes, WIRE_METADATA_BYTES_MAX);
    }
    if (message->tensor_count > limits->max_tensors) {
        return error_raise(
            FERRY_ERR_LIMIT,
            "the message has %llu tensors, FERRY_MAX_TENSORS (here or at the peer) allows %llu",
            (unsigned long long)message->tensor_count, (unsigned long long)limits->max_tensors);
    }
    if (message->kind == WIRE_REPLY && message->argument_count > limits->max_tensors) {
        return error_raise(FERRY_ERR_LIMIT, "%zu argument paths, FERRY_MAX_TENSORS allows %llu",
                           message->argument_count, (unsigned long long)limits->max_tensors);
    }
    return FERRY_OK;
}

static uint64_t usable_operation_bytes(uint64_t bytes, uint64_t operation_bytes)
{
    return operation_bytes == 0 || operation_bytes > bytes ? bytes : operation_bytes;
}

/* Adds up body and tensors, and the entries of the table. */
static ferry_status_t check_sums(const struct wire_message *message,
                                 const struct wire_tensor *tensors,
                                 const struct wire_limits *limits, size_t *entries_bytes_out)
{
    uint64_t total = message->body_bytes;
    uint64_t entries_bytes = 0;
    for (uint64_t i = 0; i < message->tensor_count && total <= limits->max_message_bytes; i++) {
        const struct wire_tensor *tensor = &tensors[i];
        if (tensor->name_bytes > FERRY_SLOT_BYTES_MAX) {
            return error_raise(FERRY_ERR_LIMIT,
                               "tensors[%llu] has a slot name of %zu bytes, 1 to %d are allowed",
                               (unsigned long long)i, tensor->name_bytes, FERRY_SLOT_BYTES_MAX);
        }
        assert(tensor->ndim >= 0 && tensor->ndim <= FERRY_TENSOR_NDIM_MAX);
        entries_bytes += WIRE_TENSOR_ENTRY_BYTES + 8 * (uint64_t)tensor->ndim + tensor->name_bytes;
        if (__builtin_add_overflow(total, tensor->bytes, &total)) {
            total = UINT64_MAX;
        }
    }
    if (total > limits->max_message_bytes) {
        return error_raise(
            FERRY_ERR_LIMIT,
            "body and tensors have %llu bytes and more, FERRY_MAX_MESSAGE (here or at the peer) "
            "allows %llu",
            (unsigned long long)total, (unsigned long long)limits->max_message_bytes);
    }
    if (entries_bytes > UINT32_MAX / 2) { /* the header's field, with room for what else there is */
        return error_raise(FERRY_ERR_LIMIT, "the table of %llu tensors has %llu bytes, too many",
                           (unsigned long long)message->tensor_count,
                           (unsigned long long)entries_bytes);
    }
    *entries_bytes_out = (size_t)entries_bytes;
    return FERRY_OK;
}

/* Where a piece would end that rides inside behind `cursor`; 0 when it does not fit. */
static size_t inside_end(size_t cursor, uint64_t bytes, size_t eager_bytes)
{
    size_t start = wire_align(cursor);
    return start <= eager_bytes && bytes <= eager_bytes - start ? start + (size_t)bytes : 0;
}

/* Decides on the table and the body. The table comes first: without it the receiver can post nothing.
 * A body that stays outside adds the size of its operations to the variable part. */
static void plan_body(struct wire_message *message, size_t eager_bytes, size_t variable_bytes,
                      size_t *cursor_out, size_t *table_bytes_out, uint64_t *operations_out)
{
    size_t cursor = WIRE_HEADER_BYTES + variable_bytes;
    size_t body_end = inside_end(cursor, message->body_bytes, eager_bytes);
    size_t outside_bytes = message->body_bytes > 0 ? 8 : 0;
    bool table_inside =
        cursor + outside_bytes <= eager_bytes || (message->body_bytes > 0 && body_end > 0);
    *operations_out = 0;
    if (!table_inside) {
        message->flags |= WIRE_TABLE_SEGMENT;
        cursor = WIRE_HEADER_BYTES;
        body_end = inside_end(cursor, message->body_bytes, eager_bytes);
        *operations_out = 1;
    }
    if (message->body_bytes == 0 || body_end > 0) {
        message->body_operation_bytes = 0;
        cursor = message->body_bytes == 0 ? cursor : body_end;
        outside_bytes = 0;
    } else {
        message->flags |= WIRE_BODY_SEGMENT;
        message->body_operation_bytes =
            usable_operation_bytes(message->body_bytes, message->body_operation_bytes);
        *operations_out += wire_operations(message->body_bytes, message->body_operation_bytes);
        cursor += table_inside ? outside_bytes : 0;
    }
    *cursor_out = cursor;
    *table_bytes_out = table_inside ? 0 : variable_bytes + outside_bytes;
}

static void plan_segment(struct wire_tensor *tensor, uint64_t *operations_inout)
{
    tensor->operation_bytes = usable_operation_bytes(tensor->bytes, tensor->operation_bytes);
    *operations_inout += wire_operations(tensor->bytes, tensor->operation_bytes);
}

/* Lays out the joint segment. A tensor that would be alone there is better off in a segment of its own,
 * into which it need not be copied. */
static void plan_joint(struct wire_message *message, struct wire_tensor *tensors, uint64_t count,
                       uint64_t *operations_inout)
{
    message->joint_bytes = 0;
    for (uint64_t i = 0; i < message->tensor_count && count > 0; i++) {
        struct wire_tensor *tensor = &tensors[i];
        if (tensor->joint && count > 1) {
            tensor->joint_offset = wire_joint_align(message->joint_bytes);
            tensor->operation_bytes = 0;
            message->joint_bytes = tensor->joint_offset + tensor->bytes;
        } else if (tensor->joint) {
            tensor->joint = false;
            plan_segment(tensor, operations_inout);
        }
    }
    message->joint_operation_bytes =
        usable_operation_bytes(message->joint_bytes, message->joint_operation_bytes);
    if (message->joint_bytes > 0) {
        *operations_inout += wire_operations(message->joint_bytes, message->joint_operation_bytes);
    }
}

/* Keeps what fits behind `cursor`; returns the message's end. */
static size_t plan_tensors(struct wire_message *message, struct wire_tensor *tensors,
                           const struct wire_limits *limits, size_t cursor,
                           uint64_t *operations_inout)
{
    uint64_t joint_count = 0;
    for (uint64_t i = 0; i < message->tensor_count; i++) {
        struct wire_tensor *tensor = &tensors[i];
        if (tensor->inline_data != NULL) {
            size_t end = tensor->bytes > 0 && tensor->bytes <= limits->inline_bytes
                             ? inside_end(cursor, tensor->bytes, limits->eager_bytes)
                             : 0;
            if (end == 0) {
                tensor->inline_data = NULL;
            } else {
                cursor = end;
            }
        }
        if (tensor->bytes == 0 || tensor->inline_data != NULL) {
            tensor->operation_bytes = 0;
            tensor->sender_path = TRANSFER_NONE;
            tensor->joint = false;
        } else if (tensor->joint) {
            joint_count++;
        } else {
            plan_segment(tensor, operations_inout);
        }
    }
    plan_joint(message, tensors, joint_count, operations_inout);
    return cursor;
}

ferry_status_t wire_plan(struct wire_message *message, struct wire_tensor *tensors,
                         const struct wire_limits *limits, size_t *message_bytes_out,
                         size_t *table_bytes_out)
{
    message->flags &= ~(unsigned)(WIRE_TABLE_SEGMENT | WIRE_BODY_SEGMENT);
    if (wire_is_header_only(message->kind)) {
        *message_bytes_out = WIRE_HEADER_BYTES;
        *table_bytes_out = 0;
        return FERRY_OK;
    }
    size_t entries_bytes = 0;
    if (is_error_reply(message)) {
        assert(message->tensor_count == 0 && message->body_bytes == 0);
        error_fit(message, limits->eager_bytes);
    }
    ferry_status_t status = check_counts(message, limits);
    if (status == FERRY_OK) {
        status = check_sums(message, tensors, limits, &entries_bytes);
    }
    if (status != FERRY_OK) {
        return status;
    }
    size_t variable_bytes = fixed_bytes(message) + entries_bytes;
    size_t cursor, table_bytes;
    uint64_t operations;
    plan_body(message, limits->eager_bytes, variable_bytes, &cursor, &table_bytes, &operations);
    cursor = plan_tensors(message, tensors, limits, cursor, &operations);
    if (operations >= WIRE_OPERATIONS_MAX) {
        return error_raise(FERRY_ERR_LIMIT,
                           "body and tensors would travel in %llu operations, fewer than %u are "
                           "allowed: raise FERRY_CHUNK",
                           (unsigned long long)operations, WIRE_OPERATIONS_MAX);
    }
    *message_bytes_out = cursor;
    *table_bytes_out = table_bytes;
    return FERRY_OK;
}

static uint8_t *put_bytes(uint8_t *at, const void *data, size_t bytes)
{
    if (bytes > 0) {
        memcpy(at, data, bytes);
    }
    return at + bytes;
}

static void put_device(uint8_t *at, DLDevice device)
{
    wire_put_u32(at, (uint32_t)device.device_type);
    wire_put_u32(at + 4, (uint32_t)device.device_id);
}

static uint8_t *put_tensor(uint8_t *at, const struct wire_tensor *tensor,
                           const struct wire_message *message)
{
    bool inside = tensor->bytes > 0 && tensor->inline_data != NULL;
    uint64_t operation_bytes = usable_operation_bytes(tensor->bytes, tensor->operation_bytes);
    at[WIRE_TENSOR_NAME_BYTES] = (uint8_t)tensor->name_bytes;
    at[WIRE_TENSOR_NDIM] = (uint8_t)tensor->ndim;
    at[WIRE_TENSOR_FLAGS] = inside ? WIRE_TENSOR_INLINE : tensor->joint ? WIRE_TENSOR_JOINT : 0;
    at[WIRE_TENSOR_PATH] = tensor->sender_path;
    at[WIRE_TENSOR_DTYPE_CODE] = tensor->dtype.code;
    at[WIRE_TENSOR_DTYPE_BITS] = tensor->dtype.bits;
    wire_put_u16(at + WIRE_TENSOR_DTYPE_LANES, tensor->dtype.lanes);
    put_device(at + WIRE_TENSOR_SOURCE, tensor->source);
    put_device(at + WIRE_TENSOR_TARGET,
               message->kind == WIRE_CALL ? tensor->target : tensor->source);
    wire_put_u64(at + WIRE_TENSOR_BYTES, tensor->bytes);
    wire_put_u64(at + WIRE_TENSOR_OPERATION, inside          ? 0
                                             : tensor->joint ? message->joint_operation_bytes
                                                             : operation_bytes);
    at += WIRE_TENSOR_ENTRY_BYTES;
    for (int i = 0; i < tensor->ndim; i++, at += 8) {
        wire_put_u64(at, (uint64_t)tensor->shape[i]);
    }
    return put_bytes(at, tensor->name, tensor->name_bytes);
}

/* The variable part; text_bytes_out: the method's or the error map's. */
static uint8_t *put_variable(uint8_t *at, const struct wire_message *message,
                             const struct wire_tensor *tensors, size_t *text_bytes_out)
{
    if (message->flags & WIRE_BODY_SEGMENT) {
        wire_put_u64(at, message->body_operation_bytes);
        at += 8;
    }
    if (has_paths(message)) {
        wire_put_u32(at, (uint32_t)message->argument_count);
        at = put_bytes(at + 4, message->argument_paths, message->argument_count);
    }
    if (message->kind == WIRE_CALL) {
        *text_bytes_out = message->method_bytes;
        at = put_bytes(at, message->method, message->method_bytes);
        at = put_bytes(at, message->metadata, message->metadata_bytes);
    } else if (is_error_reply(message)) {
        *text_bytes_out = error_map_put(message, at, SIZE_MAX);
        at += *text_bytes_out;
    } else {
        *text_bytes_out = 0;
    }
    for (uint64_t i = 0; i < message->tensor_count; i++) {
        at = put_tensor(at, &tensors[i], message);
    }
    return at;
}

static void put_header(uint8_t *at, const struct wire_message *message, size_t variable_bytes,
                       size_t text_bytes)
{
    bool is_call = message->kind == WIRE_CALL;
    unsigned flags = message->flags;
    flags |= is_call && message->results_direct ? WIRE_BIT_RESULTS_DIRECT : 0;
    flags |= has_paths(message) ? WIRE_BIT_PATHS : 0;
    wire_put_u32(at + WIRE_AT_MAGIC, WIRE_MAGIC);
    at[WIRE_AT_VERSION] = WIRE_VERSION;
    at[WIRE_AT_KIND] = (uint8_t)message->kind;
    wire_put_u16(at + WIRE_AT_FLAGS, (uint16_t)flags);
    wire_put_u64(at + WIRE_AT_CALL_ID, message->call_id);
    if (wire_is_header_only(message->kind)) {
        memset(at + WIRE_AT_FIRST_SEGMENT, 0, WIRE_HEADER_BYTES - WIRE_AT_FIRST_SEGMENT);
        return;
    }
    wire_put_u32(at + WIRE_AT_FIRST_SEGMENT, message->first_segment);
    wire_put_u32(at + WIRE_AT_VARIABLE_BYTES, (uint32_t)variable_bytes);
    wire_put_u64(at + WIRE_AT_BODY_BYTES, message->body_bytes);
    wire_put_u32(at + WIRE_AT_TENSOR_COUNT, (uint32_t)message->tensor_count);
    wire_put_u16(at + WIRE_AT_TEXT_BYTES, (uint16_t)text_bytes);
    if (is_call) {
        wire_put_u16(at + WIRE_AT_METADATA_BYTES, (uint16_t)message->metadata_bytes);
        wire_put_u64(at + WIRE_AT_TIMEOUT,
                     message->timeout_ns < 0 ? 0 : (uint64_t)message->timeout_ns);
        memset(at + WIRE_AT_RESERVED, 0, 16);
    } else {
        wire_put_u16(at + WIRE_AT_STATUS, (uint16_t)message->status);
        wire_put_u64(at + WIRE_AT_QUEUE, message->queue_ns);
        wire_put_u64(at + WIRE_AT_HANDLER, message->handler_ns);
        wire_put_u64(at + WIRE_AT_RECEIVE, message->receive_ns);
    }
}

/* At the next aligned place of the message, with zeros before it. */
static uint8_t *put_inside(uint8_t *message_start, uint8_t *at, const void *data, uint64_t bytes)
{
    size_t cursor = (size_t)(at - message_start);
    size_t start = wire_align(cursor);
    memset(at, 0, start - cursor);
    return put_bytes(message_start + start, data, (size_t)bytes);
}

void wire_encode(const struct wire_message *message, const struct wire_tensor *tensors,
                 void *buffer, void *table)
{
    uint8_t *start = buffer;
    if (wire_is_header_only(message->kind)) {
        put_header(start, message, 0, 0);
        return;
    }
    uint8_t *at = start + WIRE_HEADER_BYTES;
    uint8_t *variable = message->flags & WIRE_TABLE_SEGMENT ? table : at;
    size_t text_bytes;
    uint8_t *variable_end = put_variable(variable, message, tensors, &text_bytes);
    put_header(start, message, (size_t)(variable_end - variable), text_bytes);
    if (variable == at) {
        at = variable_end;
    }
    if (message->body_bytes > 0 && !(message->flags & WIRE_BODY_SEGMENT)) {
        at = put_inside(start, at, message->body, message->body_bytes);
    }
    for (uint64_t i = 0; i < message->tensor_count; i++) {
        if (tensors[i].bytes > 0 && tensors[i].inline_data != NULL) {
            at = put_inside(start, at, tensors[i].inline_data, tensors[i].bytes);
        }
    }
}
