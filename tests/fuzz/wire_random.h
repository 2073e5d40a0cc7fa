/* Random control messages from a seed, and the checks that hold for any message: for the unit tests and
 * the fuzzers. */
#ifndef TESTS_FUZZ_WIRE_RANDOM_H
#define TESTS_FUZZ_WIRE_RANDOM_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rpc/transfer.h"
#include "rpc/wire.h"

#define RANDOM_TENSORS_MAX 96
#define RANDOM_DATA_BYTES 16384

struct random_source {
    uint64_t state; /* not 0 */
};

static inline uint64_t random_next(struct random_source *random)
{
    random->state ^= random->state << 13;
    random->state ^= random->state >> 7;
    random->state ^= random->state << 17;
    return random->state * 0x2545f4914f6cdd1dULL;
}

/* 0 to below - 1. */
static inline uint64_t random_below(struct random_source *random, uint64_t below)
{
    return (random_next(random) >> 11) % below;
}

/* Small numbers and limits are met more often than evenly spread ones would. */
static inline uint64_t random_size(struct random_source *random, uint64_t max)
{
    switch (random_below(random, 4)) {
    case 0:
        return random_below(random, max < 4 ? max + 1 : 4);
    case 1:
        return max - random_below(random, max < 4 ? max + 1 : 4);
    default:
        return random_below(random, max + 1);
    }
}

struct random_message {
    struct wire_message message;
    struct wire_limits limits;
    struct wire_tensor tensors[RANDOM_TENSORS_MAX];
    uint8_t data[RANDOM_DATA_BYTES]; /* of the body and of all that rides inside */
    char text[RANDOM_DATA_BYTES];    /* of all names */
    uint8_t paths[RANDOM_TENSORS_MAX];
};

static inline const char *random_text(struct random_source *random, struct random_message *made,
                                      size_t bytes)
{
    return made->text + random_below(random, sizeof made->text - bytes + 1);
}

static inline DLDevice random_device(struct random_source *random)
{
    static const int TYPES[] = {kDLCPU, kDLCPU, kDLCPU, kDLCUDA, kDLExtDev, 4711};
    return (DLDevice){.device_type = (DLDeviceType)TYPES[random_below(random, 6)],
                      .device_id = (int32_t)random_below(random, 300)};
}

static inline void random_tensor(struct random_source *random, struct random_message *made,
                                 struct wire_tensor *tensor)
{
    static const uint8_t BITS[] = {1, 4, 8, 16, 32, 64, 128, 255};
    *tensor = (struct wire_tensor){.name_bytes = random_size(random, FERRY_SLOT_BYTES_MAX),
                                   .dtype = {.code = (uint8_t)random_below(random, 256),
                                             .bits = BITS[random_below(random, 8)],
                                             .lanes = (uint16_t)(1 + random_below(random, 3))},
                                   .ndim = (int32_t)random_size(random, FERRY_TENSOR_NDIM_MAX),
                                   .source = random_device(random),
                                   .sender_path = (uint8_t)random_below(random, 5)};
    tensor->name = tensor->name_bytes == 0 ? NULL : random_text(random, made, tensor->name_bytes);
    tensor->target = made->message.kind == WIRE_CALL ? random_device(random) : tensor->source;
    for (int i = 0; i < tensor->ndim; i++) {
        uint64_t extent = random_below(random, 8) == 0 ? random_below(random, 3) : 1;
        tensor->shape_storage[i] = (int64_t)extent;
    }
    if (tensor->ndim > 0) {
        tensor->shape_storage[random_below(random, (uint64_t)tensor->ndim)] =
            (int64_t)random_size(random, random_below(random, 2) == 0 ? 64 : 1u << 20);
    }
    tensor->shape = tensor->shape_storage;
    DLTensor view = {.ndim = tensor->ndim, .dtype = tensor->dtype, .shape = tensor->shape_storage};
    size_t bytes = 0;
    if (ferry_tensor_bytes(&view, &bytes) != FERRY_OK) {
        abort();
    }
    tensor->bytes = bytes;
    tensor->operation_bytes =
        random_below(random, 3) == 0 ? 0 : 1 + random_below(random, bytes + 9);
    bool cpu = tensor->source.device_type == kDLCPU && tensor->target.device_type == kDLCPU;
    tensor->joint = cpu && random_below(random, 3) != 0;
    if (bytes <= made->limits.inline_bytes && bytes <= sizeof made->data &&
        random_below(random, 4) != 0) {
        tensor->inline_data = made->data + random_below(random, sizeof made->data - bytes + 1);
    }
}

static inline void random_error(struct random_source *random, struct random_message *made)
{
    struct wire_message *message = &made->message;
    message->status = (ferry_status_t)(2 + random_below(random, FERRY_STATUS_COUNT + 20));
    message->effect = (ferry_effect_t)random_below(random, 3);
    message->code = (int32_t)random_next(random);
    message->error_text_bytes = random_size(random, 1500);
    message->error_text = random_text(random, made, message->error_text_bytes);
    message->error_origin_bytes = random_size(random, ERROR_NAME_BYTES - 1);
    message->error_origin = random_text(random, made, message->error_origin_bytes);
    message->method_bytes = random_size(random, WIRE_METHOD_BYTES_MAX);
    message->method = random_text(random, made, message->method_bytes);
}

/* A message that wire_plan() takes unless its limits are too small for it. */
static inline void random_fill(struct random_source *random, struct random_message *made)
{
    memset(&made->message, 0, sizeof made->message);
    for (size_t i = 0; i < sizeof made->data; i++) {
        made->data[i] = (uint8_t)random_next(random);
        made->text[i] = (char)(1 + random_below(random, 255));
    }
    for (size_t i = 0; i < sizeof made->paths; i++) {
        made->paths[i] = (uint8_t)random_below(random, TRANSFER_PACKED + 1);
    }
    made->limits = (struct wire_limits){.eager_bytes = 1024 + random_size(random, 7168),
                                        .inline_bytes = random_size(random, 4096),
                                        .max_tensors = random_size(random, RANDOM_TENSORS_MAX),
                                        .max_message_bytes = random_size(random, 1ull << 40)};
    struct wire_message *message = &made->message;
    uint64_t roll = random_below(random, 16);
    message->kind = roll < 8 ? WIRE_CALL : roll < 14 ? WIRE_REPLY : WIRE_CANCEL;
    message->call_id = random_next(random);
    if (message->kind == WIRE_CANCEL) {
        message->kind += (enum wire_kind)random_below(random, 4);
        return;
    }
    message->first_segment = (uint32_t)random_next(random);
    if (message->kind == WIRE_CALL) {
        message->method_bytes = 1 + random_size(random, WIRE_METHOD_BYTES_MAX - 1);
        message->method = random_text(random, made, message->method_bytes);
        message->metadata_bytes =
            random_below(random, 2) * random_size(random, WIRE_METADATA_BYTES_MAX);
        message->metadata = made->data;
        message->timeout_ns = (int64_t)random_size(random, INT64_MAX);
        message->results_direct = random_below(random, 2) == 0;
    } else {
        message->queue_ns = random_next(random);
        message->handler_ns = random_next(random);
        message->receive_ns = random_next(random);
        message->argument_count = random_size(random, RANDOM_TENSORS_MAX);
        message->argument_paths = made->paths;
        if (roll < 11) {
            random_error(random, made);
            return;
        }
    }
    message->body_bytes = random_below(random, 2) * random_size(random, 12000);
    message->body = made->data;
    message->body_operation_bytes = random_below(random, 2) * (1 + random_below(random, 4096));
    message->joint_operation_bytes = random_below(random, 2) * (1 + random_below(random, 4096));
    message->tensor_count = random_size(random, RANDOM_TENSORS_MAX);
    for (uint64_t i = 0; i < message->tensor_count; i++) {
        random_tensor(random, made, &made->tensors[i]);
    }
}

/* A message's bytes, each area of exactly its size so that a sanitizer sees one byte too far. */
struct random_bytes {
    uint8_t *data, *table;
    size_t bytes, table_bytes;
};

static inline uint8_t *random_copy(const void *data, size_t bytes)
{
    uint8_t *copy = malloc(bytes == 0 ? 1 : bytes);
    if (copy == NULL) {
        abort();
    }
    if (bytes > 0) {
        memcpy(copy, data, bytes);
    }
    return copy;
}

/* Plans and encodes; false when the plan refused. */
static inline bool random_encode(struct random_message *made, struct random_bytes *encoded)
{
    if (wire_plan(&made->message, made->tensors, &made->limits, &encoded->bytes,
                  &encoded->table_bytes) != FERRY_OK) {
        return false;
    }
    encoded->data = malloc(encoded->bytes);
    encoded->table = encoded->table_bytes == 0 ? NULL : malloc(encoded->table_bytes);
    if (encoded->data == NULL || (encoded->table == NULL && encoded->table_bytes > 0)) {
        abort();
    }
    wire_encode(&made->message, made->tensors, encoded->data, encoded->table);
    return true;
}

static inline void random_free(struct random_bytes *encoded)
{
    free(encoded->data);
    free(encoded->table);
}

/* What a whole message decodes to. tensors has room for limits->max_tensors. */
static inline ferry_status_t random_decode(const struct random_bytes *encoded,
                                           const struct wire_limits *limits,
                                           struct wire_message *message,
                                           struct wire_tensor *tensors)
{
    size_t table_bytes;
    ferry_status_t status =
        wire_decode_header(encoded->data, encoded->bytes, limits, message, &table_bytes);
    if (status != FERRY_OK) {
        return status;
    }
    if (table_bytes != encoded->table_bytes) {
        return FERRY_ERR_PROTOCOL; /* the receive of the table would fail */
    }
    struct wire_decoder decoder;
    status = wire_decode_variable(encoded->data, encoded->bytes, encoded->table, table_bytes,
                                  limits, message, &decoder);
    for (uint64_t i = 0; i < message->tensor_count && status == FERRY_OK; i++) {
        status = wire_decode_tensor(&decoder, message, &tensors[i]);
    }
    return status;
}

static inline bool random_inside(const struct random_bytes *encoded, const void *data,
                                 uint64_t bytes)
{
    const uint8_t *at = data;
    return bytes == 0 ||
           (at >= encoded->data && bytes <= encoded->bytes &&
            at <= encoded->data + encoded->bytes - bytes) ||
           (encoded->table != NULL && at >= encoded->table && bytes <= encoded->table_bytes &&
            at <= encoded->table + encoded->table_bytes - bytes);
}

/* What must hold for anything that was decoded, whoever made the bytes. NULL, or what does not. */
static inline const char *random_check(const struct random_bytes *encoded,
                                       const struct wire_limits *limits,
                                       const struct wire_message *message,
                                       const struct wire_tensor *tensors)
{
    uint64_t total = message->body_bytes, joint_end = 0;
    bool body_inside = message->body_bytes > 0 && !(message->flags & WIRE_BODY_SEGMENT);
    if (!random_inside(encoded, message->method, message->method_bytes) ||
        !random_inside(encoded, message->metadata, message->metadata_bytes) ||
        !random_inside(encoded, message->error_text, message->error_text_bytes) ||
        !random_inside(encoded, message->error_origin, message->error_origin_bytes) ||
        !random_inside(encoded, message->argument_paths, message->argument_count) ||
        !random_inside(encoded, message->body, body_inside ? message->body_bytes : 0)) {
        return "a pointer leaves the message";
    }
    if (body_inside != (message->body != NULL) || message->method_bytes > WIRE_METHOD_BYTES_MAX ||
        message->metadata_bytes > WIRE_METADATA_BYTES_MAX ||
        message->argument_count > limits->max_tensors ||
        message->tensor_count > limits->max_tensors || total > limits->max_message_bytes) {
        return "a field is out of its range";
    }
    for (uint64_t i = 0; i < message->tensor_count; i++) {
        const struct wire_tensor *tensor = &tensors[i];
        bool inside = tensor->inline_data != NULL;
        DLTensor view = {
            .ndim = tensor->ndim, .dtype = tensor->dtype, .shape = (int64_t *)tensor->shape};
        size_t bytes;
        if (ferry_tensor_bytes(&view, &bytes) != FERRY_OK || bytes != tensor->bytes) {
            return "a tensor's bytes are not its shape's";
        }
        if (!random_inside(encoded, tensor->name, tensor->name_bytes) ||
            !random_inside(encoded, tensor->inline_data, inside ? bytes : 0) ||
            (inside && bytes > limits->inline_bytes) || tensor->sender_path > TRANSFER_PACKED ||
            tensor->source.device_id < 0 || tensor->target.device_id < 0 ||
            (tensor->operation_bytes > 0) != (bytes > 0 && !inside && !tensor->joint)) {
            return "a tensor's field is out of its range";
        }
        if (tensor->joint) {
            if (inside || bytes == 0 || tensor->joint_offset < joint_end ||
                tensor->joint_offset % WIRE_JOINT_ALIGN != 0 ||
                message->joint_operation_bytes == 0) {
                return "a tensor has no place in the joint segment";
            }
            joint_end = tensor->joint_offset + bytes;
        }
        total += bytes;
    }
    if (joint_end != message->joint_bytes) {
        return "the joint segment has another size than its tensors make";
    }
    if (total > limits->max_message_bytes) {
        return "the sum is over its limit";
    }
    if (message->kind == WIRE_REPLY && message->status != FERRY_OK) {
        return NULL; /* a map has many forms */
    }
    /* Only one sequence of bytes says a thing, so nothing can hide in those that were not looked at. */
    struct random_bytes again = {.data = malloc(encoded->bytes),
                                 .table = malloc(encoded->table_bytes + 1)};
    wire_encode(message, tensors, again.data, again.table);
    bool same = memcmp(again.data, encoded->data, encoded->bytes) == 0 &&
                (encoded->table_bytes == 0 ||
                 memcmp(again.table, encoded->table, encoded->table_bytes) == 0);
    random_free(&again);
    return same ? NULL : "encoding it again makes other bytes";
}

#endif
