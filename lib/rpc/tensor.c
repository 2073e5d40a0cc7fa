#include "rpc/tensor.h"

#include <stdio.h>
#include <string.h>

#include "core/error.h"

/* DLPack 1.x's; an older header does not have it. */
#ifndef DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED
#define DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED (1UL << 2UL)
#endif

static int64_t element_bits(const DLTensor *view)
{
    return (int64_t)view->dtype.bits * view->dtype.lanes;
}

/* Says in `problem` what is wrong with a view's shape, or finds its bytes. */
static bool view_measure(const DLTensor *view, size_t *bytes_out, char *problem, size_t capacity)
{
    if (view->ndim < 0 || view->ndim > FERRY_TENSOR_NDIM_MAX) {
        snprintf(problem, capacity, "has %d dimensions, 0 to %d can travel", (int)view->ndim,
                 FERRY_TENSOR_NDIM_MAX);
        return false;
    }
    if (view->ndim > 0 && view->shape == NULL) {
        snprintf(problem, capacity, "has %d dimensions and no shape", (int)view->ndim);
        return false;
    }
    if (view->dtype.bits == 0 || view->dtype.lanes == 0) {
        snprintf(problem, capacity, "has elements of %u bits and %u lanes", view->dtype.bits,
                 view->dtype.lanes);
        return false;
    }
    bool empty = false;
    for (int i = 0; i < view->ndim; i++) {
        if (view->shape[i] < 0) {
            snprintf(problem, capacity, "has the extent %lld in dimension %d",
                     (long long)view->shape[i], i);
            return false;
        }
        empty = empty || view->shape[i] == 0;
    }
    int64_t bits = empty ? 0 : element_bits(view);
    int64_t bytes = bits / 8;
    int64_t rest = bits % 8; /* kept apart, so that a size up to INT64_MAX bytes can be said */
    for (int i = 0; i < view->ndim && !empty; i++) {
        int64_t rest_bits;
        if (__builtin_mul_overflow(rest, view->shape[i], &rest_bits) ||
            __builtin_mul_overflow(bytes, view->shape[i], &bytes) ||
            __builtin_add_overflow(bytes, rest_bits / 8, &bytes)) {
            snprintf(problem, capacity, "has more than %lld bytes", (long long)INT64_MAX);
            return false;
        }
        rest = rest_bits % 8;
    }
    *bytes_out = (size_t)bytes + (rest > 0);
    return true;
}

ferry_status_t ferry_tensor_bytes(const DLTensor *view, size_t *bytes_out)
{
    if (view == NULL || bytes_out == NULL) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT, "ferry_tensor_bytes: %s is NULL",
                           view == NULL ? "view" : "bytes_out");
    }
    char problem[128];
    if (!view_measure(view, bytes_out, problem, sizeof problem)) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT, "the tensor %s", problem);
    }
    return FERRY_OK;
}

const char *tensor_title(char buffer[TENSOR_TITLE_BYTES], const char *role, const char *slot,
                         size_t position)
{
    if (slot == NULL) {
        snprintf(buffer, TENSOR_TITLE_BYTES, "%s tensors[%zu]", role, position);
    } else {
        snprintf(buffer, TENSOR_TITLE_BYTES, "%s '%.*s'", role, FERRY_SLOT_BYTES_MAX, slot);
    }
    return buffer;
}

/* The distance from the lowest to the highest element must be a length that can exist. */
static bool strides_fit(const DLTensor *view)
{
    int64_t unit = (element_bits(view) + 7) / 8;
    int64_t span = unit;
    for (int i = 0; i < view->ndim; i++) {
        int64_t steps = view->strides[i];
        if (steps == INT64_MIN ||
            __builtin_mul_overflow(steps < 0 ? -steps : steps, view->shape[i] - 1, &steps) ||
            __builtin_mul_overflow(steps, unit, &steps) ||
            __builtin_add_overflow(span, steps, &span)) {
            return false;
        }
    }
    return true;
}

/* What is wrong with the tensor apart from its shape; NULL when nothing is. */
static const char *tensor_problem(const ferry_tensor_t *tensor, size_t bytes)
{
    const DLTensor *view = &tensor->view;
    if (view->device.device_id < 0) {
        return "is on a device with a negative index";
    }
    if (tensor->stream != 0 && tensor_device(view->device).device_type == kDLCPU) {
        return "is on cpu, where there are no streams: its stream must be 0";
    }
    if (bytes == 0) {
        return NULL;
    }
    if (view->data == NULL) {
        return "has elements and a NULL data pointer";
    }
    if (view->byte_offset > INT64_MAX) {
        return "has a byte_offset that leaves the address space";
    }
    if (view->strides != NULL) {
        if (!strides_fit(view)) {
            return "has strides that leave the address space";
        }
        if (element_bits(view) % 8 != 0 && !tensor_is_contiguous(view)) {
            return "has sub-byte elements, which travel only in C order";
        }
    }
    return NULL;
}

ferry_status_t tensor_check(const ferry_tensor_t *tensor, const char *role, size_t position,
                            size_t *bytes_out)
{
    char title[TENSOR_TITLE_BYTES];
    size_t name_bytes = tensor->name == NULL ? 1 : strnlen(tensor->name, FERRY_SLOT_BYTES_MAX + 1);
    if (name_bytes == 0 || name_bytes > FERRY_SLOT_BYTES_MAX) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT,
                           "%s has a slot name of %s bytes, 1 to %d are allowed",
                           tensor_title(title, role, NULL, position),
                           name_bytes == 0 ? "0" : "too many", FERRY_SLOT_BYTES_MAX);
    }
    char problem[128];
    size_t bytes;
    if (!view_measure(&tensor->view, &bytes, problem, sizeof problem)) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT, "%s %s",
                           tensor_title(title, role, tensor->name, position), problem);
    }
    const char *other = tensor_problem(tensor, bytes);
    if (other != NULL) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT, "%s %s",
                           tensor_title(title, role, tensor->name, position), other);
    }
    if (bytes_out != NULL) {
        *bytes_out = bytes;
    }
    return FERRY_OK;
}

bool tensor_is_contiguous(const DLTensor *view)
{
    if (view->strides == NULL) {
        return true;
    }
    for (int i = 0; i < view->ndim; i++) {
        if (view->shape[i] == 0) {
            return true;
        }
    }
    uint64_t expected = 1; /* may wrap for elements of 1 bit, so unsigned */
    for (int i = view->ndim - 1; i >= 0; i--) {
        if (view->shape[i] != 1 && (uint64_t)view->strides[i] != expected) {
            return false;
        }
        expected *= (uint64_t)view->shape[i];
    }
    return true;
}

void tensor_layout_init(struct tensor_layout *layout, const DLTensor *view)
{
    char problem[128];
    layout->data = tensor_data(view);
    layout->ndim = 0;
    layout->block_bytes = 0;
    if (tensor_is_contiguous(view)) {
        view_measure(view, &layout->block_bytes, problem, sizeof problem);
        return;
    }
    /* Dimensions of one element are no step; a dimension that goes on where the next one ends is
     * the same walk. Innermost first, since only the inner neighbour's extent is needed to see
     * it. */
    int64_t unit = element_bits(view) / 8;
    int64_t extent[FERRY_TENSOR_NDIM_MAX];
    int64_t stride[FERRY_TENSOR_NDIM_MAX];
    int count = 0;
    for (int i = view->ndim - 1; i >= 0; i--) {
        int64_t bytes = view->strides[i] * unit;
        if (view->shape[i] == 1) {
            continue;
        }
        int64_t end; /* the stride times the whole extent may be past what the elements need */
        if (count > 0 && !__builtin_mul_overflow(stride[count - 1], extent[count - 1], &end) &&
            bytes == end) {
            extent[count - 1] *= view->shape[i];
            continue;
        }
        extent[count] = view->shape[i];
        stride[count++] = bytes;
    }
    int innermost = 0;
    layout->block_bytes = (size_t)unit;
    if (count > 0 && stride[0] == unit) {
        layout->block_bytes = (size_t)(unit * extent[0]);
        innermost = 1;
    }
    for (int i = count - 1; i >= innermost; i--) {
        layout->extent[layout->ndim] = extent[i];
        layout->stride_bytes[layout->ndim++] = stride[i];
    }
}

void tensor_copy_view(struct tensor_view *copy, const DLTensor *view)
{
    size_t bytes = (size_t)view->ndim * sizeof copy->shape[0];
    copy->view = *view;
    copy->view.shape = copy->shape;
    if (bytes > 0) {
        memcpy(copy->shape, view->shape, bytes);
    }
    if (view->strides != NULL) {
        copy->view.strides = copy->strides;
        if (bytes > 0) {
            memcpy(copy->strides, view->strides, bytes);
        }
    }
}

/* DLPack's names for codes whose bits are fixed, from code 7 on. */
static const struct {
    const char *name;
    uint8_t bits;
} dtype_small_floats[] = {
    {"float8_e3m4", 8},     {"float8_e4m3", 8},   {"float8_e4m3b11fnuz", 8}, {"float8_e4m3fn", 8},
    {"float8_e4m3fnuz", 8}, {"float8_e5m2", 8},   {"float8_e5m2fnuz", 8},    {"float8_e8m0fnu", 8},
    {"float6_e2m3fn", 6},   {"float6_e3m2fn", 6}, {"float4_e2m1fn", 4},
};

static void dtype_print_scalar(DLDataType dtype, char *text, size_t capacity)
{
    static const char *const names[] = {"int", "uint", "float", "handle", "bfloat", "complex"};
    size_t small = (size_t)dtype.code - 7u;
    if (dtype.code < sizeof names / sizeof names[0]) {
        snprintf(text, capacity, "%s%u", names[dtype.code], dtype.bits);
    } else if (dtype.code == 6 && dtype.bits == 8) {
        snprintf(text, capacity, "bool");
    } else if (dtype.code >= 7 &&
               small < sizeof dtype_small_floats / sizeof dtype_small_floats[0] &&
               dtype.bits == dtype_small_floats[small].bits) {
        snprintf(text, capacity, "%s", dtype_small_floats[small].name);
    } else {
        snprintf(text, capacity, "code%u_bits%u", dtype.code, dtype.bits);
    }
}

const char *ferry_dtype_print(DLDataType dtype, char buffer[FERRY_DTYPE_TEXT_BYTES])
{
    char scalar[FERRY_DTYPE_TEXT_BYTES - 8];
    dtype_print_scalar(dtype, scalar, sizeof scalar);
    if (dtype.lanes == 1) {
        snprintf(buffer, FERRY_DTYPE_TEXT_BYTES, "%s", scalar);
    } else {
        snprintf(buffer, FERRY_DTYPE_TEXT_BYTES, "%sx%u", scalar, dtype.lanes);
    }
    return buffer;
}

static void managed_release(void *context)
{
    struct DLManagedTensor *managed = context;
    managed->deleter(managed);
}

static void managed_versioned_release(void *context)
{
    struct DLManagedTensorVersioned *managed = context;
    managed->deleter(managed);
}

ferry_status_t ferry_tensor_from_dlpack(const char *name, struct DLManagedTensor *managed,
                                        ferry_tensor_t *tensor_out)
{
    if (managed == NULL || tensor_out == NULL) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT, "ferry_tensor_from_dlpack: %s is NULL",
                           managed == NULL ? "managed" : "tensor_out");
    }
    ferry_tensor_t tensor = {.name = name, .view = managed->dl_tensor};
    ferry_status_t status = tensor_check(&tensor, "DLPack", 0, NULL);
    if (status != FERRY_OK) {
        return status;
    }
    if (managed->deleter != NULL) {
        tensor.release = managed_release;
        tensor.context = managed;
    }
    *tensor_out = tensor;
    return FERRY_OK;
}

ferry_status_t ferry_tensor_from_dlpack_versioned(const char *name,
                                                  struct DLManagedTensorVersioned *managed,
                                                  ferry_tensor_t *tensor_out)
{
    if (managed == NULL || tensor_out == NULL) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT,
                           "ferry_tensor_from_dlpack_versioned: %s is NULL",
                           managed == NULL ? "managed" : "tensor_out");
    }
    /* Another major version may lay out everything behind the version and the deleter
     * differently. */
    if (managed->version.major != 1) {
        return error_raise(FERRY_ERR_UNSUPPORTED,
                           "the tensor speaks DLPack %u.%u, Ferry reads versions 1.x",
                           managed->version.major, managed->version.minor);
    }
    ferry_tensor_t tensor = {
        .name = name,
        .view = managed->dl_tensor,
        .read_only = (managed->flags & DLPACK_FLAG_BITMASK_READ_ONLY) != 0,
    };
    ferry_status_t status = tensor_check(&tensor, "DLPack", 0, NULL);
    if (status != FERRY_OK) {
        return status;
    }
    if ((managed->flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED) != 0 &&
        tensor.view.dtype.bits < 8) {
        char title[TENSOR_TITLE_BYTES];
        return error_raise(FERRY_ERR_UNSUPPORTED,
                           "%s has padded elements of %u bits; Ferry carries them packed",
                           tensor_title(title, "DLPack", name, 0), tensor.view.dtype.bits);
    }
    if (managed->deleter != NULL) {
        tensor.release = managed_versioned_release;
        tensor.context = managed;
    }
    *tensor_out = tensor;
    return FERRY_OK;
}
