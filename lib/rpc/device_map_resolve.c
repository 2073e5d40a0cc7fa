/* Where one tensor arrives: the call's own rules, then the clause in force for the peer, then cpu
 * stays cpu. The slow half of this file words the error that names the missing rule. */
#include <stdio.h>
#include <string.h>

#include "device/device_text.h"
#include "rpc/device_map.h"

#define REASON_BYTES 768

static const struct device_map_clause *clause_of(const ferry_device_map_t *map, const char *peer)
{
    for (size_t i = 0; map != NULL && i < map->clause_count; i++) {
        if (strcmp(map->clauses[i].peer, peer) == 0) {
            return &map->clauses[i];
        }
    }
    return NULL;
}

struct device_map_view device_map_view(const ferry_device_map_t *map, const char *peer,
                                       bool is_self)
{
    struct device_map_view view = {.map = map, .peer = peer, .is_self = is_self};
    view.clause = clause_of(map, peer);
    if (view.clause == NULL) {
        view.clause = clause_of(map, "*");
    }
    return view;
}

static const struct device_map_route *clause_route(const struct device_map_clause *clause,
                                                   ferry_direction_t direction, DLDevice from)
{
    if (clause == NULL) {
        return NULL;
    }
    return device_map_routes_find(
        direction == FERRY_ARGUMENTS ? &clause->arguments : &clause->results, from);
}

static DLDevice route_target(const struct device_map_route *route, DLDevice from)
{
    DLDevice target = route->to;
    if (target.device_id == FERRY_DEVICE_ANY_INDEX) {
        target.device_id = from.device_id;
    }
    return target;
}

/* The rules that would do, in the clause that is in force: a clause of the peer's own would hide
 * "*". */
static void reason_remedy(const struct device_map_view *view, DLDevice from,
                          ferry_direction_t direction, char text[REASON_BYTES])
{
    char device[FERRY_DEVICE_TEXT_BYTES];
    const char *kind = device_kind_name(from.device_type);
    const char *peer = view->clause != NULL ? view->clause->peer : view->peer;
    if (kind == NULL) {
        snprintf(text, REASON_BYTES, "maps have no name for devices of this kind");
        return;
    }
    ferry_device_print(from, device);
    if (direction == FERRY_ARGUMENTS) {
        snprintf(text, REASON_BYTES, "add \"%s: %s->cpu\" or \"%s: %s:*->%s:*\"", peer, device,
                 peer, kind, kind);
    } else {
        snprintf(text, REASON_BYTES,
                 "give a buffer or a results_device, or add \"%s: cpu<-%s\" or \"%s: %s:*<-%s:*\"",
                 peer, device, peer, kind, kind);
    }
}

/* "no rule for ps says where it should arrive; add ..." */
static void reason_unmapped(const struct device_map_view *view, DLDevice from,
                            ferry_direction_t direction, char text[REASON_BYTES])
{
    char remedy[REASON_BYTES];
    reason_remedy(view, from, direction, remedy);
    const struct device_map_clause *star = clause_of(view->map, "*");
    bool hidden =
        star != NULL && star != view->clause && clause_route(star, direction, from) != NULL;
    snprintf(text, REASON_BYTES, "no rule for %.*s says where it should %s%s; %.500s",
             DEVICE_MAP_PEER_BYTES - 1, view->peer,
             direction == FERRY_ARGUMENTS ? "arrive" : "come back to",
             hidden ? " (the map's \"*\" does, but a clause of the peer's own hides it)" : "",
             remedy);
}

static ferry_status_t raise_unmapped(const struct device_map_view *view, DLDevice from,
                                     ferry_direction_t direction, const char *slot, size_t position)
{
    char title[TENSOR_TITLE_BYTES], device[FERRY_DEVICE_TEXT_BYTES], reason[REASON_BYTES];
    bool argument = direction == FERRY_ARGUMENTS;
    reason_unmapped(view, from, direction, reason);
    return error_raise(FERRY_ERR_UNMAPPED_DEVICE, "%s is on %s%s%.*s and %s",
                       tensor_title(title, argument ? "argument" : "result", slot, position),
                       ferry_device_print(from, device), argument ? "" : " of ",
                       argument ? 0 : DEVICE_MAP_PEER_BYTES - 1, view->peer, reason);
}

ferry_status_t device_map_view_target(const struct device_map_view *own,
                                      const struct device_map_view *call, DLDevice device,
                                      ferry_direction_t direction, const char *slot,
                                      size_t position, DLDevice *target_out,
                                      const struct device_map_rule **rule_out)
{
    DLDevice from = tensor_device(device);
    const struct device_map_route *route =
        call == NULL ? NULL : clause_route(call->clause, direction, from);
    if (route == NULL) {
        route = clause_route(own->clause, direction, from);
    }
    if (route == NULL && from.device_type != kDLCPU && !own->is_self) {
        return raise_unmapped(own, from, direction, slot, position);
    }
    *target_out = route == NULL ? from : route_target(route, from);
    if (rule_out != NULL) {
        *rule_out = route == NULL ? NULL : route->rule;
    }
    return FERRY_OK;
}

ferry_status_t device_map_target(const ferry_device_map_t *own, const ferry_device_map_t *call,
                                 const char *peer, bool is_self, DLDevice device,
                                 ferry_direction_t direction, const char *slot, size_t position,
                                 DLDevice *target_out, const struct device_map_rule **rule_out)
{
    struct device_map_view own_view = device_map_view(own, peer, is_self);
    struct device_map_view call_view = device_map_view(call, peer, is_self);
    return device_map_view_target(&own_view, &call_view, device, direction, slot, position,
                                  target_out, rule_out);
}

ferry_status_t ferry_device_map_explain(const ferry_device_map_t *map, const char *peer,
                                        DLDevice device, ferry_direction_t direction,
                                        DLDevice *target_out, char *reason, size_t reason_bytes)
{
    char text[REASON_BYTES] = "cpu that no rule names stays cpu";
    if (peer == NULL || target_out == NULL) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT, "ferry_device_map_explain: %s is NULL",
                           peer == NULL ? "peer" : "target_out");
    }
    if (direction != FERRY_ARGUMENTS && direction != FERRY_RESULTS) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT,
                           "ferry_device_map_explain: the direction is %d: it must be "
                           "FERRY_ARGUMENTS or FERRY_RESULTS",
                           (int)direction);
    }
    DLDevice from = tensor_device(device);
    struct device_map_view view = device_map_view(map, peer, false);
    const struct device_map_route *route = clause_route(view.clause, direction, from);
    ferry_status_t status = FERRY_OK;
    if (route != NULL) {
        *target_out = route_target(route, from);
        device_map_rule_print(text, view.clause->peer, route->rule);
    } else if (from.device_type == kDLCPU) {
        *target_out = from;
    } else {
        char name[FERRY_DEVICE_TEXT_BYTES];
        reason_unmapped(&view, from, direction, text);
        status =
            error_raise(FERRY_ERR_UNMAPPED_DEVICE, "a tensor is on %s%s%.*s and %s",
                        ferry_device_print(from, name), direction == FERRY_ARGUMENTS ? "" : " of ",
                        direction == FERRY_ARGUMENTS ? 0 : DEVICE_MAP_PEER_BYTES - 1, peer, text);
    }
    if (reason != NULL && reason_bytes > 0) {
        snprintf(reason, reason_bytes, "%s", text);
    }
    return status;
}
