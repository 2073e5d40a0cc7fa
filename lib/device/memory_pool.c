/* For each device, and for its staging memory, a shelf of unused blocks: a stack per size class, from
 * which a block is taken, and one list in order of use, from whose old end blocks are freed. */
#include "device/memory_pool.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <utlist.h>

#include "core/error.h"
#include "device/registry.h"

#if defined(__SANITIZE_ADDRESS__)
#define POOL_UNDER_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define POOL_UNDER_ASAN 1
#endif
#endif
#ifdef POOL_UNDER_ASAN
#include <sanitizer/asan_interface.h>
#endif

#define SMALL_UNIT 256
#define STAGING_UNIT 4096
/* Four classes a power of two: a block is less than 25 % larger than what is asked for, beyond the
 * smallest sizes. */
#define STEPS 4
#define CLASSES (64 * STEPS)

struct kept_block {
    struct memory_block block;
    struct kept_block *next;                /* in its class, or among the spare ones */
    struct kept_block *prev;                /* in its class */
    struct kept_block *age_next, *age_prev; /* in its shelf, oldest first */
};

struct shelf {
    DLDevice device;
    bool staging;
    const ferry_device_backend_t *backend;
    size_t kept_bytes;
    struct kept_block *oldest;
    struct kept_block *classes[CLASSES];
    struct shelf *next;
};

struct memory_pool {
    pthread_mutex_t lock;
    size_t keep_bytes;
    size_t used_bytes;
    struct shelf *shelves;
    /* As many as there are blocks in use, so that giving one back allocates nothing. */
    struct kept_block *spare;
    void (*forget)(void *context, const struct memory_block *block);
    void *context; /* borrowed */
};

/* The class that holds blocks for this size, and how large they are. */
static unsigned class_of(size_t bytes, size_t unit, size_t *capacity_out)
{
    size_t units = (bytes + unit - 1) / unit;
    if (units <= STEPS) {
        *capacity_out = units * unit;
        return (unsigned)units - 1;
    }
    unsigned power = 63u - (unsigned)__builtin_clzl(units - 1); /* 2^power < units <= 2^(power+1) */
    size_t step = ((size_t)1 << power) / STEPS;
    size_t above = (units - ((size_t)1 << power) + step - 1) / step;
    *capacity_out = (((size_t)1 << power) + above * step) * unit;
    return (power - 1) * STEPS + (unsigned)above - 1;
}

/* A stray access to memory that lies in the pool is an error that the sanitizer can see. */
static void block_hide(const struct shelf *shelf, const struct memory_block *block)
{
#ifdef POOL_UNDER_ASAN
    if (shelf->staging || shelf->backend->host_readable) {
        ASAN_POISON_MEMORY_REGION(block->data, block->capacity);
    }
#else
    (void)shelf;
    (void)block;
#endif
}

static void block_show(const struct shelf *shelf, const struct memory_block *block, size_t bytes)
{
#ifdef POOL_UNDER_ASAN
    if (shelf->staging || shelf->backend->host_readable) {
        ASAN_UNPOISON_MEMORY_REGION(block->data, bytes);
    }
#else
    (void)shelf;
    (void)block;
    (void)bytes;
#endif
}

ferry_status_t memory_pool_create(size_t keep_bytes, struct memory_pool **pool_out)
{
    struct memory_pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory for a memory pool");
    }
    pthread_mutex_init(&pool->lock, NULL);
    pool->keep_bytes = keep_bytes;
    *pool_out = pool;
    return FERRY_OK;
}

void memory_pool_destroy(struct memory_pool *pool)
{
    if (pool == NULL) {
        return;
    }
    assert(pool->used_bytes == 0);
    memory_pool_trim(pool);
    while (pool->spare != NULL) {
        struct kept_block *spare = pool->spare;
        LL_DELETE(pool->spare, spare);
        free(spare);
    }
    while (pool->shelves != NULL) {
        struct shelf *shelf = pool->shelves;
        LL_DELETE(pool->shelves, shelf);
        free(shelf);
    }
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

void memory_pool_on_free(struct memory_pool *pool,
                         void (*forget)(void *context, const struct memory_block *block),
                         void *context)
{
    pool->forget = forget;
    pool->context = context;
}

static struct shelf *shelf_find(struct memory_pool *pool, DLDevice device, bool staging)
{
    for (struct shelf *shelf = pool->shelves; shelf != NULL; shelf = shelf->next) {
        if (shelf->device.device_type == device.device_type &&
            shelf->device.device_id == device.device_id && shelf->staging == staging) {
            return shelf;
        }
    }
    return NULL;
}

static ferry_status_t shelf_add(struct memory_pool *pool, DLDevice device, bool staging,
                                const ferry_device_backend_t *backend, struct shelf **shelf_out)
{
    struct shelf *shelf = calloc(1, sizeof *shelf);
    if (shelf == NULL) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory for a device's list of unused memory");
    }
    shelf->device = device;
    shelf->staging = staging;
    shelf->backend = backend;
    LL_PREPEND(pool->shelves, shelf);
    *shelf_out = shelf;
    return FERRY_OK;
}

static size_t shelf_unit(bool staging)
{
    return staging ? STAGING_UNIT : SMALL_UNIT;
}

/* Under the lock: takes a kept block off its shelf. */
static void shelf_remove(struct shelf *shelf, struct kept_block *kept)
{
    size_t capacity;
    unsigned class = class_of(kept->block.capacity, shelf_unit(shelf->staging), &capacity);
    DL_DELETE(shelf->classes[class], kept);
    DL_DELETE2(shelf->oldest, kept, age_prev, age_next);
    shelf->kept_bytes -= kept->block.capacity;
}

/* Under the lock: moves the oldest blocks, until at most `bytes` are kept, to a list to be freed. */
static void shelf_evict(struct shelf *shelf, size_t bytes, struct kept_block **victims)
{
    while (shelf->kept_bytes > bytes) {
        struct kept_block *kept = shelf->oldest;
        shelf_remove(shelf, kept);
        LL_PREPEND(*victims, kept);
    }
}

static void block_free(struct memory_pool *pool, const struct memory_block *block)
{
    const ferry_device_backend_t *backend = device_backend(block->device.device_type);
    if (block->handle != NULL && pool->forget != NULL) {
        pool->forget(pool->context, block);
    }
    if (block->staging) {
        backend->deallocate_staging(block->device.device_id, block->data);
    } else {
        backend->deallocate(block->device.device_id, block->data);
    }
}

/* Without the lock, since a device may wait for its own work here. */
static size_t victims_free(struct memory_pool *pool, struct kept_block *victims)
{
    size_t freed = 0;
    while (victims != NULL) {
        struct kept_block *kept = victims;
        LL_DELETE(victims, kept);
        struct shelf shelf = {.staging = kept->block.staging,
                              .backend = device_backend(kept->block.device.device_type)};
        block_show(&shelf, &kept->block, kept->block.capacity);
        freed += kept->block.capacity;
        block_free(pool, &kept->block);
        free(kept);
    }
    return freed;
}

static ferry_status_t block_allocate(struct memory_pool *pool, const struct shelf *shelf,
                                     struct memory_block *block)
{
    ferry_status_t (*allocate)(int32_t index, size_t bytes, void **memory_out) =
        shelf->staging ? shelf->backend->allocate_staging : shelf->backend->allocate;
    ferry_status_t status = allocate(block->device.device_id, block->capacity, &block->data);
    if (status == FERRY_ERR_NO_MEMORY && memory_pool_trim(pool) > 0) {
        status = allocate(block->device.device_id, block->capacity, &block->data);
    }
    return status;
}

/* A block that was not in the pool, and the spare entry with which it will come back. */
static ferry_status_t take_fresh(struct memory_pool *pool, const struct shelf *shelf,
                                 struct memory_block *block)
{
    struct kept_block *spare = malloc(sizeof *spare);
    if (spare == NULL) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory to keep track of %zu bytes",
                           block->bytes);
    }
    ferry_status_t status = block_allocate(pool, shelf, block);
    if (status != FERRY_OK) {
        free(spare);
        return status;
    }
    pthread_mutex_lock(&pool->lock);
    LL_PREPEND(pool->spare, spare);
    pool->used_bytes += block->bytes;
    pthread_mutex_unlock(&pool->lock);
    return FERRY_OK;
}

ferry_status_t memory_pool_take(struct memory_pool *pool, DLDevice device, bool staging,
                                size_t bytes, struct memory_block *block_out)
{
    struct memory_block block = {
        .bytes = bytes, .device = device_normal(device), .staging = staging};
    const ferry_device_backend_t *backend;
    ferry_status_t status = device_check(block.device, &backend);
    if (status != FERRY_OK) {
        return status;
    }
    if (bytes == 0) {
        *block_out = block;
        return FERRY_OK;
    }
    if (bytes > PTRDIFF_MAX) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory for %zu bytes on %s", bytes,
                           backend->kind);
    }
    unsigned class = class_of(bytes, shelf_unit(staging), &block.capacity);
    pthread_mutex_lock(&pool->lock);
    struct shelf *shelf = shelf_find(pool, block.device, staging);
    if (shelf == NULL) {
        status = shelf_add(pool, block.device, staging, backend, &shelf);
        if (status != FERRY_OK) {
            pthread_mutex_unlock(&pool->lock);
            return status;
        }
    }
    struct kept_block *kept = shelf->classes[class];
    if (kept != NULL) {
        shelf_remove(shelf, kept);
        block.data = kept->block.data;
        block.handle = kept->block.handle;
        LL_PREPEND(pool->spare, kept);
        pool->used_bytes += bytes;
    }
    pthread_mutex_unlock(&pool->lock);
    if (kept == NULL) {
        status = take_fresh(pool, shelf, &block);
        if (status != FERRY_OK) {
            return status;
        }
        block_hide(shelf, &block);
    }
    block_show(shelf, &block, bytes);
    *block_out = block;
    return FERRY_OK;
}

void memory_pool_give(struct memory_pool *pool, const struct memory_block *block)
{
    if (block->data == NULL) {
        return;
    }
    size_t capacity;
    unsigned class = class_of(block->capacity, shelf_unit(block->staging), &capacity);
    assert(capacity == block->capacity);
    struct kept_block *victims = NULL;
    pthread_mutex_lock(&pool->lock);
    struct shelf *shelf = shelf_find(pool, block->device, block->staging);
    struct kept_block *kept = pool->spare;
    LL_DELETE(pool->spare, kept);
    kept->block = *block;
    pool->used_bytes -= block->bytes;
    block_hide(shelf, block);
    if (capacity > pool->keep_bytes) {
        LL_PREPEND(victims, kept); /* it alone is too much, so that nothing goes for its sake */
    } else {
        DL_PREPEND(shelf->classes[class], kept);
        DL_APPEND2(shelf->oldest, kept, age_prev, age_next);
        shelf->kept_bytes += capacity;
        shelf_evict(shelf, pool->keep_bytes, &victims);
    }
    pthread_mutex_unlock(&pool->lock);
    victims_free(pool, victims);
}

size_t memory_pool_trim(struct memory_pool *pool)
{
    struct kept_block *victims = NULL;
    pthread_mutex_lock(&pool->lock);
    for (struct shelf *shelf = pool->shelves; shelf != NULL; shelf = shelf->next) {
        shelf_evict(shelf, 0, &victims);
    }
    pthread_mutex_unlock(&pool->lock);
    return victims_free(pool, victims);
}

void memory_pool_usage(struct memory_pool *pool, size_t *used_out, size_t *kept_out)
{
    size_t kept = 0;
    pthread_mutex_lock(&pool->lock);
    for (struct shelf *shelf = pool->shelves; shelf != NULL; shelf = shelf->next) {
        kept += shelf->kept_bytes;
    }
    *used_out = pool->used_bytes;
    *kept_out = kept;
    pthread_mutex_unlock(&pool->lock);
}
