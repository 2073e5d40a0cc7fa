/* For embedders' tests: two agents in one process in one call, and a clock that the test moves. Link Ferry::testing. Simulated devices
 * come from FERRY_SIM_DEVICES; <ferry/sim.h> has their streams and kernels. */
#ifndef FERRY_TESTING_H
#define FERRY_TESTING_H

#include <ferry/ferry.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A clock that stands still until it is moved. Any thread. */
typedef struct ferry_testing_clock ferry_testing_clock_t;

/* Owned by the caller, until every agent that uses it is destroyed. It starts at one second. FERRY_ERR_NO_MEMORY. */
FERRY_API ferry_status_t ferry_testing_clock_create(ferry_testing_clock_t **clock_out);
FERRY_API void ferry_testing_clock_destroy(ferry_testing_clock_t *clock);
FERRY_API void ferry_testing_clock_advance(ferry_testing_clock_t *clock, int64_t ns);
FERRY_API int64_t ferry_testing_clock_now_ns(const ferry_testing_clock_t *clock);

typedef struct {
    const char *name, *value; /* an option as ferry_config_set() takes it */
} ferry_testing_setting_t;

typedef struct {
    size_t struct_bytes;
    const char *left_name,
        *right_name; /* NULL: "left", "right"; names are this process's, so a second pair needs others */
    const char *left_map, *right_map;        /* device maps; NULL: none */
    const ferry_testing_setting_t *settings; /* for both agents, beside what the environment says */
    size_t setting_count;
    ferry_testing_clock_t *clock; /* for both agents; NULL: the real one */
} ferry_testing_options_t;

/* Two started agents of this process (naming inproc://). Register methods on them as on any agent. */
typedef struct {
    ferry_agent_t *left, *right;
} ferry_testing_pair_t;

FERRY_API ferry_testing_options_t ferry_testing_options(void);
/* options NULL: every default (the inproc transport; FERRY_TRANSPORT in settings names another). Errors: those of ferry_agent_create() and ferry_agent_start(); nothing is left behind. */
FERRY_API ferry_status_t ferry_testing_pair_create(const ferry_testing_options_t *options,
                                                   ferry_testing_pair_t *pair_out);
/* Shuts both down without drain and destroys them. Zeros are taken. */
FERRY_API void ferry_testing_pair_destroy(ferry_testing_pair_t *pair);

#ifdef __cplusplus
}
#endif

#endif
