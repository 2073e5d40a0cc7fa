#include "idle_peers/heap.h"

#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define SLOTS (1u << 20)
#define PAGE_BYTES 4096
#define HEADER_BYTES 8 /* of glibc's, before each block */

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *block, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);
void __libc_free(void *block);

struct note {
    void *block; /* NULL: free */
    const void *caller;
};

/* Open addressing; what is taken out is closed up, so that a look-up may end at a free slot. */
static struct {
    pthread_mutex_t mutex;
    size_t count, lost;
    struct note notes[SLOTS];
} heap = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static size_t home_of(const void *block)
{
    return (size_t)(((uintptr_t)block >> 4) * UINT64_C(0x9e3779b97f4a7c15) >> 40) & (SLOTS - 1);
}

static void *note_add(void *block, const void *caller)
{
    if (block == NULL) {
        return NULL;
    }
    pthread_mutex_lock(&heap.mutex);
    if (heap.count > SLOTS / 2) {
        heap.lost++;
    } else {
        size_t at = home_of(block);
        while (heap.notes[at].block != NULL) {
            at = (at + 1) & (SLOTS - 1);
        }
        heap.notes[at] = (struct note){.block = block, .caller = caller};
        heap.count++;
    }
    pthread_mutex_unlock(&heap.mutex);
    return block;
}

/* With the mutex: moves up what a free slot would hide. */
static void notes_close(size_t gap)
{
    for (size_t at = (gap + 1) & (SLOTS - 1); heap.notes[at].block != NULL;
         at = (at + 1) & (SLOTS - 1)) {
        size_t home = home_of(heap.notes[at].block);
        bool stays = gap <= at ? gap < home && home <= at : gap < home || home <= at;
        if (!stays) {
            heap.notes[gap] = heap.notes[at];
            gap = at;
        }
    }
    heap.notes[gap].block = NULL;
}

static void note_remove(const void *block)
{
    pthread_mutex_lock(&heap.mutex);
    size_t at = home_of(block);
    while (heap.notes[at].block != NULL && heap.notes[at].block != block) {
        at = (at + 1) & (SLOTS - 1);
    }
    if (heap.notes[at].block != NULL) { /* else it came from before there were notes */
        notes_close(at);
        heap.count--;
    }
    pthread_mutex_unlock(&heap.mutex);
}

#pragma GCC visibility push(default) /* so that the libraries find these, too */

void *malloc(size_t bytes)
{
    return note_add(__libc_malloc(bytes), __builtin_return_address(0));
}

void *calloc(size_t count, size_t bytes)
{
    return note_add(__libc_calloc(count, bytes), __builtin_return_address(0));
}

void *realloc(void *block, size_t bytes)
{
    if (block != NULL) {
        note_remove(block);
    }
    void *moved = __libc_realloc(block, bytes);
    if (moved == NULL && block != NULL && bytes > 0) {
        note_add(block, __builtin_return_address(0)); /* it is where it was */
    }
    return note_add(moved, __builtin_return_address(0));
}

void *memalign(size_t alignment, size_t bytes)
{
    return note_add(__libc_memalign(alignment, bytes), __builtin_return_address(0));
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    return note_add(__libc_memalign(alignment, bytes), __builtin_return_address(0));
}

int posix_memalign(void **block_out, size_t alignment, size_t bytes)
{
    void *block = note_add(__libc_memalign(alignment, bytes), __builtin_return_address(0));
    if (block == NULL) {
        return ENOMEM;
    }
    *block_out = block;
    return 0;
}

void free(void *block)
{
    if (block != NULL) {
        note_remove(block);
    }
    __libc_free(block);
}

#pragma GCC visibility pop

void heap_prepare(void)
{
    pthread_mutex_lock(&heap.mutex);
    volatile struct note *notes = heap.notes;
    for (size_t i = 0; i < SLOTS; i += PAGE_BYTES / sizeof(*notes)) {
        notes[i].caller = notes[i].caller;
    }
    pthread_mutex_unlock(&heap.mutex);
}

static bool is_ucx(const void *caller)
{
    Dl_info info;
    if (dladdr(caller, &info) == 0 || info.dli_fname == NULL) {
        return false;
    }
    const char *slash = strrchr(info.dli_fname, '/');
    const char *file = slash == NULL ? info.dli_fname : slash + 1;
    return strncmp(file, "libuc", 5) == 0; /* libucp, libuct, libucs, libucm and their modules */
}

struct heap_use heap_measure(void)
{
    struct heap_use use = {.lost = 0};
    pthread_mutex_lock(&heap.mutex);
    for (size_t i = 0; i < SLOTS; i++) {
        const struct note *note = &heap.notes[i];
        if (note->block != NULL) {
            size_t *sum = is_ucx(note->caller) ? &use.ucx : &use.other;
            *sum += malloc_usable_size(note->block) + HEADER_BYTES;
        }
    }
    use.lost = heap.lost;
    pthread_mutex_unlock(&heap.mutex);
    return use;
}
