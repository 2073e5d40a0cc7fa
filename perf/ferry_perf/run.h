/* Between run.c and client.c: what the client asks of both ends, and a test that is open in one. */
#ifndef FERRY_PERF_RUN_H
#define FERRY_PERF_RUN_H

#include "ferry_perf/frame.h"

#define SLOTS 2 /* ours, and the raw test beside it */
#define SAMPLES_MAX (1 << 20)

enum command_kind { COMMAND_OPEN, COMMAND_PREPARE, COMMAND_RUN, COMMAND_CLOSE, COMMAND_END };

/* As it lies in memory: both ends are of one version, which they said before. */
struct command {
    enum command_kind kind;
    uint32_t slot;
    char test[32];
    uint64_t bytes, operations;
    struct perf_options options;
};

struct slot {
    const struct perf_test *test; /* NULL: nothing is open */
    void *state;
    struct perf_end end;
    struct perf_options options; /* the end's */
};

ferry_status_t slot_do(struct slot *slot, const struct command *command, bool client,
                       struct perf_control *control, struct perf_samples *samples);
void slot_close(struct slot *slot);
/* Closes what is open; a failure is the one given, whose text is this thread's last error. */
ferry_status_t slots_end(struct slot slots[SLOTS], struct perf_control *control,
                         ferry_status_t status);

#endif
