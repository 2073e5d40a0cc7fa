#include <assert.h>
#include <inttypes.h>

#include "rpc/wire_format.h"

static DLDevice get_device(const uint8_t *at)
{
    return (DLDevice){.device_type = (DLDeviceType)(int32_t)wire_get_u32(at),
                      .device_id = (int32_t)wire_get_u32(at + 4)};
}

static bool device_makes_sense(DLDevice device)
{
    return (int)device.device_type > 0 && device.device_id >= 0;
}

/* Shape and name behind an entry's fixed part. */
static bool read_shape_and_name(struct wire_decoder *decoder, struct wire_tensor *tensor)
{
    const uint8_t *at = wire_take(decoder, 8 * (size_t)tensor->ndim);
    for (int i = 0; i < tensor->ndim && at != NULL; i++) {
        tensor->shape_storage[i] = (int64_t)wire_get_u64(at + 8 * i);
    }
    const char *name = (const char *)wire_take(decoder, tensor->name_bytes);
    if (at == NULL || name == NULL) {
        return false;
    }
    tensor->name = tensor->name_bytes == 0 ? NULL : name;
    return tensor->name == NULL || memchr(name, '\0', tensor->name_bytes) == NULL;
}

/* The bytes on the wire must be those that shape and dtype make. */
static ferry_status_t check_bytes(const struct wire_decoder *decoder, struct wire_tensor *tensor)
{
    DLTensor view = {.ndim = tensor->ndim, .dtype = tensor->dtype, .shape = tensor->shape_storage};
    size_t bytes;
    if (ferry_tensor_bytes(&view, &bytes) != FERRY_OK) {
        struct error_record record; /* the text would otherwise be read while it is written */
        error_record_take(&record);
        return error_raise(FERRY_ERR_PROTOCOL, "a message's tensor makes no sense: %s",
                           record.text);
    }
    if (bytes != tensor->bytes) {
        return error_raise(FERRY_ERR_PROTOCOL,
                           "a tensor claims %" PRIu64 " bytes, its shape and dtype make %zu",
                           tensor->bytes, bytes);
    }
    if (bytes > decoder->limits->max_message_bytes - decoder->total_bytes) {
        return error_raise(FERRY_ERR_PROTOCOL,
                           "body and tensors have more than the %" PRIu64 " bytes allowed",
                           decoder->limits->max_message_bytes);
    }
    return FERRY_OK;
}

/* The next place of the joint segment. The segment's operations are counted with the last tensor. */
static ferry_status_t read_joint(struct wire_decoder *decoder, struct wire_tensor *tensor)
{
    bool cpu = tensor->source.device_type == kDLCPU && tensor->target.device_type == kDLCPU;
    uint64_t operation_bytes = tensor->operation_bytes;
    uint64_t offset = wire_joint_align(decoder->joint_bytes), end;
    if (!cpu || tensor->bytes == 0 || operation_bytes == 0 ||
        (decoder->joint_bytes > 0 && operation_bytes != decoder->joint_operation_bytes) ||
        offset < decoder->joint_bytes || __builtin_add_overflow(offset, tensor->bytes, &end)) {
        return error_raise(FERRY_ERR_PROTOCOL,
                           "a tensor of %" PRIu64 " bytes in operations of %" PRIu64
                           " bytes does not fit into the joint segment",
                           tensor->bytes, operation_bytes);
    }
    tensor->joint = true;
    tensor->joint_offset = offset;
    tensor->operation_bytes = 0;
    decoder->joint_bytes = end;
    decoder->joint_operation_bytes = operation_bytes;
    return FERRY_OK;
}

static ferry_status_t read_data(struct wire_decoder *decoder, unsigned flags,
                                struct wire_tensor *tensor)
{
    bool inside = flags & WIRE_TENSOR_INLINE;
    if (flags & WIRE_TENSOR_JOINT) {
        return read_joint(decoder, tensor);
    }
    if (!inside && tensor->bytes > 0) {
        return wire_add_operations(decoder, tensor->bytes, tensor->operation_bytes);
    }
    if (tensor->operation_bytes != 0) {
        return error_raise(FERRY_ERR_PROTOCOL,
                           "a tensor that is no segment has operations of "
                           "%" PRIu64 " bytes",
                           tensor->operation_bytes);
    }
    if (inside) {
        tensor->inline_data = tensor->bytes == 0 || tensor->bytes > decoder->limits->inline_bytes
                                  ? NULL
                                  : wire_take_inside(decoder, tensor->bytes);
        if (tensor->inline_data == NULL) {
            return error_raise(FERRY_ERR_PROTOCOL,
                               "a tensor of %" PRIu64 " bytes inside the message does not fit",
                               tensor->bytes);
        }
    }
    return FERRY_OK;
}

/* The entry's fixed part. False: a field is out of its range. */
static bool read_entry(const uint8_t *at, enum wire_kind kind, struct wire_tensor *tensor)
{
    tensor->name_bytes = at[WIRE_TENSOR_NAME_BYTES];
    tensor->ndim = at[WIRE_TENSOR_NDIM];
    tensor->sender_path = at[WIRE_TENSOR_PATH];
    tensor->dtype = (DLDataType){.code = at[WIRE_TENSOR_DTYPE_CODE],
                                 .bits = at[WIRE_TENSOR_DTYPE_BITS],
                                 .lanes = wire_get_u16(at + WIRE_TENSOR_DTYPE_LANES)};
    tensor->source = get_device(at + WIRE_TENSOR_SOURCE);
    tensor->target = get_device(at + WIRE_TENSOR_TARGET);
    tensor->bytes = wire_get_u64(at + WIRE_TENSOR_BYTES);
    tensor->operation_bytes = wire_get_u64(at + WIRE_TENSOR_OPERATION);
    tensor->inline_data = NULL;
    tensor->joint = false;
    tensor->joint_offset = 0;
    bool stays = tensor->source.device_type == tensor->target.device_type &&
                 tensor->source.device_id == tensor->target.device_id;
    return tensor->name_bytes <= FERRY_SLOT_BYTES_MAX && tensor->ndim <= FERRY_TENSOR_NDIM_MAX &&
           at[WIRE_TENSOR_FLAGS] <= WIRE_TENSOR_JOINT && tensor->sender_path <= WIRE_PATH_LAST &&
           device_makes_sense(tensor->source) && device_makes_sense(tensor->target) &&
           (stays || kind == WIRE_CALL);
}

ferry_status_t wire_decode_tensor(struct wire_decoder *decoder, struct wire_message *message,
                                  struct wire_tensor *tensor_out)
{
    assert(decoder->remaining > 0);
    const uint8_t *at = wire_take(decoder, WIRE_TENSOR_ENTRY_BYTES);
    if (at == NULL || !read_entry(at, decoder->kind, tensor_out) ||
        !read_shape_and_name(decoder, tensor_out)) {
        return error_raise(FERRY_ERR_PROTOCOL,
                           "the entry of a tensor, %" PRIu64 " before the last, makes no sense",
                           decoder->remaining - 1);
    }
    ferry_status_t status = check_bytes(decoder, tensor_out);
    if (status == FERRY_OK) {
        status = read_data(decoder, at[WIRE_TENSOR_FLAGS], tensor_out);
    }
    if (status != FERRY_OK) {
        return status;
    }
    tensor_out->shape = tensor_out->shape_storage;
    decoder->total_bytes += tensor_out->bytes;
    decoder->remaining--;
    if (decoder->remaining == 0 && decoder->joint_bytes > 0) {
        message->joint_bytes = decoder->joint_bytes;
        message->joint_operation_bytes = decoder->joint_operation_bytes;
        status = wire_add_operations(decoder, decoder->joint_bytes, decoder->joint_operation_bytes);
    }
    return status == FERRY_OK ? wire_check_end(decoder) : status;
}
