/* Host memory for tensors and staging. */
#ifndef FERRY_DEVICE_HOST_MEMORY_H
#define FERRY_DEVICE_HOST_MEMORY_H

#include <stddef.h>

#include <ferry/status.h>

/* Aligned to `alignment` (a power of two) at least; huge pages are asked for where they pay. NULL for
 * 0 bytes. Freed with free(). FERRY_ERR_NO_MEMORY names `device`. */
ferry_status_t host_memory_allocate(const char *device, size_t bytes, size_t alignment,
                                    void **memory_out);

#endif
