/* What both ends say of themselves before anything is measured. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ferry/config.h>
#include <ferry/version.h>
#include <ucp/api/ucp.h>

#include "core/config.h"
#include "core/error.h"
#include "ferry_perf/frame.h"

#define GREETING_BYTES 16384
#define CONVERSATION "1"

/* What may differ: who and where an end is, and what it prints. */
static bool is_own(const char *name)
{
    static const char *const own[] = {"FERRY_NAME", "FERRY_NAMING",     "FERRY_NAMING_SERVE",
                                      "FERRY_PORT", "FERRY_INTERFACE",  "FERRY_DEVICE_MAP",
                                      "FERRY_LOG",  "FERRY_SIM_DEVICES"};
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) {
        if (strcmp(name, own[i]) == 0) {
            return true;
        }
    }
    return false;
}

const char *perf_ucx_version(void)
{
    return ucp_get_version_string();
}

const char *perf_setting(const char *name, char *text, size_t capacity)
{
    ferry_config_t *config = NULL;
    ferry_config_entry_t entry;
    text[0] = '\0';
    if (ferry_config_create(&config) == FERRY_OK) {
        for (size_t i = 0; ferry_config_entry(config, i, &entry) == FERRY_OK; i++) {
            if (strcmp(entry.name, name) == 0) {
                snprintf(text, capacity, "%s", entry.value);
            }
        }
    }
    ferry_config_destroy(config);
    return text;
}

static void add(char *text, const char *name, const char *value)
{
    size_t used = strlen(text);
    snprintf(text + used, GREETING_BYTES - used, "%s=%s\n", name, value);
}

static ferry_status_t greeting_write(char *text, const struct perf_command_line *line)
{
    ferry_config_t *config = NULL;
    ferry_config_entry_t entry;
    text[0] = '\0';
    add(text, "ferry_perf", CONVERSATION);
    add(text, "Ferry", ferry_version());
    add(text, "UCX", ucp_get_version_string());
    ferry_status_t status = ferry_config_create(&config);
    if (status != FERRY_OK) {
        return status;
    }
    for (size_t i = 0; ferry_config_entry(config, i, &entry) == FERRY_OK; i++) {
        if (!is_own(entry.name)) {
            add(text, entry.name, entry.value);
        }
    }
    ferry_config_destroy(config);
    const char *tls = config_environment("UCX_TLS");
    add(text, "UCX_TLS", tls == NULL ? "" : tls);
    size_t used = strlen(text);
    snprintf(text + used, GREETING_BYTES - used, "%s", line->given);
    return FERRY_OK;
}

/* The last value of that name in lines of NAME=VALUE; false where there is none. */
static bool find_value(const char *text, const char *name, size_t name_bytes, char *value,
                       size_t capacity)
{
    bool found = false;
    for (const char *at = text; *at != '\0'; at += strcspn(at, "\n") + 1) {
        if (strncmp(at, name, name_bytes) == 0 && at[name_bytes] == '=') {
            size_t bytes = strcspn(at + name_bytes + 1, "\n");
            snprintf(value, capacity, "%.*s", (int)bytes, at + name_bytes + 1);
            found = true;
        }
        if (at[strcspn(at, "\n")] == '\0') {
            break;
        }
    }
    return found;
}

static const char *or_nothing(const char *value)
{
    return *value == '\0' ? "unset" : value;
}

static ferry_status_t greeting_compare(const char *client, const char *server)
{
    char mine[256], theirs[256];
    for (const char *at = client; *at != '\0'; at += strcspn(at, "\n") + 1) {
        size_t bytes = strcspn(at, "=");
        if (!find_value(client, at, bytes, mine, sizeof mine) ||
            !find_value(server, at, bytes, theirs, sizeof theirs) || strcmp(mine, theirs) == 0) {
            continue;
        }
        bool version = at[0] != '-' && strncmp(at, "FERRY_", 6) != 0 && strncmp(at, "UCX_", 4) != 0;
        return error_raise(FERRY_ERR_INCOMPATIBLE,
                           "%.*s%s differs: the client has %s, the server %s", (int)bytes, at,
                           version ? "'s version" : "", or_nothing(mine), or_nothing(theirs));
    }
    return FERRY_OK;
}

ferry_status_t perf_greet(struct perf_control *control, bool client,
                          const struct perf_command_line *line)
{
    char *mine = calloc(2, GREETING_BYTES);
    if (mine == NULL) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory to meet the other end");
    }
    char *theirs = mine + GREETING_BYTES;
    ferry_status_t status = greeting_write(mine, line);
    if (status == FERRY_OK) {
        status = perf_exchange(control, mine, strlen(mine) + 1, theirs, GREETING_BYTES - 1, NULL);
    }
    if (status == FERRY_OK) {
        status = greeting_compare(client ? mine : theirs, client ? theirs : mine);
    }
    /* Only the client decides the server's CPUs, and only where the server was not told. */
    struct perf_cpus cpus[2] = {line->cpus[0], line->cpus[1]}, asked[2];
    if (status == FERRY_OK) {
        status = perf_exchange(control, cpus, sizeof cpus, asked, sizeof asked, NULL);
    }
    if (status == FERRY_OK) {
        status = perf_pin(client ? cpus[0] : cpus[1].first >= 0 ? cpus[1] : asked[1]);
    }
    if (status != FERRY_OK) {
        perf_control_tell_error(control);
    }
    free(mine);
    return status;
}
