#include "support/device_contract.h"

#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <ferry/error.h>

#define PATIENCE_S 30
#define LARGE_BYTES ((size_t)3 << 20)

struct contract {
    const ferry_device_backend_t *backend;
    int32_t index;
    uintptr_t stream; /* 0 on a kind that the host can read */
    char *failure;
    size_t failure_bytes;
    bool failed;
};

/* A stream that stands still until its flag is set, and another one that does not. All that they need
 * is made before: allocating may wait for the device. */
struct gate {
    uintptr_t stream, beside;
    uint32_t *flag; /* two words, the second one to copy to */
    char *memory;
};

static bool holds(struct contract *contract, bool condition, const char *format, ...)
    FERRY_PRINTF(3, 4);

/* Remembers the first thing that did not hold. */
static bool holds(struct contract *contract, bool condition, const char *format, ...)
{
    if (!condition && !contract->failed) {
        contract->failed = true;
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(contract->failure, contract->failure_bytes, format, arguments);
        va_end(arguments);
    }
    return condition;
}

static bool works(struct contract *contract, ferry_status_t status, const char *what)
{
    return holds(contract, status == FERRY_OK, "%s: %s: %s", what, ferry_status_name(status),
                 ferry_last_error()->text);
}

static void must(bool condition, const char *what)
{
    if (!condition) {
        fprintf(stderr, "device_contract: %s: %s\n", what, ferry_last_error()->text);
        abort();
    }
}

/* ---- tools ---- */

static unsigned char *host_allocate(size_t bytes)
{
    unsigned char *memory = malloc(bytes + 1);
    must(memory != NULL, "malloc");
    return memory;
}

static void fill(unsigned char *bytes, size_t count, uint32_t seed)
{
    uint32_t value = seed * 2654435761u + 1;
    for (size_t i = 0; i < count; i++) {
        value = value * 1664525u + 1013904223u;
        bytes[i] = (unsigned char)(value >> 24);
    }
}

static char *device_allocate(struct contract *contract, size_t bytes)
{
    void *memory;
    must(contract->backend->allocate(contract->index, bytes, &memory) == FERRY_OK, "allocate");
    return memory;
}

static void device_free(struct contract *contract, void *memory)
{
    contract->backend->deallocate(contract->index, memory);
}

static unsigned char *staging_allocate(struct contract *contract, size_t bytes)
{
    void *memory;
    must(contract->backend->allocate_staging(contract->index, bytes, &memory) == FERRY_OK,
         "allocate_staging");
    return memory;
}

static void staging_free(struct contract *contract, void *memory)
{
    contract->backend->deallocate_staging(contract->index, memory);
}

static void settle(struct contract *contract)
{
    works(contract, contract->backend->stream_synchronize(contract->index, contract->stream),
          "stream_synchronize");
}

static void queue_copy(struct contract *contract, uintptr_t stream, ferry_copy_kind_t kind,
                       void *target, const void *source, size_t bytes)
{
    works(contract, contract->backend->copy(contract->index, stream, kind, target, source, bytes),
          "copy");
}

static void device_write(struct contract *contract, char *target, const unsigned char *source,
                         size_t bytes)
{
    queue_copy(contract, contract->stream, FERRY_COPY_FROM_HOST, target, source, bytes);
    settle(contract);
}

static void device_read(struct contract *contract, unsigned char *target, const char *source,
                        size_t bytes)
{
    queue_copy(contract, contract->stream, FERRY_COPY_TO_HOST, target, source, bytes);
    settle(contract);
}

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static bool event_passes(struct contract *contract, ferry_event_t *event)
{
    double deadline = now_s() + PATIENCE_S;
    ferry_status_t status;
    while ((status = contract->backend->event_query(event)) == FERRY_PENDING) {
        if (!holds(contract, now_s() < deadline, "an event does not pass in %d s", PATIENCE_S)) {
            return false;
        }
        sched_yield();
    }
    return works(contract, status, "event_query");
}

static ferry_event_t *event_create(struct contract *contract)
{
    ferry_event_t *event;
    must(contract->backend->event_create(contract->index, &event) == FERRY_OK, "event_create");
    return event;
}

static void gate_init(struct contract *contract, struct gate *gate)
{
    must(contract->backend->stream_create(contract->index, &gate->stream) == FERRY_OK,
         "stream_create");
    must(contract->backend->stream_create(contract->index, &gate->beside) == FERRY_OK,
         "stream_create");
    gate->memory = device_allocate(contract, 1);
    gate->flag = (uint32_t *)(void *)staging_allocate(contract, 2 * sizeof *gate->flag);
    *gate->flag = 0;
    must(contract->backend->stream_wait_flag(contract->index, gate->stream, gate->flag) == FERRY_OK,
         "stream_wait_flag");
}

static void gate_open(struct gate *gate)
{
    __atomic_store_n(gate->flag, 1, __ATOMIC_RELEASE);
}

static void gate_finish(struct contract *contract, struct gate *gate)
{
    gate_open(gate);
    works(contract, contract->backend->stream_synchronize(contract->index, gate->stream),
          "stream_synchronize");
    contract->backend->stream_destroy(contract->index, gate->stream);
    contract->backend->stream_destroy(contract->index, gate->beside);
    staging_free(contract, gate->flag);
    device_free(contract, gate->memory);
}

/* Other work comes and goes on the device: what has not happened then does not happen by itself. */
static void pass_time(struct contract *contract, const struct gate *gate)
{
    for (int i = 0; i < 20; i++) {
        queue_copy(contract, gate->beside, FERRY_COPY_TO_HOST, gate->flag + 1, gate->memory, 1);
        works(contract, contract->backend->stream_synchronize(contract->index, gate->beside),
              "stream_synchronize");
    }
}

/* ---- checks: what there is ---- */

static void check_slots(struct contract *contract)
{
    const ferry_device_backend_t *backend = contract->backend;
    holds(contract, backend->abi == FERRY_DEVICE_BACKEND_ABI, "abi is %u", (unsigned)backend->abi);
    holds(contract, backend->struct_bytes >= sizeof *backend, "struct_bytes is %zu",
          backend->struct_bytes);
    holds(contract,
          backend->count != NULL && backend->describe != NULL && backend->allocate != NULL &&
              backend->deallocate != NULL && backend->allocate_staging != NULL &&
              backend->deallocate_staging != NULL && backend->stream_create != NULL &&
              backend->stream_destroy != NULL && backend->stream_synchronize != NULL &&
              backend->event_create != NULL && backend->event_destroy != NULL &&
              backend->event_record != NULL && backend->event_query != NULL &&
              backend->stream_wait != NULL && backend->copy != NULL && backend->gather != NULL &&
              backend->scatter != NULL && backend->stream_wait_flag != NULL,
          "a slot is empty");
}

static void check_description(struct contract *contract)
{
    static const uint8_t unknown[16];
    ferry_device_info_t info, other;
    int32_t count = contract->backend->count();
    holds(contract, contract->index < count, "index %d of %d", (int)contract->index, (int)count);
    if (!works(contract, contract->backend->describe(contract->index, &info), "describe")) {
        return;
    }
    holds(contract, info.name[0] != '\0', "the name is empty");
    holds(contract, info.memory_bytes > 0, "it has no memory");
    for (int32_t i = 0; i < count; i++) {
        if (i == contract->index || memcmp(info.uuid, unknown, sizeof unknown) == 0) {
            continue;
        }
        works(contract, contract->backend->describe(i, &other), "describe");
        holds(contract, memcmp(info.uuid, other.uuid, sizeof info.uuid) != 0,
              "devices %d and %d have one uuid", (int)contract->index, (int)i);
    }
}

static void check_memory(struct contract *contract)
{
    static const size_t sizes[] = {1, 255, 256, 257, 4096, LARGE_BYTES, LARGE_BYTES * 3};
    void *blocks[sizeof sizes / sizeof sizes[0]];
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        blocks[i] = device_allocate(contract, sizes[i]);
        holds(contract, blocks[i] != NULL, "%zu bytes are at NULL", sizes[i]);
        holds(contract, (uintptr_t)blocks[i] % 256 == 0, "%zu bytes are at %p", sizes[i],
              blocks[i]);
    }
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        for (size_t k = 0; k < i; k++) {
            uintptr_t one = (uintptr_t)blocks[i], two = (uintptr_t)blocks[k];
            holds(contract, one + sizes[i] <= two || two + sizes[k] <= one, "blocks overlap");
        }
    }
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        device_free(contract, blocks[i]);
    }
}

static void check_no_bytes(struct contract *contract)
{
    void *memory = contract, *staging = contract;
    works(contract, contract->backend->allocate(contract->index, 0, &memory), "allocate 0 bytes");
    works(contract, contract->backend->allocate_staging(contract->index, 0, &staging),
          "allocate_staging 0 bytes");
    queue_copy(contract, contract->stream, FERRY_COPY_TO_HOST, NULL, memory, 0);
    queue_copy(contract, contract->stream, FERRY_COPY_FROM_HOST, memory, NULL, 0);
    settle(contract);
    device_free(contract, memory);
    staging_free(contract, staging);
    device_free(contract, NULL);
    staging_free(contract, NULL);
}

static void check_full(struct contract *contract)
{
    void *memory = contract;
    ferry_status_t status =
        contract->backend->allocate(contract->index, (size_t)PTRDIFF_MAX - 4095, &memory);
    holds(contract, status == FERRY_ERR_NO_MEMORY, "9 EiB: %s", ferry_status_name(status));
    holds(contract, memory == contract, "an output was written on failure");
    holds(contract, strstr(ferry_last_error()->text, contract->backend->kind) != NULL,
          "the error does not name the device: %s", ferry_last_error()->text);
    device_free(contract, device_allocate(contract, 4096)); /* and it goes on */
}

static void check_staging(struct contract *contract)
{
    unsigned char *staging = staging_allocate(contract, LARGE_BYTES);
    holds(contract, (uintptr_t)staging % 4096 == 0, "staging memory is at %p", (void *)staging);
    fill(staging, LARGE_BYTES, 1);
    char *memory = device_allocate(contract, LARGE_BYTES);
    unsigned char *back = staging_allocate(contract, LARGE_BYTES);
    queue_copy(contract, contract->stream, FERRY_COPY_FROM_HOST, memory, staging, LARGE_BYTES);
    queue_copy(contract, contract->stream, FERRY_COPY_TO_HOST, back, memory, LARGE_BYTES);
    settle(contract);
    holds(contract, memcmp(staging, back, LARGE_BYTES) == 0, "other bytes came back");
    staging_free(contract, staging);
    staging_free(contract, back);
    device_free(contract, memory);
}

/* ---- checks: copies ---- */

/* From the host to an odd place, on to another one, and back; what lies around stays as it was. */
static void expect_copies(struct contract *contract, size_t bytes, size_t offset)
{
    size_t room = bytes + offset + 64;
    unsigned char *staging = staging_allocate(contract, 3 * room);
    unsigned char *sent = staging, *before = staging + room, *after = staging + 2 * room;
    char *first = device_allocate(contract, room), *second = device_allocate(contract, room);
    fill(sent, bytes, (uint32_t)(bytes + offset));
    fill(before, room, 77);
    device_write(contract, first, before, room);
    device_write(contract, second, before, room);
    queue_copy(contract, contract->stream, FERRY_COPY_FROM_HOST, first + offset, sent, bytes);
    queue_copy(contract, contract->stream, FERRY_COPY_ON_DEVICE, second + offset, first + offset,
               bytes);
    queue_copy(contract, contract->stream, FERRY_COPY_TO_HOST, after, second + offset, bytes);
    settle(contract);
    holds(contract, memcmp(sent, after, bytes) == 0, "%zu bytes at +%zu came back changed", bytes,
          offset);
    memcpy(before + offset, sent, bytes);
    device_read(contract, after, first, room);
    holds(contract, memcmp(before, after, room) == 0, "%zu bytes at +%zu changed what is beside",
          bytes, offset);
    device_read(contract, after, second, room);
    holds(contract, memcmp(before, after, room) == 0,
          "%zu bytes at +%zu changed what is beside, on the device", bytes, offset);
    staging_free(contract, staging);
    device_free(contract, first);
    device_free(contract, second);
}

static void check_copies(struct contract *contract)
{
    static const size_t sizes[] = {
        1, 2, 3, 4, 5, 7, 8, 63, 64, 4095, 4096, 4097, 24575, 32767, 32768, 32769, LARGE_BYTES + 1};
    static const size_t offsets[] = {0, 1, 256};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        for (size_t k = 0; k < sizeof offsets / sizeof offsets[0]; k++) {
            expect_copies(contract, sizes[i], offsets[k]);
        }
    }
}

/* Any host memory will do, only perhaps not as fast. */
static void check_pageable(struct contract *contract)
{
    static const size_t sizes[] = {1, 5, 4096, 70000, LARGE_BYTES};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        unsigned char *sent = host_allocate(sizes[i]), *back = host_allocate(sizes[i]);
        char *memory = device_allocate(contract, sizes[i]);
        fill(sent, sizes[i], (uint32_t)i);
        memset(back, 0, sizes[i]);
        device_write(contract, memory, sent, sizes[i]);
        device_read(contract, back, memory, sizes[i]);
        holds(contract, memcmp(sent, back, sizes[i]) == 0, "%zu bytes came back changed", sizes[i]);
        device_free(contract, memory);
        free(sent);
        free(back);
    }
}

static void check_between_devices(struct contract *contract)
{
    int32_t count = contract->backend->count();
    unsigned char *sent = staging_allocate(contract, 8192), *back = sent + 4096;
    fill(sent, 4096, 5);
    for (int32_t other = 0; other < count; other++) {
        void *there;
        char *here = device_allocate(contract, 4096), *again = device_allocate(contract, 4096);
        must(contract->backend->allocate(other, 4096, &there) == FERRY_OK, "allocate");
        memset(back, 0, 4096);
        queue_copy(contract, contract->stream, FERRY_COPY_FROM_HOST, here, sent, 4096);
        queue_copy(contract, contract->stream, FERRY_COPY_ON_DEVICE, there, here, 4096);
        queue_copy(contract, contract->stream, FERRY_COPY_ON_DEVICE, again, there, 4096);
        queue_copy(contract, contract->stream, FERRY_COPY_TO_HOST, back, again, 4096);
        settle(contract);
        holds(contract, memcmp(sent, back, 4096) == 0, "bytes changed on their way over device %d",
              (int)other);
        contract->backend->deallocate(other, there);
        device_free(contract, here);
        device_free(contract, again);
    }
    staging_free(contract, sent);
}

static void check_default_streams(struct contract *contract)
{
    static const uintptr_t streams[] = {0, 1, 2};
    if (contract->backend->host_readable) {
        return;
    }
    for (size_t i = 0; i < sizeof streams / sizeof streams[0]; i++) {
        unsigned char *sent = staging_allocate(contract, 2000), *back = sent + 1000;
        char *memory = device_allocate(contract, 1000);
        fill(sent, 1000, (uint32_t)i);
        queue_copy(contract, streams[i], FERRY_COPY_FROM_HOST, memory, sent, 1000);
        queue_copy(contract, streams[i], FERRY_COPY_TO_HOST, back, memory, 1000);
        works(contract, contract->backend->stream_synchronize(contract->index, streams[i]),
              "stream_synchronize");
        holds(contract, memcmp(sent, back, 1000) == 0, "stream %zu changed bytes",
              (size_t)streams[i]);
        contract->backend->stream_destroy(contract->index, streams[i]); /* is none of ours */
        device_free(contract, memory);
        staging_free(contract, sent);
    }
}

/* ---- checks: strided views ---- */

struct view_case {
    const char *name;
    int32_t ndim;
    int64_t shape[17];
    int64_t strides[17]; /* in elements */
    bool packed;         /* strides are NULL */
    bool repeats;        /* elements lie on each other: gather only */
};

static const struct view_case views[] = {
    {.name = "a scalar", .ndim = 0, .packed = true},
    {.name = "a row", .ndim = 1, .shape = {37}, .packed = true},
    {.name = "C order", .ndim = 3, .shape = {3, 5, 7}, .packed = true},
    {.name = "C order by strides", .ndim = 3, .shape = {3, 5, 7}, .strides = {35, 7, 1}},
    {.name = "no elements", .ndim = 2, .shape = {3, 0}, .strides = {9, 4}},
    {.name = "every third", .ndim = 1, .shape = {61}, .strides = {3}},
    {.name = "backwards", .ndim = 1, .shape = {50}, .strides = {-1}},
    {.name = "backwards, every second", .ndim = 1, .shape = {50}, .strides = {-2}},
    {.name = "a column", .ndim = 2, .shape = {40, 1}, .strides = {9, 1}},
    {.name = "transposed", .ndim = 2, .shape = {17, 33}, .strides = {1, 17}},
    {.name = "rows with gaps", .ndim = 2, .shape = {19, 64}, .strides = {80, 1}},
    {.name = "wide rows with gaps", .ndim = 2, .shape = {5, 3000}, .strides = {3003, 1}},
    {.name = "rows from the last", .ndim = 2, .shape = {19, 64}, .strides = {-80, 1}},
    {.name = "a box", .ndim = 3, .shape = {4, 5, 6}, .strides = {210, 14, 2}},
    {.name = "a box of rows", .ndim = 3, .shape = {4, 5, 32}, .strides = {400, 40, 1}},
    {.name = "axes changed", .ndim = 4, .shape = {3, 4, 5, 6}, .strides = {1, 90, 3, 15}},
    {.name = "one backwards", .ndim = 3, .shape = {3, 4, 5}, .strides = {20, -5, 1}},
    {.name = "a repeated row", .ndim = 2, .shape = {6, 9}, .strides = {0, 1}, .repeats = true},
    {.name = "a repeated element", .ndim = 2, .shape = {6, 9}, .strides = {1, 0}, .repeats = true},
    {.name = "all one element", .ndim = 2, .shape = {6, 9}, .strides = {0, 0}, .repeats = true},
    {.name = "windows", .ndim = 2, .shape = {20, 8}, .strides = {1, 1}, .repeats = true},
    {.name = "sixteen axes",
     .ndim = 16,
     .shape = {2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 2},
     .strides = {1, 7, 2, 7, 4, 7, 8, 7, 16, 7, 32, 7, 64, 7, 128, 256}},
    {.name = "many", .ndim = 3, .shape = {60, 70, 50}, .strides = {4200, 1, 71}},
};

/* How far from data a view reaches, in elements. */
static void view_reach(const struct view_case *view, int64_t *low_out, int64_t *high_out)
{
    int64_t low = 0, high = 0, packed = 1;
    for (int32_t i = view->ndim - 1; i >= 0; i--) {
        int64_t reach = (view->packed ? packed : view->strides[i]) * (view->shape[i] - 1);
        packed *= view->shape[i];
        *(reach < 0 ? &low : &high) += reach;
    }
    *low_out = low;
    *high_out = high;
}

static size_t view_count(const struct view_case *view)
{
    size_t count = 1;
    for (int32_t i = 0; i < view->ndim; i++) {
        count *= (size_t)view->shape[i];
    }
    return count;
}

/* Element by element, so that it has nothing in common with what it checks. */
static void view_copy(const struct view_case *view, unsigned char *data, unsigned char *packed,
                      size_t element_bytes, bool gather)
{
    size_t count = view_count(view);
    for (size_t number = 0; number < count; number++) {
        size_t rest = number;
        int64_t place = 0, row = 1;
        for (int32_t i = view->ndim - 1; i >= 0; i--) {
            int64_t at = (int64_t)(rest % (size_t)view->shape[i]);
            rest /= (size_t)view->shape[i];
            place += at * (view->packed ? row : view->strides[i]);
            row *= view->shape[i];
        }
        unsigned char *element = data + place * (int64_t)element_bytes;
        unsigned char *slot = packed + number * element_bytes;
        memcpy(gather ? slot : element, gather ? element : slot, element_bytes);
    }
}

static DLTensor view_tensor(struct contract *contract, const struct view_case *view, void *data,
                            size_t byte_offset, size_t element_bytes)
{
    return (DLTensor){
        .data = data,
        .device = {.device_type = contract->backend->type, .device_id = contract->index},
        .ndim = view->ndim,
        .dtype = {.code = kDLUInt, .bits = 8, .lanes = (uint16_t)element_bytes},
        .shape = (int64_t *)(uintptr_t)view->shape,
        .strides = view->packed ? NULL : (int64_t *)(uintptr_t)view->strides,
        .byte_offset = byte_offset,
    };
}

/* The memory around a view on the device, the same on the host, and its packed elements on both. */
struct view_bench {
    unsigned char *host, *expected, *packed, *back;
    char *memory, *packed_memory;
    size_t bytes, packed_bytes, origin;
};

static void view_bench_init(struct contract *contract, struct view_bench *bench,
                            const struct view_case *view, size_t element_bytes, size_t margin)
{
    int64_t low, high;
    view_reach(view, &low, &high);
    bench->origin = margin + (size_t)-low * element_bytes;
    bench->bytes = (size_t)(high - low + 1) * element_bytes + 2 * margin;
    bench->packed_bytes = view_count(view) * element_bytes;
    bench->host = host_allocate(bench->bytes);
    bench->expected = host_allocate(bench->bytes);
    bench->packed = host_allocate(bench->packed_bytes);
    bench->back = host_allocate(bench->bytes + bench->packed_bytes);
    bench->memory = device_allocate(contract, bench->bytes);
    bench->packed_memory = device_allocate(contract, bench->packed_bytes + 16);
    fill(bench->host, bench->bytes, (uint32_t)element_bytes);
    device_write(contract, bench->memory, bench->host, bench->bytes);
}

static void view_bench_finish(struct contract *contract, struct view_bench *bench)
{
    device_free(contract, bench->memory);
    device_free(contract, bench->packed_memory);
    free(bench->host);
    free(bench->expected);
    free(bench->packed);
    free(bench->back);
}

static void expect_view(struct contract *contract, const struct view_case *view,
                        size_t element_bytes, size_t margin)
{
    struct view_bench bench;
    view_bench_init(contract, &bench, view, element_bytes, margin);
    DLTensor tensor = view_tensor(contract, view, bench.memory, bench.origin, element_bytes);
    works(
        contract,
        contract->backend->gather(contract->index, contract->stream, bench.packed_memory, &tensor),
        "gather");
    view_copy(view, bench.host + bench.origin, bench.packed, element_bytes, true);
    device_read(contract, bench.back, bench.packed_memory, bench.packed_bytes);
    holds(contract, memcmp(bench.packed, bench.back, bench.packed_bytes) == 0,
          "gather of %s, elements of %zu bytes at +%zu, is wrong", view->name, element_bytes,
          bench.origin);
    if (!view->repeats) {
        fill(bench.packed, bench.packed_bytes, 99);
        device_write(contract, bench.packed_memory, bench.packed, bench.packed_bytes);
        memcpy(bench.expected, bench.host, bench.bytes);
        view_copy(view, bench.expected + bench.origin, bench.packed, element_bytes, false);
        works(contract,
              contract->backend->scatter(contract->index, contract->stream, &tensor,
                                         bench.packed_memory),
              "scatter");
        device_read(contract, bench.back, bench.memory, bench.bytes);
        holds(contract, memcmp(bench.expected, bench.back, bench.bytes) == 0,
              "scatter of %s, elements of %zu bytes at +%zu, is wrong", view->name, element_bytes,
              bench.origin);
    }
    view_bench_finish(contract, &bench);
}

static void check_views(struct contract *contract)
{
    static const size_t sizes[] = {1, 2, 3, 4, 5, 8, 12, 16, 32, 48};
    static const size_t margins[] = {64, 65, 68};
    for (size_t i = 0; i < sizeof views / sizeof views[0] && !contract->failed; i++) {
        for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
            expect_view(contract, &views[i], sizes[k], margins[(i + k) % 3]);
        }
    }
}

/* Elements smaller than a byte, and views of too many dimensions. */
static void check_unsupported_views(struct contract *contract)
{
    char *memory = device_allocate(contract, 4096), *packed = device_allocate(contract, 4096);
    unsigned char sent[64], back[64];
    int64_t shape[17] = {2, 10}, strides[17] = {16, 1};
    DLTensor view = {
        .data = memory,
        .device = {.device_type = contract->backend->type, .device_id = contract->index},
        .ndim = 2,
        .dtype = {.code = kDLUInt, .bits = 4, .lanes = 1},
        .shape = shape,
        .strides = strides,
    };
    ferry_status_t status =
        contract->backend->gather(contract->index, contract->stream, packed, &view);
    holds(contract, status == FERRY_ERR_UNSUPPORTED, "strided half bytes: %s",
          ferry_status_name(status));
    view.strides = NULL;
    fill(sent, sizeof sent, 3);
    device_write(contract, memory, sent, sizeof sent);
    works(contract, contract->backend->gather(contract->index, contract->stream, packed, &view),
          "gather of packed half bytes");
    device_read(contract, back, packed, 10);
    holds(contract, memcmp(sent, back, 10) == 0, "packed half bytes changed");
    for (int i = 0; i < 17; i++) {
        shape[i] = 1;
    }
    view.ndim = 17;
    view.dtype.bits = 8;
    status = contract->backend->scatter(contract->index, contract->stream, &view, packed);
    holds(contract, status == FERRY_ERR_UNSUPPORTED, "17 dimensions: %s",
          ferry_status_name(status));
    device_free(contract, memory);
    device_free(contract, packed);
}

/* ---- checks: order ---- */

static void check_host_has_no_streams(struct contract *contract)
{
    uintptr_t stream = 5;
    uint32_t flag = 1;
    if (!contract->backend->host_readable) {
        return;
    }
    ferry_status_t status = contract->backend->stream_create(contract->index, &stream);
    holds(contract, status == FERRY_ERR_UNSUPPORTED && stream == 5, "stream_create: %s",
          ferry_status_name(status));
    status = contract->backend->stream_wait_flag(contract->index, 0, &flag);
    holds(contract, status == FERRY_ERR_UNSUPPORTED, "stream_wait_flag: %s",
          ferry_status_name(status));
    status = contract->backend->copy(contract->index, 7, FERRY_COPY_ON_DEVICE, &flag, &stream, 1);
    holds(contract, status == FERRY_ERR_UNSUPPORTED, "a copy on a stream: %s",
          ferry_status_name(status));
    ferry_event_t *event = event_create(contract);
    works(contract, contract->backend->event_record(event, 0), "event_record");
    works(contract, contract->backend->event_query(event), "event_query");
    works(contract, contract->backend->stream_wait(contract->index, 0, event), "stream_wait");
    contract->backend->event_destroy(event);
}

static void check_events(struct contract *contract)
{
    if (contract->backend->host_readable) {
        return;
    }
    struct gate gate;
    ferry_event_t *event = event_create(contract), *early = event_create(contract);
    works(contract, contract->backend->event_query(event), "an event that was never recorded");
    gate_init(contract, &gate);
    works(contract, contract->backend->event_record(event, gate.stream), "event_record");
    pass_time(contract, &gate);
    holds(contract, contract->backend->event_query(event) == FERRY_PENDING,
          "an event passed before its stream");
    works(contract, contract->backend->event_record(early, contract->stream), "event_record");
    event_passes(contract, early); /* another stream is in nobody's way */
    holds(contract, contract->backend->event_query(event) == FERRY_PENDING,
          "an event passed with another stream");
    works(contract, contract->backend->event_record(early, gate.stream), "event_record again");
    holds(contract, contract->backend->event_query(early) == FERRY_PENDING,
          "an event recorded again has passed");
    gate_open(&gate);
    event_passes(contract, event);
    event_passes(contract, early);
    gate_finish(contract, &gate);
    contract->backend->event_destroy(event);
    contract->backend->event_destroy(early);
    contract->backend->event_destroy(NULL);
}

static void check_event_destroyed_early(struct contract *contract)
{
    if (contract->backend->host_readable) {
        return;
    }
    struct gate gate;
    ferry_event_t *event = event_create(contract);
    gate_init(contract, &gate);
    works(contract, contract->backend->event_record(event, gate.stream), "event_record");
    works(contract, contract->backend->stream_wait(contract->index, contract->stream, event),
          "stream_wait");
    contract->backend->event_destroy(event);
    gate_open(&gate);
    settle(contract);
    gate_finish(contract, &gate);
}

/* A stream that waits for another one's event does nothing before it, and goes on after it. */
static void check_stream_wait(struct contract *contract)
{
    if (contract->backend->host_readable) {
        return;
    }
    struct gate gate;
    unsigned char *staging = staging_allocate(contract, 300);
    unsigned char *old = staging, *fresh = staging + 100, *seen = staging + 200;
    char *memory = device_allocate(contract, 100);
    ferry_event_t *written = event_create(contract), *read = event_create(contract);
    memset(old, 1, 100);
    memset(fresh, 2, 100);
    device_write(contract, memory, old, 100);
    gate_init(contract, &gate);
    queue_copy(contract, gate.stream, FERRY_COPY_FROM_HOST, memory, fresh, 100);
    works(contract, contract->backend->event_record(written, gate.stream), "event_record");
    works(contract, contract->backend->stream_wait(contract->index, contract->stream, written),
          "stream_wait");
    queue_copy(contract, contract->stream, FERRY_COPY_TO_HOST, seen, memory, 100);
    works(contract, contract->backend->event_record(read, contract->stream), "event_record");
    pass_time(contract, &gate);
    holds(contract, contract->backend->event_query(read) == FERRY_PENDING, "a stream did not wait");
    gate_open(&gate);
    event_passes(contract, read);
    holds(contract, memcmp(seen, fresh, 100) == 0, "a stream read what was there before the event");
    gate_finish(contract, &gate);
    contract->backend->event_destroy(written);
    contract->backend->event_destroy(read);
    device_free(contract, memory);
    staging_free(contract, staging);
}

static void check_wait_for_flag(struct contract *contract)
{
    if (contract->backend->host_readable) {
        return;
    }
    uint32_t *flag = (uint32_t *)(void *)staging_allocate(contract, sizeof *flag);
    static const uint32_t values[] = {1, 0x80000000u, UINT32_MAX};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        *flag = values[i]; /* set before: no wait */
        works(contract,
              contract->backend->stream_wait_flag(contract->index, contract->stream, flag),
              "stream_wait_flag");
        settle(contract);
    }
    staging_free(contract, flag);
}

/* Queueing does not block, however much is queued behind a stream that stands still. */
static void check_queue_depth(struct contract *contract)
{
    static const size_t COPIES = 200;
    if (contract->backend->host_readable) {
        return;
    }
    struct gate gate;
    unsigned char *staging = staging_allocate(contract, 2 * COPIES);
    char *memory = device_allocate(contract, COPIES);
    fill(staging, COPIES, 8);
    memset(staging + COPIES, 0, COPIES);
    gate_init(contract, &gate);
    for (size_t i = 0; i < COPIES; i++) {
        queue_copy(contract, gate.stream, FERRY_COPY_FROM_HOST, memory + i, staging + i, 1);
    }
    queue_copy(contract, gate.stream, FERRY_COPY_TO_HOST, staging + COPIES, memory, COPIES);
    gate_finish(contract, &gate);
    holds(contract, memcmp(staging, staging + COPIES, COPIES) == 0, "bytes changed");
    device_free(contract, memory);
    staging_free(contract, staging);
}

/* Memory comes and goes while a stream waits for whoever allocates and frees. */
static void check_memory_beside_a_gate(struct contract *contract)
{
    if (contract->backend->host_readable) {
        return;
    }
    struct gate gate;
    char *first = device_allocate(contract, LARGE_BYTES);
    unsigned char *staging = staging_allocate(contract, 100);
    gate_init(contract, &gate);
    device_free(contract, first);
    staging_free(contract, staging);
    char *second = device_allocate(contract, LARGE_BYTES);
    staging = staging_allocate(contract, 100);
    pass_time(contract, &gate);
    holds(contract, *gate.flag == 0, "the flag is %u", (unsigned)*gate.flag);
    staging_free(contract, staging);
    device_free(contract, second);
    gate_finish(contract, &gate);
    device_free(contract, device_allocate(contract, LARGE_BYTES));
}

/* Views too are packed meanwhile, the first one of its kind included. */
static void check_views_beside_a_gate(struct contract *contract)
{
    if (contract->backend->host_readable) {
        return;
    }
    struct gate gate;
    int64_t shape[] = {3, 5}, strides[] = {1, 3};
    char *memory = device_allocate(contract, 240), *packed = device_allocate(contract, 240);
    gate_init(contract, &gate);
    for (uint16_t element_bytes = 1; element_bytes <= 16; element_bytes *= 2) {
        DLTensor view = {
            .data = memory,
            .device = {.device_type = contract->backend->type, .device_id = contract->index},
            .ndim = 2,
            .dtype = {.code = kDLUInt, .bits = 8, .lanes = element_bytes},
            .shape = shape,
            .strides = strides,
        };
        works(contract, contract->backend->gather(contract->index, gate.beside, packed, &view),
              "gather");
    }
    pass_time(contract, &gate);
    gate_finish(contract, &gate);
    device_free(contract, memory);
    device_free(contract, packed);
}

/* ---- checks: threads ---- */

struct thread_case {
    struct contract contract;
    char failure[256];
    uint32_t seed;
    pthread_t thread;
};

static void *thread_main(void *context)
{
    struct thread_case *thread = context;
    struct contract *contract = &thread->contract;
    if (!contract->backend->host_readable) {
        must(contract->backend->stream_create(contract->index, &contract->stream) == FERRY_OK,
             "stream_create");
    }
    for (size_t round = 0; round < 30; round++) {
        size_t bytes = 1 + ((size_t)thread->seed * 7919 + round * 104729) % 60000;
        expect_copies(contract, bytes, round);
    }
    if (!contract->backend->host_readable) {
        contract->backend->stream_destroy(contract->index, contract->stream);
    }
    return NULL;
}

static void check_threads(struct contract *contract)
{
    enum { THREADS = 4 };
    struct thread_case threads[THREADS];
    for (uint32_t i = 0; i < THREADS; i++) {
        threads[i].contract = *contract;
        threads[i].contract.failure = threads[i].failure;
        threads[i].contract.failure_bytes = sizeof threads[i].failure;
        threads[i].contract.failed = false;
        threads[i].seed = i;
        must(pthread_create(&threads[i].thread, NULL, thread_main, &threads[i]) == 0, "a thread");
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i].thread, NULL);
        holds(contract, !threads[i].contract.failed, "%s", threads[i].failure);
    }
}

/* ---- the list ---- */

static const struct {
    const char *name;
    void (*run)(struct contract *contract);
} checks[] = {
    {"slots", check_slots},
    {"description", check_description},
    {"memory", check_memory},
    {"no bytes", check_no_bytes},
    {"full", check_full},
    {"staging", check_staging},
    {"copies", check_copies},
    {"pageable memory", check_pageable},
    {"between devices", check_between_devices},
    {"default streams", check_default_streams},
    {"views", check_views},
    {"unsupported views", check_unsupported_views},
    {"host without streams", check_host_has_no_streams},
    {"events", check_events},
    {"event destroyed early", check_event_destroyed_early},
    {"stream waits for stream", check_stream_wait},
    {"stream waits for flag", check_wait_for_flag},
    {"queue depth", check_queue_depth},
    {"memory beside a held stream", check_memory_beside_a_gate},
    {"views beside a held stream", check_views_beside_a_gate},
    {"threads", check_threads},
};

size_t device_contract_count(void)
{
    return sizeof checks / sizeof checks[0];
}

const char *device_contract_name(size_t check)
{
    return checks[check].name;
}

bool device_contract_run(size_t check, const ferry_device_backend_t *backend, int32_t index,
                         char *failure, size_t failure_bytes)
{
    struct contract contract = {
        .backend = backend, .index = index, .failure = failure, .failure_bytes = failure_bytes};
    if (!backend->host_readable) {
        must(backend->stream_create(index, &contract.stream) == FERRY_OK, "stream_create");
    }
    checks[check].run(&contract);
    if (!backend->host_readable) {
        backend->stream_destroy(index, contract.stream);
    }
    return !contract.failed;
}
