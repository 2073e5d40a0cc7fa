/* Many agents of one process over inproc in manual mode, driven by two threads: every one connects to every other and calls it.
 * Links within the process take no descriptors, so that hundreds of agents can do this. */
#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/pair.h"

#define AGENTS 64
#define THREADS 2
#define DIALS 4
#define ROUNDS 2

struct member {
    ferry_agent_t *agent;
    char name[16];
    size_t index, dials, calls; /* begun */
    size_t open;                /* of these, not finished */
};

static struct member members[AGENTS];
static pthread_barrier_t barrier;
static atomic_size_t links, answers, handled;

static ferry_status_t answer(ferry_request_t *request, void *context)
{
    (void)context;
    atomic_fetch_add(&handled, 1);
    return ferry_request_reply(request, NULL);
}

static void member_start(struct member *member, size_t index)
{
    ferry_method_options_t quick = ferry_method_options();
    ferry_agent_options_t options = ferry_agent_options();
    member->index = index;
    snprintf(member->name, sizeof(member->name), "agent%zu", index);
    options.name = member->name;
    options.naming = "inproc://";
    quick.run_inline = true;
    TEST_CHECK(ferry_config_create(&options.config) == FERRY_OK);
    TEST_CHECK(ferry_config_set(options.config, "PROGRESS", "manual") == FERRY_OK);
    TEST_CHECK(ferry_config_set(options.config, "TRANSPORT", "inproc") == FERRY_OK);
    TEST_CHECK(ferry_agent_create(&options, &member->agent) == FERRY_OK);
    TEST_CHECK(ferry_agent_register_with(member->agent, "answer", answer, NULL, &quick) ==
               FERRY_OK);
    TEST_CHECK(ferry_agent_start(member->agent) == FERRY_OK);
}

static void on_ready(void *context, ferry_status_t status)
{
    struct member *member = context;
    TEST_CHECK(status == FERRY_OK);
    member->open--;
    atomic_fetch_add(&links, 1);
}

static const char *name_after(const struct member *member, size_t distance)
{
    return members[(member->index + distance) % AGENTS].name;
}

/* Every pair twice, from either end, so that dials cross. */
static void member_dial(struct member *member)
{
    while (member->open < DIALS && member->dials < AGENTS - 1) {
        const char *peer = name_after(member, ++member->dials);
        ferry_status_t status = ferry_agent_connect(member->agent, peer, 0);
        TEST_CHECK(status == FERRY_OK || status == FERRY_ERR_WOULD_BLOCK);
        member->open++;
        TEST_CHECK(ferry_agent_when_ready(member->agent, peer, on_ready, member) == FERRY_OK);
    }
}

static void on_answer(ferry_future_t *future, void *context)
{
    struct member *member = context;
    TEST_CHECK(ferry_future_error(future) == NULL);
    ferry_future_release(future);
    member->open--;
    atomic_fetch_add(&answers, 1);
}

static void member_call(struct member *member)
{
    while (member->open < DIALS && member->calls < ROUNDS * (AGENTS - 1)) {
        const char *peer = name_after(member, 1 + member->calls++ % (AGENTS - 1));
        ferry_future_t *future;
        TEST_CHECK(ferry_call(member->agent, peer, "answer", NULL, NULL, &future) == FERRY_OK);
        member->open++;
        TEST_CHECK(ferry_future_then(future, on_answer, member) == FERRY_OK);
    }
}

/* A thread's agents serve until those of both have what they want. */
static void drive(size_t first, void (*next)(struct member *member), const atomic_size_t *count,
                  size_t wanted)
{
    while (atomic_load(count) < wanted) {
        for (size_t i = first; i < AGENTS; i += THREADS) {
            next(&members[i]);
            ferry_agent_progress(members[i].agent);
        }
    }
    pthread_barrier_wait(&barrier);
}

static void *run(void *context)
{
    size_t first = *(const size_t *)context;
    drive(first, member_dial, &links, (size_t)AGENTS * (AGENTS - 1));
    drive(first, member_call, &answers, (size_t)ROUNDS * AGENTS * (AGENTS - 1));
    return NULL;
}

static size_t descriptors(void)
{
    size_t count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (folder != NULL && readdir(folder) != NULL) {
        count++;
    }
    closedir(folder);
    return count;
}

int main(void)
{
    pthread_t threads[THREADS];
    size_t firsts[THREADS];
    for (size_t i = 0; i < AGENTS; i++) {
        member_start(&members[i], i);
    }
    size_t before = descriptors();
    TEST_CHECK(pthread_barrier_init(&barrier, NULL, THREADS) == 0);
    for (size_t i = 0; i < THREADS; i++) {
        firsts[i] = i;
        TEST_CHECK(pthread_create(&threads[i], NULL, run, &firsts[i]) == 0);
    }
    for (size_t i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    TEST_CHECK(atomic_load(&handled) == (size_t)ROUNDS * AGENTS * (AGENTS - 1));
    TEST_CHECK(descriptors() == before);
    for (size_t i = 0; i < AGENTS; i++) {
        ferry_agent_destroy(members[i].agent);
    }
    pthread_barrier_destroy(&barrier);
    return 0;
}
