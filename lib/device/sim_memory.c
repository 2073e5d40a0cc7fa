#include "device/sim_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/error.h"

#define PAGE_BYTES ((size_t)4096)
/* A page between blocks, so that a kernel that runs over the end of one faults. */
#define GUARD_BYTES PAGE_BYTES
/* Fresh memory holds this and not zeros, as far as that costs little. */
#define FRESH_BYTE 0xdb
#define FRESH_BYTES ((size_t)64 << 10)

/* Both mappings, or neither: false. */
static bool mappings_make(struct sim_memory *memory, int fd, size_t bytes)
{
    char *user = mmap(NULL, bytes, PROT_NONE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (user == MAP_FAILED) {
        return false;
    }
    char *own = mmap(NULL, bytes, PROT_NONE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (own == MAP_FAILED) {
        munmap(user, bytes);
        return false;
    }
    madvise(own, bytes, MADV_DONTDUMP);
    *memory = (struct sim_memory){.bytes = bytes, .user = user, .own = own};
    return true;
}

ferry_status_t sim_memory_init(struct sim_memory *memory, int32_t index)
{
    ferry_status_t status = FERRY_OK;
    size_t bytes = SIM_MEMORY_BYTES_MAX;
    int fd = memfd_create("ferry-sim", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0) {
        status = error_raise_errno(errno, "no memory file for sim:%d", (int)index);
        goto close_file;
    }
    while (!mappings_make(memory, fd, bytes)) {
        if (bytes == SIM_MEMORY_BYTES_MIN) {
            status = error_raise_errno(errno, "no 2 x %zu GiB of address space for sim:%d",
                                       bytes >> 30, (int)index);
            goto close_file;
        }
        bytes /= 2;
    }

close_file:
    if (fd >= 0) {
        close(fd); /* the mappings keep the file */
    }
    return status;
}

void sim_memory_finish(struct sim_memory *memory)
{
    munmap(memory->user, memory->bytes);
    munmap(memory->own, memory->bytes);
    free(memory->blocks);
}

/* Bytes of address space that a block takes. */
static size_t block_span(size_t bytes)
{
    return (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES + GUARD_BYTES;
}

/* The first place in `blocks` whose block lies at offset or behind it. */
static size_t place_of(const struct sim_memory *memory, size_t offset)
{
    size_t low = 0, high = memory->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (memory->blocks[middle]->offset < offset) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* A gap of `span` bytes at or behind `from`, before `end`; writes where it is and its place. */
static bool gap_find(const struct sim_memory *memory, size_t from, size_t end, size_t span,
                     size_t *offset_out, size_t *place_out)
{
    size_t place = place_of(memory, from);
    size_t offset = from;
    if (place > 0) {
        const struct sim_block *before = memory->blocks[place - 1];
        size_t behind = before->offset + block_span(before->bytes);
        offset = behind > offset ? behind : offset;
    }
    while (offset < end) {
        size_t next = place < memory->count ? memory->blocks[place]->offset : memory->bytes;
        if (next >= offset && next - offset >= span) {
            *offset_out = offset;
            *place_out = place;
            return true;
        }
        if (place == memory->count) {
            return false;
        }
        offset = next + block_span(memory->blocks[place]->bytes);
        place++;
    }
    return false;
}

static bool blocks_reserve(struct sim_memory *memory)
{
    if (memory->count < memory->room) {
        return true;
    }
    size_t room = memory->room == 0 ? 64 : 2 * memory->room;
    struct sim_block **blocks = realloc(memory->blocks, room * sizeof blocks[0]);
    if (blocks == NULL) {
        return false;
    }
    memory->blocks = blocks;
    memory->room = room;
    return true;
}

/* Opens the pages and makes sure that nothing of an earlier block is in them. */
static bool pages_open(struct sim_memory *memory, size_t offset, size_t bytes)
{
    size_t span = block_span(bytes) - GUARD_BYTES;
    if (mprotect(memory->own + offset, span, PROT_READ | PROT_WRITE) != 0) {
        return false;
    }
    memset(memory->own + offset, FRESH_BYTE, bytes < FRESH_BYTES ? bytes : FRESH_BYTES);
    return true;
}

ferry_status_t sim_memory_add(struct sim_memory *memory, int32_t index, size_t bytes,
                              struct sim_block **block_out)
{
    size_t offset, place;
    struct sim_block *block = NULL;
    if (bytes >= memory->bytes ||
        (!gap_find(memory, memory->cursor, memory->bytes, block_span(bytes), &offset, &place) &&
         !gap_find(memory, 0, memory->cursor, block_span(bytes), &offset, &place))) {
        goto full;
    }
    block = calloc(1, sizeof *block);
    if (block == NULL || !blocks_reserve(memory) || !pages_open(memory, offset, bytes)) {
        goto full;
    }
    block->offset = offset;
    block->bytes = bytes;
    memmove(memory->blocks + place + 1, memory->blocks + place,
            (memory->count - place) * sizeof memory->blocks[0]);
    memory->blocks[place] = block;
    memory->count++;
    memory->cursor = offset + block_span(bytes);
    *block_out = block;
    return FERRY_OK;

full:
    free(block);
    return error_raise(FERRY_ERR_NO_MEMORY, "no memory for %zu bytes on sim:%d", bytes, (int)index);
}

void sim_memory_remove(struct sim_memory *memory, struct sim_block *block)
{
    size_t place = place_of(memory, block->offset);
    size_t span = block_span(block->bytes) - GUARD_BYTES;
    /* The pages go back to the system through the file, so both mappings lose them. */
    madvise(memory->own + block->offset, span, MADV_REMOVE);
    mprotect(memory->own + block->offset, span, PROT_NONE);
    memory->count--;
    memmove(memory->blocks + place, memory->blocks + place + 1,
            (memory->count - place) * sizeof memory->blocks[0]);
    free(block);
}

bool sim_memory_covers(const struct sim_memory *memory, const void *pointer)
{
    uintptr_t address = (uintptr_t)pointer;
    uintptr_t start = (uintptr_t)memory->user;
    return address >= start && address - start < memory->bytes;
}

struct sim_block *sim_memory_find(const struct sim_memory *memory, const void *pointer)
{
    if (!sim_memory_covers(memory, pointer)) {
        return NULL;
    }
    size_t offset = (size_t)((uintptr_t)pointer - (uintptr_t)memory->user);
    size_t place = place_of(memory, offset + 1);
    if (place == 0) {
        return NULL;
    }
    struct sim_block *block = memory->blocks[place - 1];
    return offset - block->offset < block->bytes ? block : NULL;
}
