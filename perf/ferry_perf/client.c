/* The client: what it measures, and the figures of a row. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "ferry_perf/run.h"

#define VALIDATED_MOST 64
#define CALIBRATION_NS UINT64_C(10000000)
#define BLOCK_SECONDS 0.25
#define BLOCK_LEAST 3
#define BLOCK_FIRST_MOST (1 << 20)
#define ROUNDS_MOST 1000
#define REPLY_BYTES 8
#define UNTIMED 3 /* operations before the clock starts, where all is connected */

struct client {
    struct perf_control *control;
    const struct perf_command_line *line;
    const struct perf_wish *wish;
    struct slot slots[SLOTS];
    size_t bytes[SLOTS]; /* that the open test is prepared for; SIZE_MAX: none */
    bool spins;          /* agents keep a core busy for as long as they live */
    double *ns;          /* owned, SAMPLES_MAX: of ours, over all rounds */
    double *other_ns;    /* owned, SAMPLES_MAX: of everything else */
};

/* ---- the steps that both ends take ---- */

static ferry_status_t client_do(struct client *client, const struct command *command,
                                struct perf_samples *samples)
{
    ferry_status_t status = perf_control_send(client->control, command, sizeof *command);
    if (status == FERRY_OK) {
        status = slot_do(&client->slots[command->slot], command, true, client->control, samples);
    }
    return status == FERRY_OK ? perf_barrier(client->control) : status;
}

static ferry_status_t client_open(struct client *client, uint32_t slot, const char *name)
{
    struct command command = {.kind = COMMAND_OPEN, .slot = slot, .options = client->wish->options};
    snprintf(command.test, sizeof command.test, "%s", name);
    command.options.validate = false;
    client->bytes[slot] = SIZE_MAX;
    return client_do(client, &command, NULL);
}

static ferry_status_t client_prepare(struct client *client, uint32_t slot, size_t bytes)
{
    struct command command = {.kind = COMMAND_PREPARE, .slot = slot, .bytes = bytes};
    if (client->bytes[slot] == bytes) {
        return FERRY_OK;
    }
    client->bytes[slot] = bytes;
    return client_do(client, &command, NULL);
}

static ferry_status_t client_operate(struct client *client, uint32_t slot, uint64_t operations,
                                     bool validate, struct perf_samples *samples)
{
    struct command command = {.kind = COMMAND_RUN,
                              .slot = slot,
                              .operations = operations,
                              .options = {.validate = validate}};
    return client_do(client, &command, samples);
}

/* Operations that do not count. */
static ferry_status_t client_spend(struct client *client, uint32_t slot, uint64_t operations,
                                   bool validate)
{
    struct perf_samples samples = {.ns = client->other_ns, .capacity = SAMPLES_MAX};
    return client_operate(client, slot, operations, validate, &samples);
}

/* The client's first: its agent takes leave of the names that the server's keeps. */
static ferry_status_t client_close(struct client *client, uint32_t slot)
{
    struct command command = {.kind = COMMAND_CLOSE, .slot = slot};
    if (client->slots[slot].test == NULL) {
        return FERRY_OK;
    }
    slot_close(&client->slots[slot]);
    return client_do(client, &command, NULL);
}

/* Ours, open and prepared. */
static ferry_status_t client_wake(struct client *client, const struct perf_test *test, size_t bytes)
{
    bool asleep = client->slots[0].test == NULL;
    ferry_status_t status = asleep ? client_open(client, 0, test->name) : FERRY_OK;
    if (status == FERRY_OK) {
        status = client_prepare(client, 0, bytes);
    }
    return status == FERRY_OK && asleep ? client_spend(client, 0, UNTIMED, false) : status;
}

/* UCX's figures must not pay for an agent of ours that spins beside them. */
static ferry_status_t client_park(struct client *client)
{
    return client->spins && client->slots[1].test != NULL ? client_close(client, 0) : FERRY_OK;
}

ferry_status_t perf_client_end(struct perf_control *control)
{
    struct command command = {.kind = COMMAND_END};
    ferry_status_t status = perf_control_send(control, &command, sizeof command);
    return status == FERRY_OK ? perf_barrier(control) : status;
}

/* ---- measuring ---- */

/* Warms up, and finds how many operations a second there are. A whole window at once, so that what
 * its operations need, such as memory at the receiver, is all there. */
static ferry_status_t client_warm_up(struct client *client, uint32_t slot, double *rate_out)
{
    bool windowed = strcmp(client->slots[slot].test->unit, "us") != 0;
    uint64_t operations = client->wish->warm_up > 0 ? client->wish->warm_up
                          : windowed                ? client->wish->options.window
                                                    : 1;
    for (;;) {
        struct perf_samples samples = {.ns = client->other_ns, .capacity = SAMPLES_MAX};
        ferry_status_t status = client_operate(client, slot, operations, false, &samples);
        if (status != FERRY_OK) {
            return status;
        }
        if (samples.elapsed_ns >= CALIBRATION_NS || client->wish->warm_up > 0 ||
            operations >= SAMPLES_MAX) {
            *rate_out = (double)samples.operations * 1e9 / (double)(samples.elapsed_ns + 1);
            return FERRY_OK;
        }
        operations *= 4;
    }
}

/* How far a measurement is. */
struct progress {
    uint64_t done, last; /* operations: all, and of the last block */
    double seconds, rate;
};

/* How many operations come next, in blocks short enough to tell of them: what is left of -n, or what
 * fits into the rest of the time at the rate of the last ones, which may have been slow for a
 * reason that is over. */
static uint64_t block_of(const struct client *client, const struct progress *progress,
                         double seconds)
{
    double left_seconds = seconds - progress->seconds;
    if (client->wish->iterations > 0) {
        uint64_t left = client->wish->iterations - progress->done;
        uint64_t fits = (uint64_t)(progress->rate * BLOCK_SECONDS), block = fits > 0 ? fits : 1;
        return left < block + block / 2 + 1 ? left : block;
    }
    if (left_seconds < seconds / 16) {
        return 0; /* too little of it to be worth a stop */
    }
    uint64_t most = progress->last > 0 ? 4 * progress->last : BLOCK_FIRST_MOST;
    double fits = progress->rate * (left_seconds < BLOCK_SECONDS ? left_seconds : BLOCK_SECONDS);
    uint64_t block = fits < (double)most ? (uint64_t)fits : most;
    return block < BLOCK_LEAST ? BLOCK_LEAST : block;
}

/* As many operations as were asked for, or as fit into the time. */
static ferry_status_t client_measure(struct client *client, uint32_t slot, size_t bytes,
                                     double seconds, double rate, struct perf_samples *samples)
{
    struct progress progress = {.rate = rate};
    uint64_t block;
    while ((block = block_of(client, &progress, seconds)) > 0) {
        if (samples->count + block > samples->capacity) {
            samples->count = 0; /* the last ones count */
        }
        ferry_status_t status = client_operate(client, slot, block, false, samples);
        if (status != FERRY_OK) {
            return status;
        }
        double before = progress.seconds;
        progress.seconds = (double)(samples->elapsed_ns + 1) / 1e9;
        progress.rate = (double)block / (progress.seconds - before);
        progress.last = block;
        progress.done += block;
        perf_progress(client->slots[slot].test, bytes,
                      client->wish->iterations > 0
                          ? (double)progress.done / (double)client->wish->iterations
                          : progress.seconds / seconds);
    }
    return FERRY_OK;
}

static int compare_doubles(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double rank_of(const double *sorted, size_t count, double rank)
{
    size_t at = (size_t)(rank / 100 * (double)(count - 1) + 0.5);
    return sorted[at];
}

static double median_of(double *values, size_t count)
{
    qsort(values, count, sizeof(values[0]), compare_doubles);
    return count % 2 == 1 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

static double latency_us_of(struct perf_samples *samples)
{
    if (samples->count > 0) {
        qsort(samples->ns, samples->count, sizeof(samples->ns[0]), compare_doubles);
        return rank_of(samples->ns, samples->count, 50) / 1e3;
    }
    return (double)samples->elapsed_ns / (double)samples->operations / 1e3;
}

/* The figure in the test's unit. */
static double value_of(const struct perf_test *test, size_t bytes, struct perf_samples *samples)
{
    double rate = (double)samples->operations * 1e9 / (double)(samples->elapsed_ns + 1);
    if (strcmp(test->unit, "us") == 0) {
        return latency_us_of(samples);
    }
    return strcmp(test->unit, "MB/s") == 0 ? rate * (double)bytes / 1e6 : rate;
}

/* One round's to those of all; its times lie behind theirs. */
static void samples_add(struct perf_samples *all, const struct perf_samples *round)
{
    all->count += round->count;
    all->operations += round->operations;
    all->elapsed_ns += round->elapsed_ns;
    for (size_t i = 0; i < PERF_THREADS_MAX; i++) {
        all->thread_operations[i] += round->thread_operations[i];
    }
    all->window = round->window;
    memcpy(all->path, round->path, sizeof all->path);
}

static void row_shares(struct perf_row *row, const struct perf_samples *all)
{
    uint32_t threads = row->options->threads;
    row->least_share = threads > 1 ? UINT64_MAX : 0;
    for (uint32_t i = 0; threads > 1 && i < threads; i++) {
        uint64_t share = all->thread_operations[i];
        row->least_share = share < row->least_share ? share : row->least_share;
        row->most_share = share > row->most_share ? share : row->most_share;
    }
}

static void row_fill(const struct client *client, struct perf_row *row, struct perf_samples *all)
{
    bool latency = strcmp(row->test->unit, "us") == 0;
    row->latency_us = latency ? row->value : 0;
    row->timed = all->count > 0;
    qsort(all->ns, all->count, sizeof(all->ns[0]), compare_doubles);
    for (size_t i = 0; row->timed && i < client->line->rank_count; i++) {
        row->ranks_us[i] = rank_of(all->ns, all->count, client->line->ranks[i]) / 1e3;
    }
    row->operations = all->operations;
    row->seconds = (double)all->elapsed_ns / 1e9;
    if (strcmp(row->test->unit, "MB/s") == 0) {
        row->bandwidth = row->value;
        row->rate = row->value * 1e6 / (double)row->bytes;
    } else {
        row->rate = latency ? (double)row->operations / row->seconds : row->value;
        row->bandwidth = row->rate * (double)row->bytes / 1e6;
    }
    row->window = latency ? 1 : all->window > 0 ? all->window : row->options->window;
    memcpy(row->path, all->path, sizeof row->path);
    row_shares(row, all);
}

/* The raw test beside ours; its name with the protocol in force. */
static bool raw_name_of(const struct perf_test *test, char *name, size_t capacity)
{
    char protocol[32];
    const char *star = test->raw == NULL ? NULL : strchr(test->raw, '*');
    if (test->raw == NULL) {
        return false;
    }
    if (star == NULL) {
        snprintf(name, capacity, "%s", test->raw);
    } else {
        snprintf(name, capacity, "%.*s%s%s", (int)(star - test->raw), test->raw,
                 perf_setting("FERRY_UCX_PROTOCOL", protocol, sizeof protocol), star + 1);
    }
    return perf_test_find(name) != NULL;
}

/* One raw figure as ours has to be set against. */
static ferry_status_t raw_measure(struct client *client, const struct perf_row *row, double rate,
                                  double seconds, double *value_out)
{
    const struct perf_test *test = client->slots[1].test;
    size_t sizes[2] = {row->bytes < REPLY_BYTES ? REPLY_BYTES : row->bytes, REPLY_BYTES};
    size_t count = row->test->against == PERF_REPLY_EMPTY && sizes[0] != sizes[1] ? 2 : 1;
    double sum = 0;
    for (size_t i = 0; i < count; i++) {
        struct perf_samples samples = {.ns = client->other_ns, .capacity = SAMPLES_MAX};
        ferry_status_t status = client_prepare(client, 1, sizes[i]);
        if (status == FERRY_OK) {
            status = client_spend(client, 1, UNTIMED, false);
        }
        if (status == FERRY_OK) {
            status = client_measure(client, 1, sizes[i], seconds, rate, &samples);
        }
        if (status != FERRY_OK) {
            return status;
        }
        sum += value_of(test, sizes[i], &samples);
    }
    *value_out = row->test->against != PERF_SAME && count == 1 ? 2 * sum : sum;
    return FERRY_OK;
}

/* Ours, and UCX alone in turn with it where the ratio is wanted. */
static ferry_status_t client_rounds(struct client *client, struct perf_row *row)
{
    bool ratio = client->slots[1].test != NULL;
    uint32_t rounds = ratio ? client->wish->rounds : 1;
    double seconds = client->wish->seconds / rounds, rate = 1, raw_rate = 1;
    double ours[ROUNDS_MOST], raw[ROUNDS_MOST];
    struct perf_samples all = {.ns = client->ns};
    ferry_status_t status = client_warm_up(client, 0, &rate);
    if (status == FERRY_OK && ratio) {
        status = client_park(client);
    }
    if (status == FERRY_OK && ratio) {
        status = client_warm_up(client, 1, &raw_rate);
    }
    for (uint32_t i = 0; status == FERRY_OK && i < rounds; i++) {
        struct perf_samples samples = {.ns = all.ns + all.count, .capacity = SAMPLES_MAX / rounds};
        status = client_wake(client, row->test, row->bytes);
        if (status == FERRY_OK) {
            status = client_measure(client, 0, row->bytes, seconds, rate, &samples);
        }
        if (status == FERRY_OK) {
            ours[i] = value_of(row->test, row->bytes, &samples);
            samples_add(&all, &samples);
            status = client_park(client);
        }
        if (status == FERRY_OK && ratio) {
            status = raw_measure(client, row, raw_rate, seconds, &raw[i]);
        }
    }
    if (status != FERRY_OK) {
        return status;
    }
    row->value = median_of(ours, rounds);
    row->raw_value = ratio ? median_of(raw, rounds) : 0;
    row->ratio = ratio ? row->value / row->raw_value : 0;
    row_fill(client, row, &all);
    return FERRY_OK;
}

static ferry_status_t client_row(struct client *client, const struct perf_test *test, size_t bytes)
{
    const struct perf_wish *wish = client->wish;
    struct perf_row row = {.test = test, .options = &wish->options, .bytes = bytes};
    uint64_t validated = wish->iterations > 0 && wish->iterations < VALIDATED_MOST
                             ? wish->iterations
                             : VALIDATED_MOST;
    ferry_status_t status = client_wake(client, test, bytes);
    if (status == FERRY_OK && client->slots[1].test != NULL) {
        snprintf(row.raw_name, sizeof row.raw_name, "%s", client->slots[1].test->name);
        status = client_prepare(client, 1, bytes < REPLY_BYTES ? REPLY_BYTES : bytes);
    }
    if (status == FERRY_OK && wish->options.validate) {
        status = client_spend(client, 0, validated, true);
    }
    if (status == FERRY_OK) {
        status = client_rounds(client, &row);
    }
    if (status == FERRY_OK) {
        perf_report_row(client->line, &row);
    }
    return status;
}

static ferry_status_t client_test(struct client *client, const struct perf_test *test)
{
    char raw[32];
    ferry_status_t status = FERRY_OK;
    if (client->wish->ratio && raw_name_of(test, raw, sizeof raw) &&
        perf_raw_takes(client->wish->options.memory)) {
        status = client_open(client, 1, raw);
    }
    bool usual = client->wish->size_count == 0;
    size_t count = usual ? 1 : client->wish->size_count;
    for (size_t i = 0; status == FERRY_OK && i < count; i++) {
        status = client_row(client, test, usual ? test->usual_bytes : client->wish->sizes[i]);
    }
    for (uint32_t i = 0; status == FERRY_OK && i < SLOTS; i++) {
        status = client_close(client, i);
    }
    return status;
}

/* Every page is there before the clock runs. */
static ferry_status_t samples_create(double **ns_out)
{
    size_t bytes = SAMPLES_MAX * sizeof(double);
    *ns_out = malloc(bytes);
    if (*ns_out == NULL) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory for %d samples", SAMPLES_MAX);
    }
    memset(*ns_out, 0xff, bytes);
    return FERRY_OK;
}

ferry_status_t perf_client_run(struct perf_control *control, const struct perf_command_line *line,
                               const struct perf_wish *wish)
{
    char progress[32];
    struct client client = {.control = control, .line = line, .wish = wish};
    ferry_status_t status = samples_create(&client.ns);
    client.spins = strcmp(perf_setting("FERRY_PROGRESS", progress, sizeof progress), "spin") == 0;
    if (status == FERRY_OK) {
        status = samples_create(&client.other_ns);
    }
    for (size_t i = 0; status == FERRY_OK && i < wish->test_count; i++) {
        status = client_test(&client, wish->tests[i]);
    }
    free(client.ns);
    free(client.other_ns);
    return slots_end(client.slots, control, status);
}
