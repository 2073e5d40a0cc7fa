/* Memory for received tensors and for staging, kept for reuse: fresh pages cost more than half of
 * the bandwidth at 256 MiB, and freeing device memory synchronises the device. Any thread; holds
 * its own lock, never during a device's slot that may block. */
#ifndef FERRY_DEVICE_MEMORY_POOL_H
#define FERRY_DEVICE_MEMORY_POOL_H

#include <ferry/device_backend.h>

struct memory_pool;

struct memory_block {
    void *data;
    size_t bytes;    /* as asked for */
    size_t capacity; /* as kept */
    DLDevice device;
    bool staging; /* host memory pinned for `device` */
    void *handle; /* a transport's registration, kept with the block; see memory_pool_on_free() */
};

/* keep_bytes: how much unused memory is kept per device, and as much for its staging; the least
 * recently used goes first. */
ferry_status_t memory_pool_create(size_t keep_bytes, struct memory_pool **pool_out);
/* All blocks must be back. NULL is taken. */
void memory_pool_destroy(struct memory_pool *pool);

/* Called without the pool's lock for each block with a handle, just before its memory is freed: what
 * the handle names ends there. Set before the first block is taken. */
void memory_pool_on_free(struct memory_pool *pool,
                         void (*forget)(void *context, const struct memory_block *block),
                         void *context);

/* Memory of at least bytes on the device (or staging for it). bytes 0 gives data NULL.
 * FERRY_ERR_UNKNOWN_DEVICE, FERRY_ERR_NO_MEMORY (after unused blocks were freed once),
 * FERRY_ERR_DEVICE. Where a kept block fits, nothing blocks and nothing is allocated. */
ferry_status_t memory_pool_take(struct memory_pool *pool, DLDevice device, bool staging,
                                size_t bytes, struct memory_block *block_out);
/* Gives back; data NULL is taken. May block where more than keep_bytes is unused. */
void memory_pool_give(struct memory_pool *pool, const struct memory_block *block);
/* Frees what is unused; returns the bytes freed. */
size_t memory_pool_trim(struct memory_pool *pool);
/* Bytes in use (as asked for) and kept (as kept), all devices. */
void memory_pool_usage(struct memory_pool *pool, size_t *used_out, size_t *kept_out);

#endif
