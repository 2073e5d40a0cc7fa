/* Lines are logged while the sink changes: each line reaches a sink together with that sink's own context. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "core/log.h"

#define LOGGERS 3
#define LINES 20000

static int contexts[2] = {1, 2};
static atomic_int mixed;
static atomic_int heard;
static atomic_bool done;

static void hear_one(void *context, ferry_log_level_t level, const char *line)
{
    (void)level;
    (void)line;
    atomic_fetch_add(&heard, 1);
    if (context != &contexts[0]) {
        atomic_fetch_add(&mixed, 1);
    }
}

static void hear_two(void *context, ferry_log_level_t level, const char *line)
{
    (void)level;
    (void)line;
    atomic_fetch_add(&heard, 1);
    if (context != &contexts[1]) {
        atomic_fetch_add(&mixed, 1);
    }
}

static void *log_lines(void *context)
{
    (void)context;
    for (int i = 0; i < LINES; i++) {
        log_write(FERRY_LOG_WARN, "line %d", i);
    }
    return NULL;
}

static void *switch_sinks(void *context)
{
    (void)context;
    while (!atomic_load(&done)) {
        ferry_log_set_sink(hear_one, &contexts[0]);
        ferry_log_set_sink(hear_two, &contexts[1]);
    }
    return NULL;
}

int main(void)
{
    pthread_t loggers[LOGGERS];
    pthread_t switcher;
    ferry_log_set_sink(hear_one, &contexts[0]);
    pthread_create(&switcher, NULL, switch_sinks, NULL);
    for (int i = 0; i < LOGGERS; i++) {
        pthread_create(&loggers[i], NULL, log_lines, NULL);
    }
    for (int i = 0; i < LOGGERS; i++) {
        pthread_join(loggers[i], NULL);
    }
    atomic_store(&done, true);
    pthread_join(switcher, NULL);
    if (atomic_load(&mixed) != 0 || atomic_load(&heard) != LOGGERS * LINES) {
        fprintf(stderr, "%d of %d lines reached a sink with another's context\n",
                atomic_load(&mixed), atomic_load(&heard));
        return 1;
    }
    return 0;
}
