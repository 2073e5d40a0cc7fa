/* Packs and unpacks a piece of a strided host view. A piece begins and ends anywhere, also inside
 * an element: the packed form is a row of blocks, of which only the first and the last may be cut.
 */
#include <string.h>

#include "rpc/transfer_internal.h"

/* Where in the view the next block lies: the index in each outer dimension and its address. */
struct walk {
    const struct tensor_layout *layout;
    int64_t index[FERRY_TENSOR_NDIM_MAX];
    char *block;
};

static void walk_init(struct walk *walk, const struct tensor_layout *layout, uint64_t block)
{
    walk->layout = layout;
    walk->block = layout->data;
    for (int i = layout->ndim - 1; i >= 0; i--) {
        uint64_t extent = (uint64_t)layout->extent[i];
        walk->index[i] = (int64_t)(block % extent);
        walk->block += walk->index[i] * layout->stride_bytes[i];
        block /= extent;
    }
}

/* Steps over `blocks` blocks of the innermost dimension, at most as many as are left in it. */
static void walk_step(struct walk *walk, int64_t blocks)
{
    const struct tensor_layout *layout = walk->layout;
    int i = layout->ndim - 1;
    walk->index[i] += blocks;
    walk->block += blocks * layout->stride_bytes[i];
    while (i > 0 && walk->index[i] == layout->extent[i]) {
        walk->block -= walk->index[i] * layout->stride_bytes[i];
        walk->index[i--] = 0;
        walk->index[i]++;
        walk->block += layout->stride_bytes[i];
    }
}

/* Copies that the compiler makes one load and one store of, for the usual sizes of an element. */
static inline void rows_copy(char *target, int64_t target_step, const char *source,
                             int64_t source_step, int64_t count, size_t bytes)
{
    for (int64_t i = 0; i < count; i++) {
        memcpy(target + i * target_step, source + i * source_step, bytes);
    }
}

static void blocks_copy(char *target, int64_t target_step, const char *source, int64_t source_step,
                        int64_t count, size_t bytes)
{
    switch (bytes) {
    case 1:
        rows_copy(target, target_step, source, source_step, count, 1);
        return;
    case 2:
        rows_copy(target, target_step, source, source_step, count, 2);
        return;
    case 4:
        rows_copy(target, target_step, source, source_step, count, 4);
        return;
    case 8:
        rows_copy(target, target_step, source, source_step, count, 8);
        return;
    case 16:
        rows_copy(target, target_step, source, source_step, count, 16);
        return;
    default:
        rows_copy(target, target_step, source, source_step, count, bytes);
    }
}

static void copy_one(char *view, char *buffer, size_t bytes, bool to_view)
{
    memcpy(to_view ? view : buffer, to_view ? buffer : view, bytes);
}

static void walk_copy(const struct tensor_layout *layout, uint64_t offset, size_t bytes,
                      char *buffer, bool to_view)
{
    size_t block_bytes = layout->block_bytes;
    if (layout->ndim == 0) {
        copy_one((char *)layout->data + offset, buffer, bytes, to_view);
        return;
    }
    struct walk walk;
    walk_init(&walk, layout, offset / block_bytes);
    size_t skip = (size_t)(offset % block_bytes);
    if (skip > 0) {
        size_t head = block_bytes - skip < bytes ? block_bytes - skip : bytes;
        copy_one(walk.block + skip, buffer, head, to_view);
        buffer += head;
        bytes -= head;
        walk_step(&walk, 1);
    }
    int inner = layout->ndim - 1;
    int64_t step = layout->stride_bytes[inner];
    int64_t whole = (int64_t)(bytes / block_bytes);
    while (whole > 0) {
        int64_t left = layout->extent[inner] - walk.index[inner];
        int64_t run = left < whole ? left : whole;
        if (to_view) {
            blocks_copy(walk.block, step, buffer, (int64_t)block_bytes, run, block_bytes);
        } else {
            blocks_copy(buffer, (int64_t)block_bytes, walk.block, step, run, block_bytes);
        }
        buffer += (size_t)run * block_bytes;
        whole -= run;
        walk_step(&walk, run);
    }
    if (bytes % block_bytes > 0) {
        copy_one(walk.block, buffer, bytes % block_bytes, to_view);
    }
}

void transfer_pack_piece(const struct tensor_layout *layout, uint64_t offset, size_t bytes,
                         void *buffer)
{
    walk_copy(layout, offset, bytes, buffer, false);
}

void transfer_unpack_piece(const struct tensor_layout *layout, uint64_t offset, size_t bytes,
                           const void *buffer)
{
    /* Only read in this direction. */
    walk_copy(layout, offset, bytes, (char *)(uintptr_t)buffer, true);
}
