/* Copies, by the engine that serves them soonest. */
#include "device/cuda/cuda_module.h"

/* From this size on the driver itself gives a copy from the host to a copy engine. */
#define ENGINE_COPIES_FROM_BYTES 32768
/* Rows narrower than this are packed faster by a kernel. */
#define ROW_BYTES_MIN 256
/* What a device takes for the distance of two rows. */
#define PITCH_BYTES_MAX INT32_MAX

static cudaError_t copy_two_rows(char *target, const char *source, size_t bytes,
                                 cudaStream_t stream)
{
    return cudaMemcpy2DAsync(target, bytes / 2, source, bytes / 2, bytes / 2, 2,
                             cudaMemcpyHostToDevice, stream);
}

/* A small one-dimensional copy from the host is done by the compute engine. Where processes share
 * the device it waits about 137 us for a turn there; the same bytes as two rows go to a copy engine
 * at once. An odd byte is carried by two rows of one byte that repeat the byte before it; one byte
 * alone has no such neighbour. */
static cudaError_t copy_from_host(int32_t index, char *target, const char *source, size_t bytes,
                                  cudaStream_t stream)
{
    if (bytes >= ENGINE_COPIES_FROM_BYTES || bytes == 1 || !cuda_shared_turns(index)) {
        return cudaMemcpyAsync(target, source, bytes, cudaMemcpyHostToDevice, stream);
    }
    cudaError_t error = copy_two_rows(target, source, bytes - bytes % 2, stream);
    if (error == cudaSuccess && bytes % 2 != 0) {
        error = copy_two_rows(target + bytes - 2, source + bytes - 2, 2, stream);
    }
    return error;
}

ferry_status_t cuda_copy(int32_t index, uintptr_t stream, ferry_copy_kind_t kind, void *target,
                         const void *source, size_t bytes)
{
    if (bytes == 0) {
        return FERRY_OK;
    }
    ferry_status_t status = cuda_enter(index);
    if (status != FERRY_OK) {
        return status;
    }
    cudaStream_t queue = (cudaStream_t)stream;
    switch (kind) {
    case FERRY_COPY_FROM_HOST:
        status = cuda_check(copy_from_host(index, target, source, bytes, queue), index,
                            "copy from the host");
        break;
    case FERRY_COPY_TO_HOST:
        status = cuda_check(cudaMemcpyAsync(target, source, bytes, cudaMemcpyDeviceToHost, queue),
                            index, "copy to the host");
        break;
    default:
        status = cuda_check(cudaMemcpyAsync(target, source, bytes, cudaMemcpyDeviceToDevice, queue),
                            index, "copy on the device");
        break;
    }
    cuda_leave();
    return status;
}

static bool rows_fit(const ferry_layout_t *layout)
{
    int32_t last = layout->ndim - 1;
    return layout->block_bytes >= ROW_BYTES_MIN &&
           layout->stride_bytes[last] >= (int64_t)layout->block_bytes &&
           layout->stride_bytes[last] <= PITCH_BYTES_MAX;
}

/* Are the outer of two dimensions whole numbers of rows apart? */
static bool planes_fit(const ferry_layout_t *layout)
{
    int64_t row = layout->stride_bytes[1];
    return layout->stride_bytes[0] % row == 0 && layout->stride_bytes[0] / row >= layout->extent[1];
}

static cudaError_t copy_planes(const ferry_layout_t *layout, void *packed, bool gather,
                               cudaStream_t stream)
{
    size_t row = (size_t)layout->stride_bytes[1];
    size_t rows = (size_t)layout->extent[1];
    struct cudaPitchedPtr strided = {
        .ptr = layout->data,
        .pitch = row,
        .xsize = layout->block_bytes,
        .ysize = (size_t)layout->stride_bytes[0] / row,
    };
    struct cudaPitchedPtr dense = {
        .ptr = packed, .pitch = layout->block_bytes, .xsize = layout->block_bytes, .ysize = rows};
    struct cudaMemcpy3DParms copy = {
        .srcPtr = gather ? strided : dense,
        .dstPtr = gather ? dense : strided,
        .extent = {.width = layout->block_bytes,
                   .height = rows,
                   .depth = (size_t)layout->extent[0]},
        .kind = cudaMemcpyDeviceToDevice,
    };
    return cudaMemcpy3DAsync(&copy, stream);
}

static cudaError_t copy_rows(const ferry_layout_t *layout, void *packed, bool gather,
                             cudaStream_t stream)
{
    size_t row = (size_t)layout->stride_bytes[0], block = layout->block_bytes;
    return cudaMemcpy2DAsync(gather ? packed : layout->data, gather ? block : row,
                             gather ? layout->data : packed, gather ? row : block, block,
                             (size_t)layout->extent[0], cudaMemcpyDeviceToDevice, stream);
}

static cudaError_t pack(const ferry_layout_t *layout, void *packed, bool gather,
                        cudaStream_t stream)
{
    if (layout->ndim == 0) {
        return cudaMemcpyAsync(gather ? packed : layout->data, gather ? layout->data : packed,
                               layout->bytes, cudaMemcpyDeviceToDevice, stream);
    }
    if (layout->ndim == 1 && rows_fit(layout)) {
        return copy_rows(layout, packed, gather, stream);
    }
    if (layout->ndim == 2 && rows_fit(layout) && planes_fit(layout)) {
        return copy_planes(layout, packed, gather, stream);
    }
    return cuda_pack(layout, packed, gather, stream);
}

static ferry_status_t pack_view(int32_t index, uintptr_t stream, const DLTensor *view,
                                const void *packed, bool gather)
{
    ferry_layout_t layout;
    ferry_status_t status = cuda_host->layout(view, &layout);
    if (status != FERRY_OK || layout.bytes == 0) {
        return status;
    }
    status = cuda_enter(index);
    if (status != FERRY_OK) {
        return status;
    }
    status = cuda_check(pack(&layout, (void *)(uintptr_t)packed, gather, (cudaStream_t)stream),
                        index, gather ? "packing a view" : "unpacking a view");
    cuda_leave();
    return status;
}

ferry_status_t cuda_gather(int32_t index, uintptr_t stream, void *packed, const DLTensor *view)
{
    return pack_view(index, stream, view, packed, true);
}

ferry_status_t cuda_scatter(int32_t index, uintptr_t stream, const DLTensor *view,
                            const void *packed)
{
    return pack_view(index, stream, view, packed, false);
}
