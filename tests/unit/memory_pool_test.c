/* Memory kept for reuse: what comes back, how much is kept, what goes first. */
#include <criterion/criterion.h>
#include <ferry/error.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "device/memory_pool.h"
#include "device/registry.h"

#define CPU ((DLDevice){.device_type = kDLCPU, .device_id = 0})
#define SIM(index) ((DLDevice){.device_type = (DLDeviceType)FERRY_DEVICE_SIM, .device_id = (index)})

static void sim_on(void)
{
    setenv("FERRY_SIM_DEVICES", "2", 1);
}

TestSuite(memory_pool, .init = sim_on);

static struct memory_pool *pool_create(size_t keep_bytes)
{
    struct memory_pool *pool;
    cr_assert_eq(memory_pool_create(keep_bytes, &pool), FERRY_OK);
    return pool;
}

static struct memory_block block_take(struct memory_pool *pool, DLDevice device, bool staging,
                                      size_t bytes)
{
    struct memory_block block;
    cr_assert_eq(memory_pool_take(pool, device, staging, bytes, &block), FERRY_OK, "%s",
                 ferry_last_error()->text);
    return block;
}

static size_t pool_used(struct memory_pool *pool)
{
    size_t used, kept;
    memory_pool_usage(pool, &used, &kept);
    return used;
}

static size_t pool_kept(struct memory_pool *pool)
{
    size_t used, kept;
    memory_pool_usage(pool, &used, &kept);
    return kept;
}

Test(memory_pool, gives_the_same_memory_again)
{
    struct memory_pool *pool = pool_create(1 << 20);
    struct memory_block first = block_take(pool, CPU, false, 5000);
    cr_assert_eq((uintptr_t)first.data % 256, 0);
    memset(first.data, 1, first.bytes);
    memory_pool_give(pool, &first);
    struct memory_block again = block_take(pool, CPU, false, 5100);
    cr_assert_eq(again.data, first.data);
    cr_assert_eq(again.bytes, 5100);
    struct memory_block other = block_take(pool, CPU, false, 5100);
    cr_assert_neq(other.data, first.data);
    memory_pool_give(pool, &again);
    memory_pool_give(pool, &other);
    memory_pool_destroy(pool);
}

Test(memory_pool, wastes_at_most_a_quarter)
{
    struct memory_pool *pool = pool_create(0);
    for (size_t bytes = 1; bytes < 3 << 20; bytes += 1 + bytes / 7) {
        struct memory_block block = block_take(pool, CPU, false, bytes);
        size_t rounded = (bytes + 255) / 256 * 256;
        cr_assert_geq(block.capacity, bytes);
        cr_assert_leq(block.capacity, rounded + rounded / 4, "%zu for %zu", block.capacity, bytes);
        cr_assert_eq(block.capacity % 256, 0);
        memory_pool_give(pool, &block);
    }
    memory_pool_destroy(pool);
}

Test(memory_pool, keeps_devices_and_staging_apart)
{
    struct memory_pool *pool = pool_create(1 << 20);
    DLDevice devices[] = {CPU, SIM(0), SIM(1)};
    struct memory_block blocks[6];
    for (size_t i = 0; i < 6; i++) {
        blocks[i] = block_take(pool, devices[i / 2], i % 2 == 1, 8192);
        cr_assert_eq(blocks[i].device.device_type, devices[i / 2].device_type);
        cr_assert_eq(blocks[i].staging, i % 2 == 1);
    }
    for (size_t i = 0; i < 6; i++) {
        memory_pool_give(pool, &blocks[i]);
    }
    cr_assert_eq(pool_kept(pool), 6 * 8192);
    for (size_t i = 6; i-- > 0;) {
        struct memory_block block = block_take(pool, devices[i / 2], i % 2 == 1, 8000);
        cr_assert_eq(block.data, blocks[i].data);
        blocks[i] = block;
    }
    for (size_t i = 0; i < 6; i++) {
        memory_pool_give(pool, &blocks[i]);
    }
    memory_pool_destroy(pool);
}

Test(memory_pool, staging_is_page_aligned_and_writable)
{
    struct memory_pool *pool = pool_create(1 << 20);
    struct memory_block block = block_take(pool, SIM(0), true, 64);
    cr_assert_eq((uintptr_t)block.data % 4096, 0);
    memset(block.data, 7, block.bytes);
    memory_pool_give(pool, &block);
    memory_pool_destroy(pool);
}

Test(memory_pool, frees_the_least_recently_used_first)
{
    struct memory_pool *pool = pool_create(16384 + 8192);
    struct memory_block oldest = block_take(pool, CPU, false, 8192);
    struct memory_block middle = block_take(pool, CPU, false, 16384);
    struct memory_block newest = block_take(pool, CPU, false, 4096);
    memory_pool_give(pool, &oldest);
    memory_pool_give(pool, &middle);
    cr_assert_eq(pool_kept(pool), 16384 + 8192);
    memory_pool_give(pool, &newest);
    cr_assert_eq(pool_kept(pool), 16384 + 4096, "the oldest went, not %zu", pool_kept(pool));
    struct memory_block again = block_take(pool, CPU, false, 16384);
    cr_assert_eq(again.data, middle.data);
    memory_pool_give(pool, &again);
    memory_pool_destroy(pool);
}

Test(memory_pool, one_block_over_the_bound_drives_nothing_out)
{
    struct memory_pool *pool = pool_create(8192);
    struct memory_block small = block_take(pool, CPU, false, 4096);
    struct memory_block large = block_take(pool, CPU, false, 1 << 20);
    memory_pool_give(pool, &small);
    memory_pool_give(pool, &large);
    cr_assert_eq(pool_kept(pool), 4096);
    memory_pool_destroy(pool);
}

Test(memory_pool, counts_what_is_used_and_trims_what_is_kept)
{
    struct memory_pool *pool = pool_create(1 << 20);
    struct memory_block used = block_take(pool, CPU, false, 1000);
    struct memory_block kept = block_take(pool, SIM(1), false, 9000);
    cr_assert_eq(pool_used(pool), 10000);
    memory_pool_give(pool, &kept);
    cr_assert_eq(pool_used(pool), 1000);
    cr_assert_eq(pool_kept(pool), kept.capacity);
    cr_assert_eq(memory_pool_trim(pool), kept.capacity);
    cr_assert_eq(pool_kept(pool), 0);
    cr_assert_eq(memory_pool_trim(pool), 0);
    memory_pool_give(pool, &used);
    memory_pool_destroy(pool);
}

struct forgotten {
    int times;
    void *handle;
};

static void forget(void *context, const struct memory_block *block)
{
    struct forgotten *forgotten = context;
    forgotten->times++;
    forgotten->handle = block->handle;
}

Test(memory_pool, keeps_the_handle_and_ends_it_before_the_memory)
{
    struct forgotten forgotten = {0};
    struct memory_pool *pool = pool_create(1 << 20);
    memory_pool_on_free(pool, forget, &forgotten);
    struct memory_block block = block_take(pool, CPU, false, 4096);
    struct memory_block plain = block_take(pool, CPU, false, 4096);
    cr_assert_null(block.handle);
    block.handle = &forgotten;
    memory_pool_give(pool, &plain);
    memory_pool_give(pool, &block);
    block = block_take(pool, CPU, false, 4096);
    cr_assert_eq(block.handle, &forgotten);
    memory_pool_give(pool, &block);
    cr_assert_eq(forgotten.times, 0);
    memory_pool_destroy(pool);
    cr_assert_eq(forgotten.times, 1);
    cr_assert_eq(forgotten.handle, &forgotten);
}

Test(memory_pool, no_bytes_need_no_memory)
{
    struct memory_pool *pool = pool_create(1 << 20);
    struct memory_block block = block_take(pool, SIM(0), false, 0);
    cr_assert_null(block.data);
    memory_pool_give(pool, &block);
    memory_pool_destroy(pool);
    memory_pool_destroy(NULL);
}

Test(memory_pool, says_what_it_cannot_give)
{
    struct memory_pool *pool = pool_create(1 << 20);
    struct memory_block block;
    cr_assert_eq(memory_pool_take(pool, SIM(7), false, 0, &block), FERRY_ERR_UNKNOWN_DEVICE);
    cr_assert_not_null(strstr(ferry_last_error()->text, "sim:7"));
    cr_assert_eq(memory_pool_take(pool, CPU, false, SIZE_MAX, &block), FERRY_ERR_NO_MEMORY);
    cr_assert_eq(memory_pool_take(pool, SIM(0), false, (size_t)1 << 60, &block),
                 FERRY_ERR_NO_MEMORY);
    cr_assert_eq(pool_used(pool), 0);
    memory_pool_destroy(pool);
}

/* A device that is full with unused blocks has room once they are freed. */
Test(memory_pool, frees_unused_blocks_when_a_device_is_full)
{
    const size_t half = (size_t)20 << 30;
    struct memory_pool *pool = pool_create((size_t)1 << 40);
    struct memory_block first = block_take(pool, SIM(0), false, half);
    struct memory_block second = block_take(pool, SIM(0), false, half);
    struct memory_block third;
    cr_assert_eq(memory_pool_take(pool, SIM(0), false, half + half / 2, &third),
                 FERRY_ERR_NO_MEMORY);
    memory_pool_give(pool, &first);
    memory_pool_give(pool, &second);
    third = block_take(pool, SIM(0), false, half + half / 2);
    cr_assert_eq(pool_kept(pool), 0);
    memory_pool_give(pool, &third);
    memory_pool_destroy(pool);
}
