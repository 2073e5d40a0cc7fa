#include "support/seeded.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define GUARD_BYTES 256
#define POISON 0xa5
#define COLUMNS 256
#define ELEMENT_BYTES 4

static const DLDevice CPU = {kDLCPU, 0};

uint64_t seeded_fresh(void)
{
    uint64_t seed = 0;
    while (seed == 0) {
        if (getrandom(&seed, sizeof(seed), 0) != sizeof(seed)) {
            abort();
        }
    }
    return seed;
}

/* splitmix64: every word depends on the seed and its index alone. */
static uint64_t seeded_word(uint64_t seed, size_t index)
{
    uint64_t word = seed + (index + 1) * UINT64_C(0x9e3779b97f4a7c15);
    word = (word ^ (word >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    word = (word ^ (word >> 27)) * UINT64_C(0x94d049bb133111eb);
    return word ^ (word >> 31);
}

static void seeded_data(uint64_t seed, unsigned char *data, size_t bytes)
{
    size_t words = bytes / 8;
    for (size_t i = 0; i < words; i++) {
        uint64_t word = seeded_word(seed, i);
        memcpy(data + i * 8, &word, 8);
    }
    uint64_t last = seeded_word(seed, words);
    memcpy(data + words * 8, &last, bytes % 8);
}

static int64_t bytes_differ(const unsigned char *left, const unsigned char *right, size_t bytes)
{
    int64_t wrong = 0;
    if (memcmp(left, right, bytes) != 0) {
        for (size_t i = 0; i < bytes; i++) {
            wrong += left[i] != right[i];
        }
    }
    return wrong;
}

ferry_status_t seeded_buffer_create(DLDevice device, enum seeded_layout layout, size_t bytes,
                                    struct seeded_buffer *buffer_out)
{
    struct seeded_buffer buffer = {.device = device, .layout = layout, .bytes = bytes};
    size_t span = bytes;
    if (layout == SEEDED_STRIDED) {
        int64_t rows = (int64_t)(bytes / (COLUMNS * ELEMENT_BYTES));
        buffer.shape[0] = rows;
        buffer.shape[1] = COLUMNS;
        buffer.strides[0] = 2 * COLUMNS + 3;
        buffer.strides[1] = 2;
        span = (size_t)(rows * buffer.strides[0]) * ELEMENT_BYTES;
    } else {
        buffer.shape[0] = (int64_t)bytes;
    }
    buffer.memory_bytes = span + 2 * GUARD_BYTES;
    ferry_status_t status = ferry_device_allocate(device, buffer.memory_bytes, &buffer.memory);
    if (status == FERRY_OK) {
        status = seeded_buffer_fill(&buffer, 0);
    }
    if (status != FERRY_OK) {
        seeded_buffer_destroy(&buffer);
        return status;
    }
    *buffer_out = buffer;
    return FERRY_OK;
}

void seeded_buffer_destroy(struct seeded_buffer *buffer)
{
    ferry_device_free(buffer->device, buffer->memory);
    buffer->memory = NULL;
}

ferry_tensor_t seeded_buffer_tensor(struct seeded_buffer *buffer, const char *name)
{
    bool strided = buffer->layout == SEEDED_STRIDED;
    return (ferry_tensor_t){.name = name,
                            .view = {.data = buffer->memory,
                                     .device = buffer->device,
                                     .ndim = strided ? 2 : 1,
                                     .dtype = {kDLUInt, strided ? 32 : 8, 1},
                                     .shape = buffer->shape,
                                     .strides = strided ? buffer->strides : NULL,
                                     .byte_offset = GUARD_BYTES}};
}

/* What the buffer's memory should hold: an image of it on the host, the caller's to free. */
static unsigned char *buffer_image(const struct seeded_buffer *buffer, uint64_t seed)
{
    unsigned char *image = malloc(buffer->memory_bytes);
    if (image == NULL) {
        return NULL;
    }
    memset(image, POISON, buffer->memory_bytes);
    if (seed == 0) {
        return image;
    }
    if (buffer->layout == SEEDED_PLAIN) {
        seeded_data(seed, image + GUARD_BYTES, buffer->bytes);
        return image;
    }
    unsigned char *data = malloc(buffer->bytes);
    if (data == NULL) {
        free(image);
        return NULL;
    }
    seeded_data(seed, data, buffer->bytes);
    for (int64_t row = 0, element = 0; row < buffer->shape[0]; row++) {
        for (int64_t column = 0; column < buffer->shape[1]; column++, element++) {
            int64_t place = row * buffer->strides[0] + column * buffer->strides[1];
            memcpy(image + GUARD_BYTES + place * ELEMENT_BYTES, data + element * ELEMENT_BYTES,
                   ELEMENT_BYTES);
        }
    }
    free(data);
    return image;
}

ferry_status_t seeded_buffer_fill(struct seeded_buffer *buffer, uint64_t seed)
{
    unsigned char *image = buffer_image(buffer, seed);
    if (image == NULL) {
        return FERRY_ERR_NO_MEMORY;
    }
    ferry_status_t status =
        ferry_device_copy(buffer->device, buffer->memory, CPU, image, buffer->memory_bytes);
    free(image);
    return status;
}

/* Compares memory on any device with what the host has. */
static ferry_status_t memory_check(DLDevice device, const void *memory,
                                   const unsigned char *expected, size_t bytes, int64_t *wrong_out)
{
    unsigned char *copy = malloc(bytes);
    if (copy == NULL) {
        return FERRY_ERR_NO_MEMORY;
    }
    ferry_status_t status = ferry_device_copy(CPU, copy, device, memory, bytes);
    if (status == FERRY_OK) {
        *wrong_out = bytes_differ(copy, expected, bytes);
    }
    free(copy);
    return status;
}

ferry_status_t seeded_buffer_check(const struct seeded_buffer *buffer, uint64_t seed,
                                   int64_t *wrong_out)
{
    unsigned char *image = buffer_image(buffer, seed);
    if (image == NULL) {
        return FERRY_ERR_NO_MEMORY;
    }
    ferry_status_t status =
        memory_check(buffer->device, buffer->memory, image, buffer->memory_bytes, wrong_out);
    free(image);
    return status;
}

ferry_status_t seeded_view_check(const DLTensor *view, uint64_t seed, int64_t *wrong_out)
{
    size_t bytes;
    ferry_status_t status = ferry_tensor_bytes(view, &bytes);
    unsigned char *expected = status == FERRY_OK ? malloc(bytes) : NULL;
    if (expected == NULL) {
        return status == FERRY_OK ? FERRY_ERR_NO_MEMORY : status;
    }
    seeded_data(seed, expected, bytes);
    status = memory_check(view->device, (const char *)view->data + view->byte_offset, expected,
                          bytes, wrong_out);
    free(expected);
    return status;
}

static ferry_status_t poison_allocate(void *context, DLDevice device, size_t bytes,
                                      void **memory_out)
{
    (void)context;
    void *memory = NULL;
    ferry_status_t status = ferry_device_allocate(device, bytes, &memory);
    unsigned char *poison = status == FERRY_OK ? malloc(bytes) : NULL;
    if (poison != NULL) {
        memset(poison, POISON, bytes);
        status = ferry_device_copy(device, memory, CPU, poison, bytes);
    } else if (status == FERRY_OK) {
        status = FERRY_ERR_NO_MEMORY;
    }
    free(poison);
    if (status != FERRY_OK) {
        ferry_device_free(device, memory);
        return status;
    }
    *memory_out = memory;
    return FERRY_OK;
}

static void poison_deallocate(void *context, DLDevice device, void *memory)
{
    (void)context;
    ferry_device_free(device, memory);
}

const ferry_allocator_t seeded_poison_allocator = {.allocate = poison_allocate,
                                                   .deallocate = poison_deallocate};
