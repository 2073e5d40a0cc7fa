/* Two transfer engines with a link between them, and tensors whose bytes are known. */
#ifndef TESTS_SUPPORT_TRANSFER_BENCH_H
#define TESTS_SUPPORT_TRANSFER_BENCH_H

#include "core/config.h"
#include "rpc/tensor.h"
#include "rpc/transfer.h"
#include "support/fake_transport.h"

#define BENCH_CPU ((DLDevice){.device_type = kDLCPU, .device_id = 0})
#define BENCH_SIM(index) ((DLDevice){.device_type = kDLExtDev, .device_id = (index)})

struct bench {
    bool host_peer[2];           /* of the transfers to come, by end */
    struct config_values config; /* of both engines */
    struct memory_pool *pool;
    struct transfer_engine *engines[2];
    struct fake_transport *fake;
    ferry_link_t *links[2];
    unsigned (*progress)(struct bench *bench); /* of the transport */
    uint32_t capabilities;
    uint32_t next_segment;
    int64_t now_ns;                     /* what the engines' clock says */
    void (*watch)(struct bench *bench); /* called after each step; may be NULL */
};

struct bench_setup {
    int64_t chunk_bytes, chunk_window, staging_bytes, direct_min_bytes; /* 0: 64, 3, 1 MiB, 1 GiB */
    const char *paths;
    uint32_t capabilities;
};

/* What became of one transfer. */
struct bench_end {
    struct transfer *transfer;
    int done; /* times; 1 also for one that was finished at its start */
    ferry_status_t status;
    char text[256];
};

/* A tensor somewhere inside a block of memory of its own. */
struct bench_tensor {
    struct bench *bench;
    struct memory_block block;
    struct tensor_view view;
};

/* A stream that stands still until it is released. */
struct bench_stream {
    DLDevice device;
    uintptr_t stream;
    struct memory_block flag;
};

void bench_init(struct bench *bench, const struct bench_setup *setup);
/* The same over a transport of the caller's: nothing but the engines and the pool is made. */
void bench_init_engines(struct bench *bench, const struct bench_setup *setup);
void bench_finish(struct bench *bench);
unsigned bench_step(struct bench *bench);
/* Until nothing is under way; false when that does not come about in 20 s. */
bool bench_run(struct bench *bench);
/* Until the engine at `end` has nothing under way. */
bool bench_run_end(struct bench *bench, int end);
/* So many steps: for what must not happen. */
void bench_steps(struct bench *bench, int steps);

uint64_t bench_operation_bytes(const struct bench *bench, const DLTensor *from);
/* Both ends of one tensor's way, under fresh segment numbers. */
void bench_move(struct bench *bench, const struct bench_tensor *from, uintptr_t from_stream,
                const struct bench_tensor *to, uintptr_t to_stream, struct bench_end ends[2]);
/* One end: 0 sends, 1 receives. */
ferry_status_t bench_start(struct bench *bench, int end, const struct bench_tensor *tensor,
                           uintptr_t stream, uint32_t segment, uint64_t operation_bytes,
                           struct bench_end *result);

/* strides count elements and may be NULL; the block has room around the view. */
void bench_tensor_init(struct bench_tensor *tensor, struct bench *bench, DLDevice device,
                       uint8_t bits, int ndim, const int64_t *shape, const int64_t *strides);
void bench_bytes_init(struct bench_tensor *tensor, struct bench *bench, DLDevice device,
                      size_t bytes);
void bench_tensor_finish(struct bench_tensor *tensor);
size_t bench_tensor_bytes(const struct bench_tensor *tensor);
/* The whole block, from and to the host, at once. */
void bench_tensor_read(const struct bench_tensor *tensor, unsigned char *bytes);
void bench_tensor_write(const struct bench_tensor *tensor, const unsigned char *bytes);
void bench_tensor_fill(const struct bench_tensor *tensor, unsigned seed);
/* The visible elements in C order, found one by one; from a copy of the block. */
void bench_gather(const struct bench_tensor *tensor, const unsigned char *block,
                  unsigned char *packed);
void bench_scatter(const struct bench_tensor *tensor, unsigned char *block,
                   const unsigned char *packed);
bool bench_tensors_equal(const struct bench_tensor *left, const struct bench_tensor *right);

void bench_stream_init(struct bench_stream *stream, struct bench *bench, DLDevice device);
void bench_stream_release(struct bench_stream *stream);
void bench_stream_finish(struct bench_stream *stream, struct bench *bench);

#endif
