#include "support/transfer_bench.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ferry/error.h>

#include "core/clock.h"
#include "device/registry.h"

#define ROOM_BYTES 48 /* before and behind a view, to see what was written beside it */

static void must(bool holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "transfer_bench: %s: %s\n", what, ferry_last_error()->text);
        abort();
    }
}

static const ferry_device_backend_t *backend_of(DLDevice device)
{
    const ferry_device_backend_t *backend = device_backend(device.device_type);
    must(backend != NULL, "no such device");
    return backend;
}

static int64_t bench_now_ns(void *context)
{
    const struct bench *bench = context;
    return bench->now_ns;
}

static unsigned bench_progress_fake(struct bench *bench)
{
    return fake_progress(bench->fake);
}

void bench_init_engines(struct bench *bench, const struct bench_setup *setup)
{
    *bench = (struct bench){.capabilities = setup->capabilities, .next_segment = UINT32_MAX - 3};
    bench->config = (struct config_values){
        .chunk_bytes = setup->chunk_bytes != 0 ? setup->chunk_bytes : 64,
        .chunk_window = setup->chunk_window != 0 ? setup->chunk_window : 3,
        .staging_bytes = setup->staging_bytes != 0 ? setup->staging_bytes : 1 << 20,
        .direct_min_bytes = setup->direct_min_bytes != 0 ? setup->direct_min_bytes : 1 << 30,
        .release_timeout_ns = INT64_C(10000000000),
        .paths = setup->paths != NULL ? setup->paths : "",
    };
    must(memory_pool_create(1 << 24, &bench->pool) == FERRY_OK, "memory_pool_create");
    for (int end = 0; end < 2; end++) {
        struct clock clock = {.now_ns = bench_now_ns, .context = bench};
        must(transfer_engine_create(bench->pool, &bench->config, clock, &bench->engines[end]) ==
                 FERRY_OK,
             "transfer_engine_create");
    }
}

void bench_init(struct bench *bench, const struct bench_setup *setup)
{
    bench_init_engines(bench, setup);
    bench->fake = fake_create(setup->capabilities);
    bench->links[0] = fake_link(bench->fake, 0);
    bench->links[1] = fake_link(bench->fake, 1);
    bench->progress = bench_progress_fake;
}

void bench_finish(struct bench *bench)
{
    for (int end = 0; end < 2; end++) {
        transfer_engine_destroy(bench->engines[end]);
    }
    fake_destroy(bench->fake);
    size_t used, kept;
    memory_pool_usage(bench->pool, &used, &kept);
    must(used == 0, "blocks were not given back");
    memory_pool_destroy(bench->pool);
}

unsigned bench_step(struct bench *bench)
{
    unsigned happened = bench->progress(bench);
    for (int end = 0; end < 2; end++) {
        happened += transfer_engine_progress(bench->engines[end]);
    }
    if (bench->watch != NULL) {
        bench->watch(bench);
    }
    return happened;
}

static bool bench_run_until_idle(struct bench *bench, bool first, bool second)
{
    int64_t deadline = clock_monotonic_ns() + INT64_C(20000000000);
    while ((first && transfer_engine_active(bench->engines[0]) > 0) ||
           (second && transfer_engine_active(bench->engines[1]) > 0)) {
        if (bench_step(bench) == 0) {
            if (clock_monotonic_ns() > deadline) {
                return false;
            }
            sched_yield();
        }
    }
    return true;
}

bool bench_run(struct bench *bench)
{
    return bench_run_until_idle(bench, true, true);
}

bool bench_run_end(struct bench *bench, int end)
{
    return bench_run_until_idle(bench, end == 0, end == 1);
}

void bench_steps(struct bench *bench, int steps)
{
    for (int i = 0; i < steps; i++) {
        bench_step(bench);
        sched_yield();
    }
}

static void bench_ended(void *context, ferry_status_t status)
{
    struct bench_end *end = context;
    end->done++;
    end->status = status;
    end->transfer = NULL;
    snprintf(end->text, sizeof end->text, "%s", status == FERRY_OK ? "" : ferry_last_error()->text);
}

uint64_t bench_operation_bytes(const struct bench *bench, const DLTensor *from)
{
    size_t bytes;
    must(ferry_tensor_bytes(from, &bytes) == FERRY_OK, "ferry_tensor_bytes");
    uint64_t bound = transfer_receive_bound(bench->engines[1], bench->capabilities);
    return transfer_operation_bytes(bench->engines[0], bench->capabilities, from->device, bytes,
                                    bound);
}

ferry_status_t bench_start(struct bench *bench, int end, const struct bench_tensor *tensor,
                           uintptr_t stream, uint32_t segment, uint64_t operation_bytes,
                           struct bench_end *result)
{
    struct transfer_spec spec = {
        .link = bench->links[end],
        .first_segment = segment,
        .operation_bytes = operation_bytes,
        .view = &tensor->view.view,
        .host_peer = bench->host_peer[end],
        .stream = stream,
        .done = bench_ended,
        .context = result,
    };
    *result = (struct bench_end){.status = FERRY_PENDING};
    ferry_status_t status = end == 0
                                ? transfer_send(bench->engines[0], &spec, &result->transfer)
                                : transfer_receive(bench->engines[1], &spec, &result->transfer);
    if (status != FERRY_PENDING) {
        bench_ended(result, status);
    }
    return status;
}

void bench_move(struct bench *bench, const struct bench_tensor *from, uintptr_t from_stream,
                const struct bench_tensor *to, uintptr_t to_stream, struct bench_end ends[2])
{
    uint64_t operation_bytes = bench_operation_bytes(bench, &from->view.view);
    uint32_t segment = bench->next_segment;
    uint64_t count = bench_tensor_bytes(from) == 0
                         ? 0
                         : transfer_operation_count(bench_tensor_bytes(from), operation_bytes);
    bench->next_segment += (uint32_t)count;
    bench->host_peer[1] = from->view.view.device.device_type == kDLCPU;
    bench_start(bench, 0, from, from_stream, segment, operation_bytes, &ends[0]);
    bench_start(bench, 1, to, to_stream, segment, operation_bytes, &ends[1]);
}

void bench_tensor_init(struct bench_tensor *tensor, struct bench *bench, DLDevice device,
                       uint8_t bits, int ndim, const int64_t *shape, const int64_t *strides)
{
    int64_t lowest = 0, highest = 0, unit = bits / 8;
    bool empty = false;
    for (int i = 0; i < ndim; i++) {
        empty = empty || shape[i] == 0;
    }
    int64_t packed = 1;
    for (int i = ndim - 1; i >= 0 && !empty; i--) {
        int64_t reach = (strides != NULL ? strides[i] : packed) * (shape[i] - 1);
        packed *= shape[i];
        *(reach < 0 ? &lowest : &highest) += reach;
    }
    size_t bytes = (size_t)((highest - lowest + (empty ? 0 : 1)) * unit) + 2 * ROOM_BYTES;
    *tensor = (struct bench_tensor){.bench = bench};
    must(memory_pool_take(bench->pool, device, false, bytes, &tensor->block) == FERRY_OK,
         "memory_pool_take");
    DLTensor view = {
        .data = tensor->block.data,
        .device = device,
        .ndim = ndim,
        .dtype = {.code = kDLUInt, .bits = bits, .lanes = 1},
        .shape = (int64_t *)(uintptr_t)shape,
        .strides = (int64_t *)(uintptr_t)strides,
        .byte_offset = (uint64_t)(ROOM_BYTES - lowest * unit),
    };
    tensor_copy_view(&tensor->view, &view);
    unsigned char *zeros = calloc(1, bytes);
    must(zeros != NULL, "calloc");
    bench_tensor_write(tensor, zeros);
    free(zeros);
}

void bench_bytes_init(struct bench_tensor *tensor, struct bench *bench, DLDevice device,
                      size_t bytes)
{
    bench_tensor_init(tensor, bench, device, 8, 1, (int64_t[]){(int64_t)bytes}, NULL);
}

void bench_tensor_finish(struct bench_tensor *tensor)
{
    memory_pool_give(tensor->bench->pool, &tensor->block);
}

size_t bench_tensor_bytes(const struct bench_tensor *tensor)
{
    size_t bytes;
    must(ferry_tensor_bytes(&tensor->view.view, &bytes) == FERRY_OK, "ferry_tensor_bytes");
    return bytes;
}

static void block_copy(const struct memory_block *block, unsigned char *bytes, bool to_block)
{
    const ferry_device_backend_t *backend = backend_of(block->device);
    if (backend->host_readable) {
        memcpy(to_block ? block->data : bytes, to_block ? bytes : block->data, block->bytes);
        return;
    }
    int32_t index = block->device.device_id;
    uintptr_t stream;
    must(backend->stream_create(index, &stream) == FERRY_OK, "stream_create");
    must(backend->copy(index, stream, to_block ? FERRY_COPY_FROM_HOST : FERRY_COPY_TO_HOST,
                       to_block ? block->data : bytes, to_block ? bytes : block->data,
                       block->bytes) == FERRY_OK,
         "copy");
    must(backend->stream_synchronize(index, stream) == FERRY_OK, "stream_synchronize");
    backend->stream_destroy(index, stream);
}

void bench_tensor_read(const struct bench_tensor *tensor, unsigned char *bytes)
{
    block_copy(&tensor->block, bytes, false);
}

void bench_tensor_write(const struct bench_tensor *tensor, const unsigned char *bytes)
{
    block_copy(&tensor->block, (unsigned char *)(uintptr_t)bytes, true);
}

void bench_tensor_fill(const struct bench_tensor *tensor, unsigned seed)
{
    unsigned char *bytes = malloc(tensor->block.bytes);
    must(bytes != NULL, "malloc");
    uint32_t value = seed * 2654435761u + 1;
    for (size_t i = 0; i < tensor->block.bytes; i++) {
        value = value * 1664525u + 1013904223u;
        bytes[i] = (unsigned char)(value >> 24);
    }
    bench_tensor_write(tensor, bytes);
    free(bytes);
}

/* Element by element, so that it has nothing in common with what it checks. */
static void elements_copy(const struct bench_tensor *tensor, unsigned char *block,
                          unsigned char *packed, bool to_block)
{
    const DLTensor *view = &tensor->view.view;
    size_t unit = view->dtype.bits / 8u;
    size_t count = bench_tensor_bytes(tensor) / unit;
    for (size_t number = 0; number < count; number++) {
        size_t rest = number;
        int64_t place = 0, row = 1;
        for (int i = view->ndim - 1; i >= 0; i--) {
            int64_t index = (int64_t)(rest % (size_t)view->shape[i]);
            rest /= (size_t)view->shape[i];
            place += index * (view->strides != NULL ? view->strides[i] : row);
            row *= view->shape[i];
        }
        unsigned char *element = block + view->byte_offset + place * (int64_t)unit;
        memcpy(to_block ? element : packed + number * unit,
               to_block ? packed + number * unit : element, unit);
    }
}

void bench_gather(const struct bench_tensor *tensor, const unsigned char *block,
                  unsigned char *packed)
{
    elements_copy(tensor, (unsigned char *)(uintptr_t)block, packed, false);
}

void bench_scatter(const struct bench_tensor *tensor, unsigned char *block,
                   const unsigned char *packed)
{
    elements_copy(tensor, block, (unsigned char *)(uintptr_t)packed, true);
}

bool bench_tensors_equal(const struct bench_tensor *left, const struct bench_tensor *right)
{
    const struct bench_tensor *tensors[2] = {left, right};
    unsigned char *packed[2];
    size_t bytes = bench_tensor_bytes(left);
    for (int i = 0; i < 2; i++) {
        unsigned char *block = malloc(tensors[i]->block.bytes);
        packed[i] = malloc(bytes + 1);
        must(block != NULL && packed[i] != NULL, "malloc");
        bench_tensor_read(tensors[i], block);
        bench_gather(tensors[i], block, packed[i]);
        free(block);
    }
    bool equal = bytes == bench_tensor_bytes(right) && memcmp(packed[0], packed[1], bytes) == 0;
    free(packed[0]);
    free(packed[1]);
    return equal;
}

void bench_stream_init(struct bench_stream *stream, struct bench *bench, DLDevice device)
{
    const ferry_device_backend_t *backend = backend_of(device);
    stream->device = device;
    must(backend->stream_create(device.device_id, &stream->stream) == FERRY_OK, "stream_create");
    must(memory_pool_take(bench->pool, device, true, sizeof(uint32_t), &stream->flag) == FERRY_OK,
         "memory_pool_take");
    uint32_t *flag = stream->flag.data;
    *flag = 0;
    must(backend->stream_wait_flag(device.device_id, stream->stream, flag) == FERRY_OK,
         "stream_wait_flag");
}

void bench_stream_release(struct bench_stream *stream)
{
    uint32_t *flag = stream->flag.data;
    __atomic_store_n(flag, 1, __ATOMIC_RELEASE);
}

void bench_stream_finish(struct bench_stream *stream, struct bench *bench)
{
    const ferry_device_backend_t *backend = backend_of(stream->device);
    bench_stream_release(stream);
    backend->stream_synchronize(stream->device.device_id, stream->stream);
    backend->stream_destroy(stream->device.device_id, stream->stream);
    memory_pool_give(bench->pool, &stream->flag);
}
