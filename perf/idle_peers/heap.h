/* Every allocation of this process, with who asked for it: the program's own malloc() stands before the C library's. */
#ifndef PERF_IDLE_PEERS_HEAP_H
#define PERF_IDLE_PEERS_HEAP_H

#include <stddef.h>

/* Bytes that live on the heap, the allocator's own header of each block included. */
struct heap_use {
    size_t ucx;   /* asked for from inside UCX's libraries */
    size_t other; /* by Ferry, and by what it uses */
    size_t lost;  /* blocks that could not be noted: the figures miss them */
};

/* Makes the notes resident, so that they do not grow into what is measured. */
void heap_prepare(void);
struct heap_use heap_measure(void);

#endif
