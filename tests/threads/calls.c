/* Threads that share agents: calls, callbacks, cancels and handlers at once. A plain program, since Criterion does not start under the
 * thread sanitizer. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "support/pair.h"

#define THREADS 4
#define CALLS 150

struct worker {
    pthread_t thread;
    ferry_agent_t *agent;
    const char *peer;
    unsigned seed;
};

static atomic_int callbacks, releases;

static void on_done(ferry_future_t *future, void *context)
{
    (void)context;
    TEST_CHECK(ferry_future_done(future));
    atomic_fetch_add(&callbacks, 1);
}

static void on_release(void *context)
{
    free(context);
    atomic_fetch_add(&releases, 1);
}

static ferry_future_t *call_once(struct worker *worker, unsigned kind)
{
    static const char *const methods[] = {"echo", "inline", "nothing", "fail"};
    size_t bytes = kind % 5 == 0 ? 50000 : 100;
    uint8_t *data = malloc(bytes);
    memset(data, (int)kind, bytes);
    int64_t shape[1] = {(int64_t)bytes};
    ferry_tensor_t tensor = test_tensor("data", data, test_u8, 1, shape);
    tensor.release = on_release;
    tensor.context = data;
    ferry_message_t message = {.tensors = &tensor, .tensor_count = 1};
    ferry_future_t *future = NULL;
    TEST_CHECK(ferry_call(worker->agent, worker->peer, methods[kind % 4], &message, NULL,
                          &future) == FERRY_OK);
    return future;
}

static void *work(void *context)
{
    struct worker *worker = context;
    for (unsigned i = 0; i < CALLS; i++) {
        unsigned kind = worker->seed * 31 + i;
        ferry_future_t *future = call_once(worker, kind);
        TEST_CHECK(ferry_future_then(future, on_done, NULL) == FERRY_OK);
        if (kind % 7 == 0) {
            ferry_future_cancel(future);
        }
        if (kind % 3 != 0) {
            ferry_status_t status = ferry_future_wait(future, TEST_SECONDS(60), NULL);
            TEST_CHECK(status == FERRY_OK || status == FERRY_ERR_APPLICATION ||
                       status == FERRY_ERR_CANCELLED);
        }
        ferry_future_release(future);
    }
    return NULL;
}

int main(void)
{
    ferry_testing_pair_t pair = test_pair("inproc", NULL, NULL);
    test_register(pair.left);
    struct worker workers[2 * THREADS];
    for (unsigned i = 0; i < 2 * THREADS; i++) {
        workers[i] = (struct worker){.agent = i % 2 == 0 ? pair.left : pair.right,
                                     .peer = i % 2 == 0 ? "right" : "left",
                                     .seed = i};
        TEST_CHECK(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0);
    }
    for (unsigned i = 0; i < 2 * THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
    }
    ferry_testing_pair_destroy(&pair);
    TEST_CHECK(atomic_load(&callbacks) == 2 * THREADS * CALLS);
    TEST_CHECK(atomic_load(&releases) == 2 * THREADS * CALLS);
    return 0;
}
