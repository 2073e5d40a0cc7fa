/* What a map says, held against what is there: this process's devices, a peer's devices, a group's
 * names. */
#include <stdio.h>
#include <string.h>

#include "core/config.h"
#include "rpc/device_map.h"

static bool is_named(DLDevice device)
{
    return device.device_type != kDLCPU && device.device_id != FERRY_DEVICE_ANY_INDEX;
}

/* "there is no cuda device" / "the cuda devices here are 0 to 1" */
static void devices_print(char *text, size_t capacity, DLDevice missing, int32_t count,
                          const char *place)
{
    char device[FERRY_DEVICE_TEXT_BYTES];
    ferry_device_print(missing, device);
    int kind_bytes = (int)strcspn(device, ":");
    if (count <= 0) {
        snprintf(text, capacity, "%.200s has no %.*s device", place, kind_bytes, device);
    } else if (count == 1) {
        snprintf(text, capacity, "%.200s has no %s, only %.*s:0", place, device, kind_bytes,
                 device);
    } else {
        snprintf(text, capacity, "%.200s has no %s, only %.*s:0 to %.*s:%d", place, device,
                 kind_bytes, device, kind_bytes, device, (int)count - 1);
    }
}

ferry_status_t device_map_check_mine(const ferry_device_map_t *map,
                                     int32_t (*count)(DLDeviceType type))
{
    for (size_t i = 0; map != NULL && i < map->clause_count; i++) {
        const struct device_map_clause *clause = &map->clauses[i];
        for (size_t k = 0; k < clause->rule_count; k++) {
            const struct device_map_rule *rule = &clause->rules[k];
            int32_t there = is_named(rule->mine) ? count(rule->mine.device_type) : 0;
            if (is_named(rule->mine) && rule->mine.device_id >= there) {
                char text[DEVICE_MAP_RULE_BYTES], what[320];
                devices_print(what, sizeof what, rule->mine, there, "this process");
                return error_raise(FERRY_ERR_DEVICE_MAP, "device map, \"%s\": %s",
                                   device_map_rule_print(text, clause->peer, rule), what);
            }
        }
    }
    return FERRY_OK;
}

ferry_status_t device_map_check_peer(const ferry_device_map_t *map, const char *peer,
                                     const DLDevice *devices, size_t device_count)
{
    struct device_map_view view = device_map_view(map, peer, false);
    for (size_t k = 0; view.clause != NULL && k < view.clause->rule_count; k++) {
        const struct device_map_rule *rule = &view.clause->rules[k];
        bool there = !is_named(rule->theirs);
        int32_t of_kind = 0;
        for (size_t i = 0; i < device_count; i++) {
            there = there || tensor_device_equal(devices[i], rule->theirs);
            of_kind += devices[i].device_type == rule->theirs.device_type;
        }
        if (!there) {
            char text[DEVICE_MAP_RULE_BYTES], what[320];
            devices_print(what, sizeof what, rule->theirs, of_kind, peer);
            return error_raise(FERRY_ERR_DEVICE_MAP, "device map, \"%s\": %s",
                               device_map_rule_print(text, view.clause->peer, rule), what);
        }
    }
    return FERRY_OK;
}

ferry_status_t device_map_check_names(const ferry_device_map_t *map, const char *const *names,
                                      size_t name_count)
{
    for (size_t i = 0; map != NULL && i < map->clause_count; i++) {
        const char *peer = map->clauses[i].peer;
        bool there = strcmp(peer, "*") == 0;
        for (size_t k = 0; k < name_count && !there; k++) {
            there = strcmp(peer, names[k]) == 0;
        }
        if (!there) {
            const char *nearest = config_nearest(peer, names, name_count);
            return error_raise(FERRY_ERR_DEVICE_MAP,
                               "device map: the group has no peer \"%s\"%s%s%s", peer,
                               nearest == NULL ? "" : "; did you mean \"",
                               nearest == NULL ? "" : nearest, nearest == NULL ? "" : "\"?");
        }
    }
    return FERRY_OK;
}
