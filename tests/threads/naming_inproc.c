/* Agents of several threads meet over inproc://: each thread publishes, finds all others, withdraws and starts over, so that the
 * shared directory is read and changed from everywhere. Exit status 0: everybody found everybody.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/naming_party.h"

#define THREADS 6
#define ROUNDS 40

static pthread_barrier_t round_end;
static atomic_int failures;

static void fail(const char *what, int number, int round)
{
    fprintf(stderr, "thread %d, round %d: %s\n", number, round, what);
    atomic_fetch_add(&failures, 1);
}

static void round_run(struct party *self, int number, int round)
{
    char name[32];
    char address[32];
    snprintf(name, sizeof name, "worker%d", number);
    snprintf(address, sizeof address, "%d in round %d", number, round);
    if (!party_open(self, "inproc://", false, NULL)) {
        fail(ferry_last_error()->text, number, round);
        return;
    }
    for (int i = 0; i < THREADS; i++) {
        char other[32];
        snprintf(other, sizeof other, "worker%d", i);
        party_resolve(self, other, true);
    }
    party_publish(self, name, address);
    if (!party_await_answers(self, THREADS)) {
        fail("somebody was not found", number, round);
    }
    for (unsigned i = 0; i < THREADS && i < self->answered; i++) {
        char expected[32];
        snprintf(expected, sizeof expected, "%s in round %d", self->answers[i].name + 6, round);
        if (strcmp(self->answers[i].address, expected) != 0) {
            fail(self->answers[i].address, number, round);
        }
    }
    if (self->published != 1 || self->published_error.status != FERRY_OK) {
        fail("its name was not its own", number, round);
    }
    if (!self->version_grew) {
        fail("the membership version did not grow", number, round);
    }
}

static void *thread_run(void *context)
{
    int number = *(int *)context;
    struct party *self = calloc(1, sizeof *self);
    if (self == NULL) {
        abort();
    }
    for (int round = 0; round < ROUNDS; round++) {
        round_run(self, number, round);
        pthread_barrier_wait(&round_end); /* nobody leaves before all were found */
        if (self->naming != NULL) {
            party_close(self);
        }
        pthread_barrier_wait(&round_end);
    }
    free(self);
    return NULL;
}

int main(void)
{
    pthread_t threads[THREADS];
    int numbers[THREADS];
    pthread_barrier_init(&round_end, NULL, THREADS);
    for (int i = 0; i < THREADS; i++) {
        numbers[i] = i;
        if (pthread_create(&threads[i], NULL, thread_run, &numbers[i]) != 0) {
            return 1;
        }
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    pthread_barrier_destroy(&round_end);
    return atomic_load(&failures) == 0 ? 0 : 1;
}
