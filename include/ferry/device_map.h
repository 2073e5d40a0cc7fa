/* Device maps say on which device each tensor of a call arrives. The map belongs to the caller and
 * governs both ways of its own calls.
 *
 *   map    := [clause {";" clause}] [";"]    clause := peer ":" [rule {"," rule}]
 *   peer   := name | "*"                     rule   := device arrow device
 *   arrow  := "->" (arguments) | "<-" (results) | "<->" (both)
 *   device := "cpu" | kind ":" index | kind ":*"           left = mine, right = the peer's
 *
 *   worker1: cuda:0<->cuda:1, cuda:1->cpu ; ps: cuda:*->cpu, cuda:0<-cpu ; *: cuda:*<->cuda:*
 *
 * White space may stand between all of these, but not inside a device. A named peer's clause hides
 * "*" wholly; inside a clause an exact device beats kind:*; cpu that no rule names stays cpu; any
 * other device that no rule names is an error of the call. docs/device-maps.md tells the rest. */
#ifndef FERRY_DEVICE_MAP_H
#define FERRY_DEVICE_MAP_H

#include <ferry/device.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ferry_device_map ferry_device_map_t; /* immutable once made; any thread */

/* Stands for "kind:*" in a rule's device_id. */
#define FERRY_DEVICE_ANY_INDEX (-1)

/* What a map's text (or file), a map and one peer's clauses may have at most. */
#define FERRY_DEVICE_MAP_TEXT_BYTES_MAX (1 << 20)
#define FERRY_DEVICE_MAP_PEERS_MAX 4096
#define FERRY_DEVICE_MAP_PEER_RULES_MAX 1024

typedef enum {
    FERRY_ARGUMENTS = 1, /* "->": caller to callee */
    FERRY_RESULTS = 2,   /* "<-": callee to caller */
    FERRY_BOTH = 3       /* "<->" */
} ferry_direction_t;

typedef struct {
    const char *peer; /* a name or "*" */
    DLDevice mine;    /* device_id may be FERRY_DEVICE_ANY_INDEX */
    ferry_direction_t direction;
    DLDevice theirs;
} ferry_device_rule_t;

/* Reads the text form. "@path" reads the text from a file. NULL and "" make the empty map. Owned by
 * the caller: ferry_device_map_destroy().
 * FERRY_ERR_DEVICE_MAP: the error's text shows position and remedy; a map in PyTorch's form is
 * shown in Ferry's. FERRY_ERR_SYSTEM: the file cannot be read. FERRY_ERR_LIMIT: over one of the
 * bounds above. FERRY_ERR_INVALID_ARGUMENT: map_out is NULL. FERRY_ERR_NO_MEMORY. */
FERRY_API ferry_status_t ferry_device_map_parse(const char *text, ferry_device_map_t **map_out);

/* The same from rules in C, which are copied; a clause that maps nothing is written as a rule whose
 * direction is 0 (its devices are not looked at). Errors as above, positions as "rules[2]". */
FERRY_API ferry_status_t ferry_device_map_create(const ferry_device_rule_t *rules,
                                                 size_t rule_count, ferry_device_map_t **map_out);

/* NULL is taken. */
FERRY_API void ferry_device_map_destroy(ferry_device_map_t *map);

/* Writes the canonical text: NUL-terminated, cut to capacity (text may be NULL when that is 0).
 * Returns the length of the whole text, as snprintf does. Parsing it gives an equal map. */
FERRY_API size_t ferry_device_map_print(const ferry_device_map_t *map, char *text, size_t capacity);

/* A dry run: where would a tensor on `device` of its sender arrive? FERRY_ARGUMENTS: device is mine
 * and the target the peer's. FERRY_RESULTS: device is the peer's and the target mine (unless the
 * call gives a buffer or a results_device). The reason names the rule that decided ("worker1:
 * cuda:0<->cuda:1"), or says why there is none and which rule would do; it is cut to reason_bytes
 * and may be NULL. A NULL map is the empty one.
 * FERRY_ERR_UNMAPPED_DEVICE: no rule (target_out unwritten, the reason written).
 * FERRY_ERR_INVALID_ARGUMENT: another direction, or peer or target_out is NULL. */
FERRY_API ferry_status_t ferry_device_map_explain(const ferry_device_map_t *map, const char *peer,
                                                  DLDevice device, ferry_direction_t direction,
                                                  DLDevice *target_out, char *reason,
                                                  size_t reason_bytes);

#ifdef __cplusplus
}
#endif

#endif
