/* What a call costs between two processes: the round trip of an empty call, how many a second, and
 * calls that carry one tensor between given devices.
 *
 *   ferry_bench [--empty yes|no] [--pairs cpu-cpu,cuda:0-cpu] [--sizes 4,64K,256M] [--in-flight 8]
 *               [--time-ms 1000]
 *
 * Buffers are reused, times are medians after a warm-up. UCX_TLS chooses the wire, e.g.
 * UCX_TLS=tcp,self. */
#include <errno.h>
#include <ferry/ferry.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SECOND INT64_C(1000000000)
#define MIB (1024 * 1024)
#define SAMPLES_MAX 200000
#define WARM_UP 3
#define ROUNDS_MIN 5
#define IN_FLIGHT_MAX 256
#define EMPTY_IN_FLIGHT 64
#define IN_FLIGHT_BYTES ((size_t)768 * MIB) /* what the callee's pool keeps for reuse, with room */

static const DLDevice CPU = {kDLCPU, 0};

static int complain(const char *who)
{
    fprintf(stderr, "%s: %s\n", who, ferry_last_error()->text);
    return 1;
}

/* ---- the callee ---- */

static ferry_status_t answer_nothing(ferry_request_t *request, void *context)
{
    (void)context;
    return ferry_request_reply(request, NULL);
}

static ferry_agent_t *stopped_by_signal;

static void on_signal(int signal_number)
{
    (void)signal_number;
    ferry_agent_stop(stopped_by_signal);
}

static int callee_run(void)
{
    ferry_agent_options_t options = ferry_agent_options();
    ferry_method_options_t quick = ferry_method_options();
    options.name = "callee";
    quick.run_inline = true;
    ferry_agent_t *agent = NULL;
    int failed = ferry_agent_create(&options, &agent) != FERRY_OK;
    if (!failed) {
        stopped_by_signal = agent;
        signal(SIGTERM, on_signal);
    }
    failed = failed ||
             ferry_agent_register_with(agent, "sink", answer_nothing, NULL, &quick) != FERRY_OK ||
             ferry_agent_start(agent) != FERRY_OK || ferry_agent_run(agent) != FERRY_OK ||
             ferry_agent_shutdown(agent, SECOND) != FERRY_OK;
    if (failed) {
        complain("callee");
    }
    signal(SIGTERM, SIG_IGN);
    ferry_agent_destroy(agent);
    return failed;
}

/* ---- the caller ---- */

struct bench {
    ferry_agent_t *agent;
    int64_t time_ns;
    size_t in_flight;
    int64_t *samples;
};

/* Calls of one kind. */
struct load {
    const ferry_message_t *message;
    ferry_call_options_t options;
};

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * SECOND + now.tv_nsec;
}

static int compare_samples(const void *left, const void *right)
{
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return (a > b) - (a < b);
}

static double percentile_us(const int64_t *sorted, size_t count, size_t percent)
{
    return (double)sorted[count * percent / 100] / 1e3;
}

static ferry_status_t call_finish(ferry_future_t *future)
{
    ferry_status_t status = ferry_future_wait(future, FERRY_FOREVER, NULL);
    ferry_future_release(future);
    return status;
}

/* One call after the other. Leaves the sorted times in bench->samples. */
static ferry_status_t measure_latency(struct bench *bench, const struct load *load,
                                      size_t *count_out)
{
    int64_t start = now_ns(), end = start + bench->time_ns;
    size_t count = 0;
    for (size_t i = 0; count < SAMPLES_MAX && (count < ROUNDS_MIN || start < end); i++) {
        ferry_future_t *future;
        start = now_ns();
        ferry_status_t status =
            ferry_call(bench->agent, "callee", "sink", load->message, &load->options, &future);
        if (status == FERRY_OK) {
            status = call_finish(future);
        }
        if (status != FERRY_OK) {
            return status;
        }
        if (i >= WARM_UP) {
            bench->samples[count++] = now_ns() - start;
        }
    }
    qsort(bench->samples, count, sizeof(bench->samples[0]), compare_samples);
    *count_out = count;
    return FERRY_OK;
}

/* `in_flight` calls at a time, the oldest waited for first. */
static ferry_status_t measure_rate(struct bench *bench, const struct load *load, size_t in_flight,
                                   double *per_second_out)
{
    ferry_future_t *futures[IN_FLIGHT_MAX];
    size_t started = 0, finished = 0;
    ferry_status_t status = FERRY_OK;
    int64_t start = now_ns(), end = start + bench->time_ns;
    while (status == FERRY_OK && (started < 2 * in_flight || now_ns() < end)) {
        if (started - finished == in_flight) {
            status = call_finish(futures[finished++ % in_flight]);
        }
        if (status == FERRY_OK) {
            status = ferry_call(bench->agent, "callee", "sink", load->message, &load->options,
                                &futures[started % in_flight]);
            started += status == FERRY_OK;
        }
    }
    while (finished < started) {
        ferry_status_t ended = call_finish(futures[finished++ % in_flight]);
        status = status == FERRY_OK ? ended : status;
    }
    if (status == FERRY_OK) {
        *per_second_out = (double)finished / ((double)(now_ns() - start) / 1e9);
    }
    return status;
}

static struct load load_of(const ferry_message_t *message, const ferry_device_map_t *rules)
{
    struct load load = {.message = message, .options = ferry_call_options()};
    load.options.device_map = rules;
    load.options.timeout_ns = 60 * SECOND;
    load.options.wait_for_peer = true;
    return load;
}

static int run_empty(struct bench *bench)
{
    struct load load = load_of(NULL, NULL);
    size_t count;
    double rate;
    if (measure_latency(bench, &load, &count) != FERRY_OK ||
        measure_rate(bench, &load, EMPTY_IN_FLIGHT, &rate) != FERRY_OK) {
        return complain("empty call");
    }
    printf("empty call: round trip p50 %.2f us, p99 %.2f us; %.0f calls/s with %d in flight\n",
           percentile_us(bench->samples, count, 50), percentile_us(bench->samples, count, 99), rate,
           EMPTY_IN_FLIGHT);
    return 0;
}

/* Not zeros: they can be quicker than what a program sends. */
static ferry_status_t fill_random(DLDevice device, void *memory, size_t bytes)
{
    size_t block = bytes < MIB ? bytes : MIB;
    unsigned char *data = malloc(block);
    ferry_status_t status = data == NULL ? FERRY_ERR_NO_MEMORY : FERRY_OK;
    for (size_t done = 0; status == FERRY_OK && done < bytes; done += block) {
        block = bytes - done < block ? bytes - done : block;
        if (getrandom(data, block, 0) != (ssize_t)block) {
            status = FERRY_ERR_SYSTEM;
        } else {
            status = ferry_device_copy(device, (char *)memory + done, CPU, data, block);
        }
    }
    free(data);
    return status;
}

static const char *path_of_call(struct bench *bench, const struct load *load, char *text,
                                size_t capacity)
{
    ferry_future_t *future = NULL;
    const char *path = NULL;
    if (ferry_call(bench->agent, "callee", "sink", load->message, &load->options, &future) ==
            FERRY_OK &&
        ferry_future_wait(future, FERRY_FOREVER, NULL) == FERRY_OK) {
        path = ferry_future_path(future, "x");
    }
    snprintf(text, capacity, "%s", path == NULL ? "" : path);
    ferry_future_release(future);
    return text;
}

static ferry_status_t measure_tensor(struct bench *bench, const struct load *load, size_t bytes)
{
    size_t count, window = bench->in_flight;
    double rate, p50, p99;
    char path[320];
    while (window > 2 && window * bytes > IN_FLIGHT_BYTES) {
        window--;
    }
    ferry_status_t status = measure_latency(bench, load, &count);
    if (status != FERRY_OK) {
        return status;
    }
    p50 = percentile_us(bench->samples, count, 50);
    p99 = percentile_us(bench->samples, count, 99);
    status = measure_rate(bench, load, window, &rate);
    if (status == FERRY_OK) {
        printf(" %11.2f %11.2f %9.3f %6zu %9.3f  %s\n", p50, p99, (double)bytes / p50 / 1e3, window,
               (double)bytes * rate / 1e9, path_of_call(bench, load, path, sizeof(path)));
    }
    return status;
}

/* A row: tensors of that size from my device to the callee's. */
static int run_tensor(struct bench *bench, DLDevice mine, DLDevice theirs, size_t bytes)
{
    char from[FERRY_DEVICE_TEXT_BYTES], to[FERRY_DEVICE_TEXT_BYTES];
    int64_t shape[1] = {(int64_t)bytes};
    ferry_device_rule_t rule = {
        .peer = "callee", .mine = mine, .direction = FERRY_ARGUMENTS, .theirs = theirs};
    ferry_device_map_t *rules = NULL;
    ferry_tensor_t tensor = {
        .name = "x", .view = {.device = mine, .ndim = 1, .dtype = {kDLUInt, 8, 1}, .shape = shape}};
    ferry_message_t message = {.tensors = &tensor, .tensor_count = 1};
    printf("%11zu  %-6s  %-6s", bytes, ferry_device_print(mine, from),
           ferry_device_print(theirs, to));
    ferry_status_t status = ferry_device_map_create(&rule, 1, &rules);
    if (status == FERRY_OK) {
        status = ferry_device_allocate(mine, bytes, &tensor.view.data);
    }
    if (status == FERRY_OK) {
        status = fill_random(mine, tensor.view.data, bytes);
    }
    if (status == FERRY_OK) {
        struct load load = load_of(&message, rules);
        status = measure_tensor(bench, &load, bytes);
    }
    if (status != FERRY_OK) {
        printf(" failed: %s: %s\n", ferry_status_name(status), ferry_last_error()->text);
    }
    ferry_device_free(mine, tensor.view.data);
    ferry_device_map_destroy(rules);
    return status != FERRY_OK;
}

/* ---- what is asked for ---- */

struct wish {
    bool empty;
    size_t in_flight;
    int64_t time_ms;
    const char *pairs, *sizes;
};

/* The next part of a list with commas; false at its end. */
static bool list_next(const char **list, char *part, size_t capacity)
{
    size_t length = strcspn(*list, ",");
    if (length == 0 || length >= capacity) {
        return false;
    }
    memcpy(part, *list, length);
    part[length] = '\0';
    *list += length + ((*list)[length] == ',');
    return true;
}

static size_t size_parse(const char *text)
{
    char *end;
    size_t bytes = strtoul(text, &end, 10);
    switch (*end) {
    case 'K':
        return bytes * 1024;
    case 'M':
        return bytes * MIB;
    case 'G':
        return bytes * 1024 * MIB;
    default:
        return bytes;
    }
}

static int run_pair(struct bench *bench, const char *pair, const char *sizes)
{
    char left[FERRY_DEVICE_TEXT_BYTES], size[32];
    DLDevice mine, theirs;
    size_t length = strcspn(pair, "-");
    snprintf(left, sizeof(left), "%.*s", (int)length, pair);
    if (pair[length] == '\0' || ferry_device_parse(left, &mine) != FERRY_OK ||
        ferry_device_parse(pair + length + 1, &theirs) != FERRY_OK) {
        fprintf(stderr, "ferry_bench: '%s' is no pair like cuda:0-cpu\n", pair);
        return 1;
    }
    int failed = 0;
    while (list_next(&sizes, size, sizeof(size))) {
        size_t bytes = size_parse(size);
        if (bytes == 0) {
            fprintf(stderr, "ferry_bench: '%s' is no size like 4, 64K or 256M\n", size);
            return 1;
        }
        failed += run_tensor(bench, mine, theirs, bytes);
    }
    return failed;
}

static int caller_run(const struct wish *wish)
{
    ferry_agent_options_t options = ferry_agent_options();
    struct bench bench = {.time_ns = wish->time_ms * 1000000, .in_flight = wish->in_flight};
    char pair[2 * FERRY_DEVICE_TEXT_BYTES];
    const char *pairs = wish->pairs;
    int failed = 0;
    options.name = "caller";
    options.device_map = ""; /* each row brings its own rule */
    bench.samples = calloc(SAMPLES_MAX, sizeof(bench.samples[0]));
    if (bench.samples == NULL || ferry_agent_create(&options, &bench.agent) != FERRY_OK ||
        ferry_agent_start(bench.agent) != FERRY_OK) {
        failed = complain("caller");
        pairs = "";
    } else if (wish->empty) {
        failed = run_empty(&bench);
    }
    if (*pairs != '\0') {
        printf("%11s  %-6s  %-6s %11s %11s %9s %6s %9s  %s\n", "bytes", "from", "to", "p50 us",
               "p99 us", "GB/s", "calls", "GB/s", "path");
    }
    while (list_next(&pairs, pair, sizeof(pair))) {
        failed += run_pair(&bench, pair, wish->sizes);
    }
    ferry_agent_destroy(bench.agent);
    free(bench.samples);
    return failed != 0;
}

/* ---- the two processes ---- */

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *where)
{
    (void)info, (void)type, (void)where;
    return remove(path);
}

/* A new program and not only a fork: UCX and CUDA do not work in a forked child. */
static pid_t start_callee(void)
{
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execl("/proc/self/exe", "ferry_bench", "callee", (char *)NULL);
        _exit(127);
    }
    return child;
}

static int run_both(const struct wish *wish)
{
    char folder[] = "/tmp/ferry_bench-XXXXXX", naming[64];
    int status = -1;
    if (mkdtemp(folder) == NULL) {
        perror(folder);
        return 1;
    }
    snprintf(naming, sizeof(naming), "file://%s", folder);
    setenv("FERRY_NAMING", naming, 1);
    pid_t callee = start_callee();
    if (callee < 0) {
        perror("fork");
        return 1;
    }
    int failed = caller_run(wish);
    kill(callee, SIGTERM);
    while (waitpid(callee, &status, 0) < 0 && errno == EINTR) {
    }
    nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
    return failed != 0 || status != 0;
}

static bool wish_set(struct wish *wish, const char *option, const char *value)
{
    if (strcmp(option, "--empty") == 0) {
        wish->empty = strcmp(value, "no") != 0;
    } else if (strcmp(option, "--pairs") == 0) {
        wish->pairs = value;
    } else if (strcmp(option, "--sizes") == 0) {
        wish->sizes = value;
    } else if (strcmp(option, "--in-flight") == 0) {
        wish->in_flight = strtoul(value, NULL, 10);
        return wish->in_flight >= 1 && wish->in_flight <= IN_FLIGHT_MAX;
    } else if (strcmp(option, "--time-ms") == 0) {
        wish->time_ms = strtol(value, NULL, 10);
        return wish->time_ms > 0;
    } else {
        return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    struct wish wish = {.empty = true,
                        .in_flight = 8,
                        .time_ms = 1000,
                        .pairs = "cpu-cpu",
                        .sizes = "4,64K,1M,64M"};
    if (argc == 2 && strcmp(argv[1], "callee") == 0) {
        return callee_run();
    }
    bool good = argc % 2 == 1;
    for (int i = 1; i + 1 < argc && good; i += 2) {
        good = wish_set(&wish, argv[i], argv[i + 1]);
    }
    if (!good) {
        fprintf(stderr,
                "usage: ferry_bench [--empty yes|no] [--pairs cpu-cpu,cuda:0-cpu] "
                "[--sizes 4,64K,256M] [--in-flight 1-%d] [--time-ms N]\n",
                IN_FLIGHT_MAX);
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    setenv("FERRY_SIM_DEVICES", "1", 0);
    return run_both(&wish);
}
