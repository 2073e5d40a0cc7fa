/* A device map in words, and a dry run of it for one peer. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/config.h"
#include "device/device_text.h"
#include "device/registry.h"
#include "ferry_info/info.h"
#include "naming/naming.h"
#include "rpc/device_map.h"

#define REASON_BYTES 1024
#define NOUN_BYTES 160

/* The devices that a dry run is shown for. */
struct device_set {
    DLDevice all[DEVICE_LIST_MAX];
    size_t count;
};

static void set_add(struct device_set *set, DLDevice device)
{
    if (device.device_id == FERRY_DEVICE_ANY_INDEX) {
        device.device_id = 0; /* one of the kind stands for all */
    }
    for (size_t i = 0; i < set->count; i++) {
        if (tensor_device_equal(set->all[i], device)) {
            return;
        }
    }
    if (set->count < DEVICE_LIST_MAX) {
        set->all[set->count++] = device;
    }
}

static int compare_devices(const void *left, const void *right)
{
    const DLDevice *a = left, *b = right;
    int kind = (int)a->device_type - (int)b->device_type;
    return kind != 0 ? kind : a->device_id - b->device_id;
}

static bool is_any(DLDevice device)
{
    return device.device_id == FERRY_DEVICE_ANY_INDEX;
}

/* "my cuda:0", "any cuda device of worker1", "worker1's cuda device of the same index". whose: "my"
 * or the peer. */
static const char *noun(char text[NOUN_BYTES], const char *peer, bool mine, DLDevice device,
                        bool is_source)
{
    char name[FERRY_DEVICE_TEXT_BYTES];
    const char *kind = device_kind_name(device.device_type);
    const char *owner = strcmp(peer, "*") == 0 ? "the peer" : peer;
    if (!is_any(device)) {
        ferry_device_print(device, name);
    } else if (is_source) {
        snprintf(text, NOUN_BYTES, "any %s device of %s", kind, mine ? "mine" : owner);
        return text;
    } else {
        snprintf(name, sizeof name, "%s device of that index", kind);
    }
    if (mine) {
        snprintf(text, NOUN_BYTES, "my %s", name);
    } else {
        snprintf(text, NOUN_BYTES, "%s's %s", owner, name);
    }
    return text;
}

/* Whether an exact rule of the clause takes devices away from a kind:* rule. */
static bool has_exact(const struct device_map_clause *clause, ferry_direction_t direction,
                      DLDevice from)
{
    const struct device_map_routes *routes =
        direction == FERRY_ARGUMENTS ? &clause->arguments : &clause->results;
    for (size_t i = 0; i < routes->count; i++) {
        if (!is_any(routes->all[i].from) && routes->all[i].from.device_type == from.device_type) {
            return true;
        }
    }
    return false;
}

static void rule_explain(const struct device_map_clause *clause, const struct device_map_rule *rule)
{
    static const ferry_direction_t directions[] = {FERRY_ARGUMENTS, FERRY_RESULTS};
    for (size_t i = 0; i < 2; i++) {
        bool arguments = directions[i] == FERRY_ARGUMENTS;
        DLDevice from = arguments ? rule->mine : rule->theirs;
        DLDevice to = arguments ? rule->theirs : rule->mine;
        char source[NOUN_BYTES], target[NOUN_BYTES];
        if ((rule->direction & directions[i]) == 0) {
            continue;
        }
        printf("    %s on %s %s %s%s\n", arguments ? "an argument" : "a result",
               noun(source, clause->peer, arguments, from, true),
               arguments ? "arrives on" : "comes back to",
               noun(target, clause->peer, !arguments, to, false),
               is_any(from) && has_exact(clause, directions[i], from)
                   ? ", unless a rule names the device itself"
                   : "");
    }
}

static void clause_explain(const struct device_map_clause *clause, const char *peer, bool in_force)
{
    for (size_t i = 0; i < clause->rule_count; i++) {
        char rule[DEVICE_MAP_RULE_BYTES];
        printf("\n  %s%s%s%s\n", device_map_rule_print(rule, clause->peer, &clause->rules[i]),
               in_force ? "" : "   (not in calls to ", in_force ? "" : peer, in_force ? "" : ")");
        rule_explain(clause, &clause->rules[i]);
    }
    if (clause->rule_count == 0) {
        printf("\n  %s:%s%s%s\n    maps nothing\n", clause->peer,
               in_force ? "" : "   (not in calls to ", in_force ? "" : peer, in_force ? "" : ")");
    }
}

static void clauses_explain(const ferry_device_map_t *map, const struct device_map_view *view)
{
    bool star_hidden = false;
    for (size_t i = 0; i < map->clause_count; i++) {
        star_hidden = star_hidden || strcmp(map->clauses[i].peer, "*") == 0;
    }
    if (view->clause == NULL) {
        printf("in calls to %s no clause is in force\n", view->peer);
    } else if (strcmp(view->clause->peer, "*") == 0) {
        printf("in calls to %s the clause \"*\" is in force: it has none of its own\n", view->peer);
    } else {
        printf("in calls to %s its own clause is in force%s\n", view->peer,
               star_hidden ? " and hides \"*\" wholly" : "");
    }
    for (size_t i = 0; i < map->clause_count; i++) {
        clause_explain(&map->clauses[i], view->peer, &map->clauses[i] == view->clause);
    }
}

static bool is_here(DLDevice device)
{
    return device.device_id < ferry_device_count(device.device_type);
}

static void dry_run(const ferry_device_map_t *map, const char *peer, ferry_direction_t direction,
                    struct device_set *set)
{
    bool arguments = direction == FERRY_ARGUMENTS;
    qsort(set->all, set->count, sizeof set->all[0], compare_devices);
    for (size_t i = 0; i < set->count; i++) {
        char from[FERRY_DEVICE_TEXT_BYTES], to[FERRY_DEVICE_TEXT_BYTES] = "error";
        char reason[REASON_BYTES];
        DLDevice target;
        if (ferry_device_map_explain(map, peer, set->all[i], direction, &target, reason,
                                     sizeof reason) == FERRY_OK) {
            ferry_device_print(target, to);
        }
        bool missing = arguments && !is_here(set->all[i]);
        printf("  %-8s -> %-8s %s%s\n", ferry_device_print(set->all[i], from), to, reason,
               missing ? "   (no such device here)" : "");
    }
}

/* Both directions: my devices there, its devices back. What it has is not known here, so those that
 * the rules name and those that I have too stand for them. */
static void dry_runs(const ferry_device_map_t *map, const struct device_map_view *view)
{
    struct device_set mine = {.count = 0};
    mine.count = device_list(mine.all);
    struct device_set theirs = mine;
    for (size_t i = 0; view->clause != NULL && i < view->clause->rule_count; i++) {
        set_add(&mine, view->clause->rules[i].mine);
        set_add(&theirs, view->clause->rules[i].theirs);
    }
    printf("\narguments: from my device, to %s's, by\n", view->peer);
    dry_run(map, view->peer, FERRY_ARGUMENTS, &mine);
    printf("\nresults: from %s's device, to mine, by\n", view->peer);
    dry_run(map, view->peer, FERRY_RESULTS, &theirs);
}

static void map_print(const ferry_device_map_t *map)
{
    size_t length = ferry_device_map_print(map, NULL, 0);
    char *text = malloc(length + 1);
    if (text != NULL) {
        ferry_device_map_print(map, text, length + 1);
        printf("map: %s\n", length == 0 ? "empty" : text);
    }
    free(text);
}

static int map_fail(int status)
{
    fprintf(stderr, "ferry_info: %s\n", ferry_last_error()->text);
    return status;
}

int info_map(const char *map_text, const char *peer)
{
    ferry_config_t *config = NULL;
    ferry_device_map_t *map;
    if (naming_check_name(peer) != FERRY_OK) {
        return map_fail(INFO_USAGE);
    }
    if (map_text == NULL) {
        if (ferry_config_create(&config) != FERRY_OK) {
            return map_fail(INFO_PROBLEM);
        }
    }
    const char *text = map_text != NULL ? map_text : config_values(config)->device_map;
    ferry_status_t status = ferry_device_map_parse(text, &map);
    ferry_config_destroy(config);
    if (status != FERRY_OK) {
        return map_fail(map_text != NULL ? INFO_USAGE : INFO_PROBLEM);
    }
    struct device_map_view view = device_map_view(map, peer, false);
    map_print(map);
    clauses_explain(map, &view);
    dry_runs(map, &view);
    printf(
        "\nBefore these come a call's own map and, for results, its buffers and results_device.\n");
    ferry_device_map_destroy(map);
    return INFO_OK;
}
