/* Maps from an array of structs. */
#include <string.h>

#include "device/device_text.h"
#include "rpc/device_map.h"

static bool peer_is_valid(const char *peer)
{
    static const char allowed[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";
    return strcmp(peer, "*") == 0 || (peer[0] != '\0' && peer[strspn(peer, allowed)] == '\0');
}

static bool device_is_valid(DLDevice device)
{
    return device_kind_name(device.device_type) != NULL &&
           device.device_id >= FERRY_DEVICE_ANY_INDEX && device.device_id <= DEVICE_INDEX_MAX &&
           (device.device_type != kDLCPU || device.device_id == 0);
}

/* Adds rules[index] to the builder's map. */
static ferry_status_t rule_add(struct device_map_builder *builder, const ferry_device_rule_t *given,
                               size_t index)
{
    if (given->peer == NULL || !peer_is_valid(given->peer)) {
        return error_raise(FERRY_ERR_DEVICE_MAP,
                           "device map, rules[%zu]: '%.60s' is no peer: a name of letters, digits "
                           "and _.- or \"*\"",
                           index, given->peer == NULL ? "(NULL)" : given->peer);
    }
    if ((unsigned)given->direction > FERRY_BOTH) {
        return error_raise(FERRY_ERR_DEVICE_MAP,
                           "device map, rules[%zu]: the direction is %d: it must be "
                           "FERRY_ARGUMENTS, FERRY_RESULTS, FERRY_BOTH or 0",
                           index, (int)given->direction);
    }
    size_t clause;
    ferry_status_t status =
        device_map_builder_clause(builder, given->peer, strlen(given->peer), index, &clause);
    if (status != FERRY_OK || given->direction == 0) {
        return status;
    }
    struct device_map_rule rule = {
        .mine = tensor_device(given->mine),
        .theirs = tensor_device(given->theirs),
        .direction = given->direction,
        .position = index,
    };
    for (int side = 0; side < 2; side++) {
        DLDevice device = side == 0 ? rule.mine : rule.theirs;
        if (!device_is_valid(device)) {
            return error_raise(FERRY_ERR_DEVICE_MAP,
                               "device map, rules[%zu].%s: DLPack type %d, index %d is no device "
                               "of a map: " DEVICE_KINDS_TEXT " are, with an index from 0 or "
                               "FERRY_DEVICE_ANY_INDEX",
                               index, side == 0 ? "mine" : "theirs", (int)device.device_type,
                               (int)device.device_id);
        }
    }
    return device_map_builder_rule(builder, clause, &rule);
}

ferry_status_t ferry_device_map_create(const ferry_device_rule_t *rules, size_t rule_count,
                                       ferry_device_map_t **map_out)
{
    if (map_out == NULL || (rules == NULL && rule_count > 0)) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT, "ferry_device_map_create: %s is NULL",
                           map_out == NULL ? "map_out" : "rules");
    }
    struct device_map_builder builder;
    ferry_status_t status = device_map_builder_init(&builder, NULL, NULL);
    if (status != FERRY_OK) {
        return status;
    }
    for (size_t i = 0; i < rule_count && status == FERRY_OK; i++) {
        status = rule_add(&builder, &rules[i], i);
    }
    if (status == FERRY_OK) {
        status = device_map_builder_finish(&builder, map_out);
    }
    device_map_builder_discard(&builder);
    return status;
}
