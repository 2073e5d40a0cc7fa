/* Device maps inside the library: their form in memory, the checks against real devices and names,
 * and the resolution of one tensor. */
#ifndef FERRY_RPC_DEVICE_MAP_H
#define FERRY_RPC_DEVICE_MAP_H

#include <stdbool.h>

#include <ferry/device_map.h>

#include "core/error.h"
#include "rpc/tensor.h"

#define DEVICE_MAP_PEER_BYTES 128

struct device_map_rule {
    DLDevice mine, theirs;
    ferry_direction_t direction;
    size_t position; /* byte offset in the text, or index of the struct; for messages */
};

/* One direction of one rule, from where a tensor is to where it arrives. */
struct device_map_route {
    DLDevice from, to;
    const struct device_map_rule *rule;
};

struct device_map_routes {
    const struct device_map_route *all; /* exact devices first, then kind:* */
    size_t count;
};

struct device_map_clause {
    char peer[DEVICE_MAP_PEER_BYTES];
    struct device_map_rule *rules; /* owned */
    size_t rule_count, rule_capacity;
    struct device_map_route *route_store; /* owned */
    struct device_map_routes arguments, results;
};

struct ferry_device_map {
    struct device_map_clause *clauses; /* owned */
    size_t clause_count, clause_capacity;
};

/* A map as one peer sees it: found once, so that resolving a tensor compares no strings. Borrows
 * map and peer. Zero it for "no map". */
struct device_map_view {
    const ferry_device_map_t *map;
    const struct device_map_clause *clause; /* the one in force; NULL: no rule for this peer */
    const char *peer;
    bool is_self;
};

/* map may be NULL, the empty one. */
struct device_map_view device_map_view(const ferry_device_map_t *map, const char *peer,
                                       bool is_self);

/* The route of a tensor on `from` (a tensor_device()), or NULL. */
static inline const struct device_map_route *
device_map_routes_find(const struct device_map_routes *routes, DLDevice from)
{
    for (size_t i = 0; i < routes->count; i++) {
        const struct device_map_route *route = &routes->all[i];
        if (route->from.device_type == from.device_type &&
            (route->from.device_id == from.device_id ||
             route->from.device_id == FERRY_DEVICE_ANY_INDEX)) {
            return route;
        }
    }
    return NULL;
}

/* Where the tensor arrives. `call` is the call's own map, whose rules come first, or NULL. slot and
 * position name the tensor in the error as tensor_title() does. rule_out, which may be NULL, gets
 * the rule that decided, or NULL where none did (cpu stays cpu; a call to oneself). Whether the
 * target exists there is the caller's question, and so are result buffers and results_device, which
 * come before any rule. Raises FERRY_ERR_UNMAPPED_DEVICE with the rule that would fix it. */
ferry_status_t device_map_view_target(const struct device_map_view *own,
                                      const struct device_map_view *call, DLDevice device,
                                      ferry_direction_t direction, const char *slot,
                                      size_t position, DLDevice *target_out,
                                      const struct device_map_rule **rule_out);

/* The same without a prepared view. */
ferry_status_t device_map_target(const ferry_device_map_t *own, const ferry_device_map_t *call,
                                 const char *peer, bool is_self, DLDevice device,
                                 ferry_direction_t direction, const char *slot, size_t position,
                                 DLDevice *target_out, const struct device_map_rule **rule_out);

/* Start: every device on the left of a rule exists here (a kind:* never asks). Raises
 * FERRY_ERR_DEVICE_MAP. count is ferry_device_count() outside tests. */
ferry_status_t device_map_check_mine(const ferry_device_map_t *map,
                                     int32_t (*count)(DLDeviceType type));

/* Connect: every device on the right of the rules in force for this peer is one of its devices,
 * which it said in its hello; cpu needs no mention. Raises FERRY_ERR_DEVICE_MAP. */
ferry_status_t device_map_check_peer(const ferry_device_map_t *map, const char *peer,
                                     const DLDevice *devices, size_t device_count);

/* Fixed groups: every clause's peer is one of these names. Raises FERRY_ERR_DEVICE_MAP with the
 * nearest name. */
ferry_status_t device_map_check_names(const ferry_device_map_t *map, const char *const *names,
                                      size_t name_count);

/* "worker1: cuda:0<->cuda:1". */
#define DEVICE_MAP_RULE_BYTES (DEVICE_MAP_PEER_BYTES + 2 * FERRY_DEVICE_TEXT_BYTES + 8)
const char *device_map_rule_print(char buffer[DEVICE_MAP_RULE_BYTES], const char *peer,
                                  const struct device_map_rule *rule);

/* "->", "<-" or "<->". */
const char *device_map_arrow(ferry_direction_t direction);

/* Building, for the two readers. `text` is what positions count in, or NULL when they are the
 * indices of a struct array; `path` is the file it came from, or NULL. */
struct device_map_builder {
    ferry_device_map_t *map;
    const char *text;
    const char *path;
};

ferry_status_t device_map_builder_init(struct device_map_builder *builder, const char *text,
                                       const char *path);
/* The clause for this peer, a new one or the one to merge with. */
ferry_status_t device_map_builder_clause(struct device_map_builder *builder, const char *peer,
                                         size_t peer_bytes, size_t position, size_t *clause_out);
/* rule->direction is one of the three. Raises FERRY_ERR_DEVICE_MAP for a rule that says nothing
 * certain or that contradicts an earlier one of the clause. */
ferry_status_t device_map_builder_rule(struct device_map_builder *builder, size_t clause,
                                       const struct device_map_rule *rule);
/* Hands the map over. On an error the builder still owns it. */
ferry_status_t device_map_builder_finish(struct device_map_builder *builder,
                                         ferry_device_map_t **map_out);
/* Destroys what was not handed over. */
void device_map_builder_discard(struct device_map_builder *builder);

/* "device map, column 12" / "device map /etc/map, line 2, column 3" / "device map, rules[2]". */
#define DEVICE_MAP_WHERE_BYTES 384
const char *device_map_where(char buffer[DEVICE_MAP_WHERE_BYTES],
                             const struct device_map_builder *builder, size_t position);

/* Other people's notations. Each writes the same map in Ferry's words and returns true, or returns
 * false when it cannot be told what is meant (or it does not fit). */

/* A Python dict or set; note_out gets a static remark for the reader. */
bool device_map_from_python(const char *text, char *out, size_t capacity, const char **note_out);
/* Bare indices, "cuda0", "=>" and ":" between devices, arrows from other alphabets, a missing
 * peer. */
bool device_map_from_near_miss(const char *text, char *out, size_t capacity);

#endif
