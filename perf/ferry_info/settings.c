/* Checks of what the user set: configuration, device map, interface; and which Ferry this is. */
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/channel.h"
#include "core/config.h"
#include "ferry_info/info.h"
#include "rpc/device_map.h"

static pthread_mutex_t kept_lock = PTHREAD_MUTEX_INITIALIZER;
static char kept[1024];

static void keep_line(void *context, ferry_log_level_t level, const char *line)
{
    (void)context;
    if (level <= FERRY_LOG_WARN) {
        pthread_mutex_lock(&kept_lock);
        text_add(kept, sizeof kept, "%s%s", kept[0] == '\0' ? "" : "; ", line);
        pthread_mutex_unlock(&kept_lock);
    }
}

void info_log_keep(void)
{
    ferry_log_set_sink(keep_line, NULL);
}

const char *info_log_kept(void)
{
    return kept;
}

int info_version(void)
{
    struct ucx_facts ucx;
    ucx_facts_version(&ucx);
    printf("ferry_info %s, UCX %s (built with %s, %s)\n", ferry_version(), ucx.version,
           FERRY_UCX_BUILD_VERSION, FERRY_UCX_BUILD_ORIGIN);
    return INFO_OK;
}

void check_ferry(const struct machine *machine, struct finding *finding)
{
    (void)machine;
    char program[512];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    program[length < 0 ? 0 : length] = '\0';
    finding_set(finding, VERDICT_OK, "%s in %s", ferry_version(), program);
}

/* "FERRY_CHUNK 4MiB (environment), ..." */
static void add_settings(const ferry_config_t *config, struct finding *finding)
{
    ferry_config_entry_t entry;
    unsigned set = 0;
    for (size_t i = 0; ferry_config_entry(config, i, &entry) == FERRY_OK; i++) {
        if (strcmp(entry.origin, "default") != 0) {
            finding_add(finding, "%s%s %s (%s)", set == 0 ? "" : ", ", entry.name, entry.value,
                        entry.origin);
            set++;
        }
    }
    if (set == 0) {
        finding_add(finding, "every option has its default");
    }
}

void check_configuration(const struct machine *machine, struct finding *finding)
{
    (void)machine;
    ferry_config_t *config;
    if (ferry_config_create(&config) != FERRY_OK) {
        finding_set(finding, VERDICT_PROBLEM, "%s", ferry_last_error()->text);
        finding_remedy(finding, "correct or unset it; ferry_info -c shows every option");
        return;
    }
    add_settings(config, finding);
    ferry_config_destroy(config);
    if (info_log_kept()[0] != '\0') {
        finding->verdict = VERDICT_NOTE;
        finding_add(finding, "; %s", info_log_kept());
        finding_remedy(finding, "correct or unset it; ferry_info -c shows every option");
    }
}

void check_device_map(const struct machine *machine, struct finding *finding)
{
    (void)machine;
    const char *text = config_process()->device_map;
    ferry_device_map_t *map;
    if (ferry_device_map_parse(text, &map) != FERRY_OK) {
        finding_set(finding, VERDICT_PROBLEM, "FERRY_DEVICE_MAP: %s", ferry_last_error()->text);
        finding_remedy(finding, "try maps with ferry_info -m MAP -p PEER");
        return;
    }
    char canonical[512];
    size_t length = ferry_device_map_print(map, canonical, sizeof canonical);
    if (device_map_check_mine(map, ferry_device_count) != FERRY_OK) {
        finding_set(finding, VERDICT_PROBLEM, "FERRY_DEVICE_MAP: %s", ferry_last_error()->text);
        finding_remedy(finding, "map devices that are here, or make it visible "
                                "(CUDA_VISIBLE_DEVICES, FERRY_SIM_DEVICES)");
    } else if (length == 0) {
        finding_set(finding, VERDICT_OK, "none is set: cpu tensors stay cpu, others need a map");
    } else {
        finding_set(finding, VERDICT_OK, "%s%s", canonical,
                    length >= sizeof canonical ? "..." : "");
    }
    ferry_device_map_destroy(map);
}

void check_interface(const struct machine *machine, struct finding *finding)
{
    (void)machine;
    const char *interface = config_process()->interface;
    bool set = *interface != '\0';
    char host[INET6_ADDRSTRLEN];
    uint16_t port;
    int fd;
    if (socket_listen(interface, 0, &fd, host, &port) != FERRY_OK) {
        finding_set(finding, VERDICT_PROBLEM, "%s%s", set ? "FERRY_INTERFACE: " : "",
                    ferry_last_error()->text);
        finding_remedy(finding, "%s",
                       set ? "name one of those, or unset it for loopback" : "ip link set lo up");
        return;
    }
    close(fd);
    if (set) {
        finding_set(finding, VERDICT_OK, "agents listen on %s (%s)", interface, host);
    } else {
        finding_set(finding, VERDICT_OK,
                    "agents listen on %s, for this machine; FERRY_INTERFACE opens it to others",
                    host);
    }
}
