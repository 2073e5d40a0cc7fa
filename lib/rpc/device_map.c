/* A map in memory: built rule by rule, checked as it grows, printed in its canonical form. */
#include "rpc/device_map.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/device_text.h"

const char *device_map_arrow(ferry_direction_t direction)
{
    switch (direction) {
    case FERRY_ARGUMENTS:
        return "->";
    case FERRY_RESULTS:
        return "<-";
    case FERRY_BOTH:
        return "<->";
    }
    return "?";
}

static const char *rule_text(char buffer[DEVICE_MAP_RULE_BYTES], const struct device_map_rule *rule)
{
    char mine[FERRY_DEVICE_TEXT_BYTES], theirs[FERRY_DEVICE_TEXT_BYTES];
    snprintf(buffer, DEVICE_MAP_RULE_BYTES, "%s%s%s", ferry_device_print(rule->mine, mine),
             device_map_arrow(rule->direction), ferry_device_print(rule->theirs, theirs));
    return buffer;
}

const char *device_map_rule_print(char buffer[DEVICE_MAP_RULE_BYTES], const char *peer,
                                  const struct device_map_rule *rule)
{
    char text[DEVICE_MAP_RULE_BYTES];
    snprintf(buffer, DEVICE_MAP_RULE_BYTES, "%.*s: %.*s", DEVICE_MAP_PEER_BYTES - 1, peer,
             DEVICE_MAP_RULE_BYTES - DEVICE_MAP_PEER_BYTES - 2, rule_text(text, rule));
    return buffer;
}

static const char *where_short(char buffer[DEVICE_MAP_WHERE_BYTES],
                               const struct device_map_builder *builder, size_t position)
{
    if (builder->text == NULL) {
        snprintf(buffer, DEVICE_MAP_WHERE_BYTES, "rules[%zu]", position);
        return buffer;
    }
    size_t line = 1, start = 0;
    for (size_t i = 0; i < position; i++) {
        if (builder->text[i] == '\n') {
            line++;
            start = i + 1;
        }
    }
    if (builder->path == NULL && line == 1) {
        snprintf(buffer, DEVICE_MAP_WHERE_BYTES, "column %zu", position + 1);
    } else {
        snprintf(buffer, DEVICE_MAP_WHERE_BYTES, "line %zu, column %zu", line,
                 position - start + 1);
    }
    return buffer;
}

const char *device_map_where(char buffer[DEVICE_MAP_WHERE_BYTES],
                             const struct device_map_builder *builder, size_t position)
{
    char place[DEVICE_MAP_WHERE_BYTES];
    where_short(place, builder, position);
    if (builder->path == NULL) {
        snprintf(buffer, DEVICE_MAP_WHERE_BYTES, "device map, %.60s", place);
    } else {
        snprintf(buffer, DEVICE_MAP_WHERE_BYTES, "device map %.255s, %.60s", builder->path, place);
    }
    return buffer;
}

ferry_status_t device_map_builder_init(struct device_map_builder *builder, const char *text,
                                       const char *path)
{
    ferry_device_map_t *map = calloc(1, sizeof *map);
    if (map == NULL) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory for a device map");
    }
    *builder = (struct device_map_builder){.map = map, .text = text, .path = path};
    return FERRY_OK;
}

void device_map_builder_discard(struct device_map_builder *builder)
{
    ferry_device_map_destroy(builder->map);
    builder->map = NULL;
}

/* Room for one more in a growing array: returns the array, or NULL with an error raised. */
static void *array_reserve(void *array, size_t count, size_t *capacity, size_t item_bytes)
{
    if (count < *capacity) {
        return array;
    }
    size_t more = *capacity == 0 ? 4 : *capacity * 2;
    void *grown = realloc(array, more * item_bytes);
    if (grown == NULL) {
        error_raise(FERRY_ERR_NO_MEMORY, "no memory for a device map");
        return NULL;
    }
    *capacity = more;
    return grown;
}

ferry_status_t device_map_builder_clause(struct device_map_builder *builder, const char *peer,
                                         size_t peer_bytes, size_t position, size_t *clause_out)
{
    ferry_device_map_t *map = builder->map;
    for (size_t i = 0; i < map->clause_count; i++) {
        if (strlen(map->clauses[i].peer) == peer_bytes &&
            memcmp(map->clauses[i].peer, peer, peer_bytes) == 0) {
            *clause_out = i;
            return FERRY_OK;
        }
    }
    char where[DEVICE_MAP_WHERE_BYTES];
    if (peer_bytes >= DEVICE_MAP_PEER_BYTES) {
        return error_raise(FERRY_ERR_DEVICE_MAP,
                           "%s: the peer's name has %zu bytes, at most %d "
                           "are allowed",
                           device_map_where(where, builder, position), peer_bytes,
                           DEVICE_MAP_PEER_BYTES - 1);
    }
    if (map->clause_count == FERRY_DEVICE_MAP_PEERS_MAX) {
        return error_raise(FERRY_ERR_LIMIT, "%s: more than %d peers",
                           device_map_where(where, builder, position), FERRY_DEVICE_MAP_PEERS_MAX);
    }
    struct device_map_clause *clauses =
        array_reserve(map->clauses, map->clause_count, &map->clause_capacity, sizeof *map->clauses);
    if (clauses == NULL) {
        return FERRY_ERR_NO_MEMORY;
    }
    map->clauses = clauses;
    struct device_map_clause *clause = &clauses[map->clause_count];
    *clause = (struct device_map_clause){.rule_count = 0};
    memcpy(clause->peer, peer, peer_bytes);
    *clause_out = map->clause_count++;
    return FERRY_OK;
}

static bool is_any(DLDevice device)
{
    return device.device_id == FERRY_DEVICE_ANY_INDEX;
}

/* A kind:* on one side only leaves open which device is meant. */
static ferry_status_t rule_check_stars(const struct device_map_builder *builder,
                                       const struct device_map_rule *rule)
{
    char where[DEVICE_MAP_WHERE_BYTES], text[DEVICE_MAP_RULE_BYTES];
    char mine[FERRY_DEVICE_TEXT_BYTES], theirs[FERRY_DEVICE_TEXT_BYTES];
    ferry_device_print(rule->mine, mine);
    ferry_device_print(rule->theirs, theirs);
    if (is_any(rule->theirs) && !is_any(rule->mine)) {
        const char *kind = device_kind_name(rule->theirs.device_type);
        return error_raise(FERRY_ERR_DEVICE_MAP,
                           "%s: \"%s\": %s on the right (the same index as on the left) needs a "
                           "kind:* on the left; name the device, e.g. \"%s%s%s:0\"",
                           device_map_where(where, builder, rule->position), rule_text(text, rule),
                           theirs, mine, device_map_arrow(rule->direction), kind);
    }
    if (is_any(rule->mine) && !is_any(rule->theirs) && (rule->direction & FERRY_RESULTS) != 0) {
        const char *kind = device_kind_name(rule->mine.device_type);
        return error_raise(FERRY_ERR_DEVICE_MAP,
                           "%s: \"%s\": a result on %s could come back to any of %s; name one, "
                           "e.g. \"%s:0<-%s\", or give each call its results_device",
                           device_map_where(where, builder, rule->position), rule_text(text, rule),
                           theirs, mine, kind, theirs);
    }
    return FERRY_OK;
}

static const char *peer_title(const char *peer)
{
    return strcmp(peer, "*") == 0 ? "any peer" : peer;
}

/* Does the new rule send what an earlier one sends elsewhere? */
static ferry_status_t rule_check_pair(const struct device_map_builder *builder, const char *peer,
                                      const struct device_map_rule *old,
                                      const struct device_map_rule *new)
{
    unsigned common = (unsigned)old->direction & (unsigned)new->direction;
    bool same_mine = tensor_device_equal(old->mine, new->mine);
    bool same_theirs = tensor_device_equal(old->theirs, new->theirs);
    char where[DEVICE_MAP_WHERE_BYTES], old_where[DEVICE_MAP_WHERE_BYTES];
    char old_text[DEVICE_MAP_RULE_BYTES], new_text[DEVICE_MAP_RULE_BYTES];
    char mine[FERRY_DEVICE_TEXT_BYTES], theirs[FERRY_DEVICE_TEXT_BYTES];
    char other[FERRY_DEVICE_TEXT_BYTES];
    if ((common & FERRY_ARGUMENTS) != 0 && same_mine && !same_theirs) {
        return error_raise(FERRY_ERR_DEVICE_MAP,
                           "%s: \"%s\" sends %s to %s of %s, but \"%s\" (%s) sends it to %s; "
                           "keep one, or give the other to single calls as their own map",
                           device_map_where(where, builder, new->position),
                           rule_text(new_text, new), ferry_device_print(new->mine, mine),
                           ferry_device_print(new->theirs, theirs), peer_title(peer),
                           rule_text(old_text, old), where_short(old_where, builder, old->position),
                           ferry_device_print(old->theirs, other));
    }
    if ((common & FERRY_RESULTS) != 0 && same_theirs && !same_mine) {
        return error_raise(FERRY_ERR_DEVICE_MAP,
                           "%s: with \"%s\" a result on %s of %s would come back to %s, with "
                           "\"%s\" (%s) to %s; write one of them with ->, or both, and choose by "
                           "the call's results_device",
                           device_map_where(where, builder, new->position),
                           rule_text(new_text, new), ferry_device_print(new->theirs, theirs),
                           peer_title(peer), ferry_device_print(new->mine, mine),
                           rule_text(old_text, old), where_short(old_where, builder, old->position),
                           ferry_device_print(old->mine, other));
    }
    return FERRY_OK;
}

ferry_status_t device_map_builder_rule(struct device_map_builder *builder, size_t clause_index,
                                       const struct device_map_rule *rule)
{
    struct device_map_clause *clause = &builder->map->clauses[clause_index];
    ferry_status_t status = rule_check_stars(builder, rule);
    struct device_map_rule *twin = NULL;
    for (size_t i = 0; i < clause->rule_count && status == FERRY_OK; i++) {
        struct device_map_rule *old = &clause->rules[i];
        status = rule_check_pair(builder, clause->peer, old, rule);
        if (tensor_device_equal(old->mine, rule->mine) &&
            tensor_device_equal(old->theirs, rule->theirs)) {
            twin = old;
        }
    }
    if (status != FERRY_OK) {
        return status;
    }
    if (twin != NULL) {
        twin->direction = (ferry_direction_t)(twin->direction | rule->direction);
        return FERRY_OK;
    }
    if (clause->rule_count == FERRY_DEVICE_MAP_PEER_RULES_MAX) {
        char where[DEVICE_MAP_WHERE_BYTES];
        return error_raise(FERRY_ERR_LIMIT, "%s: more than %d rules for %s",
                           device_map_where(where, builder, rule->position),
                           FERRY_DEVICE_MAP_PEER_RULES_MAX, clause->peer);
    }
    struct device_map_rule *rules = array_reserve(clause->rules, clause->rule_count,
                                                  &clause->rule_capacity, sizeof *clause->rules);
    if (rules == NULL) {
        return FERRY_ERR_NO_MEMORY;
    }
    clause->rules = rules;
    clause->rules[clause->rule_count++] = *rule;
    return FERRY_OK;
}

/* Lists one direction's routes behind `routes`, exact devices before kind:*, and returns how
 * many. */
static size_t routes_fill(struct device_map_route *routes, const struct device_map_clause *clause,
                          ferry_direction_t direction)
{
    size_t count = 0;
    for (int any = 0; any < 2; any++) {
        for (size_t i = 0; i < clause->rule_count; i++) {
            const struct device_map_rule *rule = &clause->rules[i];
            bool arguments = direction == FERRY_ARGUMENTS;
            DLDevice from = arguments ? rule->mine : rule->theirs;
            if ((rule->direction & direction) != 0 && is_any(from) == (any == 1)) {
                routes[count++] = (struct device_map_route){
                    .from = from, .to = arguments ? rule->theirs : rule->mine, .rule = rule};
            }
        }
    }
    return count;
}

ferry_status_t device_map_builder_finish(struct device_map_builder *builder,
                                         ferry_device_map_t **map_out)
{
    for (size_t i = 0; i < builder->map->clause_count; i++) {
        struct device_map_clause *clause = &builder->map->clauses[i];
        if (clause->rule_count == 0) {
            continue;
        }
        clause->route_store = calloc(2 * clause->rule_count, sizeof *clause->route_store);
        if (clause->route_store == NULL) {
            return error_raise(FERRY_ERR_NO_MEMORY, "no memory for a device map");
        }
        clause->arguments.all = clause->route_store;
        clause->arguments.count = routes_fill(clause->route_store, clause, FERRY_ARGUMENTS);
        struct device_map_route *results = clause->route_store + clause->arguments.count;
        clause->results.all = results;
        clause->results.count = routes_fill(results, clause, FERRY_RESULTS);
    }
    *map_out = builder->map;
    builder->map = NULL;
    return FERRY_OK;
}

void ferry_device_map_destroy(ferry_device_map_t *map)
{
    if (map == NULL) {
        return;
    }
    for (size_t i = 0; i < map->clause_count; i++) {
        free(map->clauses[i].route_store);
        free(map->clauses[i].rules);
    }
    free(map->clauses);
    free(map);
}

/* Writes what still fits and counts what would have been written. */
static size_t print_at(char *text, size_t capacity, size_t length, const char *format, ...)
    FERRY_PRINTF(4, 5);

static size_t print_at(char *text, size_t capacity, size_t length, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    bool fits = length < capacity;
    int written =
        vsnprintf(fits ? text + length : NULL, fits ? capacity - length : 0, format, arguments);
    va_end(arguments);
    return length + (size_t)written;
}

size_t ferry_device_map_print(const ferry_device_map_t *map, char *text, size_t capacity)
{
    size_t length = print_at(text, capacity, 0, "%s", "");
    for (size_t i = 0; map != NULL && i < map->clause_count; i++) {
        const struct device_map_clause *clause = &map->clauses[i];
        length = print_at(text, capacity, length, "%s%s:", i == 0 ? "" : "; ", clause->peer);
        for (size_t k = 0; k < clause->rule_count; k++) {
            char rule[DEVICE_MAP_RULE_BYTES];
            length = print_at(text, capacity, length, "%s%s", k == 0 ? " " : ", ",
                              rule_text(rule, &clause->rules[k]));
        }
    }
    return length;
}
