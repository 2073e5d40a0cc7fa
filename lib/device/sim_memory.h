/* A simulated device's memory: one file without a name, mapped twice. The user's mapping can
 * never be touched; the other one, for the device's own copies and kernels, can be where there is
 * a block. The caller serialises all calls. */
#ifndef FERRY_DEVICE_SIM_MEMORY_H
#define FERRY_DEVICE_SIM_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

#include <ferry/status.h>

/* As much as the address space allows (under valgrind and ulimit that is less), within these. */
#define SIM_MEMORY_BYTES_MAX ((size_t)64 << 30)
#define SIM_MEMORY_BYTES_MIN ((size_t)1 << 30)

struct sim_block {
    size_t offset;
    size_t bytes;  /* as asked for */
    unsigned pins; /* queued operations that use it */
    bool freed;    /* by the user; kept for work that was queued before */
    uint64_t freed_at;
};

struct sim_memory {
    size_t bytes; /* of each mapping */
    char *user;
    char *own;
    struct sim_block **blocks; /* owned, by offset */
    size_t count, room;
    size_t cursor; /* where the next search for a gap begins, so that addresses come back late */
};

/* FERRY_ERR_SYSTEM. */
ferry_status_t sim_memory_init(struct sim_memory *memory, int32_t index);
void sim_memory_finish(struct sim_memory *memory); /* no block is left */

/* FERRY_ERR_NO_MEMORY. */
ferry_status_t sim_memory_add(struct sim_memory *memory, int32_t index, size_t bytes,
                              struct sim_block **block_out);
void sim_memory_remove(struct sim_memory *memory, struct sim_block *block);

/* Is this an address of the user's mapping, of a block or not? */
bool sim_memory_covers(const struct sim_memory *memory, const void *pointer);
/* The block that holds the address, or NULL. */
struct sim_block *sim_memory_find(const struct sim_memory *memory, const void *pointer);

static inline void *sim_memory_user(const struct sim_memory *memory, const struct sim_block *block)
{
    return memory->user + block->offset;
}

/* The address in the device's own mapping. */
static inline char *sim_memory_own(const struct sim_memory *memory, const void *pointer)
{
    return memory->own + ((const char *)pointer - memory->user);
}

#endif
