#include "device/host_memory.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "core/error.h"

#define HUGE_PAGE_BYTES ((size_t)2 << 20)
/* More is asked for by mistake only; allocators that check themselves would end the program. */
#define ADDRESS_SPACE_BYTES ((size_t)1 << 47)
/* Below this a huge page would mostly be waste. */
#define HUGE_FROM_BYTES (2 * HUGE_PAGE_BYTES)

ferry_status_t host_memory_allocate(const char *device, size_t bytes, size_t alignment,
                                    void **memory_out)
{
    if (bytes == 0) {
        *memory_out = NULL;
        return FERRY_OK;
    }
    bool huge = bytes >= HUGE_FROM_BYTES;
    void *memory = NULL;
    if (bytes >= ADDRESS_SPACE_BYTES ||
        posix_memalign(&memory, huge ? HUGE_PAGE_BYTES : alignment, bytes) != 0) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory for %zu bytes on %s", bytes, device);
    }
    if (huge) {
        madvise(memory, bytes, MADV_HUGEPAGE); /* a wish: kernels without it serve small pages */
    }
    *memory_out = memory;
    return FERRY_OK;
}
