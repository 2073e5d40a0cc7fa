#include "device/layout.h"

#include <string.h>

#include "core/error.h"

static bool view_is_packed(const DLTensor *view)
{
    int64_t packed = 1;
    for (int32_t i = view->ndim - 1; i >= 0 && view->strides != NULL; i--) {
        if (view->shape[i] != 1 && view->strides[i] != packed) {
            return false;
        }
        packed *= view->shape[i];
    }
    return true;
}

/* One more dimension on the inside of those there are; it becomes part of the innermost where the two
 * are walked with one stride. */
static void layout_add(ferry_layout_t *layout, int64_t extent, int64_t stride_bytes)
{
    if (extent == 1) {
        return;
    }
    int32_t last = layout->ndim - 1;
    if (last >= 0 && layout->stride_bytes[last] == extent * stride_bytes) {
        layout->extent[last] *= extent;
        layout->stride_bytes[last] = stride_bytes;
        return;
    }
    layout->extent[layout->ndim] = extent;
    layout->stride_bytes[layout->ndim] = stride_bytes;
    layout->ndim++;
}

ferry_status_t layout_init(const DLTensor *view, ferry_layout_t *layout_out)
{
    if (view->ndim < 0 || view->ndim > FERRY_LAYOUT_NDIM_MAX) {
        return error_raise(FERRY_ERR_UNSUPPORTED,
                           "a view has %d dimensions, at most %d can be packed", (int)view->ndim,
                           FERRY_LAYOUT_NDIM_MAX);
    }
    ferry_layout_t layout = {.data = view->data == NULL ? NULL
                                                        : (char *)view->data + view->byte_offset};
    size_t element_bits = (size_t)view->dtype.bits * view->dtype.lanes;
    size_t count = 1;
    for (int32_t i = 0; i < view->ndim; i++) {
        count *= (size_t)view->shape[i];
    }
    if (count == 0 || view_is_packed(view)) {
        layout.bytes = (count * element_bits + 7) / 8;
        layout.block_bytes = layout.bytes;
        *layout_out = layout;
        return FERRY_OK;
    }
    if (element_bits % 8 != 0) {
        return error_raise(FERRY_ERR_UNSUPPORTED,
                           "elements of %zu bits can be packed only where they lie in C order",
                           element_bits);
    }
    layout.block_bytes = element_bits / 8;
    layout.bytes = count * layout.block_bytes;
    for (int32_t i = 0; i < view->ndim; i++) {
        layout_add(&layout, view->shape[i], view->strides[i] * (int64_t)layout.block_bytes);
    }
    int32_t last = layout.ndim - 1;
    if (last >= 0 && layout.stride_bytes[last] == (int64_t)layout.block_bytes) {
        layout.block_bytes *= (size_t)layout.extent[last];
        layout.ndim--;
    }
    *layout_out = layout;
    return FERRY_OK;
}

void layout_reach(const ferry_layout_t *layout, int64_t *low_out, int64_t *high_out)
{
    int64_t low = 0;
    int64_t high = (int64_t)layout->block_bytes;
    for (int32_t i = 0; i < layout->ndim; i++) {
        int64_t reach = layout->stride_bytes[i] * (layout->extent[i] - 1);
        *(reach < 0 ? &low : &high) += reach;
    }
    *low_out = low;
    *high_out = high;
}

/* One case a size, so that each is a loop around loads and stores of that size. */
static void run_copy(char *target, int64_t target_step, const char *source, int64_t source_step,
                     int64_t count, size_t block_bytes)
{
    switch (block_bytes) {
    case 1:
        for (int64_t i = 0; i < count; i++) {
            target[i * target_step] = source[i * source_step];
        }
        return;
    case 2:
        for (int64_t i = 0; i < count; i++) {
            memcpy(target + i * target_step, source + i * source_step, 2);
        }
        return;
    case 4:
        for (int64_t i = 0; i < count; i++) {
            memcpy(target + i * target_step, source + i * source_step, 4);
        }
        return;
    case 8:
        for (int64_t i = 0; i < count; i++) {
            memcpy(target + i * target_step, source + i * source_step, 8);
        }
        return;
    case 16:
        for (int64_t i = 0; i < count; i++) {
            memcpy(target + i * target_step, source + i * source_step, 16);
        }
        return;
    default:
        for (int64_t i = 0; i < count; i++) {
            memcpy(target + i * target_step, source + i * source_step, block_bytes);
        }
    }
}

/* Steps the outer dimensions, all but the innermost, and moves *offset along; false at the end. */
static bool outer_advance(const ferry_layout_t *layout, int64_t at[FERRY_LAYOUT_NDIM_MAX],
                          int64_t *offset)
{
    for (int32_t i = layout->ndim - 2; i >= 0; i--) {
        *offset += layout->stride_bytes[i];
        if (++at[i] < layout->extent[i]) {
            return true;
        }
        *offset -= layout->stride_bytes[i] * layout->extent[i];
        at[i] = 0;
    }
    return false;
}

static void layout_copy(const ferry_layout_t *layout, char *data, char *packed, bool gather)
{
    if (layout->bytes == 0) {
        return;
    }
    int32_t last = layout->ndim - 1;
    int64_t count = last >= 0 ? layout->extent[last] : 1;
    int64_t stride = last >= 0 ? layout->stride_bytes[last] : 0;
    int64_t block = (int64_t)layout->block_bytes;
    int64_t at[FERRY_LAYOUT_NDIM_MAX] = {0};
    int64_t offset = 0;
    do {
        if (gather) {
            run_copy(packed, block, data + offset, stride, count, layout->block_bytes);
        } else {
            run_copy(data + offset, stride, packed, block, count, layout->block_bytes);
        }
        packed += count * block;
    } while (outer_advance(layout, at, &offset));
}

void layout_gather(const ferry_layout_t *layout, const void *data, void *packed)
{
    layout_copy(layout, (char *)(uintptr_t)data, packed, true);
}

void layout_scatter(const ferry_layout_t *layout, void *data, const void *packed)
{
    layout_copy(layout, data, (char *)(uintptr_t)packed, false);
}
