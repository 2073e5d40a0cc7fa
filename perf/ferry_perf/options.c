/* The command line. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/config.h"
#include "core/error.h"
#include "ferry_perf/frame.h"

enum {
    OPTION_JSON = 256,
    OPTION_RATIO,
    OPTION_LOCAL,
    OPTION_POOL,
    OPTION_TENSORS,
    OPTION_ROUNDS,
    OPTION_VERSION,
    OPTION_LISTEN,
};

static const struct option LONG[] = {
    {"json", no_argument, NULL, OPTION_JSON},
    {"ratio", no_argument, NULL, OPTION_RATIO},
    {"local", no_argument, NULL, OPTION_LOCAL},
    {"pool", no_argument, NULL, OPTION_POOL},
    {"tensors", required_argument, NULL, OPTION_TENSORS},
    {"rounds", required_argument, NULL, OPTION_ROUNDS},
    {"help", no_argument, NULL, 'h'},
    {"version", no_argument, NULL, OPTION_VERSION},
    {"listen-fd", required_argument, NULL, OPTION_LISTEN}, /* of --local alone */
    {NULL, 0, NULL, 0},
};

static const struct perf_test *const LISTS[] = {perf_rpc_tests, perf_transport_tests,
                                                perf_raw_tests};
#define LISTS_COUNT (sizeof LISTS / sizeof LISTS[0])

const struct perf_test *perf_test_find(const char *name)
{
    for (size_t i = 0; i < LISTS_COUNT; i++) {
        for (const struct perf_test *test = LISTS[i]; test->name != NULL; test++) {
            if (strcmp(test->name, name) == 0) {
                return test;
            }
        }
    }
    return NULL;
}

void perf_tests_print(FILE *out)
{
    for (size_t i = 0; i < LISTS_COUNT; i++) {
        for (const struct perf_test *test = LISTS[i]; test->name != NULL; test++) {
            fprintf(out, "  %-15s %s\n", test->name, test->text);
        }
    }
}

static ferry_status_t test_unknown(const char *name)
{
    const char *names[PERF_TESTS_MAX];
    size_t count = 0;
    for (size_t i = 0; i < LISTS_COUNT; i++) {
        for (const struct perf_test *test = LISTS[i]; test->name != NULL; test++) {
            names[count] = test->name;
            count += count < PERF_TESTS_MAX - 1;
        }
    }
    const char *nearest = config_nearest(name, names, count);
    return error_raise(FERRY_ERR_INVALID_ARGUMENT,
                       "-t '%s' is no test%s%s; ferry_perf -h lists them, several are written "
                       "rpc_lat,rpc_bw",
                       name, nearest == NULL ? "" : ": did you mean ",
                       nearest == NULL ? "" : nearest);
}

static ferry_status_t tests_parse(struct perf_wish *wish, const char *text)
{
    char name[64];
    size_t count = 0;
    for (const char *rest = text; *rest != '\0' || count == 0;) {
        if (!perf_list_next(&rest, name, sizeof name) || count == PERF_TESTS_MAX) {
            return test_unknown(text);
        }
        wish->tests[count] = perf_test_find(name);
        if (wish->tests[count++] == NULL) {
            return test_unknown(name);
        }
    }
    wish->test_count = count;
    return FERRY_OK;
}

static ferry_status_t parse_u32(const char *flag, const char *text, uint32_t least, uint32_t most,
                                uint32_t *number_out)
{
    uint64_t number = 0;
    ferry_status_t status = perf_parse_count(flag, text, least, most, &number);
    if (status == FERRY_OK) {
        *number_out = (uint32_t)number;
    }
    return status;
}

/* --local without a test decides these itself. */
static bool is_of_test(int option)
{
    return option == 's' || option == 'm' || option == 'O' || option == 'D' ||
           option == OPTION_ROUNDS;
}

/* What means nothing to one of the tests. */
static ferry_status_t test_check(const struct perf_test *test, const struct perf_wish *wish)
{
    const struct perf_options *options = &wish->options;
    const char *flag = options->threads > 1   ? "-T"
                       : options->tensors > 1 ? "--tensors"
                       : options->pool        ? "--pool"
                                              : NULL;
    if (flag != NULL && strncmp(test->name, "rpc_", 4) != 0) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT, "%s is for rpc_* tests, not for %s", flag,
                           test->name);
    }
    bool something = strcmp(test->unit, "MB/s") == 0 || strncmp(test->name, "raw_stream", 10) == 0;
    for (size_t i = 0; something && i < wish->size_count; i++) {
        if (wish->sizes[i] == 0) {
            return error_raise(FERRY_ERR_INVALID_ARGUMENT, "-s 0 is no size for %s: 1 is the least",
                               test->name);
        }
    }
    return FERRY_OK;
}

static ferry_status_t wish_check(const struct perf_wish *wish)
{
    ferry_status_t status = FERRY_OK;
    for (size_t i = 0; status == FERRY_OK && i < wish->test_count; i++) {
        status = test_check(wish->tests[i], wish);
    }
    return status;
}

/* Flags that say what to measure, the same in a batch file. FERRY_PENDING: it is another one. */
static ferry_status_t wish_flag(struct perf_wish *wish, int option, const char *value)
{
    switch (option) {
    case 't':
        return tests_parse(wish, value);
    case 's':
        return perf_parse_sizes(value, wish->sizes, &wish->size_count);
    case 'n':
        return perf_parse_count("-n", value, 1, UINT64_C(1) << 40, &wish->iterations);
    case 'w':
        return perf_parse_count("-w", value, 1, UINT64_C(1) << 40, &wish->warm_up);
    case 'm':
        return perf_parse_memory(value, wish->options.memory);
    case 'O':
        return parse_u32("-O", value, 1, PERF_WINDOW_MAX, &wish->options.window);
    case 'T':
        return parse_u32("-T", value, 1, PERF_THREADS_MAX, &wish->options.threads);
    case 'D':
        return perf_parse_seconds(value, &wish->seconds);
    case OPTION_TENSORS:
        return parse_u32("--tensors", value, 1, PERF_TENSORS_MAX, &wish->options.tensors);
    case OPTION_ROUNDS:
        return parse_u32("--rounds", value, 1, 1000, &wish->rounds);
    case 'V':
        wish->options.validate = true;
        return FERRY_OK;
    case OPTION_POOL:
        wish->options.pool = true;
        return FERRY_OK;
    case OPTION_RATIO:
        wish->ratio = true;
        return FERRY_OK;
    default:
        return FERRY_PENDING;
    }
}

static ferry_status_t line_flag(struct perf_command_line *line, int option, const char *value)
{
    uint64_t number = 0;
    ferry_status_t status = FERRY_OK;
    switch (option) {
    case 'c':
        return perf_parse_cpus(value, line->cpus);
    case 'p':
        status = perf_parse_count("-p", value, 1, 65535, &number);
        line->port = (uint16_t)number;
        return status;
    case 'b':
        line->batch = value;
        return *value != '\0' ? FERRY_OK
                              : error_raise(FERRY_ERR_INVALID_ARGUMENT,
                                            "-b '' is no file: write -b FILE, a line of flags for "
                                            "each test in it");
    case 'R':
        return perf_parse_ranks(value, line->ranks, &line->rank_count);
    case 'f':
        line->final = true;
        return FERRY_OK;
    case 'v':
        line->format = PERF_CSV;
        return FERRY_OK;
    case OPTION_JSON:
        line->format = PERF_JSON;
        return FERRY_OK;
    case OPTION_LOCAL:
        line->local = true;
        return FERRY_OK;
    case OPTION_LISTEN:
        status = perf_parse_count("--listen-fd", value, 3, 65535, &number);
        line->listen_fd = (int)number;
        return status;
    case OPTION_VERSION:
        line->version = true;
        return FERRY_OK;
    case 'h':
        line->help = true;
        return FERRY_OK;
    default:
        return FERRY_PENDING;
    }
}

static ferry_status_t flag_refuse(int option, const char *word)
{
    static const char *const names[] = {"--json",    "--ratio",  "--local", "--pool",
                                        "--tensors", "--rounds", "--help",  "--version"};
    if (option == ':') {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT, "%s needs a value; ferry_perf -h shows it",
                           word);
    }
    const char *nearest = config_nearest(word, names, sizeof names / sizeof names[0]);
    return error_raise(FERRY_ERR_INVALID_ARGUMENT,
                       "there is no option %s%s%s; ferry_perf -h shows all", word,
                       nearest == NULL ? "" : "; did you mean ", nearest == NULL ? "" : nearest);
}

/* Keeps what both ends must agree on where both were told. */
static void given_add(struct perf_command_line *line, int option, const char *value)
{
    size_t used = strlen(line->given);
    if (option < OPTION_JSON) {
        snprintf(line->given + used, sizeof line->given - used, "-%c=%s\n", option,
                 value == NULL ? "" : value);
        return;
    }
    for (const struct option *each = LONG; each->name != NULL; each++) {
        if (each->val == option) {
            snprintf(line->given + used, sizeof line->given - used, "--%s=%s\n", each->name,
                     value == NULL ? "" : value);
            return;
        }
    }
}

static ferry_status_t flags_parse(struct perf_command_line *line, int argc, char **argv, bool batch)
{
    optind = 0; /* glibc's way to begin anew */
    opterr = 0;
    for (;;) {
        int before = optind == 0 ? 1 : optind;
        int option = getopt_long(argc, argv, "+:t:s:n:w:m:O:T:c:p:D:b:R:Vfvh", LONG, NULL);
        if (option == -1) {
            return FERRY_OK;
        }
        char letter[3] = {'-', (char)(option == ':' || option == '?' ? optopt : option), '\0'};
        const char *word = strncmp(argv[before], "--", 2) == 0 ? argv[before] : letter;
        if (option == ':' || option == '?') {
            return flag_refuse(option, word);
        }
        ferry_status_t status = wish_flag(&line->wish, option, optarg);
        if (status != FERRY_PENDING) {
            if (is_of_test(option)) {
                snprintf(line->asks, sizeof line->asks, "%s", word);
            }
            given_add(line, option, optarg);
        } else if (batch) {
            status = error_raise(FERRY_ERR_INVALID_ARGUMENT,
                                 "'%s' says nothing of one test; give it on the command line",
                                 argv[before]);
        } else {
            status = line_flag(line, option, optarg);
        }
        if (status != FERRY_OK) {
            return status;
        }
    }
}

void perf_command_line_init(struct perf_command_line *line)
{
    static const DLDevice host = {kDLCPU, 0};
    *line = (struct perf_command_line){
        .port = PERF_PORT,
        .cpus = {{.first = -1}, {.first = -1}},
        .listen_fd = -1,
        .ranks = {50, 99},
        .rank_count = 2,
        .wish = {.seconds = 1,
                 .rounds = 5,
                 .options = {.memory = {host, host}, .window = 32, .threads = 1, .tensors = 1}},
    };
}

void perf_command_line_finish(struct perf_command_line *line)
{
    free(line->wishes);
}

ferry_status_t perf_wish_parse(struct perf_command_line *line, int argc, char **argv)
{
    ferry_status_t status = flags_parse(line, argc, argv, true);
    if (status == FERRY_OK && optind < argc) {
        status = error_raise(FERRY_ERR_INVALID_ARGUMENT, "'%s' is no flag", argv[optind]);
    }
    if (status == FERRY_OK && line->wish.test_count == 0) {
        status = error_raise(FERRY_ERR_INVALID_ARGUMENT, "there is no test: add -t rpc_lat");
    }
    return status == FERRY_OK ? wish_check(&line->wish) : status;
}

ferry_status_t perf_command_line_parse(struct perf_command_line *line, int argc, char **argv)
{
    ferry_status_t parsed = flags_parse(line, argc, argv, false);
    if (parsed != FERRY_OK || line->help || line->version) {
        return parsed;
    }
    if (optind + 1 < argc) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT,
                           "'%s' is one host too many: the client takes one, the server none",
                           argv[optind + 1]);
    }
    line->host = argv[optind];
    if (line->host != NULL && *line->host == '\0') {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT,
                           "'' is no host: write the server's name or address, e.g. 127.0.0.1");
    }
    if (line->local && line->host != NULL) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT,
                           "--local starts both ends here: leave out the host '%s'", line->host);
    }
    if (line->batch != NULL && line->wish.test_count > 0) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT,
                           "-t goes into the lines of the file '%s', not beside -b", line->batch);
    }
    if (line->host != NULL && line->batch == NULL && line->wish.test_count == 0) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT,
                           "the client needs a test: ferry_perf -t rpc_lat %s", line->host);
    }
    if (line->local && line->asks[0] != '\0' && line->batch == NULL && line->wish.test_count == 0) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT,
                           "--local with %s needs a test: ferry_perf --local -t rpc_lat %s ...",
                           line->asks, line->asks);
    }
    ferry_status_t status = wish_check(&line->wish);
    return status == FERRY_OK && line->batch != NULL ? perf_batch_read(line) : status;
}
