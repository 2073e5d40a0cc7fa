/* Device maps against a slow model written for this test: thousands of pseudo-random maps from
 * fixed seeds. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ferry/error.h>

#include "rpc/device_map.h"

#define MAPS 40000
#define RULES_MAX 8
#define TEXT_BYTES 2048

static uint32_t random_next(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*state >> 33);
}

static const char *const peers[] = {"a", "b.1", "*"};
static const int32_t ANY = FERRY_DEVICE_ANY_INDEX;

static DLDevice random_device(uint64_t *state)
{
    static const int types[] = {kDLCPU, kDLCUDA, kDLCUDA, FERRY_DEVICE_SIM};
    int type = types[random_next(state) % 4];
    int32_t index = type == kDLCPU ? 0 : (int32_t)(random_next(state) % 3) - 1;
    return (DLDevice){.device_type = (DLDeviceType)type, .device_id = index};
}

static size_t random_rules(uint64_t *state, ferry_device_rule_t rules[RULES_MAX])
{
    size_t count = random_next(state) % (RULES_MAX + 1);
    for (size_t i = 0; i < count; i++) {
        rules[i].peer = peers[random_next(state) % 3];
        rules[i].mine = random_device(state);
        rules[i].direction =
            (ferry_direction_t)(random_next(state) % 8 == 0 ? 0 : 1 + random_next(state) % 3);
        rules[i].theirs = random_device(state);
    }
    return count;
}

static const char *random_space(uint64_t *state)
{
    static const char *const spaces[] = {"", "", "", " ", "\n", "\t \r\n"};
    return spaces[random_next(state) % 6];
}

static void write_text(uint64_t *state, const ferry_device_rule_t *rules, size_t count,
                       char text[TEXT_BYTES])
{
    static const char *const arrows[] = {"", "->", "<-", "<->"};
    size_t length = 0;
    text[0] = '\0';
    for (size_t i = 0; i < count; i++) {
        char mine[FERRY_DEVICE_TEXT_BYTES], theirs[FERRY_DEVICE_TEXT_BYTES];
        bool follows = i > 0 && strcmp(rules[i].peer, rules[i - 1].peer) == 0 &&
                       rules[i].direction != 0 && rules[i - 1].direction != 0;
        length += (size_t)snprintf(text + length, TEXT_BYTES - length, "%s", random_space(state));
        length += follows ? (size_t)snprintf(text + length, TEXT_BYTES - length, ",")
                          : (size_t)snprintf(text + length, TEXT_BYTES - length,
                                             "%s%s%s%s:", i > 0 ? ";" : "", random_space(state),
                                             rules[i].peer, random_space(state));
        if (rules[i].direction != 0) {
            length += (size_t)snprintf(
                text + length, TEXT_BYTES - length, "%s%s%s%s%s%s%s", random_space(state),
                ferry_device_print(rules[i].mine, mine), random_space(state),
                arrows[rules[i].direction], random_space(state),
                ferry_device_print(rules[i].theirs, theirs), random_space(state));
        }
    }
    snprintf(text + length, TEXT_BYTES - length, "%s%s", random_next(state) % 2 ? ";" : "",
             random_space(state));
}

static bool same(DLDevice x, DLDevice y)
{
    return x.device_type == y.device_type && x.device_id == y.device_id;
}

/* The design's sentences, one by one. */
static bool model_valid(const ferry_device_rule_t *rules, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const ferry_device_rule_t *r = &rules[i];
        if (r->direction == 0) {
            continue;
        }
        if (r->theirs.device_id == ANY && r->mine.device_id != ANY) {
            return false;
        }
        if ((r->direction & FERRY_RESULTS) && r->mine.device_id == ANY &&
            r->theirs.device_id != ANY) {
            return false;
        }
        for (size_t k = 0; k < i; k++) {
            const ferry_device_rule_t *q = &rules[k];
            int common = (int)r->direction & (int)q->direction;
            if (strcmp(r->peer, q->peer) != 0) {
                continue;
            }
            if ((common & FERRY_ARGUMENTS) && same(r->mine, q->mine) &&
                !same(r->theirs, q->theirs)) {
                return false;
            }
            if ((common & FERRY_RESULTS) && same(r->theirs, q->theirs) && !same(r->mine, q->mine)) {
                return false;
            }
        }
    }
    return true;
}

static bool model_scan(const ferry_device_rule_t *rules, size_t count, const char *peer, bool exact,
                       DLDevice device, ferry_direction_t direction, DLDevice *target_out)
{
    for (size_t i = 0; i < count; i++) {
        DLDevice from = direction == FERRY_ARGUMENTS ? rules[i].mine : rules[i].theirs;
        DLDevice to = direction == FERRY_ARGUMENTS ? rules[i].theirs : rules[i].mine;
        bool fits = exact ? same(from, device)
                          : from.device_id == ANY && from.device_type == device.device_type;
        if (strcmp(rules[i].peer, peer) == 0 && (rules[i].direction & direction) && fits) {
            *target_out = to;
            target_out->device_id = to.device_id == ANY ? device.device_id : to.device_id;
            return true;
        }
    }
    return false;
}

/* One map's answer: false when it has none. */
static bool model_lookup(const ferry_device_rule_t *rules, size_t count, const char *peer,
                         DLDevice device, ferry_direction_t direction, DLDevice *target_out)
{
    bool named = false;
    for (size_t i = 0; i < count; i++) {
        named = named || strcmp(rules[i].peer, peer) == 0;
    }
    peer = named ? peer : "*";
    return model_scan(rules, count, peer, true, device, direction, target_out) ||
           model_scan(rules, count, peer, false, device, direction, target_out);
}

static void expect_same_targets(const ferry_device_rule_t *rules, size_t count,
                                const ferry_device_map_t *map,
                                const ferry_device_rule_t *call_rules, size_t call_count,
                                const ferry_device_map_t *call, bool is_self)
{
    static const char *const callees[] = {"a", "b.1", "c"};
    for (int k = 0; k < 3 * 2 * 7; k++) {
        const char *peer = callees[k % 3];
        ferry_direction_t direction = (k / 3) % 2 ? FERRY_RESULTS : FERRY_ARGUMENTS;
        int d = k / 6;
        DLDevice device = {.device_type = d == 0  ? kDLCPU
                                          : d < 4 ? kDLCUDA
                                                  : (DLDeviceType)FERRY_DEVICE_SIM,
                           .device_id = d == 0 ? 0 : (d - 1) % 3};
        DLDevice expected = device, target;
        bool mapped = model_lookup(call_rules, call_count, peer, device, direction, &expected) ||
                      model_lookup(rules, count, peer, device, direction, &expected) || d == 0 ||
                      is_self;
        ferry_status_t status =
            device_map_target(map, call, peer, is_self, device, direction, "t", 0, &target, NULL);
        cr_assert_eq(status, mapped ? FERRY_OK : FERRY_ERR_UNMAPPED_DEVICE);
        cr_assert(!mapped || same(target, expected));
        if (call_count == 0 && !is_self) {
            DLDevice explained;
            cr_assert_eq(
                ferry_device_map_explain(map, peer, device, direction, &explained, NULL, 0),
                status);
            cr_assert(!mapped || same(explained, expected));
        }
    }
}

static void expect_round_trip(const ferry_device_map_t *map)
{
    char once[TEXT_BYTES], twice[TEXT_BYTES];
    ferry_device_map_t *again = NULL;
    size_t length = ferry_device_map_print(map, once, sizeof once);
    cr_assert_lt(length, sizeof once);
    cr_assert_eq(ferry_device_map_parse(once, &again), FERRY_OK, "%s", once);
    ferry_device_map_print(again, twice, sizeof twice);
    cr_assert_str_eq(once, twice);
    ferry_device_map_destroy(again);
}

/* Text and structs give the same map, or are both refused, as the model says. NULL when refused. */
static ferry_device_map_t *build_both(uint64_t *state, const ferry_device_rule_t *rules,
                                      size_t count)
{
    char text[TEXT_BYTES], printed[TEXT_BYTES], other[TEXT_BYTES];
    ferry_device_map_t *parsed = NULL, *created = NULL;
    write_text(state, rules, count, text);
    ferry_status_t expected = model_valid(rules, count) ? FERRY_OK : FERRY_ERR_DEVICE_MAP;
    cr_assert_eq(ferry_device_map_parse(text, &parsed), expected, "%s: %s", text,
                 ferry_last_error()->text);
    cr_assert_eq(ferry_device_map_create(rules, count, &created), expected, "%s", text);
    if (expected != FERRY_OK) {
        return NULL;
    }
    ferry_device_map_print(parsed, printed, sizeof printed);
    ferry_device_map_print(created, other, sizeof other);
    cr_assert_str_eq(printed, other);
    ferry_device_map_destroy(created);
    return parsed;
}

Test(device_map_property, maps_agree_with_the_model)
{
    uint64_t state = 20261201;
    size_t valid = 0;
    for (int round = 0; round < MAPS; round++) {
        ferry_device_rule_t rules[RULES_MAX], call_rules[RULES_MAX];
        size_t count = random_rules(&state, rules);
        size_t call_count = round % 2 ? 0 : random_rules(&state, call_rules);
        ferry_device_map_t *map = build_both(&state, rules, count);
        ferry_device_map_t *call = build_both(&state, call_rules, call_count);
        if (map != NULL && call != NULL) {
            expect_round_trip(map);
            expect_same_targets(rules, count, map, call_rules, call_count, call, round % 5 == 0);
            valid++;
        }
        ferry_device_map_destroy(call);
        ferry_device_map_destroy(map);
    }
    cr_assert_gt(valid, MAPS / 10, "only %zu maps were valid", valid);
}

/* Whatever the bytes: an answer, and either an error that says something or a map that prints. */
static void expect_survives(const char *text)
{
    ferry_device_map_t *map = NULL;
    ferry_status_t status = ferry_device_map_parse(text, &map);
    if (status == FERRY_OK) {
        expect_round_trip(map);
        ferry_device_map_destroy(map);
        return;
    }
    cr_assert(status == FERRY_ERR_DEVICE_MAP || status == FERRY_ERR_SYSTEM, "%s", text);
    cr_assert(strncmp(ferry_last_error()->text, "device map", 10) == 0);
    cr_assert_null(map);
}

/* The text is kept in a block of its exact size, so that the sanitizer sees a byte too many. */
static void expect_survives_exactly(const char *text, size_t bytes)
{
    char *copy = malloc(bytes + 1);
    memcpy(copy, text, bytes);
    copy[bytes] = '\0';
    expect_survives(copy);
    free(copy);
}

Test(device_map_property, any_bytes_are_survived)
{
    static const char *const pieces[] = {"a",      "*",      ":",     ",",        ";",
                                         "->",     "<-",     "<->",   "cpu",      "cuda:",
                                         "cuda:0", "cuda:*", "sim:1", "0",        "1",
                                         " ",      "\n",     "-",     "<",        ">",
                                         "=",      "=>",     "{",     "}",        "\"",
                                         "'",      "any",    "cuda1", "gpu",      "torch.device(",
                                         ")",      "\u2192", "\xff",  "\xe2\x86", "999999999999",
                                         "_.-",    "@"};
    uint64_t state = 4711;
    for (int round = 0; round < 100000; round++) {
        char text[512];
        size_t bytes = 0;
        for (uint32_t k = random_next(&state) % 24; k > 0; k--) {
            const char *piece = pieces[random_next(&state) % (sizeof pieces / sizeof pieces[0])];
            memcpy(text + bytes, piece, strlen(piece));
            bytes += strlen(piece);
        }
        if (round % 3 == 0 && bytes > 0) {
            text[random_next(&state) % bytes] = (char)(1 + random_next(&state) % 255);
        }
        expect_survives_exactly(text, bytes);
    }
}

Test(device_map_property, damaged_maps_are_survived)
{
    static const char *const maps[] = {
        "worker1: cuda:0<->cuda:1, cuda:1->cpu ; ps: cuda:*->cpu, cuda:0<-cpu ; *: cuda:*<->cuda:*",
        "{\"worker1\": {0: 1, \"cuda:1\": torch.device('cuda', 0)}, 'ps': {1, 2}}",
        "worker1: 0->1, 2<->cuda3; gpu:0=>cpu; cuda:0:cuda:1"};
    uint64_t state = 99;
    for (int round = 0; round < 30000; round++) {
        char text[256];
        size_t bytes = strlen(maps[round % 3]);
        memcpy(text, maps[round % 3], bytes);
        for (uint32_t k = random_next(&state) % 4; k > 0; k--) {
            size_t at = random_next(&state) % bytes;
            if (random_next(&state) % 2) {
                text[at] = text[random_next(&state) % bytes];
            } else {
                memmove(text + at, text + at + 1, bytes - at - 1);
                bytes--;
            }
        }
        bytes -= random_next(&state) % 3 == 0 ? random_next(&state) % bytes : 0;
        expect_survives_exactly(text, bytes);
    }
}
