/* Many threads on two simulated devices at once: streams, events between devices, memory that comes
 * and goes, kernels, the pool. A plain program, so that the thread sanitizer can watch it. */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ferry/error.h>
#include <ferry/sim.h>

#include "device/memory_pool.h"
#include "device/registry.h"

#define THREADS 6
#define ROUNDS 60
#define BYTES 3000

static const ferry_device_backend_t *sim;
static struct memory_pool *pool;

static void must(bool condition, const char *what)
{
    if (!condition) {
        fprintf(stderr, "%s: %s\n", what, ferry_last_error()->text);
        exit(1);
    }
}

struct worker {
    pthread_t thread;
    int number;
    int32_t index;            /* its own device */
    unsigned char *on_device; /* what its kernel works on */
};

static void kernel_increment(void *context)
{
    const struct worker *worker = context;
    unsigned char *bytes = ferry_sim_host_pointer(worker->on_device);
    must(bytes != NULL, "ferry_sim_host_pointer");
    for (size_t i = 0; i < BYTES; i++) {
        bytes[i]++;
    }
}

static struct memory_block block_take(DLDevice device, bool staging)
{
    struct memory_block block;
    must(memory_pool_take(pool, device, staging, BYTES, &block) == FERRY_OK, "memory_pool_take");
    return block;
}

/* Host to this device, a kernel there, over to the other device, back to the host. */
static void worker_round(struct worker *worker, uintptr_t here, uintptr_t there,
                         ferry_event_t *written, ferry_event_t *done)
{
    DLDevice own = {.device_type = (DLDeviceType)FERRY_DEVICE_SIM, .device_id = worker->index};
    DLDevice other = {.device_type = (DLDeviceType)FERRY_DEVICE_SIM,
                      .device_id = 1 - worker->index};
    struct memory_block staging = block_take(own, true), back = block_take(own, true);
    struct memory_block memory = block_take(own, false), far = block_take(other, false);
    memset(staging.data, worker->number, BYTES);
    worker->on_device = memory.data;
    must(sim->copy(own.device_id, here, FERRY_COPY_FROM_HOST, memory.data, staging.data, BYTES) ==
             FERRY_OK,
         "copy");
    must(ferry_sim_launch(own, here, kernel_increment, worker, 1000) == FERRY_OK, "launch");
    must(sim->event_record(written, here) == FERRY_OK, "event_record");
    must(sim->stream_wait(other.device_id, there, written) == FERRY_OK, "stream_wait");
    must(sim->copy(other.device_id, there, FERRY_COPY_ON_DEVICE, far.data, memory.data, BYTES) ==
             FERRY_OK,
         "copy");
    must(sim->copy(other.device_id, there, FERRY_COPY_TO_HOST, back.data, far.data, BYTES) ==
             FERRY_OK,
         "copy");
    must(sim->event_record(done, there) == FERRY_OK, "event_record");
    ferry_status_t status;
    while ((status = sim->event_query(done)) == FERRY_PENDING) {
        sched_yield();
    }
    must(status == FERRY_OK, "event_query");
    for (size_t i = 0; i < BYTES; i++) {
        must(((unsigned char *)back.data)[i] == worker->number + 1, "other bytes came back");
    }
    memory_pool_give(pool, &staging);
    memory_pool_give(pool, &back);
    memory_pool_give(pool, &memory);
    memory_pool_give(pool, &far);
}

static void *worker_main(void *context)
{
    struct worker *worker = context;
    uintptr_t here, there;
    ferry_event_t *written, *done;
    must(sim->stream_create(worker->index, &here) == FERRY_OK, "stream_create");
    must(sim->stream_create(1 - worker->index, &there) == FERRY_OK, "stream_create");
    must(sim->event_create(worker->index, &written) == FERRY_OK, "event_create");
    must(sim->event_create(1 - worker->index, &done) == FERRY_OK, "event_create");
    for (int round = 0; round < ROUNDS; round++) {
        worker_round(worker, here, there, written, done);
        if (round % 20 == 19) {
            memory_pool_trim(pool); /* beneath the others' hands */
        }
    }
    sim->event_destroy(written);
    sim->event_destroy(done);
    sim->stream_destroy(worker->index, here);
    sim->stream_destroy(1 - worker->index, there);
    return NULL;
}

int main(void)
{
    struct worker workers[THREADS];
    setenv("FERRY_SIM_DEVICES", "2", 1);
    sim = device_backend((DLDeviceType)FERRY_DEVICE_SIM);
    must(memory_pool_create(65536, &pool) == FERRY_OK, "memory_pool_create");
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.number = i, .index = i % 2};
        must(pthread_create(&workers[i].thread, NULL, worker_main, &workers[i]) == 0, "a thread");
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
    }
    memory_pool_destroy(pool);
    return 0;
}
