/* The UCX that this process runs with: which one, what it knows, and what it can use here. */
#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <ucp/api/ucp.h>
#include <ucs/debug/log_def.h>

#include "ferry_info/info.h"

#define TRANSPORTS_MAX 64
#define OLDEST_MAJOR 1
#define OLDEST_MINOR 13

/* What UCX had to say, its last error if it had one. UCX would print it to stdout. */
static char ucx_words[512];

static ucs_log_func_rc_t keep_words(const char *file, unsigned line, const char *function,
                                    ucs_log_level_t level,
                                    const ucs_log_component_config_t *component,
                                    const char *message, va_list arguments)
{
    (void)file, (void)line, (void)function, (void)component;
    if (level <= UCS_LOG_LEVEL_ERROR || (level == UCS_LOG_LEVEL_WARN && ucx_words[0] == '\0')) {
        vsnprintf(ucx_words, sizeof ucx_words, message, arguments);
    }
    return UCS_LOG_FUNC_RC_STOP;
}

bool text_lists(const char *list, const char *word)
{
    size_t length = strlen(word);
    for (const char *at = list; (at = strstr(at, word)) != NULL; at += length) {
        bool starts = at == list || at[-1] == ' ';
        if (starts && (at[length] == '\0' || at[length] == ' ' || at[length] == ',')) {
            return true;
        }
    }
    return false;
}

static int compare_words(const void *left, const void *right)
{
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

/* The modules beside the library, and what every libuct has inside. */
static void find_modules(struct ucx_facts *facts)
{
    char *names[TRANSPORTS_MAX];
    static const char *const inside[] = {"posix", "self", "sysv", "tcp"};
    size_t count = 0;
    for (; count < sizeof inside / sizeof inside[0]; count++) {
        names[count] = strdup(inside[count]);
    }
    DIR *folder = facts->folder[0] == '\0' ? NULL : opendir(facts->folder);
    for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
        char name[64];
        int end = 0;
        if (sscanf(entry->d_name, "libuct_%63[a-z0-9_].so.0%n", name, &end) == 1 && end > 0 &&
            entry->d_name[end] == '\0' && count < TRANSPORTS_MAX) {
            names[count++] = strdup(strcmp(name, "ib") == 0 ? "verbs" : name);
        }
    }
    if (folder != NULL) {
        closedir(folder);
    }
    qsort(names, count, sizeof names[0], compare_words);
    for (size_t i = 0; i < count; i++) {
        text_add(facts->knows, sizeof facts->knows, "%s%s", i == 0 ? "" : " ", names[i]);
        free(names[i]);
    }
}

/* The file that a UCX function was loaded from. */
static void find_library(const char *symbol, char *path, size_t capacity)
{
    Dl_info info;
    void *address = dlsym(RTLD_DEFAULT, symbol);
    path[0] = '\0';
    if (address != NULL && dladdr(address, &info) != 0 && info.dli_fname != NULL) {
        snprintf(path, capacity, "%s", info.dli_fname);
    }
}

static void find_folder(struct ucx_facts *facts)
{
    char path[sizeof facts->folder - 8];
    const char *chosen = getenv("UCX_MODULE_DIR");
    if (chosen != NULL && *chosen != '\0') {
        snprintf(facts->folder, sizeof facts->folder, "%s", chosen);
        return;
    }
    find_library("ucs_status_string", path, sizeof path);
    char *slash = strrchr(path, '/');
    if (slash != NULL) {
        snprintf(facts->folder, sizeof facts->folder, "%.*s/ucx", (int)(slash - path), path);
    }
}

/* Adds one "tcp/eth0" to "tcp (lo), sysv"; "memory" and the like are no names worth showing. */
static void add_transport(char names[TRANSPORTS_MAX][32], char devices[TRANSPORTS_MAX][160],
                          size_t *count, const char *name, const char *device)
{
    size_t i = 0;
    while (i < *count && strcmp(names[i], name) != 0) {
        i++;
    }
    if (i == TRANSPORTS_MAX) {
        return;
    }
    if (i == *count) {
        snprintf(names[i], sizeof names[i], "%s", name);
        devices[i][0] = '\0';
        (*count)++;
    }
    if (strncmp(device, "memory", 6) != 0 && strcmp(device, "cuda") != 0) {
        text_add(devices[i], sizeof devices[i], "%s%s", devices[i][0] == '\0' ? "" : ", ", device);
    }
}

/* Reads the lines "resource 1 : md 1 dev 1 flags -- tcp/eth0" of a context's description, which
 * both old and new UCX write so. */
static void find_transports(struct ucx_facts *facts, FILE *description)
{
    char names[TRANSPORTS_MAX][32], devices[TRANSPORTS_MAX][160];
    char line[512], name[32], device[64];
    size_t count = 0;
    while (fgets(line, sizeof line, description) != NULL) {
        const char *flags = strstr(line, "flags ");
        const char *resource = flags == NULL ? NULL : strchr(flags + 6, ' ');
        if (resource != NULL && sscanf(resource, " %31[^/]/%63[^\n ]", name, device) == 2) {
            add_transport(names, devices, &count, name, device);
        }
    }
    for (size_t i = 0; i < count; i++) {
        bool named = devices[i][0] != '\0';
        text_add(facts->transports, sizeof facts->transports, "%s%s%s%s%s", i == 0 ? "" : ", ",
                 names[i], named ? " (" : "", devices[i], named ? ")" : "");
    }
}

/* A context as an agent's: it opens no endpoint and no CUDA context. */
static void find_usable(struct ucx_facts *facts)
{
    ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES,
        .features = UCP_FEATURE_TAG | UCP_FEATURE_AM | UCP_FEATURE_WAKEUP,
    };
    ucp_config_t *config;
    ucp_context_h context;
    ucs_log_push_handler(keep_words);
    ucs_status_t status = ucp_config_read(NULL, NULL, &config);
    if (status == UCS_OK) {
        status = ucp_init_version(facts->major, facts->minor, &params, config, &context);
        ucp_config_release(config);
    }
    if (status == UCS_OK) {
        int memory = memfd_create("ucx", MFD_CLOEXEC);
        FILE *description = memory < 0 ? NULL : fdopen(memory, "w+");
        if (description != NULL) {
            ucp_context_print_info(context, description);
            rewind(description);
            find_transports(facts, description);
            fclose(description);
        }
        ucp_cleanup(context);
    } else {
        snprintf(facts->error, sizeof facts->error, "%s",
                 ucx_words[0] != '\0' ? ucx_words : ucs_status_string(status));
    }
    ucs_log_pop_handler();
}

void ucx_facts_version(struct ucx_facts *facts)
{
    unsigned release;
    ucp_get_version(&facts->major, &facts->minor, &release);
    snprintf(facts->version, sizeof facts->version, "%u.%u.%u", facts->major, facts->minor,
             release);
}

void ucx_facts_find(struct ucx_facts *facts)
{
    ucx_facts_version(facts);
    find_library("ucp_get_version", facts->library, sizeof facts->library);
    find_folder(facts);
    find_modules(facts);
    find_usable(facts);
}

static bool is_too_old(const struct ucx_facts *ucx)
{
    return ucx->major < OLDEST_MAJOR || (ucx->major == OLDEST_MAJOR && ucx->minor < OLDEST_MINOR);
}

void check_ucx(const struct machine *machine, struct finding *finding)
{
    const struct ucx_facts *ucx = &machine->ucx;
    unsigned major = 0, minor = 0;
    sscanf(FERRY_UCX_BUILD_VERSION, "%u.%u", &major, &minor);
    bool same = major == ucx->major && minor == ucx->minor;
    finding_set(finding, VERDICT_OK, "%s in %s knows %s", ucx->version, ucx->library, ucx->knows);
    if (!same) {
        finding_add(finding, "; this Ferry was built with %s", FERRY_UCX_BUILD_VERSION);
    }
    if (is_too_old(ucx)) {
        finding->verdict = VERDICT_PROBLEM;
        finding_remedy(finding,
                       "Ferry needs UCX %d.%d or newer: name another build's folder in "
                       "LD_LIBRARY_PATH",
                       OLDEST_MAJOR, OLDEST_MINOR);
    } else if (!same) {
        finding->verdict = VERDICT_NOTE;
        finding_remedy(finding,
                       "agents whose UCX is not %u.%u too are refused: run all of a job with one, "
                       "by LD_LIBRARY_PATH if need be",
                       ucx->major, ucx->minor);
    }
}

void check_transports(const struct machine *machine, struct finding *finding)
{
    const struct ucx_facts *ucx = &machine->ucx;
    const char *wanted = getenv("UCX_TLS");
    bool chosen = wanted != NULL && *wanted != '\0';
    bool shared = text_lists(ucx->transports, "posix") || text_lists(ucx->transports, "sysv");
    bool tcp = text_lists(ucx->transports, "tcp");
    bool remote = tcp || strstr(ucx->transports, "rc_") != NULL ||
                  strstr(ucx->transports, "dc_") != NULL || strstr(ucx->transports, "ud_") != NULL;
    char cause[256] = "";
    if (chosen) {
        snprintf(cause, sizeof cause, " (UCX_TLS=%.200s)", wanted);
    }
    if (ucx->error[0] != '\0') {
        finding_set(finding, VERDICT_PROBLEM, "UCX does not start%s: %s", cause, ucx->error);
        finding_remedy(finding, "%s",
                       chosen ? "unset UCX_TLS, or name in it what UCX knows"
                              : "UCX_LOG_LEVEL=info and ucx_info -d say more");
    } else if (!shared && !remote) {
        finding_set(finding, VERDICT_PROBLEM, "%s%s: no way to another process",
                    ucx->transports[0] == '\0' ? "none" : ucx->transports, cause);
        finding_remedy(finding, "%s",
                       chosen ? "unset UCX_TLS, or add tcp and shm to it"
                              : "UCX_LOG_LEVEL=info and ucx_info -d say more");
    } else if (!shared || !remote) {
        finding_set(finding, VERDICT_NOTE, "%s%s: %s", ucx->transports, cause,
                    shared ? "no way to other machines" : "no shared memory within the machine");
        finding_remedy(finding,
                       chosen ? "add %s to UCX_TLS unless that is meant"
                              : "ucx_info -d says why UCX has no %s here",
                       shared ? "tcp" : "shm");
    } else {
        finding_set(finding, VERDICT_OK, "%s%s", ucx->transports, cause);
    }
}
