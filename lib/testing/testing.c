#include <ferry/testing.h>

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define CLOCK_START_NS 1000000000

struct ferry_testing_clock {
    atomic_llong now_ns;
};

ferry_status_t ferry_testing_clock_create(ferry_testing_clock_t **clock_out)
{
    ferry_testing_clock_t *clock = malloc(sizeof(*clock));
    if (clock == NULL) {
        return FERRY_ERR_NO_MEMORY;
    }
    atomic_init(&clock->now_ns, CLOCK_START_NS);
    *clock_out = clock;
    return FERRY_OK;
}

void ferry_testing_clock_destroy(ferry_testing_clock_t *clock)
{
    free(clock);
}

void ferry_testing_clock_advance(ferry_testing_clock_t *clock, int64_t ns)
{
    atomic_fetch_add(&clock->now_ns, ns);
}

int64_t ferry_testing_clock_now_ns(const ferry_testing_clock_t *clock)
{
    return atomic_load(&clock->now_ns);
}

static int64_t clock_read(void *context)
{
    return ferry_testing_clock_now_ns(context);
}

ferry_testing_options_t ferry_testing_options(void)
{
    return (ferry_testing_options_t){.struct_bytes = sizeof(ferry_testing_options_t)};
}

static ferry_status_t agent_make(const ferry_testing_options_t *testing, const char *name,
                                 const char *map, ferry_agent_t **agent_out)
{
    ferry_config_t *config;
    ferry_status_t status = ferry_config_create(&config);
    if (status != FERRY_OK) {
        return status;
    }
    for (size_t i = 0; status == FERRY_OK && i < testing->setting_count; i++) {
        status = ferry_config_set(config, testing->settings[i].name, testing->settings[i].value);
    }
    ferry_clock_t clock = {.now_ns = clock_read, .context = testing->clock};
    ferry_agent_options_t options = ferry_agent_options();
    options.name = name;
    options.naming = "inproc://";
    options.device_map = map == NULL ? "" : map;
    options.config = config;
    options.clock = testing->clock == NULL ? NULL : &clock;
    if (status == FERRY_OK) {
        status = ferry_agent_create(&options, agent_out);
    }
    if (status != FERRY_OK) {
        ferry_config_destroy(config);
        return status;
    }
    status = ferry_agent_start(*agent_out);
    if (status != FERRY_OK) {
        ferry_agent_destroy(*agent_out);
        *agent_out = NULL;
    }
    return status;
}

ferry_status_t ferry_testing_pair_create(const ferry_testing_options_t *options,
                                         ferry_testing_pair_t *pair_out)
{
    ferry_testing_options_t defaults = ferry_testing_options();
    options = options == NULL ? &defaults : options;
    ferry_testing_pair_t pair = {.left = NULL};
    const char *left = options->left_name == NULL ? "left" : options->left_name;
    const char *right = options->right_name == NULL ? "right" : options->right_name;
    ferry_status_t status = agent_make(options, left, options->left_map, &pair.left);
    if (status == FERRY_OK) {
        status = agent_make(options, right, options->right_map, &pair.right);
    }
    if (status != FERRY_OK) {
        ferry_testing_pair_destroy(&pair);
        return status;
    }
    *pair_out = pair;
    return FERRY_OK;
}

void ferry_testing_pair_destroy(ferry_testing_pair_t *pair)
{
    if (pair == NULL) {
        return;
    }
    ferry_agent_destroy(pair->left);
    ferry_agent_destroy(pair->right);
    memset(pair, 0, sizeof(*pair));
}
