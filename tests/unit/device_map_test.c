/* Device maps: grammar, precedence, refusals and their texts, checks, explain. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ferry/error.h>

#include "rpc/device_map.h"

static const DLDevice CPU = {.device_type = kDLCPU, .device_id = 0};

static DLDevice cuda(int32_t index)
{
    return (DLDevice){.device_type = kDLCUDA, .device_id = index};
}

static DLDevice sim(int32_t index)
{
    return (DLDevice){.device_type = (DLDeviceType)FERRY_DEVICE_SIM, .device_id = index};
}

static ferry_device_map_t *parse(const char *text)
{
    ferry_device_map_t *map = NULL;
    cr_assert_eq(ferry_device_map_parse(text, &map), FERRY_OK, "%s: %s", text,
                 ferry_last_error()->text);
    cr_assert_not_null(map);
    return map;
}

static void expect_print(const char *text, const char *expected)
{
    char printed[512];
    ferry_device_map_t *map = parse(text);
    cr_assert_eq(ferry_device_map_print(map, printed, sizeof printed), strlen(expected));
    cr_assert_str_eq(printed, expected);
    ferry_device_map_destroy(map);
}

static void expect_refused(const char *text, const char *said)
{
    ferry_device_map_t *map = (ferry_device_map_t *)&text;
    cr_assert_eq(ferry_device_map_parse(text, &map), FERRY_ERR_DEVICE_MAP, "'%s' was taken", text);
    cr_assert(strstr(ferry_last_error()->text, said) != NULL, "'%s':\n  %s\n  lacks '%s'", text,
              ferry_last_error()->text, said);
    cr_assert_eq((void *)map, (void *)&text, "an error wrote the output");
}

/* The target's text, or "-" for a device that no rule names. */
static void expect_target(const char *text, const char *peer, DLDevice device,
                          ferry_direction_t direction, const char *expected)
{
    ferry_device_map_t *map = parse(text);
    DLDevice target = {.device_type = kDLVulkan, .device_id = 9};
    char printed[FERRY_DEVICE_TEXT_BYTES] = "-";
    ferry_status_t status =
        device_map_target(map, NULL, peer, false, device, direction, "t", 0, &target, NULL);
    if (status == FERRY_OK) {
        ferry_device_print(target, printed);
    } else {
        cr_assert_eq(status, FERRY_ERR_UNMAPPED_DEVICE);
        cr_assert_eq(target.device_id, 9, "an error wrote the output");
    }
    cr_assert_str_eq(printed, expected, "%s for %s: %s", text, peer, printed);
    ferry_device_map_destroy(map);
}

Test(device_map, the_grammar_is_read_and_printed_canonically)
{
    expect_print("", "");
    expect_print(NULL, "");
    expect_print(" \t\r\n", "");
    expect_print(";", "");
    expect_print("ps:", "ps:");
    expect_print("ps:;", "ps:");
    expect_print(
        "worker1:cuda:0<->cuda:1,cuda:1->cpu;ps:cuda:*->cpu,cuda:0<-cpu;*:cuda:*<->cuda:*;",
        "worker1: cuda:0<->cuda:1, cuda:1->cpu; ps: cuda:*->cpu, cuda:0<-cpu; "
        "*: cuda:*<->cuda:*");
    expect_print(" w.1-a_B :\n cuda:007 -> sim:1 ,\n cpu <- cuda:2 \n;\n",
                 "w.1-a_B: cuda:7->sim:1, cpu<-cuda:2");
    expect_print("cuda: cuda:0->cpu; cpu: cpu->cuda:0; 0: cuda:0->cpu",
                 "cuda: cuda:0->cpu; cpu: cpu->cuda:0; 0: cuda:0->cpu");
}

Test(device_map, clauses_and_directions_merge)
{
    expect_print("a: cuda:0->cpu; b:; a: cuda:0<-cpu", "a: cuda:0<->cpu; b:");
    expect_print("a: cuda:0->cpu, cuda:0->cpu", "a: cuda:0->cpu");
    expect_print("*: cpu->cuda:0; *: cuda:1->cpu", "*: cpu->cuda:0, cuda:1->cpu");
}

Test(device_map, print_cuts_and_counts)
{
    ferry_device_map_t *map = parse("worker1: cuda:0->cuda:1");
    char text[10];
    cr_assert_eq(ferry_device_map_print(map, text, sizeof text), 23u);
    cr_assert_str_eq(text, "worker1: ");
    cr_assert_eq(ferry_device_map_print(map, NULL, 0), 23u);
    cr_assert_eq(ferry_device_map_print(NULL, text, sizeof text), 0u);
    cr_assert_str_eq(text, "");
    ferry_device_map_destroy(map);
}

Test(device_map, a_named_clause_hides_the_star)
{
    const char *text = "ps: cuda:0->cpu; none:; *: cuda:*<->cuda:*";
    expect_target(text, "ps", cuda(0), FERRY_ARGUMENTS, "cpu");
    expect_target(text, "ps", cuda(1), FERRY_ARGUMENTS, "-");
    expect_target(text, "ps", cuda(0), FERRY_RESULTS, "-");
    expect_target(text, "none", cuda(0), FERRY_ARGUMENTS, "-");
    expect_target(text, "none", CPU, FERRY_ARGUMENTS, "cpu");
    expect_target(text, "other", cuda(1), FERRY_ARGUMENTS, "cuda:1");
    expect_target(text, "other", cuda(1), FERRY_RESULTS, "cuda:1");
    expect_target(text, "other", sim(0), FERRY_RESULTS, "-");
}

Test(device_map, an_exact_device_beats_the_kind)
{
    const char *text = "*: cuda:*<->cuda:*, cuda:0<->cuda:1";
    expect_target(text, "w", cuda(0), FERRY_ARGUMENTS, "cuda:1");
    expect_target(text, "w", cuda(1), FERRY_ARGUMENTS, "cuda:1");
    expect_target(text, "w", cuda(1), FERRY_RESULTS, "cuda:0");
    expect_target(text, "w", cuda(0), FERRY_RESULTS, "cuda:0");
    expect_target("*: cuda:*->cuda:0, cuda:2->cpu", "w", cuda(2), FERRY_ARGUMENTS, "cpu");
    expect_target("*: cuda:*->cuda:0, cuda:2->cpu", "w", cuda(3), FERRY_ARGUMENTS, "cuda:0");
    expect_target("*: sim:*<-cuda:*", "w", cuda(3), FERRY_RESULTS, "sim:3");
}

Test(device_map, results_come_back_only_by_a_result_arrow)
{
    expect_target("w: cuda:0<->cpu", "w", CPU, FERRY_RESULTS, "cuda:0");
    expect_target("w: cuda:0->cpu", "w", CPU, FERRY_RESULTS, "cpu");
    expect_target("w: cuda:0<-cpu", "w", CPU, FERRY_RESULTS, "cuda:0");
    expect_target("w: cuda:0<-cpu", "w", cuda(0), FERRY_ARGUMENTS, "-");
    expect_target("w: cpu->cuda:1", "w", CPU, FERRY_ARGUMENTS, "cuda:1");
    expect_target("w: cpu->cuda:1", "w", CPU, FERRY_RESULTS, "cpu");
}

Test(device_map, many_devices_may_share_one_in_one_direction)
{
    expect_target("w: cuda:0->cuda:1, cuda:1->cuda:1", "w", cuda(0), FERRY_ARGUMENTS, "cuda:1");
    expect_target("w: cuda:0->cuda:1, cuda:1<->cuda:1", "w", cuda(1), FERRY_RESULTS, "cuda:1");
    expect_target("w: cuda:0<-cuda:1, cuda:0<-cuda:2", "w", cuda(1), FERRY_RESULTS, "cuda:0");
    expect_target("w: cuda:0<-cuda:1, cuda:0<-cuda:2", "w", cuda(2), FERRY_RESULTS, "cuda:0");
    expect_target("w: cuda:*->cpu, sim:*->cpu", "w", sim(2), FERRY_ARGUMENTS, "cpu");
}

Test(device_map, two_places_for_one_tensor_are_refused_with_both_positions)
{
    expect_refused("w: cuda:0->cuda:1, cuda:0->cuda:2",
                   "device map, column 20: \"cuda:0->cuda:2\" sends cuda:0 to cuda:2 of w, but "
                   "\"cuda:0->cuda:1\" (column 4) sends it to cuda:1");
    expect_refused("*: cuda:*->cpu; a:; *: cuda:*<->cuda:*", "cuda:* to cuda:* of any peer");
    expect_refused("w: cuda:0->cpu,\n cuda:0->sim:0", "line 2, column 2");
    expect_refused("w: cuda:0<->cuda:1, cuda:1<->cuda:1",
                   "device map, column 21: with \"cuda:1<->cuda:1\" a result on cuda:1 of w would "
                   "come back to cuda:1, with \"cuda:0<->cuda:1\" (column 4) to cuda:0");
    expect_refused("w: cuda:0<->cuda:1, cuda:1<->cuda:1", "results_device");
    expect_refused("w: cuda:0<-cpu, cpu<-cpu", "results_device");
    expect_refused("w: cuda:*<-cuda:*, sim:*<-cuda:*", "results_device");
}

Test(device_map, a_star_needs_its_match)
{
    expect_refused("w: cpu->cuda:*", "needs a kind:* on the left");
    expect_refused("w: cuda:0<-cuda:*", "needs a kind:* on the left");
    expect_refused("w: cuda:*<-cpu", "e.g. \"cuda:0<-cpu\"");
    expect_refused("w: sim:*<->cuda:0", "e.g. \"sim:0<-cuda:0\"");
    expect_refused("w: sim:*<->cuda:0", "results_device");
    expect_print("w: sim:*->cuda:0, cuda:*<->sim:*", "w: sim:*->cuda:0, cuda:*<->sim:*");
}

Test(device_map, mistakes_are_shown_with_position_and_remedy)
{
    expect_refused("w: any->cpu", "column 4: \"any\" is reserved");
    expect_refused("w: cuda:0->cuda:any", "column 12: \"cuda:any\" is reserved");
    expect_refused("w: cuda:0-", "quote it: 'worker1: cuda:0->cuda:1'");
    expect_refused("w: cuda:0 < ", "quote it");
    expect_refused("w: cuda:0", "if a shell took the arrow, quote the text");
    expect_refused("w: cuda:0->cpu,", "column 16: the end where a device should be");
    expect_refused("w: cuda:0->cpu cuda:1->cpu", "column 16: \"cuda:1\" behind a rule");
    expect_refused("w x: cuda:0->cpu", "column 3: \"x:\" behind the peer \"w\"");
    expect_refused(";;", "column 2: the clause in front of \";\" is missing");
    expect_refused("w: cuda->cpu", "column 4: \"cuda\" lacks its index: cuda:0, or cuda:*");
    expect_refused("w: cuda:1000000->cpu", "column 9: \"1000000\" is no index");
    expect_refused("w: tpu:0->cpu", "column 4: \"tpu:0\" where a device should be");
    expect_refused("w: \x01->cpu", "\"\\x01");
    expect_refused("w: \xff->cpu", "\"\\xff");
    expect_refused("\u00fc: cuda:0->cpu", "\"\u00fc:\" where a peer should be");
    char name[200];
    memset(name, 'n', 128);
    strcpy(name + 128, ": cuda:0->cpu");
    expect_refused(name, "the peer's name has 128 bytes");
}

Test(device_map, near_misses_are_shown_in_ferrys_words)
{
    expect_refused("w: cuda:0=>cuda:1", "in Ferry's words: \"w: cuda:0->cuda:1\"");
    expect_refused("w: cuda:0 \u2192 cuda:1", "in Ferry's words: \"w: cuda:0->cuda:1\"");
    expect_refused("w: cuda:0\u2194cuda:1", "in Ferry's words: \"w: cuda:0<->cuda:1\"");
    expect_refused("cuda:0->cuda:1", "in Ferry's words: \"*: cuda:0->cuda:1\"");
    expect_refused("cuda:0:cuda:1", "in Ferry's words: \"*: cuda:0<->cuda:1\"");
    expect_refused("w: cuda:0:cuda:1", "in Ferry's words: \"w: cuda:0<->cuda:1\"");
    expect_refused("w: cuda0->cuda1", "in Ferry's words: \"w: cuda:0->cuda:1\"");
    expect_refused("w: GPU:0->CPU", "in Ferry's words: \"w: cuda:0->cpu\"");
    expect_refused("w: cpu:0->cuda:0", "in Ferry's words: \"w: cpu->cuda:0\"");
    expect_refused("0->1", "in Ferry's words: \"*: cuda:0->cuda:1\"");
    expect_refused("w: 0->1, 2 <-> 3; ps: 0->cpu; x:",
                   "in Ferry's words: \"w: cuda:0->cuda:1, cuda:2<->cuda:3; ps: cuda:0->cpu; x:\"");
    expect_refused("0: 1->2", "in Ferry's words: \"0: cuda:1->cuda:2\"");
    expect_refused("0:1", "in Ferry's words: \"*: cuda:0<->cuda:1\"");
}

Test(device_map, python_is_shown_in_ferrys_words)
{
    expect_refused("{\"worker1\": {0: 1}}", "the same map is \"worker1: cuda:0<->cuda:1\"");
    expect_refused("{'worker1': {0: 1, 1: 0}, 'ps': {'cuda:0': 'cpu'},}",
                   "\"worker1: cuda:0<->cuda:1, cuda:1<->cuda:0; ps: cuda:0<->cpu\"");
    expect_refused("{\"worker1\": {\"cuda:0\": \"cuda:1\"}}", "\"worker1: cuda:0<->cuda:1\"");
    expect_refused("{0: 1}", "\"*: cuda:0<->cuda:1\" (put the peer's name in place of *");
    expect_refused("{\"cuda:0\": \"cuda:1\"}", "\"*: cuda:0<->cuda:1\"");
    expect_refused("{0, 1}", "\"*: cuda:0<->cuda:1\" if the first was meant");
    expect_refused("{\"worker1\": {0, 1}}", "\"worker1: cuda:0<->cuda:1\" if the first");
    expect_refused("options.set_device_map(\"worker1\", {1: 2})", "\"worker1: cuda:1<->cuda:2\"");
    expect_refused("device_maps={\"w\": {torch.device('cuda:0'): torch.device(\"cuda\", 1)}}",
                   "\"w: cuda:0<->cuda:1\"");
    expect_refused("{\"w\": {0: 1, 1: 1}}", "\"w: cuda:0->cuda:1, cuda:1->cuda:1\" (->");
    expect_refused("{\"w\": {0: 1, 0: 2}}", "\"w: cuda:0<->cuda:2\"");
    expect_refused("{\"w\": {}}", "\"w:\"");
    static const char *const unreadable[] = {"{{{",
                                             "{",
                                             "{\"a\":{0:1}",
                                             "{0,1,2}",
                                             "{\"a b\":{0:1}}",
                                             "{\"w\": {0: 9999999}}",
                                             "{\"w\": {0: \"tpu\"}}"};
    for (size_t i = 0; i < sizeof unreadable / sizeof unreadable[0]; i++) {
        expect_refused(unreadable[i], "this looks like Python");
    }
}

Test(device_map, a_file_holds_a_map)
{
    char path[] = "/tmp/ferry_map_XXXXXX", name[64], printed[128];
    int file = mkstemp(path);
    cr_assert_geq(file, 0);
    static const char text[] = "worker1:\n  cuda:0<->cuda:1;\nps: cuda:*->cpu\n";
    cr_assert_eq(write(file, text, sizeof text - 1), (ssize_t)sizeof text - 1);
    snprintf(name, sizeof name, "@%s", path);
    ferry_device_map_t *map = parse(name);
    ferry_device_map_print(map, printed, sizeof printed);
    cr_assert_str_eq(printed, "worker1: cuda:0<->cuda:1; ps: cuda:*->cpu");
    ferry_device_map_destroy(map);

    cr_assert_eq(write(file, "oops", 4), 4);
    expect_refused(name, path);
    cr_assert(strstr(ferry_last_error()->text, "line 4, column 1") != NULL, "%s",
              ferry_last_error()->text);
    cr_assert_eq(write(file, "\0", 1), 1);
    expect_refused(name, "NUL");
    close(file);
    unlink(path);
    cr_assert_eq(ferry_device_map_parse(name, &map), FERRY_ERR_SYSTEM);
    cr_assert(strstr(ferry_last_error()->text, path) != NULL);
    cr_assert_eq(ferry_device_map_parse("@/tmp", &map), FERRY_ERR_SYSTEM);
}

Test(device_map, sizes_are_bounded)
{
    size_t bytes = FERRY_DEVICE_MAP_TEXT_BYTES_MAX + 2;
    char *text = malloc(bytes);
    memset(text, ' ', bytes);
    text[bytes - 1] = '\0';
    ferry_device_map_t *map;
    cr_assert_eq(ferry_device_map_parse(text, &map), FERRY_ERR_LIMIT);
    size_t length = (size_t)sprintf(text, "w:");
    for (int i = 0; i <= FERRY_DEVICE_MAP_PEER_RULES_MAX; i++) {
        length += (size_t)sprintf(text + length, "%scuda:%d->cpu", i == 0 ? "" : ",", i);
    }
    cr_assert_eq(ferry_device_map_parse(text, &map), FERRY_ERR_LIMIT);
    length = 0;
    for (int i = 0; i <= FERRY_DEVICE_MAP_PEERS_MAX; i++) {
        length += (size_t)sprintf(text + length, "w%d:;", i);
    }
    cr_assert_eq(ferry_device_map_parse(text, &map), FERRY_ERR_LIMIT);
    *strstr(text, "w4096") = '\0';
    ferry_device_map_destroy(parse(text));
    free(text);
    cr_assert_eq(ferry_device_map_parse("", NULL), FERRY_ERR_INVALID_ARGUMENT);
}

Test(device_map, structs_make_the_same_map)
{
    DLDevice pinned = {.device_type = kDLCUDAHost, .device_id = 1};
    DLDevice managed = {.device_type = kDLCUDAManaged, .device_id = 1};
    ferry_device_rule_t rules[] = {
        {.peer = "worker1", .mine = cuda(0), .direction = FERRY_BOTH, .theirs = cuda(1)},
        {.peer = "none"},
        {.peer = "*", .mine = cuda(-1), .direction = FERRY_ARGUMENTS, .theirs = pinned},
        {.peer = "worker1", .mine = managed, .direction = FERRY_RESULTS, .theirs = CPU},
    };
    ferry_device_map_t *map;
    char text[256];
    cr_assert_eq(ferry_device_map_create(rules, 4, &map), FERRY_OK);
    ferry_device_map_print(map, text, sizeof text);
    cr_assert_str_eq(text, "worker1: cuda:0<->cuda:1, cuda:1<-cpu; none:; *: cuda:*->cpu");
    ferry_device_map_destroy(map);
    cr_assert_eq(ferry_device_map_create(NULL, 0, &map), FERRY_OK);
    cr_assert_eq(ferry_device_map_print(map, text, sizeof text), 0u);
    ferry_device_map_destroy(map);
}

static void expect_struct_refused(ferry_device_rule_t rule, const char *said)
{
    ferry_device_rule_t rules[] = {
        {.peer = "w", .mine = cuda(0), .direction = FERRY_BOTH, .theirs = cuda(1)}, rule};
    ferry_device_map_t *map;
    cr_assert_eq(ferry_device_map_create(rules, 2, &map), FERRY_ERR_DEVICE_MAP);
    cr_assert(strstr(ferry_last_error()->text, said) != NULL, "'%s' lacks '%s'",
              ferry_last_error()->text, said);
}

Test(device_map, structs_are_checked)
{
    ferry_device_rule_t good = {
        .peer = "w", .mine = cuda(1), .direction = FERRY_BOTH, .theirs = cuda(2)};
    ferry_device_rule_t rule = good;
    rule.peer = NULL;
    expect_struct_refused(rule, "rules[1]: '(NULL)' is no peer");
    rule.peer = "a b";
    expect_struct_refused(rule, "rules[1]: 'a b' is no peer");
    rule.peer = "";
    expect_struct_refused(rule, "is no peer");
    rule = good;
    rule.direction = (ferry_direction_t)4;
    expect_struct_refused(rule, "rules[1]: the direction is 4");
    rule = good;
    rule.mine.device_id = -2;
    expect_struct_refused(rule, "rules[1].mine: DLPack type 2, index -2");
    rule = good;
    rule.theirs.device_type = kDLVulkan;
    expect_struct_refused(rule, "rules[1].theirs: DLPack type 7");
    rule = good;
    rule.theirs = cuda(1);
    expect_struct_refused(rule, "rules[1]: with \"cuda:1<->cuda:1\" a result on cuda:1 of w would "
                                "come back to cuda:1, with \"cuda:0<->cuda:1\" (rules[0])");
    ferry_device_map_t *map;
    cr_assert_eq(ferry_device_map_create(NULL, 1, &map), FERRY_ERR_INVALID_ARGUMENT);
    cr_assert_eq(ferry_device_map_create(&good, 1, NULL), FERRY_ERR_INVALID_ARGUMENT);
}

static void expect_unmapped(const ferry_device_map_t *map, const char *peer, DLDevice device,
                            ferry_direction_t direction, const char *slot, const char *text)
{
    DLDevice target;
    cr_assert_eq(
        device_map_target(map, NULL, peer, false, device, direction, slot, 3, &target, NULL),
        FERRY_ERR_UNMAPPED_DEVICE);
    cr_assert_str_eq(ferry_last_error()->text, text);
}

Test(device_map, an_unmapped_tensor_is_told_its_rule)
{
    expect_unmapped(NULL, "ps", cuda(0), FERRY_ARGUMENTS, "gradient",
                    "argument 'gradient' is on cuda:0 and no rule for ps says where it should "
                    "arrive; add \"ps: cuda:0->cpu\" or \"ps: cuda:*->cuda:*\"");
    expect_unmapped(NULL, "ps", sim(1), FERRY_RESULTS, NULL,
                    "result tensors[3] is on sim:1 of ps and no rule for ps says where it should "
                    "come back to; give a buffer or a results_device, or add \"ps: cpu<-sim:1\" or "
                    "\"ps: sim:*<-sim:*\"");
    /* The remedy extends the clause in force: a new one for ps would hide "*". */
    ferry_device_map_t *map = parse("*: sim:*->cpu");
    expect_unmapped(map, "ps", cuda(0), FERRY_ARGUMENTS, "g",
                    "argument 'g' is on cuda:0 and no rule for ps says where it should arrive; add "
                    "\"*: cuda:0->cpu\" or \"*: cuda:*->cuda:*\"");
    ferry_device_map_destroy(map);
    map = parse("*: cuda:*<->cuda:*; ps:");
    expect_unmapped(map, "ps", cuda(0), FERRY_ARGUMENTS, "g",
                    "argument 'g' is on cuda:0 and no rule for ps says where it should arrive (the "
                    "map's \"*\" does, but a clause of the peer's own hides it); add \"ps: "
                    "cuda:0->cpu\" or \"ps: cuda:*->cuda:*\"");
    ferry_device_map_destroy(map);
    expect_unmapped(
        NULL, "ps", (DLDevice){kDLVulkan, 1}, FERRY_ARGUMENTS, "g",
        "argument 'g' is on type7:1 and no rule for ps says where it should arrive; maps "
        "have no name for devices of this kind");
}

Test(device_map, the_calls_own_rules_come_first)
{
    ferry_device_map_t *own = parse("ps: cuda:0->cuda:1, cuda:1->cuda:0, cpu->cuda:0");
    ferry_device_map_t *call = parse("ps: cuda:*->cpu; other: cuda:0->sim:0");
    DLDevice target;
    const struct device_map_rule *rule;
    char text[DEVICE_MAP_RULE_BYTES];
    cr_assert_eq(device_map_target(own, call, "ps", false, cuda(0), FERRY_ARGUMENTS, NULL, 0,
                                   &target, &rule),
                 FERRY_OK);
    cr_assert(tensor_device_equal(target, CPU));
    cr_assert_str_eq(device_map_rule_print(text, "ps", rule), "ps: cuda:*->cpu");
    cr_assert_eq(
        device_map_target(own, call, "ps", false, CPU, FERRY_ARGUMENTS, NULL, 0, &target, &rule),
        FERRY_OK);
    cr_assert(tensor_device_equal(target, cuda(0)));
    cr_assert_eq(
        device_map_target(own, call, "ps", false, CPU, FERRY_RESULTS, NULL, 0, &target, &rule),
        FERRY_OK);
    cr_assert(tensor_device_equal(target, CPU));
    cr_assert_null(rule);
    cr_assert_eq(
        device_map_target(NULL, call, "ps", false, sim(0), FERRY_ARGUMENTS, NULL, 0, &target, NULL),
        FERRY_ERR_UNMAPPED_DEVICE);
    ferry_device_map_destroy(call);
    ferry_device_map_destroy(own);
}

Test(device_map, calls_to_oneself_leave_unmapped_devices_where_they_are)
{
    ferry_device_map_t *own = parse("*: cuda:0->cuda:1");
    struct device_map_view view = device_map_view(own, "me", true);
    DLDevice target;
    cr_assert_eq(
        device_map_view_target(&view, NULL, sim(2), FERRY_ARGUMENTS, NULL, 0, &target, NULL),
        FERRY_OK);
    cr_assert(tensor_device_equal(target, sim(2)));
    cr_assert_eq(
        device_map_view_target(&view, NULL, cuda(0), FERRY_ARGUMENTS, NULL, 0, &target, NULL),
        FERRY_OK);
    cr_assert(tensor_device_equal(target, cuda(1)));
    ferry_device_map_destroy(own);
}

Test(device_map, pinned_memory_is_cpu_and_managed_memory_its_cuda_device)
{
    DLDevice pinned = {.device_type = kDLCUDAHost, .device_id = 1};
    DLDevice managed = {.device_type = kDLCUDAManaged, .device_id = 1};
    expect_target("", "w", pinned, FERRY_ARGUMENTS, "cpu");
    expect_target("w: cpu->cuda:3", "w", pinned, FERRY_ARGUMENTS, "cuda:3");
    expect_target("w: cuda:1->cuda:3", "w", managed, FERRY_ARGUMENTS, "cuda:3");
}

static int32_t two_cuda(DLDeviceType type)
{
    return type == kDLCUDA ? 2 : type == kDLCPU ? 1 : 0;
}

static void expect_mine(const char *text, const char *error)
{
    ferry_device_map_t *map = parse(text);
    ferry_status_t status = device_map_check_mine(map, two_cuda);
    cr_assert_eq(status, error == NULL ? FERRY_OK : FERRY_ERR_DEVICE_MAP);
    if (error != NULL) {
        cr_assert_str_eq(ferry_last_error()->text, error);
    }
    ferry_device_map_destroy(map);
}

Test(device_map, start_knows_my_devices)
{
    expect_mine("a: cuda:1->cuda:9, cpu->sim:4; *: sim:*<->sim:*", NULL);
    expect_mine(
        "a: cuda:0->cpu; b: cuda:2<->cpu",
        "device map, \"b: cuda:2<->cpu\": this process has no cuda:2, only cuda:0 to cuda:1");
    expect_mine("*: sim:0->cpu", "device map, \"*: sim:0->cpu\": this process has no sim device");
    cr_assert_eq(device_map_check_mine(NULL, two_cuda), FERRY_OK);
}

static void expect_peer(const char *text, const char *error)
{
    ferry_device_map_t *map = parse(text);
    DLDevice devices[] = {CPU, cuda(0)};
    ferry_status_t status = device_map_check_peer(map, "ps", devices, 2);
    cr_assert_eq(status, error == NULL ? FERRY_OK : FERRY_ERR_DEVICE_MAP);
    if (error != NULL) {
        cr_assert_str_eq(ferry_last_error()->text, error);
    }
    ferry_device_map_destroy(map);
}

Test(device_map, connect_knows_the_peers_devices)
{
    expect_peer("ps: cuda:5->cuda:0, cuda:*->cpu; other: cuda:0->cuda:7; *: cuda:0->cuda:8", NULL);
    expect_peer("*: cuda:*<->cuda:*", NULL);
    expect_peer("ps: cuda:0->cuda:1",
                "device map, \"ps: cuda:0->cuda:1\": ps has no cuda:1, only cuda:0");
    expect_peer("*: cpu<-sim:0", "device map, \"*: cpu<-sim:0\": ps has no sim device");
    cr_assert_eq(device_map_check_peer(NULL, "ps", NULL, 0), FERRY_OK);
}

Test(device_map, a_fixed_group_knows_its_names)
{
    static const char *const names[] = {"worker0", "worker1", "ps"};
    ferry_device_map_t *map = parse("worker1: cuda:0->cpu; *: cuda:0->cpu; ps:");
    cr_assert_eq(device_map_check_names(map, names, 3), FERRY_OK);
    ferry_device_map_destroy(map);
    map = parse("workr1: cuda:0->cpu");
    cr_assert_eq(device_map_check_names(map, names, 3), FERRY_ERR_DEVICE_MAP);
    cr_assert(strstr(ferry_last_error()->text, "no peer \"workr1\"; did you mean \"worker") !=
              NULL);
    ferry_device_map_destroy(map);
    map = parse("zzzzzz:");
    cr_assert_eq(device_map_check_names(map, names, 3), FERRY_ERR_DEVICE_MAP);
    cr_assert(strstr(ferry_last_error()->text, "did you mean") == NULL);
    ferry_device_map_destroy(map);
}

Test(device_map, explain_says_target_and_rule)
{
    ferry_device_map_t *map = parse("worker1: cuda:0<->cuda:1; *: cuda:*->cpu");
    DLDevice target;
    char reason[256];
    cr_assert_eq(ferry_device_map_explain(map, "worker1", cuda(0), FERRY_ARGUMENTS, &target, reason,
                                          sizeof reason),
                 FERRY_OK);
    cr_assert(tensor_device_equal(target, cuda(1)));
    cr_assert_str_eq(reason, "worker1: cuda:0<->cuda:1");
    cr_assert_eq(ferry_device_map_explain(map, "x", cuda(4), FERRY_ARGUMENTS, &target, reason,
                                          sizeof reason),
                 FERRY_OK);
    cr_assert(tensor_device_equal(target, CPU));
    cr_assert_str_eq(reason, "*: cuda:*->cpu");
    cr_assert_eq(
        ferry_device_map_explain(map, "x", CPU, FERRY_RESULTS, &target, reason, sizeof reason),
        FERRY_OK);
    cr_assert_str_eq(reason, "cpu that no rule names stays cpu");
    target = sim(7);
    cr_assert_eq(ferry_device_map_explain(map, "worker1", cuda(0), FERRY_RESULTS, &target, reason,
                                          sizeof reason),
                 FERRY_ERR_UNMAPPED_DEVICE);
    cr_assert(tensor_device_equal(target, sim(7)), "an error wrote the output");
    cr_assert(strstr(reason, "or add \"worker1: cpu<-cuda:0\"") != NULL, "%s", reason);
    cr_assert(strstr(ferry_last_error()->text, "a tensor is on cuda:0 of worker1") != NULL);
    cr_assert_eq(ferry_device_map_explain(map, "worker1", cuda(0), FERRY_BOTH, &target, NULL, 0),
                 FERRY_ERR_INVALID_ARGUMENT);
    cr_assert_eq(ferry_device_map_explain(map, NULL, cuda(0), FERRY_RESULTS, &target, NULL, 0),
                 FERRY_ERR_INVALID_ARGUMENT);
    cr_assert_eq(ferry_device_map_explain(NULL, "p", CPU, FERRY_RESULTS, &target, NULL, 0),
                 FERRY_OK);
    ferry_device_map_destroy(map);
}
