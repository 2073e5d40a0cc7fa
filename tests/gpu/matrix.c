/* The main job between two processes: every pair of {cpu, a device} and {cpu, a device}, both ways,
 * over sizes and layouts. Both processes know every byte from a fresh seed, and every destination
 * is
 * poisoned or holds another seed's data.
 *
 *   matrix [--device cuda:0|sim:0] [--sizes 4,5,64K,1M,256M,strided] [--rounds N]
 *
 * --rounds 0 measures no times. A plain program: machines with GPUs need no test framework. Ends
 * with 77 where the device is missing. */
#include <errno.h>
#include <ferry/ferry.h>
#include <ftw.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "support/seeded.h"
#include "support/seeded_callee.h"

#define SKIPPED 77
#define SECOND INT64_C(1000000000)
#define MIB (1024 * 1024)
#define ROUNDS_MAX 101
#define TIMING_NS (SECOND / 4) /* of a row; three rounds at least */
#define CHECKS 2 /* the second finds the memory of the first, with another seed's data in it */

static const DLDevice CPU = {kDLCPU, 0};

/* ---- the caller ---- */

enum way { ARGUMENT, RESULT_INTO_BUFFER, RESULT_FRESH, WAYS };

static const char *const way_texts[WAYS] = {"argument", "result into buffer", "fresh result"};

/* One row of the matrix. */
struct cell {
    DLDevice mine, theirs;
    enum way way;
    enum seeded_layout layout;
    size_t bytes;
};

struct caller {
    ferry_agent_t *agent;
    ferry_writer_t *writer;
    int rounds;
    int passed, failed;
};

/* What of one row the calls share. */
struct trial {
    const struct cell *cell;
    struct seeded_buffer buffer; /* the argument or the result's; memory NULL: fresh results */
    ferry_device_map_t *rules;
};

static ferry_status_t trial_start(const struct cell *cell, struct trial *trial)
{
    *trial = (struct trial){.cell = cell};
    ferry_device_rule_t rule = {.peer = "callee",
                                .mine = cell->mine,
                                .direction =
                                    cell->way == ARGUMENT ? FERRY_ARGUMENTS : FERRY_RESULTS,
                                .theirs = cell->theirs};
    ferry_status_t status = FERRY_OK;
    if (cell->way != RESULT_INTO_BUFFER) { /* a buffer's device needs no rule */
        status = ferry_device_map_create(&rule, 1, &trial->rules);
    }
    if (status == FERRY_OK && cell->way != RESULT_FRESH) {
        status = seeded_buffer_create(cell->mine, cell->layout, cell->bytes, &trial->buffer);
    }
    return status;
}

static void trial_finish(struct trial *trial)
{
    ferry_device_map_destroy(trial->rules);
    seeded_buffer_destroy(&trial->buffer);
}

static ferry_status_t trial_body(struct caller *caller, const struct cell *cell, uint64_t seed,
                                 ferry_message_t *message)
{
    char device[FERRY_DEVICE_TEXT_BYTES];
    ferry_writer_reset(caller->writer);
    ferry_writer_uint64(caller->writer, "seed", seed);
    ferry_writer_int64(caller->writer, "bytes", (int64_t)cell->bytes);
    ferry_writer_bool(caller->writer, "strided", cell->layout == SEEDED_STRIDED);
    ferry_writer_string(caller->writer, "device", ferry_device_print(cell->theirs, device));
    return ferry_writer_finish(caller->writer, message);
}

/* One call; seed 0: one that is timed and not checked. */
static ferry_status_t trial_call(struct caller *caller, struct trial *trial, uint64_t seed,
                                 ferry_future_t **future_out)
{
    const struct cell *cell = trial->cell;
    ferry_message_t message = {.body = NULL};
    ferry_tensor_t tensor = seeded_buffer_tensor(&trial->buffer, cell->way == ARGUMENT ? "x" : "y");
    ferry_call_options_t options = ferry_call_options();
    options.timeout_ns = 30 * SECOND;
    options.wait_for_peer = true;
    options.device_map = trial->rules;
    const char *method = "give";
    if (cell->way == ARGUMENT) {
        method = seed == 0 ? "sink" : "take";
        message.tensors = &tensor;
        message.tensor_count = 1;
    } else if (cell->way == RESULT_INTO_BUFFER) {
        options.results = &tensor;
        options.result_count = 1;
    }
    ferry_future_t *future = NULL;
    ferry_status_t status = trial_body(caller, cell, seed, &message);
    if (status == FERRY_OK) {
        status = ferry_call(caller->agent, "callee", method, &message, &options, &future);
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

static ferry_status_t result_check(const struct trial *trial, const ferry_message_t *result,
                                   uint64_t seed, int64_t *wrong_out)
{
    const struct cell *cell = trial->cell;
    const ferry_tensor_t *tensor = ferry_message_tensor(result, "y");
    size_t bytes = 0;
    if (tensor == NULL || tensor->view.device.device_type != cell->mine.device_type ||
        tensor->view.device.device_id != cell->mine.device_id ||
        ferry_tensor_bytes(&tensor->view, &bytes) != FERRY_OK || bytes != cell->bytes) {
        *wrong_out = (int64_t)cell->bytes;
        return FERRY_OK;
    }
    if (cell->way == RESULT_FRESH) {
        return seeded_view_check(&tensor->view, seed, wrong_out);
    }
    ferry_status_t status = seeded_buffer_check(&trial->buffer, seed, wrong_out);
    *wrong_out += tensor->view.data != trial->buffer.memory;
    return status;
}

/* A call with fresh data; both ends look at every byte. */
static ferry_status_t trial_check(struct caller *caller, struct trial *trial, int64_t *wrong_out)
{
    enum way way = trial->cell->way;
    uint64_t seed = seeded_fresh();
    ferry_status_t status = FERRY_OK;
    if (way != RESULT_FRESH) {
        status = seeded_buffer_fill(&trial->buffer, way == ARGUMENT ? seed : 0);
    }
    ferry_future_t *future = NULL;
    if (status == FERRY_OK) {
        status = trial_call(caller, trial, seed, &future);
    }
    if (status == FERRY_OK && way == ARGUMENT) {
        ferry_reader_t reader = ferry_reader(ferry_future_result(future));
        *wrong_out = ferry_reader_int64(&reader, "wrong");
        status = ferry_reader_status(&reader);
    } else if (status == FERRY_OK) {
        status = result_check(trial, ferry_future_result(future), seed, wrong_out);
    }
    ferry_future_release(future);
    return status;
}

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * SECOND + now.tv_nsec;
}

static int compare_times(const void *left, const void *right)
{
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return (a > b) - (a < b);
}

struct timing {
    int64_t median_ns; /* 0: not measured */
    char path[320];
};

static ferry_status_t trial_time(struct caller *caller, struct trial *trial, struct timing *timing)
{
    int64_t times[ROUNDS_MAX], all = 0;
    int warm_up = caller->rounds > 0 ? 1 : 0, count = 0;
    while (count < warm_up + caller->rounds && (count < warm_up + 3 || all < TIMING_NS)) {
        ferry_future_t *future = NULL;
        int64_t start = now_ns();
        ferry_status_t status = trial_call(caller, trial, 0, &future);
        int64_t took = now_ns() - start;
        if (status != FERRY_OK) {
            return status;
        }
        const char *path = ferry_future_path(future, trial->cell->way == ARGUMENT ? "x" : "y");
        snprintf(timing->path, sizeof(timing->path), "%s", path == NULL ? "no path" : path);
        ferry_future_release(future);
        if (count >= warm_up) {
            times[count - warm_up] = took;
        }
        all += took;
        count++;
    }
    count -= warm_up;
    if (count > 0) {
        qsort(times, (size_t)count, sizeof(times[0]), compare_times);
        timing->median_ns = times[count / 2];
    }
    return FERRY_OK;
}

static void cell_print(const struct cell *cell, const struct timing *timing)
{
    char mine[FERRY_DEVICE_TEXT_BYTES], theirs[FERRY_DEVICE_TEXT_BYTES], size[32];
    if (cell->bytes % MIB == 0) {
        snprintf(size, sizeof(size), "%zu MiB", cell->bytes / MIB);
    } else if (cell->bytes % 1024 == 0) {
        snprintf(size, sizeof(size), "%zu KiB", cell->bytes / 1024);
    } else {
        snprintf(size, sizeof(size), "%zu B", cell->bytes);
    }
    printf("%-7s %-8s %-6s %-6s %-18s", size, cell->layout == SEEDED_STRIDED ? "strided" : "plain",
           ferry_device_print(cell->mine, mine), ferry_device_print(cell->theirs, theirs),
           way_texts[cell->way]);
    if (timing->median_ns > 0) {
        printf(" %10.1f us %8.2f GB/s  %s", (double)timing->median_ns / 1e3,
               (double)cell->bytes / (double)timing->median_ns, timing->path);
    }
}

static void cell_run(struct caller *caller, const struct cell *cell)
{
    struct trial trial;
    struct timing timing = {.median_ns = 0};
    int64_t wrong = 0;
    ferry_status_t status = trial_start(cell, &trial);
    for (int i = 0; i < CHECKS && status == FERRY_OK && wrong == 0; i++) {
        status = trial_check(caller, &trial, &wrong);
    }
    if (status == FERRY_OK) {
        status = trial_time(caller, &trial, &timing);
    }
    cell_print(cell, &timing);
    if (status != FERRY_OK) {
        printf("  FAILED: %s: %s\n", ferry_status_name(status), ferry_last_error()->text);
    } else if (wrong != 0) {
        printf("  FAILED: %" PRId64 " bytes are wrong\n", wrong);
    } else {
        printf("%s\n", timing.median_ns > 0 ? "" : "  right");
    }
    bool good = status == FERRY_OK && wrong == 0;
    caller->passed += good;
    caller->failed += !good;
    trial_finish(&trial);
}

struct size {
    size_t bytes;
    enum seeded_layout layout;
};

static void matrix_run(struct caller *caller, DLDevice device, const struct size *sizes,
                       size_t size_count)
{
    const DLDevice devices[2] = {CPU, device};
    printf("%-7s %-8s %-6s %-6s %-18s %13s %13s  %s\n", "size", "layout", "caller", "callee",
           "tensor", "median", "rate", "path");
    for (int pair = 0; pair < 4; pair++) {
        for (size_t i = 0; i < size_count; i++) {
            for (int way = 0; way < WAYS; way++) {
                struct cell cell = {.mine = devices[pair / 2],
                                    .theirs = devices[pair % 2],
                                    .way = (enum way)way,
                                    .layout = sizes[i].layout,
                                    .bytes = sizes[i].bytes};
                cell_run(caller, &cell);
            }
        }
    }
}

static int caller_run(struct caller *caller, DLDevice device, const struct size *sizes,
                      size_t size_count)
{
    ferry_agent_options_t options = ferry_agent_options();
    options.name = "caller";
    options.device_map = ""; /* each call brings its own rule */
    if (ferry_writer_create(&caller->writer) != FERRY_OK ||
        ferry_agent_create(&options, &caller->agent) != FERRY_OK ||
        ferry_agent_start(caller->agent) != FERRY_OK) {
        fprintf(stderr, "caller: %s\n", ferry_last_error()->text);
        caller->failed++;
    } else {
        matrix_run(caller, device, sizes, size_count);
    }
    ferry_agent_destroy(caller->agent);
    ferry_writer_destroy(caller->writer);
    printf("%d passed, %d failed\n", caller->passed, caller->failed);
    return caller->failed != 0 || caller->passed == 0;
}

/* ---- the two processes ---- */

static size_t sizes_parse(const char *text, struct size *sizes, size_t capacity)
{
    size_t count = 0;
    while (*text != '\0' && count < capacity) {
        char *end;
        struct size size = {MIB, SEEDED_STRIDED};
        if (strncmp(text, "strided", 7) == 0) {
            end = (char *)(uintptr_t)text + 7;
        } else {
            size = (struct size){strtoul(text, &end, 10), SEEDED_PLAIN};
            size.bytes *= *end == 'K' ? 1024 : *end == 'M' ? MIB : 1;
            end += *end == 'K' || *end == 'M';
        }
        if (end == text || size.bytes == 0 || (*end != ',' && *end != '\0')) {
            return 0;
        }
        sizes[count++] = size;
        text = end + (*end == ',');
    }
    return count;
}

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
        execl("/proc/self/exe", "matrix", "callee", (char *)NULL);
        _exit(127);
    }
    return child;
}

static int stop_callee(pid_t child)
{
    int status = -1;
    kill(child, SIGTERM);
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    if (status != 0) {
        printf("the callee ended with status %#x\n", (unsigned)status);
    }
    return status != 0;
}

static int run_both(DLDevice device, const struct size *sizes, size_t size_count, int rounds)
{
    char folder[] = "/tmp/matrix-XXXXXX", naming[64];
    struct caller caller = {.rounds = rounds};
    if (mkdtemp(folder) == NULL) {
        perror(folder);
        return 1;
    }
    snprintf(naming, sizeof(naming), "file://%s", folder);
    setenv("FERRY_NAMING", naming, 1);
    alarm(280); /* whatever happens, this ends, and the callee with it */
    pid_t callee = start_callee();
    if (callee < 0) {
        perror("fork");
        return 1;
    }
    int failed = caller_run(&caller, device, sizes, size_count);
    failed += stop_callee(callee);
    nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
    return failed != 0;
}

int main(int argc, char **argv)
{
    DLDevice device = {kDLCUDA, 0};
    struct size sizes[16];
    size_t size_count = sizes_parse("4,5,64K,1M,256M,strided", sizes, 16);
    int rounds = 31;
    if (argc == 2 && strcmp(argv[1], "callee") == 0) {
        return seeded_callee_run();
    }
    bool good = argc % 2 == 1;
    for (int i = 1; i + 1 < argc && good; i += 2) {
        if (strcmp(argv[i], "--device") == 0) {
            good = ferry_device_parse(argv[i + 1], &device) == FERRY_OK;
        } else if (strcmp(argv[i], "--sizes") == 0) {
            size_count = sizes_parse(argv[i + 1], sizes, 16);
            good = size_count > 0;
        } else if (strcmp(argv[i], "--rounds") == 0) {
            rounds = atoi(argv[i + 1]);
            good = rounds >= 0 && rounds <= ROUNDS_MAX;
        } else {
            good = false;
        }
    }
    if (!good) {
        fprintf(stderr,
                "usage: matrix [--device cuda:0|sim:0] [--sizes 4,64K,1M,strided] "
                "[--rounds 0-%d]\n",
                ROUNDS_MAX);
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    setenv("FERRY_SIM_DEVICES", "1", 0);
    if (ferry_device_count(device.device_type) <= device.device_id) {
        char text[FERRY_DEVICE_TEXT_BYTES];
        printf("there is no %s here\n", ferry_device_print(device, text));
        return SKIPPED;
    }
    return run_both(device, sizes, size_count, rounds);
}
