/* Data that two processes make from the same number, in tensors of any layout on any device: each
 * can check every byte without having it from the other. */
#ifndef TEST_SUPPORT_SEEDED_H
#define TEST_SUPPORT_SEEDED_H

#include <ferry/ferry.h>

enum seeded_layout {
    SEEDED_PLAIN,  /* bytes in a row */
    SEEDED_STRIDED /* a matrix of uint32 with gaps between its elements and between its rows */
};

/* A tensor over memory of its own, poisoned before, behind and between its elements. */
struct seeded_buffer {
    DLDevice device;
    enum seeded_layout layout;
    size_t bytes; /* of the visible elements */
    void *memory;
    size_t memory_bytes;
    int64_t shape[2], strides[2];
};

/* Never 0, another one every time. */
uint64_t seeded_fresh(void);

/* bytes: for SEEDED_STRIDED a multiple of 1 KiB. The memory is poisoned. */
ferry_status_t seeded_buffer_create(DLDevice device, enum seeded_layout layout, size_t bytes,
                                    struct seeded_buffer *buffer_out);
void seeded_buffer_destroy(struct seeded_buffer *buffer);

/* The view points into the buffer, which must stay where it is. */
ferry_tensor_t seeded_buffer_tensor(struct seeded_buffer *buffer, const char *name);

/* Poison everywhere, and with a seed other than 0 its data in the elements. */
ferry_status_t seeded_buffer_fill(struct seeded_buffer *buffer, uint64_t seed);

/* How many bytes are neither the seed's data nor, outside the elements, poison. */
ferry_status_t seeded_buffer_check(const struct seeded_buffer *buffer, uint64_t seed,
                                   int64_t *wrong_out);
/* How many bytes of a tensor in C order differ from the seed's data. */
ferry_status_t seeded_view_check(const DLTensor *view, uint64_t seed, int64_t *wrong_out);

/* An allocator that gives poisoned memory, for a method's options. */
extern const ferry_allocator_t seeded_poison_allocator;

#endif
