/* The simulated devices' engines: a thread a device runs what is queued on its streams, in order
 * within a stream, late and out of step between streams. All but sim_lock() and sim_unlock() are
 * called under the lock. */
#ifndef FERRY_DEVICE_SIM_ENGINE_H
#define FERRY_DEVICE_SIM_ENGINE_H

#include <pthread.h>

#include <ferry/device_backend.h>

#include "device/sim_memory.h"

#define SIM_FAILURE_BYTES 128

enum sim_operation_kind {
    SIM_COPY,
    SIM_GATHER,
    SIM_SCATTER,
    SIM_KERNEL,
    SIM_MARK,
    SIM_WAIT_MARK,
    SIM_WAIT_FLAG,
    SIM_FAIL
};

/* A point in a stream. Events, and the operations that set it or wait for it, hold references. */
struct sim_mark {
    unsigned references;
    bool passed;
    bool failed;
    char failure[SIM_FAILURE_BYTES];
};

/* Addresses are the engine's own, in the device's second mapping or on the host. */
struct sim_operation {
    enum sim_operation_kind kind;
    union {
        struct {
            char *target;
            const char *source;
            size_t bytes;
        } copy;
        struct {
            ferry_layout_t layout;
            char *packed;
        } strided;
        struct {
            void (*run)(void *context);
            void *context;
        } kernel;
        struct sim_mark *mark; /* retained */
        uint32_t *flag;
        char failure[SIM_FAILURE_BYTES];
    };
    struct sim_block *blocks[2]; /* pinned, or NULL */
    uint64_t sequence;           /* over all devices, in order of queueing */
    int64_t delay_ns;
    int64_t due_ns;                                  /* 0: not yet at its stream's head */
    struct sim_operation *next, *prev;               /* in its stream */
    struct sim_operation *kernel_next, *kernel_prev; /* among the kernels that have not run */
};

struct sim_stream {
    struct sim_device *device;
    struct sim_operation *operations; /* oldest first */
    bool held;
    bool running;   /* its oldest operation, without the lock */
    bool destroyed; /* by the user: goes when it is empty */
    bool failed;
    char failure[SIM_FAILURE_BYTES];
    struct sim_stream *next, *prev;
};

struct sim_device {
    int32_t index;
    struct sim_memory memory;
    struct sim_stream *streams; /* the first is the default one */
    pthread_cond_t work;
    uint64_t random;
    bool forked;               /* belongs to the parent process */
    struct sim_device *parent; /* the one before a fork */
};

void sim_lock(void);
void sim_unlock(void);

/* The device, opened at first use. FERRY_ERR_SYSTEM, FERRY_ERR_NO_MEMORY. */
ferry_status_t sim_device_find(int32_t index, struct sim_device **device_out);
/* The open device whose addresses these are, or NULL. */
struct sim_device *sim_device_of(const void *pointer);

/* The user's value as a stream. FERRY_ERR_DEVICE. */
ferry_status_t sim_stream_find(struct sim_device *device, uintptr_t value,
                               struct sim_stream **stream_out);
ferry_status_t sim_stream_add(struct sim_device *device, struct sim_stream **stream_out);
/* It goes once its operations have run. */
void sim_stream_remove(struct sim_stream *stream);
void sim_stream_hold(struct sim_stream *stream); /* waits for what runs */
void sim_stream_resume(struct sim_stream *stream);

/* Queues a copy of what `operation` says. FERRY_ERR_DEVICE: the stream failed. FERRY_ERR_NO_MEMORY. */
ferry_status_t sim_stream_queue(struct sim_stream *stream, const struct sim_operation *operation);
/* Queues a mark; the caller has one reference to it. */
ferry_status_t sim_stream_mark(struct sim_stream *stream, struct sim_mark **mark_out);

struct sim_mark *sim_mark_retain(struct sim_mark *mark);
void sim_mark_release(struct sim_mark *mark); /* NULL is taken */
/* FERRY_ERR_DEVICE: its stream failed. */
ferry_status_t sim_mark_wait(struct sim_mark *mark);

/* The block is the user's no longer; it goes when what was queued before has run. */
void sim_block_free(struct sim_device *device, struct sim_block *block);

/* What the calling thread's kernel sees at a device's address; NULL and an error otherwise. */
void *sim_kernel_pointer(const void *pointer);

#endif
