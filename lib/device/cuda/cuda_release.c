/* Frees memory without a deadlock. CUDA frees when the device has done all that was queued on it,
 * so a thread that frees while a stream waits for a flag waits for the flag too, and may be the one
 * to set it. What is freed meanwhile is kept until no stream waits any more. */
#include "device/cuda/cuda_module.h"

#include <pthread.h>
#include <stdlib.h>

/* A stream that was told to wait for a flag, and the point behind that. */
struct flag_wait {
    cudaEvent_t event;
    struct flag_wait *next;
};

struct released {
    void *memory;
    bool staging;
    struct released *next;
};

struct release_state {
    pthread_mutex_t lock; /* held while freeing, so that no wait begins then */
    struct flag_wait *waits;
    struct flag_wait *spare_waits;
    struct released *released;
};

static struct release_state *states; /* one a device, to the process's end */

bool cuda_release_start(int32_t count)
{
    states = calloc((size_t)count + 1, sizeof states[0]);
    for (int32_t i = 0; i < count && states != NULL; i++) {
        pthread_mutex_init(&states[i].lock, NULL);
    }
    return states != NULL;
}

/* Is there a stream that waits still? */
static bool waits_remain(struct release_state *state)
{
    struct flag_wait **at = &state->waits;
    while (*at != NULL) {
        struct flag_wait *wait = *at;
        if (cudaEventQuery(wait->event) == cudaErrorNotReady) {
            at = &wait->next;
            continue;
        }
        *at = wait->next;
        wait->next = state->spare_waits;
        state->spare_waits = wait;
    }
    return state->waits != NULL;
}

static ferry_status_t wait_take(struct release_state *state, int32_t index,
                                struct flag_wait **wait_out)
{
    struct flag_wait *wait = state->spare_waits;
    if (wait != NULL) {
        state->spare_waits = wait->next;
        *wait_out = wait;
        return FERRY_OK;
    }
    wait = malloc(sizeof *wait);
    if (wait == NULL) {
        return cuda_host->raise(FERRY_ERR_NO_MEMORY, "no memory for an event of cuda:%d",
                                (int)index);
    }
    ferry_status_t status =
        cuda_check(cudaEventCreateWithFlags(&wait->event, cudaEventDisableTiming), index,
                   "cudaEventCreateWithFlags");
    if (status != FERRY_OK) {
        free(wait);
        return status;
    }
    *wait_out = wait;
    return FERRY_OK;
}

ferry_status_t cuda_queue_flag_wait(int32_t index, cudaStream_t stream, uint32_t *flag)
{
    struct release_state *state = &states[index];
    struct flag_wait *wait = NULL;
    pthread_mutex_lock(&state->lock);
    waits_remain(state); /* those that are over serve again */
    ferry_status_t status = wait_take(state, index, &wait);
    if (status != FERRY_OK) {
        goto unlock;
    }
    struct flag_wait **list = &state->spare_waits;
    status = cuda_wait_flag(index, stream, flag);
    if (status == FERRY_OK) {
        cuda_complain(cudaEventRecord(wait->event, stream), index, "cudaEventRecord");
        list = &state->waits;
    }
    wait->next = *list;
    *list = wait;

unlock:
    pthread_mutex_unlock(&state->lock);
    return status;
}

static void memory_free(int32_t index, void *memory, bool staging)
{
    if (staging) {
        cuda_complain(cudaHostUnregister(memory), index, "cudaHostUnregister");
        free(memory);
    } else {
        cuda_complain(cudaFree(memory), index, "cudaFree");
    }
}

static void released_free(struct release_state *state, int32_t index)
{
    while (state->released != NULL) {
        struct released *released = state->released;
        state->released = released->next;
        memory_free(index, released->memory, released->staging);
        free(released);
    }
}

void cuda_release(int32_t index, void *memory, bool staging)
{
    struct release_state *state = &states[index];
    pthread_mutex_lock(&state->lock);
    struct released *released = waits_remain(state) ? malloc(sizeof *released) : NULL;
    if (released != NULL) {
        *released =
            (struct released){.memory = memory, .staging = staging, .next = state->released};
        state->released = released;
    } else {
        released_free(state, index);
        memory_free(index, memory, staging);
    }
    pthread_mutex_unlock(&state->lock);
}

void cuda_release_pending(int32_t index)
{
    struct release_state *state = &states[index];
    pthread_mutex_lock(&state->lock);
    if (state->released != NULL && !waits_remain(state)) {
        released_free(state, index);
    }
    pthread_mutex_unlock(&state->lock);
}
