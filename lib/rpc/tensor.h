/* Tensor views inside the library: checking them, copying them, and the fewest dimensions that say
 * where their bytes lie. */
#ifndef FERRY_RPC_TENSOR_H
#define FERRY_RPC_TENSOR_H

#include <stddef.h>

#include <ferry/tensor.h>

/* A view with its own shape and strides. view.shape points into this struct (view.strides too,
 * unless it was NULL), so it is copied with tensor_copy_view() and not by assignment. */
struct tensor_view {
    DLTensor view;
    int64_t shape[FERRY_TENSOR_NDIM_MAX];
    int64_t strides[FERRY_TENSOR_NDIM_MAX];
};

/* Where the visible elements lie: `ndim` outer dimensions, outermost first, around runs of
 * block_bytes that are contiguous. Walking it in order meets the elements in C order. A contiguous
 * tensor has ndim 0. */
struct tensor_layout {
    void *data; /* byte_offset applied; NULL only when there are no bytes */
    size_t block_bytes;
    int ndim;
    int64_t extent[FERRY_TENSOR_NDIM_MAX];
    int64_t stride_bytes[FERRY_TENSOR_NDIM_MAX];
};

/* Is the tensor one that Ferry can take? role and position name a tensor without a slot name:
 * "argument", 2 gives "argument tensors[2]". Raises FERRY_ERR_INVALID_ARGUMENT for a view that
 * ferry_tensor_bytes() refuses, a slot name of no or too many bytes, a NULL data pointer with
 * elements, a negative device index, strides that leave the address space or take sub-byte elements
 * out of C order, a stream on cpu. bytes_out may be NULL. */
ferry_status_t tensor_check(const ferry_tensor_t *tensor, const char *role, size_t position,
                            size_t *bytes_out);

/* Writes "argument 'gradient'", or "argument tensors[2]" for one without a name, into buffer;
 * returns it. */
#define TENSOR_TITLE_BYTES 192
const char *tensor_title(char buffer[TENSOR_TITLE_BYTES], const char *role, const char *slot,
                         size_t position);

/* Both for a view that passed tensor_check(). */
bool tensor_is_contiguous(const DLTensor *view);
void tensor_layout_init(struct tensor_layout *layout, const DLTensor *view);

/* ndim is at most FERRY_TENSOR_NDIM_MAX. */
void tensor_copy_view(struct tensor_view *copy, const DLTensor *view);

/* The first visible element's address when all strides are positive: data + byte_offset. */
static inline void *tensor_data(const DLTensor *view)
{
    return view->data == NULL ? NULL : (char *)view->data + view->byte_offset;
}

/* The device as maps and transports see it: pinned host memory is cpu, managed memory its cuda
 * device, and there is one cpu. */
static inline DLDevice tensor_device(DLDevice device)
{
    switch ((int)device.device_type) {
    case kDLCPU:
    case kDLCUDAHost:
    case kDLROCMHost:
        return (DLDevice){.device_type = kDLCPU, .device_id = 0};
    case kDLCUDAManaged:
        return (DLDevice){.device_type = kDLCUDA, .device_id = device.device_id};
    default:
        return device;
    }
}

static inline bool tensor_device_equal(DLDevice left, DLDevice right)
{
    return left.device_type == right.device_type && left.device_id == right.device_id;
}

#endif
