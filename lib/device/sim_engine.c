#include "device/sim_engine.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "core/clock.h"
#include "core/error.h"
#include "device/layout.h"

#define DEVICES_MAX 64
/* How late an operation runs: most a little, some much more, so that streams overtake each other. */
#define SHORT_DELAY_NS 20000
#define LONG_DELAY_NS 200000
#define LONG_DELAY_EVERY 8
/* How often a flag in host memory is looked at. */
#define FLAG_POLL_NS 50000

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER; /* an operation ended */
static struct sim_device *devices[DEVICES_MAX];
static struct sim_operation *kernels; /* that have not run, oldest first */
static size_t freed_waiting;          /* blocks that were freed while something used them */
static uint64_t next_sequence = 1;
static bool fork_watched;

static _Thread_local const struct sim_operation *running_kernel;

void sim_lock(void)
{
    pthread_mutex_lock(&lock);
}

void sim_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

/* The child has none of the threads, so the parent's devices stand still for ever; they are kept
 * where they are, and new ones take their places. */
static void forget_after_fork(void)
{
    for (int i = 0; i < DEVICES_MAX; i++) {
        if (devices[i] != NULL) {
            devices[i]->forked = true;
        }
    }
    kernels = NULL;
    freed_waiting = 0;
    pthread_cond_init(&changed, NULL);
    sim_unlock();
}

/* ---- marks ---- */

struct sim_mark *sim_mark_retain(struct sim_mark *mark)
{
    mark->references++;
    return mark;
}

void sim_mark_release(struct sim_mark *mark)
{
    if (mark != NULL && --mark->references == 0) {
        free(mark);
    }
}

ferry_status_t sim_mark_wait(struct sim_mark *mark)
{
    while (!mark->passed) {
        pthread_cond_wait(&changed, &lock);
    }
    return mark->failed ? error_raise(FERRY_ERR_DEVICE, "%s", mark->failure) : FERRY_OK;
}

/* ---- blocks ---- */

static bool block_is_unused(const struct sim_block *block)
{
    return block->freed && block->pins == 0 &&
           (kernels == NULL || kernels->sequence > block->freed_at);
}

void sim_block_free(struct sim_device *device, struct sim_block *block)
{
    block->freed = true;
    block->freed_at = next_sequence++;
    if (block_is_unused(block)) {
        sim_memory_remove(&device->memory, block);
    } else {
        freed_waiting++;
    }
}

/* After a kernel ran any freed block may have become unused. */
static void blocks_sweep(void)
{
    for (int i = 0; i < DEVICES_MAX && freed_waiting > 0; i++) {
        struct sim_device *device = devices[i];
        for (size_t k = device == NULL || device->forked ? 0 : device->memory.count; k-- > 0;) {
            if (block_is_unused(device->memory.blocks[k])) {
                sim_memory_remove(&device->memory, device->memory.blocks[k]);
                freed_waiting--;
            }
        }
    }
}

/* ---- operations ---- */

static void failure_set(char failure[SIM_FAILURE_BYTES], const char *text)
{
    snprintf(failure, SIM_FAILURE_BYTES, "%s", text);
}

static void stream_fail(struct sim_stream *stream, const char *text)
{
    if (!stream->failed) {
        stream->failed = true;
        failure_set(stream->failure, text);
    }
}

/* May its turn come now? What it waits for within the process signals; a flag is polled. */
static bool operation_is_ready(const struct sim_stream *stream, const struct sim_operation *head)
{
    if (stream->failed) {
        return true;
    }
    switch (head->kind) {
    case SIM_WAIT_MARK:
        return head->mark->passed;
    case SIM_WAIT_FLAG:
        return __atomic_load_n(head->flag, __ATOMIC_ACQUIRE) != 0;
    default:
        return true;
    }
}

/* Without the lock. */
static void operation_work(const struct sim_operation *operation)
{
    switch (operation->kind) {
    case SIM_COPY:
        memmove(operation->copy.target, operation->copy.source, operation->copy.bytes);
        break;
    case SIM_GATHER:
        layout_gather(&operation->strided.layout, operation->strided.layout.data,
                      operation->strided.packed);
        break;
    case SIM_SCATTER:
        layout_scatter(&operation->strided.layout, operation->strided.layout.data,
                       operation->strided.packed);
        break;
    case SIM_KERNEL:
        running_kernel = operation;
        operation->kernel.run(operation->kernel.context);
        running_kernel = NULL;
        break;
    default:
        break;
    }
}

/* Under the lock, for what needs no time. */
static void operation_settle(struct sim_stream *stream, const struct sim_operation *operation)
{
    switch (operation->kind) {
    case SIM_MARK:
        operation->mark->passed = true;
        operation->mark->failed = stream->failed;
        failure_set(operation->mark->failure, stream->failure);
        break;
    case SIM_WAIT_MARK:
        if (operation->mark->failed) {
            stream_fail(stream, operation->mark->failure);
        }
        break;
    case SIM_FAIL:
        stream_fail(stream, operation->failure);
        break;
    default:
        break;
    }
}

static void operation_free(struct sim_operation *operation)
{
    bool sweep = operation->kind == SIM_KERNEL;
    for (int i = 0; i < 2; i++) {
        if (operation->blocks[i] != NULL) {
            operation->blocks[i]->pins--;
            sweep = sweep || operation->blocks[i]->freed;
        }
    }
    if (operation->kind == SIM_KERNEL) {
        DL_DELETE2(kernels, operation, kernel_prev, kernel_next);
    }
    if (operation->kind == SIM_MARK || operation->kind == SIM_WAIT_MARK) {
        sim_mark_release(operation->mark);
    }
    free(operation);
    if (sweep) {
        blocks_sweep();
    }
}

static void stream_free(struct sim_stream *stream)
{
    DL_DELETE(stream->device->streams, stream);
    free(stream);
}

/* Runs the stream's oldest operation. The lock is dropped where work is done. */
static void stream_step(struct sim_stream *stream)
{
    struct sim_operation *operation = stream->operations;
    if (!stream->failed) {
        stream->running = true;
        sim_unlock();
        operation_work(operation);
        sim_lock();
        stream->running = false;
    }
    operation_settle(stream, operation);
    DL_DELETE(stream->operations, operation);
    bool wakes = operation->kind == SIM_MARK;
    operation_free(operation);
    if (stream->destroyed && stream->operations == NULL) {
        stream_free(stream);
    }
    pthread_cond_broadcast(&changed);
    for (int i = 0; i < DEVICES_MAX && wakes; i++) {
        if (devices[i] != NULL && !devices[i]->forked) {
            pthread_cond_signal(&devices[i]->work);
        }
    }
}

/* ---- the thread ---- */

static uint64_t device_random(struct sim_device *device)
{
    device->random ^= device->random << 13;
    device->random ^= device->random >> 7;
    device->random ^= device->random << 17;
    return device->random;
}

static int64_t device_delay_ns(struct sim_device *device)
{
    uint64_t random = device_random(device);
    uint64_t most = random % LONG_DELAY_EVERY == 0 ? LONG_DELAY_NS : SHORT_DELAY_NS;
    return (int64_t)((random >> 8) % most);
}

/* One of the streams whose oldest operation may run now, any of them; NULL where there is none, and
 * then when to look again. */
static struct sim_stream *device_pick(struct sim_device *device, int64_t *wake_ns_out)
{
    int64_t now_ns = clock_monotonic_ns();
    int64_t wake_ns = INT64_MAX;
    struct sim_stream *picked = NULL;
    uint64_t candidates = 0;
    struct sim_stream *stream;
    DL_FOREACH(device->streams, stream)
    {
        struct sim_operation *head = stream->operations;
        if (head == NULL || stream->held) {
            continue;
        }
        if (head->due_ns == 0) {
            head->due_ns = clock_deadline_ns(now_ns + device_delay_ns(device), head->delay_ns);
        }
        int64_t look_ns = head->due_ns;
        if (look_ns <= now_ns || stream->failed) {
            if (operation_is_ready(stream, head)) {
                candidates++;
                picked = device_random(device) % candidates == 0 ? stream : picked;
                continue;
            }
            look_ns = head->kind == SIM_WAIT_FLAG ? now_ns + FLAG_POLL_NS : INT64_MAX;
        }
        wake_ns = look_ns < wake_ns ? look_ns : wake_ns;
    }
    *wake_ns_out = wake_ns;
    return picked;
}

static void *device_main(void *context)
{
    struct sim_device *device = context;
    pthread_setname_np(pthread_self(), "ferry-sim");
    sim_lock();
    for (;;) {
        int64_t wake_ns;
        struct sim_stream *stream = device_pick(device, &wake_ns);
        if (stream != NULL) {
            stream_step(stream);
        } else if (wake_ns == INT64_MAX) {
            pthread_cond_wait(&device->work, &lock);
        } else {
            struct timespec until = {.tv_sec = wake_ns / 1000000000,
                                     .tv_nsec = wake_ns % 1000000000};
            pthread_cond_timedwait(&device->work, &lock, &until);
        }
    }
    return NULL;
}

/* The thread runs to the end of the process, so the code that it runs must not be unloaded. */
static void library_keep(void)
{
    Dl_info info;
    if (dladdr(&devices, &info) != 0 && info.dli_fname != NULL) {
        dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
        dlerror();
    }
}

static int thread_start(struct sim_device *device)
{
    pthread_t thread;
    pthread_attr_t attributes;
    sigset_t all, before;
    sigfillset(&all);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&thread, &attributes, device_main, device);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return error;
}

/* ---- devices ---- */

static ferry_status_t device_open(int32_t index, struct sim_device **device_out)
{
    pthread_condattr_t monotonic;
    struct sim_device *device = calloc(1, sizeof *device);
    if (device == NULL) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory for sim:%d", (int)index);
    }
    device->index = index;
    device->random = 0x9e3779b97f4a7c15u * ((uint64_t)index + 1);
    device->parent = devices[index];
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&device->work, &monotonic);
    pthread_condattr_destroy(&monotonic);
    struct sim_stream *stream;
    ferry_status_t status = sim_stream_add(device, &stream);
    if (status != FERRY_OK) {
        goto free_device;
    }
    status = sim_memory_init(&device->memory, index);
    if (status != FERRY_OK) {
        goto free_stream;
    }
    int error = thread_start(device);
    if (error != 0) {
        status = error_raise_errno(error, "no thread for sim:%d", (int)index);
        goto finish_memory;
    }
    *device_out = device;
    return FERRY_OK;

finish_memory:
    sim_memory_finish(&device->memory);
free_stream:
    stream_free(stream);
free_device:
    pthread_cond_destroy(&device->work);
    free(device);
    return status;
}

ferry_status_t sim_device_find(int32_t index, struct sim_device **device_out)
{
    if (devices[index] == NULL || devices[index]->forked) {
        ferry_status_t status = device_open(index, &devices[index]);
        if (status != FERRY_OK) {
            return status;
        }
        if (!fork_watched) {
            fork_watched = true;
            library_keep();
            pthread_atfork(sim_lock, sim_unlock, forget_after_fork);
        }
    }
    *device_out = devices[index];
    return FERRY_OK;
}

struct sim_device *sim_device_of(const void *pointer)
{
    for (int i = 0; i < DEVICES_MAX; i++) {
        if (devices[i] != NULL && !devices[i]->forked &&
            sim_memory_covers(&devices[i]->memory, pointer)) {
            return devices[i];
        }
    }
    return NULL;
}

/* ---- streams ---- */

ferry_status_t sim_stream_find(struct sim_device *device, uintptr_t value,
                               struct sim_stream **stream_out)
{
    if (value <= 2) {
        *stream_out = device->streams;
        return FERRY_OK;
    }
    struct sim_stream *stream;
    DL_FOREACH(device->streams, stream)
    {
        if ((uintptr_t)stream == value && !stream->destroyed) {
            *stream_out = stream;
            return FERRY_OK;
        }
    }
    return error_raise(FERRY_ERR_DEVICE, "0x%zx is no stream of sim:%d", (size_t)value,
                       (int)device->index);
}

ferry_status_t sim_stream_add(struct sim_device *device, struct sim_stream **stream_out)
{
    struct sim_stream *stream = calloc(1, sizeof *stream);
    if (stream == NULL) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory for a stream of sim:%d",
                           (int)device->index);
    }
    stream->device = device;
    DL_APPEND(device->streams, stream);
    *stream_out = stream;
    return FERRY_OK;
}

void sim_stream_remove(struct sim_stream *stream)
{
    stream->destroyed = true;
    if (stream->operations == NULL) {
        stream_free(stream);
    } else {
        sim_stream_resume(stream);
    }
}

void sim_stream_hold(struct sim_stream *stream)
{
    stream->held = true;
    while (stream->running) {
        pthread_cond_wait(&changed, &lock);
    }
}

void sim_stream_resume(struct sim_stream *stream)
{
    stream->held = false;
    pthread_cond_signal(&stream->device->work);
}

ferry_status_t sim_stream_queue(struct sim_stream *stream, const struct sim_operation *operation)
{
    if (stream->failed) {
        return error_raise(FERRY_ERR_DEVICE, "%s", stream->failure);
    }
    struct sim_operation *queued = malloc(sizeof *queued);
    if (queued == NULL) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory to queue work on sim:%d",
                           (int)stream->device->index);
    }
    *queued = *operation;
    queued->sequence = next_sequence++;
    for (int i = 0; i < 2; i++) {
        if (queued->blocks[i] != NULL) {
            queued->blocks[i]->pins++;
        }
    }
    if (queued->kind == SIM_MARK || queued->kind == SIM_WAIT_MARK) {
        sim_mark_retain(queued->mark);
    }
    if (queued->kind == SIM_KERNEL) {
        DL_APPEND2(kernels, queued, kernel_prev, kernel_next);
    }
    DL_APPEND(stream->operations, queued);
    pthread_cond_signal(&stream->device->work);
    return FERRY_OK;
}

ferry_status_t sim_stream_mark(struct sim_stream *stream, struct sim_mark **mark_out)
{
    struct sim_mark *mark = calloc(1, sizeof *mark);
    if (mark == NULL) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory for an event of sim:%d",
                           (int)stream->device->index);
    }
    mark->references = 1;
    struct sim_operation operation = {.kind = SIM_MARK, .mark = mark};
    ferry_status_t status = sim_stream_queue(stream, &operation);
    if (status != FERRY_OK) {
        sim_mark_release(mark);
        return status;
    }
    *mark_out = mark;
    return FERRY_OK;
}

void *sim_kernel_pointer(const void *pointer)
{
    if (running_kernel == NULL) {
        error_raise(FERRY_ERR_STATE, "device memory at %p can be reached within kernels only",
                    pointer);
        return NULL;
    }
    struct sim_device *device = sim_device_of(pointer);
    struct sim_block *block = device == NULL ? NULL : sim_memory_find(&device->memory, pointer);
    if (block == NULL || (block->freed && running_kernel->sequence > block->freed_at)) {
        error_raise(FERRY_ERR_DEVICE, "a kernel asks for %p, which is in no block of %s", pointer,
                    device == NULL ? "any simulated device" : "its simulated device");
        return NULL;
    }
    return sim_memory_own(&device->memory, pointer);
}
