/* What Ferry is for, between two processes: worker0 (this one) and worker1 (started by it) send
 * each other tensors, and each row says where one went, by which path and in what time. Then a
 * call that the map does not cover, its error, and the same call with the rule that the error
 * suggests. */
#include <errno.h>
#include <ferry/ferry.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define SECOND INT64_C(1000000000)
#define MIB (1024 * 1024)
#define ROUNDS_MIN 3 /* calls of a row, at least; more while they take less than ROW_NS together */
#define ROUNDS_MAX 200
#define ROW_NS 100000000

static const DLDataType BYTE = {kDLUInt, 8, 1};
static const DLDevice CPU = {kDLCPU, 0};

static int complain(const char *who)
{
    fprintf(stderr, "%s: %s\n", who, ferry_last_error()->text);
    return 1;
}

static uint64_t pattern_at(size_t word, unsigned seed)
{
    return (word + seed) * UINT64_C(0x9e3779b97f4a7c15);
}

/* Fills memory on any device with the seed's pattern; bytes are a multiple of 8. */
static ferry_status_t pattern_write(DLDevice device, void *memory, size_t bytes, unsigned seed)
{
    uint64_t *host = malloc(bytes);
    if (host == NULL) {
        return FERRY_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < bytes / 8; i++) {
        host[i] = pattern_at(i, seed);
    }
    ferry_status_t status = ferry_device_copy(device, memory, CPU, host, bytes);
    free(host);
    return status;
}

/* How many 8-byte words differ from the seed's pattern. */
static ferry_status_t pattern_check(const DLTensor *view, unsigned seed, int64_t *wrong_out)
{
    size_t bytes;
    ferry_status_t status = ferry_tensor_bytes(view, &bytes);
    uint64_t *host = status == FERRY_OK ? malloc(bytes) : NULL;
    if (host == NULL) {
        return status == FERRY_OK ? FERRY_ERR_NO_MEMORY : status;
    }
    const char *data = (const char *)view->data + view->byte_offset;
    status = ferry_device_copy(CPU, host, view->device, data, bytes);
    int64_t wrong = 0;
    for (size_t i = 0; i < bytes / 8 && status == FERRY_OK; i++) {
        wrong += host[i] != pattern_at(i, seed);
    }
    free(host);
    if (status == FERRY_OK) {
        *wrong_out = wrong;
    }
    return status;
}

/* ---- worker1 ---- */

static ferry_status_t reply_device(ferry_request_t *request, DLDevice device)
{
    char text[FERRY_DEVICE_TEXT_BYTES];
    ferry_writer_t *writer = NULL;
    ferry_message_t message = {.body = NULL};
    ferry_status_t status = ferry_writer_create(&writer);
    if (status == FERRY_OK) {
        ferry_writer_string(writer, "device", ferry_device_print(device, text));
        status = ferry_writer_finish(writer, &message);
    }
    if (status == FERRY_OK) {
        status = ferry_request_reply(request, &message);
    }
    ferry_writer_destroy(writer);
    return status;
}

/* Takes tensor "x" and says on which device it found it; a call that brings a seed wants the
 * bytes checked. */
static ferry_status_t answer_take(ferry_request_t *request, void *context)
{
    (void)context;
    ferry_reader_t reader = ferry_reader(ferry_request_message(request));
    const ferry_tensor_t *tensor = ferry_reader_tensor(&reader, "x", BYTE);
    int64_t seed = ferry_reader_int64_or(&reader, "seed", -1);
    ferry_status_t status = ferry_reader_status(&reader);
    int64_t wrong = 0;
    if (status == FERRY_OK && seed >= 0) {
        status = pattern_check(&tensor->view, (unsigned)seed, &wrong);
    }
    if (status == FERRY_OK && wrong > 0) {
        return ferry_request_fail(request, 1, "%lld words are wrong", (long long)wrong);
    }
    return status == FERRY_OK ? reply_device(request, tensor->view.device) : status;
}

/* Gives a tensor "y" of the size and on the device that the body names. */
static ferry_status_t answer_give(ferry_request_t *request, void *context)
{
    (void)context;
    char text[FERRY_DEVICE_TEXT_BYTES];
    DLDevice device;
    ferry_tensor_t tensor;
    ferry_reader_t reader = ferry_reader(ferry_request_message(request));
    ferry_reader_string(&reader, "device", text, sizeof(text));
    int64_t bytes = ferry_reader_int64(&reader, "bytes");
    int64_t seed = ferry_reader_int64_or(&reader, "seed", -1);
    ferry_status_t status = ferry_reader_status(&reader);
    if (status == FERRY_OK) {
        status = ferry_device_parse(text, &device);
    }
    if (status == FERRY_OK) {
        status = ferry_request_allocate(request, "y", device, BYTE, 1, &bytes, &tensor);
    }
    if (status == FERRY_OK && seed >= 0) {
        status = pattern_write(device, tensor.view.data, (size_t)bytes, (unsigned)seed);
    }
    if (status != FERRY_OK) {
        return status;
    }
    ferry_message_t message = {.tensors = &tensor, .tensor_count = 1};
    return ferry_request_reply(request, &message);
}

static ferry_agent_t *stopped_by_signal;

static void on_signal(int signal_number)
{
    (void)signal_number;
    ferry_agent_stop(stopped_by_signal);
}

static int serve(void)
{
    ferry_agent_options_t options = ferry_agent_options();
    options.name = "worker1";
    ferry_agent_t *agent = NULL;
    int failed = ferry_agent_create(&options, &agent) != FERRY_OK;
    if (!failed) {
        stopped_by_signal = agent;
        signal(SIGTERM, on_signal);
    }
    failed = failed || ferry_agent_register(agent, "take", answer_take, NULL) != FERRY_OK ||
             ferry_agent_register(agent, "give", answer_give, NULL) != FERRY_OK ||
             ferry_agent_start(agent) != FERRY_OK || ferry_agent_run(agent) != FERRY_OK ||
             ferry_agent_shutdown(agent, SECOND) != FERRY_OK;
    if (failed) {
        complain("worker1");
    }
    signal(SIGTERM, SIG_DFL);
    ferry_agent_destroy(agent);
    return failed;
}

/* ---- worker0 ---- */

struct demo {
    ferry_agent_t *agent;
    ferry_writer_t *writer;
    DLDevice first, second; /* of that kind; equal where there is one */
};

/* One way of one tensor: from worker0's device `mine` to worker1's `theirs`, or back. */
struct trip {
    DLDevice mine, theirs;
    ferry_direction_t direction;
    size_t bytes;
};

static const char *size_print(size_t bytes, char text[24])
{
    if (bytes >= MIB) {
        snprintf(text, 24, "%zu MiB", bytes / MIB);
    } else if (bytes >= 1024) {
        snprintf(text, 24, "%zu KiB", bytes / 1024);
    } else {
        snprintf(text, 24, "%zu B", bytes);
    }
    return text;
}

static const char *time_print(int64_t time_ns, char text[24])
{
    if (time_ns < 1000000) {
        snprintf(text, 24, "%.1f us", (double)time_ns / 1e3);
    } else {
        snprintf(text, 24, "%.2f ms", (double)time_ns / 1e6);
    }
    return text;
}

static void row_print_head(void)
{
    printf("%10s  %-14s  %-14s  %10s  %7s  %s\n", "size", "from", "to", "time", "GB/s", "path");
}

static void row_print(const struct trip *trip, const char *arrived, int64_t time_ns,
                      const char *path)
{
    char size[24], from[64], to[64], device[FERRY_DEVICE_TEXT_BYTES], time[24], rate[16] = "";
    bool argument = trip->direction == FERRY_ARGUMENTS;
    snprintf(from, sizeof(from), "%s %s", argument ? "worker0" : "worker1",
             ferry_device_print(argument ? trip->mine : trip->theirs, device));
    snprintf(to, sizeof(to), "%s %s", argument ? "worker1" : "worker0", arrived);
    if (trip->bytes >= MIB) { /* below, a rate says nothing */
        snprintf(rate, sizeof(rate), "%.2f", (double)trip->bytes / (double)time_ns);
    }
    printf("%10s  %-14s  %-14s  %10s  %7s  %s\n", size_print(trip->bytes, size), from, to,
           time_print(time_ns, time), rate, path);
}

/* The body that "take" and "give" read. seed < 0: no checking. */
static ferry_status_t body_write(struct demo *demo, const struct trip *trip, int seed,
                                 ferry_message_t *message)
{
    char device[FERRY_DEVICE_TEXT_BYTES];
    ferry_writer_reset(demo->writer);
    if (seed >= 0) {
        ferry_writer_int64(demo->writer, "seed", seed);
    }
    if (trip->direction == FERRY_RESULTS) {
        ferry_writer_int64(demo->writer, "bytes", (int64_t)trip->bytes);
        ferry_writer_string(demo->writer, "device", ferry_device_print(trip->theirs, device));
    }
    return ferry_writer_finish(demo->writer, message);
}

/* One call. An argument is `memory` on trip->mine; a result gets memory of Ferry's, where the
 * rules say. */
static ferry_status_t trip_call(struct demo *demo, const struct trip *trip, void *memory, int seed,
                                const ferry_device_map_t *rules, ferry_future_t **future_out)
{
    int64_t shape[1] = {(int64_t)trip->bytes};
    bool argument = trip->direction == FERRY_ARGUMENTS;
    ferry_tensor_t tensor = {
        .name = argument ? "x" : "y",
        .view = {.data = memory, .device = trip->mine, .ndim = 1, .dtype = BYTE, .shape = shape}};
    ferry_message_t message = {.tensors = &tensor, .tensor_count = argument ? 1 : 0};
    ferry_call_options_t options = ferry_call_options();
    options.timeout_ns = 20 * SECOND;
    options.wait_for_peer = true;
    options.device_map = rules;
    ferry_future_t *future = NULL;
    ferry_status_t status = body_write(demo, trip, seed, &message);
    if (status == FERRY_OK) {
        status = ferry_call(demo->agent, "worker1", argument ? "take" : "give", &message, &options,
                            &future);
    }
    if (status == FERRY_OK) {
        status = ferry_future_wait(future, FERRY_FOREVER, NULL);
    }
    if (status != FERRY_OK) {
        ferry_future_release(future);
        return status;
    }
    *future_out = future;
    return FERRY_OK;
}

/* Where the tensor was found at its other end. */
static ferry_status_t trip_arrived(const struct trip *trip, const ferry_future_t *future,
                                   char device[FERRY_DEVICE_TEXT_BYTES])
{
    const ferry_message_t *result = ferry_future_result(future);
    if (trip->direction == FERRY_RESULTS) {
        ferry_device_print(result->tensors[0].view.device, device);
        return FERRY_OK;
    }
    ferry_reader_t reader = ferry_reader(result);
    ferry_reader_string(&reader, "device", device, FERRY_DEVICE_TEXT_BYTES);
    return ferry_reader_status(&reader);
}

struct measure {
    int64_t best_ns, all_ns, wrong;
    int rounds;
    char path[320], arrived[FERRY_DEVICE_TEXT_BYTES];
};

/* One call's part in the row. The first, which brought a seed, is checked byte by byte and warms
 * the path. */
static ferry_status_t trip_note(const struct trip *trip, const ferry_future_t *future, int seed,
                                struct measure *measure)
{
    bool argument = trip->direction == FERRY_ARGUMENTS;
    if (seed >= 0) {
        return argument ? FERRY_OK
                        : pattern_check(&ferry_future_result(future)->tensors[0].view,
                                        (unsigned)seed, &measure->wrong);
    }
    ferry_call_stats_t stats = {.struct_bytes = sizeof(stats)};
    ferry_status_t status = ferry_future_stats(future, &stats);
    measure->rounds++;
    measure->all_ns += stats.total_ns;
    if (status == FERRY_OK && stats.total_ns < measure->best_ns) {
        const char *path = ferry_future_path(future, argument ? "x" : "y");
        measure->best_ns = stats.total_ns;
        snprintf(measure->path, sizeof(measure->path), "%s", path == NULL ? "" : path);
        status = trip_arrived(trip, future, measure->arrived);
    }
    return status;
}

static ferry_status_t trip_measure(struct demo *demo, const struct trip *trip, void *memory,
                                   int seed, const ferry_device_map_t *rules)
{
    struct measure measure = {.best_ns = INT64_MAX};
    for (int check = seed;
         measure.rounds < ROUNDS_MIN || (measure.rounds < ROUNDS_MAX && measure.all_ns < ROW_NS);
         check = -1) {
        ferry_future_t *future;
        ferry_status_t status = trip_call(demo, trip, memory, check, rules, &future);
        if (status != FERRY_OK) {
            return status;
        }
        status = trip_note(trip, future, check, &measure);
        ferry_future_release(future);
        if (status != FERRY_OK) {
            return status;
        }
    }
    char wanted[FERRY_DEVICE_TEXT_BYTES];
    ferry_device_print(trip->direction == FERRY_ARGUMENTS ? trip->theirs : trip->mine, wanted);
    row_print(trip, measure.arrived, measure.best_ns, measure.path);
    if (measure.wrong > 0 || strcmp(wanted, measure.arrived) != 0) {
        fprintf(stderr, "worker0: %lld words of that tensor are wrong, it should be on %s\n",
                (long long)measure.wrong, wanted);
        return FERRY_ERR_APPLICATION;
    }
    return FERRY_OK;
}

/* The trip's rule, for its calls alone. */
static ferry_status_t trip_rule(const struct trip *trip, ferry_device_map_t **map_out)
{
    ferry_device_rule_t rule = {.peer = "worker1",
                                .mine = trip->mine,
                                .direction = trip->direction,
                                .theirs = trip->theirs};
    return ferry_device_map_create(&rule, 1, map_out);
}

static ferry_status_t trip_run(struct demo *demo, const struct trip *trip)
{
    static int seed;
    void *memory = NULL;
    ferry_device_map_t *rules = NULL;
    ferry_status_t status = trip_rule(trip, &rules);
    if (status == FERRY_OK) {
        status = ferry_device_allocate(trip->mine, trip->bytes, &memory);
    }
    seed++;
    if (status == FERRY_OK && trip->direction == FERRY_ARGUMENTS) {
        status = pattern_write(trip->mine, memory, trip->bytes, (unsigned)seed);
    }
    if (status == FERRY_OK) {
        status = trip_measure(demo, trip, memory, seed, rules);
    }
    ferry_device_free(trip->mine, memory);
    ferry_device_map_destroy(rules);
    return status;
}

static ferry_status_t show_trips(struct demo *demo)
{
    static const size_t sizes[] = {4096, MIB, 64 * MIB};
    const struct trip trips[] = {
        {CPU, CPU, FERRY_ARGUMENTS, 0},         {demo->first, CPU, FERRY_ARGUMENTS, 0},
        {CPU, demo->first, FERRY_ARGUMENTS, 0}, {demo->first, demo->second, FERRY_ARGUMENTS, 0},
        {demo->first, CPU, FERRY_RESULTS, 0},   {demo->first, demo->second, FERRY_RESULTS, 0},
    };
    printf("\n");
    row_print_head();
    for (size_t i = 0; i < sizeof(trips) / sizeof(trips[0]); i++) {
        for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++) {
            struct trip trip = trips[i];
            trip.bytes = sizes[k];
            ferry_status_t status = trip_run(demo, &trip);
            if (status != FERRY_OK) {
                return status;
            }
        }
    }
    return FERRY_OK;
}

/* The rule between the quotes behind "add " of the error's text. */
static bool suggested_rule(const char *text, char *rule, size_t capacity)
{
    const char *begin = strstr(text, "add \"");
    const char *end = begin == NULL ? NULL : strchr(begin + 5, '"');
    if (end == NULL || (size_t)(end - begin) >= capacity) {
        return false;
    }
    snprintf(rule, capacity, "%.*s", (int)(end - begin - 5), begin + 5);
    return true;
}

static int show_unmapped(struct demo *demo)
{
    struct trip trip = {demo->first, CPU, FERRY_ARGUMENTS, MIB};
    char rule[256], device[FERRY_DEVICE_TEXT_BYTES];
    void *memory = NULL;
    ferry_future_t *future = NULL;
    if (ferry_device_allocate(trip.mine, trip.bytes, &memory) != FERRY_OK) {
        return complain("worker0");
    }
    int failed = 0;
    printf("\nNow a tensor on %s with an empty map, on purpose:\n",
           ferry_device_print(trip.mine, device));
    if (trip_call(demo, &trip, memory, -1, NULL, &future) != FERRY_ERR_UNMAPPED_DEVICE ||
        !suggested_rule(ferry_last_error()->text, rule, sizeof(rule))) {
        fprintf(stderr, "worker0: no error that suggests a rule: %s\n", ferry_last_error()->text);
        ferry_future_release(future);
        failed = 1;
    } else {
        printf("  %s: %s\n", ferry_status_name(ferry_last_error()->status),
               ferry_last_error()->text);
        printf("\nThe same call with the rule \"%s\":\n", rule);
        row_print_head();
        if (ferry_agent_set_device_map(demo->agent, rule) != FERRY_OK ||
            pattern_write(trip.mine, memory, trip.bytes, 7) != FERRY_OK ||
            trip_measure(demo, &trip, memory, 7, NULL) != FERRY_OK) {
            failed = complain("worker0");
        }
    }
    ferry_device_free(trip.mine, memory);
    return failed;
}

static int show(struct demo *demo)
{
    ferry_agent_options_t options = ferry_agent_options();
    options.name = "worker0";
    options.device_map = ""; /* and not FERRY_DEVICE_MAP's: each trip brings its own rule */
    int failed;
    if (ferry_writer_create(&demo->writer) != FERRY_OK ||
        ferry_agent_create(&options, &demo->agent) != FERRY_OK ||
        ferry_agent_start(demo->agent) != FERRY_OK || show_trips(demo) != FERRY_OK) {
        failed = complain("worker0");
    } else {
        failed = show_unmapped(demo);
    }
    ferry_agent_destroy(demo->agent);
    ferry_writer_destroy(demo->writer);
    return failed;
}

/* ---- the two processes ---- */

static void choose_devices(struct demo *demo)
{
    int gpus = ferry_device_count(kDLCUDA);
    DLDeviceType type = gpus > 0 ? kDLCUDA : (DLDeviceType)FERRY_DEVICE_SIM;
    int count = ferry_device_count(type);
    demo->first = (DLDevice){type, 0};
    demo->second = (DLDevice){type, count > 1 ? 1 : 0};
    if (gpus == 0) {
        printf("No CUDA device is here, so sim:0 and sim:1 stand for GPUs: simulated ones, whose "
               "memory the host cannot touch.\n");
    }
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *where)
{
    (void)info, (void)type, (void)where;
    return remove(path);
}

/* Before worker0's agent exists, since UCX and CUDA do not work in a child that was forked after
 * them. */
static pid_t start_worker1(void)
{
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execl("/proc/self/exe", "ferry_demo", "worker1", (char *)NULL);
        _exit(127);
    }
    return child;
}

static int stop_worker1(pid_t child)
{
    int status = -1;
    kill(child, SIGTERM);
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "worker1") == 0) {
        return serve();
    }
    char folder[] = "/tmp/ferry_demo-XXXXXX", naming[64];
    struct demo demo = {.agent = NULL};
    if (mkdtemp(folder) == NULL) {
        perror(folder);
        return 1;
    }
    snprintf(naming, sizeof(naming), "file://%s", folder);
    setenv("FERRY_NAMING", naming, 1);
    setenv("FERRY_SIM_DEVICES", "2", 1);
    setvbuf(stdout, NULL, _IOLBF, 0);
    alarm(60); /* whatever happens, this ends */
    pid_t worker1 = start_worker1();
    if (worker1 < 0) {
        perror("fork");
        return 1;
    }
    printf("Two processes, worker0 (pid %d) and worker1 (pid %d). Each row is a call with one "
           "tensor; its "
           "time\nis the whole call's, the quickest of several.\n",
           (int)getpid(), (int)worker1);
    choose_devices(&demo);
    int failed = show(&demo);
    failed += stop_worker1(worker1);
    nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
    return failed != 0;
}
