/* The inside of ferry_perf: what a test is, and what both ends of one share. A test runs between
 * two ends, the client and the server, usually in two processes; both open, prepare, run and close
 * it in step. The ends talk beside the measured path over one control connection. */
#ifndef FERRY_PERF_PERF_H
#define FERRY_PERF_PERF_H

#include <dlpack/dlpack.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <ferry/status.h>

struct perf_control;

#define PERF_THREADS_MAX 64
#define PERF_WINDOW_MAX 65536
#define PERF_TENSORS_MAX 65536
#define PERF_PATH_BYTES 320

/* What both ends know of the tests that they run: the client's command line, sent to the server. */
struct perf_options {
    DLDevice memory[2]; /* of the client's and of the server's end */
    uint32_t window;    /* operations in flight in *_bw, *_bidir and *_rate; 1 or more */
    uint32_t threads;   /* client threads (rpc_* only) */
    bool validate;      /* fill with fresh random data and compare every message; such runs come
                         * before the timed ones, which have this false */
    bool pool;          /* rpc_*: the method runs in the thread pool, not inline */
    uint32_t tensors;   /* rpc_*: tensors a call, that share the bytes; 1 or more */
};

struct perf_end {
    bool client;
    struct perf_control *control; /* borrowed */
    const struct perf_options *options;
};

/* What one run measured, in the client. Times are of one operation: a whole round trip for rpc_lat
 * and rpc_echo, half a round trip for every other *_lat. */
struct perf_samples {
    double *ns; /* owned by the caller, `capacity` long; `count` are set by tests that time each */
    size_t count, capacity;
    uint64_t operations; /* completed in elapsed_ns; every test */
    uint64_t elapsed_ns;
    uint64_t thread_operations[PERF_THREADS_MAX]; /* per client thread, where threads > 1 */
    uint32_t window;            /* that was kept, where it is not the one asked for; 0: that one */
    char path[PERF_PATH_BYTES]; /* how the payload travelled, where the test knows; "" */
};

/* What a raw test must have measured to be set against a test of ours. */
enum perf_against {
    PERF_SAME = 0,    /* the same size, one way or in a window as ours */
    PERF_REPLY_EMPTY, /* ours is a round trip: there with the bytes, back with 8 */
    PERF_REPLY_SAME,  /* ours is a round trip: there and back with the bytes */
};

/* Every slot is called in both ends at about the same time. A failure is raised as in libferry
 * (ferry_last_error() says what), in whichever end decides it; the other end learns of it by the
 * control connection. */
struct perf_test {
    const char *name; /* "raw_tag_lat" */
    const char *text; /* one line of help */
    const char *raw;  /* the test that --ratio sets it against, '*' for FERRY_UCX_PROTOCOL's word
                       * ("raw_*_lat"); NULL: none */
    enum perf_against against;
    const char *unit;   /* "us" (latency), "MB/s" (bandwidth) or "msg/s" (rate) */
    size_t usual_bytes; /* where no -s is given */
    ferry_status_t (*open)(struct perf_end *end, void **state_out);
    /* Buffers for operations of that many bytes, touched once; replaces those before. */
    ferry_status_t (*prepare)(void *state, size_t bytes);
    /* Client: issues `operations` and waits for all; server: answers or sinks as many. */
    ferry_status_t (*run)(void *state, uint64_t operations, struct perf_samples *samples);
    void (*close)(void *state);
};

/* The first columns of -v, by which perf/plot finds them; perf/peers writes these alone. latency_us
 * is empty where operations overlap, mb_per_s (1e6 bytes) where nothing is moved. */
#define PERF_CSV_COLUMNS "test,bytes,operations,latency_us,mb_per_s,per_s"

/* The tests, by file; each list ends with a test whose name is NULL. */
extern const struct perf_test perf_rpc_tests[];       /* rpc.c: the whole library */
extern const struct perf_test perf_transport_tests[]; /* transport.c: Ferry's transport contract */
extern const struct perf_test perf_raw_tests[];       /* raw.c: UCX alone */

/* control.c: each of these is called by both ends. All raise FERRY_ERR_PEER_LOST when the other end
 * is gone and give its own error when it sent one. */
ferry_status_t perf_exchange(struct perf_control *control, const void *mine, size_t bytes,
                             void *theirs, size_t capacity, size_t *bytes_out);
ferry_status_t perf_barrier(struct perf_control *control);
/* For loops that poll: whether the other end is gone or gave up; one system call, so ask seldom. */
bool perf_control_lost(struct perf_control *control);
/* The server's numeric address, as the client reaches it. */
const char *perf_control_host(const struct perf_control *control);
int64_t perf_now_ns(void);

/* memory.c: a buffer in any memory that Ferry knows ("cpu", "cuda:0", "sim:0"). */
struct perf_buffer {
    void *data;
    size_t bytes;
    DLDevice device;
};
ferry_status_t perf_buffer_create(DLDevice device, size_t bytes, struct perf_buffer *buffer_out);
void perf_buffer_destroy(struct perf_buffer *buffer);
/* Untimed copies from and to the host. */
ferry_status_t perf_buffer_write(struct perf_buffer *buffer, const void *data, size_t bytes);
ferry_status_t perf_buffer_read(const struct perf_buffer *buffer, void *data, size_t bytes);

#endif
