/* Stress for the handlers' thread pool under the thread sanitizer: many submitters, tasks that wait for
 * tasks, pools that come and go. A task that is lost hangs the program, so the test's time runs
 * out. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <ferry/error.h>

#include "rpc/thread_pool.h"

#define SUBMITTERS 4
#define TASKS_EACH 1500
#define DEPTH_MAX 3

static void require(bool holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "%s (last error: %s)\n", what, ferry_last_error()->text);
        abort();
    }
}

struct latch {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int left;
};

static void latch_init(struct latch *latch, int count)
{
    pthread_mutex_init(&latch->lock, NULL);
    pthread_cond_init(&latch->changed, NULL);
    latch->left = count;
}

static void latch_count_down(struct latch *latch)
{
    pthread_mutex_lock(&latch->lock);
    if (--latch->left == 0) {
        pthread_cond_broadcast(&latch->changed);
    }
    pthread_mutex_unlock(&latch->lock);
}

static void latch_wait(struct latch *latch)
{
    pthread_mutex_lock(&latch->lock);
    while (latch->left > 0) {
        pthread_cond_wait(&latch->changed, &latch->lock);
    }
    pthread_mutex_unlock(&latch->lock);
    pthread_mutex_destroy(&latch->lock);
    pthread_cond_destroy(&latch->changed);
}

struct job {
    struct thread_pool_task task;
    struct thread_pool *pool;
    struct latch *done; /* borrowed */
    int depth;          /* how many nested jobs are below this one */
};

static atomic_long jobs_run, waits_refused;

static void job_submit(struct job *job);

static void job_run(void *context)
{
    struct job *job = context;
    require(thread_pool_current() == job->pool, "a task runs on a thread that is not the pool's");
    atomic_fetch_add(&jobs_run, 1);
    if (job->depth > 0) {
        struct latch latch;
        latch_init(&latch, 1);
        struct job inner = {.pool = job->pool, .done = &latch, .depth = job->depth - 1};
        ferry_status_t status = thread_pool_enter_wait(job->pool);
        if (status == FERRY_OK) {
            job_submit(&inner);
            latch_wait(&latch);
            thread_pool_leave_wait(job->pool);
        } else {
            require(status == FERRY_ERR_BUSY, "a wait is refused with another status");
            latch_count_down(&latch);
            latch_wait(&latch);
            atomic_fetch_add(&waits_refused, 1);
        }
    }
    latch_count_down(job->done);
}

static void job_submit(struct job *job)
{
    job->task = (struct thread_pool_task){.run = job_run, .context = job};
    require(thread_pool_submit(job->pool, &job->task) == FERRY_OK, "a task is not taken");
}

struct submitter {
    pthread_t thread;
    struct thread_pool *pool;
    uint32_t seed;
};

static void *submitter_main(void *argument)
{
    struct submitter *self = argument;
    struct job *jobs = calloc(TASKS_EACH, sizeof *jobs);
    require(jobs != NULL, "no memory");
    uint32_t random = self->seed;
    for (int first = 0; first < TASKS_EACH;) {
        random = random * 1664525u + 1013904223u;
        int burst = 1 + (int)(random >> 28);
        burst = burst < TASKS_EACH - first ? burst : TASKS_EACH - first;
        struct latch latch;
        latch_init(&latch, burst);
        for (int i = 0; i < burst; i++) {
            random = random * 1664525u + 1013904223u;
            jobs[first + i] = (struct job){.pool = self->pool,
                                           .done = &latch,
                                           .depth = (int)((random >> 24) % (DEPTH_MAX + 1))};
            job_submit(&jobs[first + i]);
        }
        latch_wait(&latch);
        first += burst;
    }
    free(jobs);
    return NULL;
}

static void stress(int64_t threads, int64_t max, int64_t spin_ns)
{
    struct thread_pool *pool;
    require(thread_pool_create(threads, max, spin_ns, "stress", &pool) == FERRY_OK, "no pool");
    long before = atomic_load(&jobs_run);
    struct submitter submitters[SUBMITTERS];
    for (uint32_t i = 0; i < SUBMITTERS; i++) {
        submitters[i] = (struct submitter){.pool = pool, .seed = 17 + i};
        require(pthread_create(&submitters[i].thread, NULL, submitter_main, &submitters[i]) == 0,
                "no thread");
    }
    for (int i = 0; i < SUBMITTERS; i++) {
        pthread_join(submitters[i].thread, NULL);
    }
    require(thread_pool_size(pool) <= max, "more threads than the most");
    thread_pool_destroy(pool);
    require(atomic_load(&jobs_run) - before >= SUBMITTERS * TASKS_EACH, "a task was lost");
}

static void finish(void *context)
{
    atomic_fetch_add((atomic_int *)context, 1);
}

/* Destroy while threads start, run and go to sleep. */
static void come_and_go(void)
{
    for (int round = 0; round < 300; round++) {
        struct thread_pool *pool;
        require(thread_pool_create(1 + round % 4, 8, round % 3 * 5000, "short", &pool) == FERRY_OK,
                "no pool");
        atomic_int finished = 0;
        struct thread_pool_task tasks[8];
        int count = round % 9;
        for (int i = 0; i < count; i++) {
            tasks[i] = (struct thread_pool_task){.run = finish, .context = &finished};
            require(thread_pool_submit(pool, &tasks[i]) == FERRY_OK, "a task is not taken");
        }
        thread_pool_destroy(pool);
        require(atomic_load(&finished) == count, "destroy left a task behind");
    }
}

int main(void)
{
    stress(4, 64, 0);
    stress(1, 64, 0);
    stress(2, 3, 20000);
    stress(1, 1, 0);
    require(atomic_load(&waits_refused) > 0, "no wait met the bound");
    come_and_go();
    return 0;
}
