/* The two ends in step: the client says what comes next, both do it, and both say that it is done.
 * A failure of either ends the whole run in both. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "ferry_perf/frame.h"

#define SLOTS 2 /* ours, and the raw test beside it */
#define SAMPLES_MAX (1 << 20)
#define VALIDATED_MOST 64
#define CALIBRATION_NS UINT64_C(10000000)
#define BLOCK_SECONDS 0.5
#define ROUNDS_MOST 1000
#define REPLY_BYTES 8

enum command_kind { COMMAND_OPEN, COMMAND_PREPARE, COMMAND_RUN, COMMAND_CLOSE, COMMAND_END };

/* As it lies in memory: both ends are of one version, which they said before. */
struct command {
    enum command_kind kind;
    uint32_t slot;
    char test[32];
    uint64_t bytes, operations;
    struct perf_options options;
};

struct slot {
    const struct perf_test *test; /* NULL: nothing is open */
    void *state;
    struct perf_end end;
    struct perf_options options; /* the end's */
};

/* ---- what both do ---- */

static void slot_close(struct slot *slot)
{
    if (slot->test != NULL) {
        slot->test->close(slot->state);
        slot->test = NULL;
    }
}

static ferry_status_t slot_open(struct slot *slot, const struct command *command, bool client,
                                struct perf_control *control)
{
    const struct perf_test *test = perf_test_find(command->test);
    if (test == NULL) {
        return error_raise(FERRY_ERR_UNSUPPORTED, "there is no test %s", command->test);
    }
    slot->options = command->options;
    slot->end = (struct perf_end){.client = client, .control = control, .options = &slot->options};
    ferry_status_t status = test->open(&slot->end, &slot->state);
    slot->test = status == FERRY_OK ? test : NULL;
    return status;
}

static ferry_status_t slot_do(struct slot *slot, const struct command *command, bool client,
                              struct perf_control *control, struct perf_samples *samples)
{
    switch (command->kind) {
    case COMMAND_OPEN:
        return slot_open(slot, command, client, control);
    case COMMAND_PREPARE:
        return slot->test->prepare(slot->state, command->bytes);
    case COMMAND_RUN:
        slot->options.validate = command->options.validate;
        return slot->test->run(slot->state, command->operations, samples);
    case COMMAND_CLOSE:
        slot_close(slot);
        return FERRY_OK;
    default:
        return FERRY_OK;
    }
}

ferry_status_t perf_server_run(struct perf_control *control)
{
    struct slot slots[SLOTS] = {{.test = NULL}};
    struct command command = {.kind = COMMAND_OPEN};
    ferry_status_t status = FERRY_OK;
    double *ns = calloc(SAMPLES_MAX, sizeof(double));
    if (ns == NULL) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory for samples");
    }
    while (status == FERRY_OK && command.kind != COMMAND_END) {
        size_t bytes = 0;
        status = perf_control_receive(control, &command, sizeof command, &bytes);
        if (status == FERRY_OK && (bytes != sizeof command || command.slot >= SLOTS ||
                                   memchr(command.test, '\0', sizeof command.test) == NULL)) {
            status = error_raise(FERRY_ERR_PROTOCOL, "the client asks for nothing that is known");
        }
        if (status == FERRY_OK &&
            (command.kind == COMMAND_PREPARE || command.kind == COMMAND_RUN) &&
            slots[command.slot].test == NULL) {
            status = error_raise(FERRY_ERR_PROTOCOL, "the client runs a test that is not open");
        }
        if (status == FERRY_OK) {
            struct perf_samples samples = {.ns = ns, .capacity = SAMPLES_MAX};
            status = slot_do(&slots[command.slot], &command, false, control, &samples);
        }
        if (status == FERRY_OK) {
            status = perf_barrier(control);
        }
    }
    if (status != FERRY_OK) { /* first, since closing may take its time */
        perf_control_tell_error(control);
    }
    for (size_t i = 0; i < SLOTS; i++) {
        slot_close(&slots[i]);
    }
    free(ns);
    return status;
}

/* ---- the client ---- */

struct client {
    struct perf_control *control;
    const struct perf_command_line *line;
    const struct perf_wish *wish;
    struct slot slots[SLOTS];
    double *ns; /* owned, SAMPLES_MAX */
};

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
    return client_do(client, &command, NULL);
}

static ferry_status_t client_prepare(struct client *client, uint32_t slot, size_t bytes)
{
    struct command command = {.kind = COMMAND_PREPARE, .slot = slot, .bytes = bytes};
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

ferry_status_t perf_client_end(struct perf_control *control)
{
    struct command command = {.kind = COMMAND_END};
    ferry_status_t status = perf_control_send(control, &command, sizeof command);
    return status == FERRY_OK ? perf_barrier(control) : status;
}

static struct perf_samples samples_new(const struct client *client)
{
    return (struct perf_samples){.ns = client->ns, .capacity = SAMPLES_MAX};
}

/* Warms up, and finds how many operations a second there are. */
static ferry_status_t client_warm_up(struct client *client, uint32_t slot, double *rate_out)
{
    uint64_t operations = client->wish->warm_up > 0 ? client->wish->warm_up : 1;
    for (;;) {
        struct perf_samples samples = samples_new(client);
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

static uint64_t operations_of(const struct client *client, double rate, double seconds)
{
    double wanted = rate * seconds;
    return client->wish->iterations > 0 ? client->wish->iterations
           : wanted < 3                 ? 3
                                        : (uint64_t)wanted;
}

/* So many operations, in blocks short enough to tell of them. */
static ferry_status_t client_measure(struct client *client, uint32_t slot, size_t bytes,
                                     uint64_t operations, double rate, struct perf_samples *samples)
{
    uint64_t block = (uint64_t)(rate * BLOCK_SECONDS) + 1, left = operations;
    while (left > 0) {
        uint64_t now = left < block + block / 2 ? left : block;
        if (samples->count + now > samples->capacity) {
            samples->count = 0; /* the last ones count */
        }
        ferry_status_t status = client_operate(client, slot, now, false, samples);
        if (status != FERRY_OK) {
            return status;
        }
        left -= now;
        perf_progress(client->slots[slot].test, bytes,
                      (double)(operations - left) / (double)operations);
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

static void row_add(const struct client *client, struct perf_row *row, struct perf_samples *samples)
{
    row->latency_us = latency_us_of(samples);
    row->timed = samples->count > 0;
    for (size_t i = 0; row->timed && i < client->line->rank_count; i++) {
        row->ranks_us[i] = rank_of(samples->ns, samples->count, client->line->ranks[i]) / 1e3;
    }
    row->operations += samples->operations;
    row->seconds += (double)samples->elapsed_ns / 1e9;
    row->window = samples->window > 0 ? samples->window : row->window;
    snprintf(row->path, sizeof row->path, "%s", samples->path);
    uint64_t least = UINT64_MAX, most = 0;
    for (uint32_t i = 0; i < row->options->threads && row->options->threads > 1; i++) {
        uint64_t share = samples->thread_operations[i];
        least = share < least ? share : least;
        most = share > most ? share : most;
    }
    row->least_share = row->options->threads > 1 ? least : 0;
    row->most_share = most;
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
        struct perf_samples samples = samples_new(client);
        ferry_status_t status = client_prepare(client, 1, sizes[i]);
        if (status == FERRY_OK) {
            status = client_operate(client, 1, 3, false, &samples);
        }
        samples = samples_new(client);
        if (status == FERRY_OK) {
            status = client_measure(client, 1, sizes[i], operations_of(client, rate, seconds), rate,
                                    &samples);
        }
        if (status != FERRY_OK) {
            return status;
        }
        sum += value_of(test, sizes[i], &samples);
    }
    *value_out = row->test->against != PERF_SAME && count == 1 ? 2 * sum : sum;
    return FERRY_OK;
}

static ferry_status_t client_rounds(struct client *client, struct perf_row *row)
{
    bool ratio = client->slots[1].test != NULL;
    uint32_t rounds = ratio ? client->wish->rounds : 1;
    double seconds = client->wish->seconds / rounds, rate = 1, raw_rate = 1;
    double ours[ROUNDS_MOST], raw[ROUNDS_MOST];
    ferry_status_t status = client_warm_up(client, 0, &rate);
    if (status == FERRY_OK && ratio) {
        status = client_warm_up(client, 1, &raw_rate);
    }
    for (uint32_t i = 0; status == FERRY_OK && i < rounds; i++) {
        struct perf_samples samples = samples_new(client);
        status = client_measure(client, 0, row->bytes, operations_of(client, rate, seconds), rate,
                                &samples);
        if (status == FERRY_OK) {
            ours[i] = value_of(row->test, row->bytes, &samples);
            row_add(client, row, &samples);
        }
        if (status == FERRY_OK && ratio) {
            status = raw_measure(client, row, raw_rate, seconds, &raw[i]);
        }
    }
    if (status != FERRY_OK) {
        return status;
    }
    row->value = median_of(ours, rounds);
    if (strcmp(row->test->unit, "us") == 0) {
        row->latency_us = row->value;
    }
    row->rate = (double)row->operations / row->seconds;
    row->bandwidth = row->rate * (double)row->bytes / 1e6;
    if (ratio) {
        row->raw_value = median_of(raw, rounds);
        row->ratio = row->value / row->raw_value;
    }
    return FERRY_OK;
}

static ferry_status_t client_row(struct client *client, const struct perf_test *test, size_t bytes)
{
    struct perf_row row = {.test = test,
                           .options = &client->wish->options,
                           .bytes = bytes,
                           .window =
                               strcmp(test->unit, "us") == 0 ? 1 : client->wish->options.window};
    uint64_t validated = client->wish->iterations > 0 && client->wish->iterations < VALIDATED_MOST
                             ? client->wish->iterations
                             : VALIDATED_MOST;
    ferry_status_t status = client_prepare(client, 0, bytes);
    if (status == FERRY_OK && client->slots[1].test != NULL) {
        snprintf(row.raw_name, sizeof row.raw_name, "%s", client->slots[1].test->name);
        status = client_prepare(client, 1, bytes < REPLY_BYTES ? REPLY_BYTES : bytes);
    }
    if (status == FERRY_OK && client->wish->options.validate) {
        struct perf_samples samples = samples_new(client);
        status = client_operate(client, 0, validated, true, &samples);
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
    ferry_status_t status = client_open(client, 0, test->name);
    if (status == FERRY_OK && client->wish->ratio && raw_name_of(test, raw, sizeof raw)) {
        status = client_open(client, 1, raw);
    }
    size_t count = test->sized && client->wish->size_count > 0 ? client->wish->size_count : 1;
    for (size_t i = 0; status == FERRY_OK && i < count; i++) {
        bool usual = !test->sized || client->wish->size_count == 0;
        status = client_row(client, test, usual ? test->usual_bytes : client->wish->sizes[i]);
    }
    for (uint32_t i = 0; status == FERRY_OK && i < SLOTS; i++) {
        status = client_close(client, i);
    }
    return status;
}

ferry_status_t perf_client_run(struct perf_control *control, const struct perf_command_line *line,
                               const struct perf_wish *wish)
{
    struct client client = {.control = control, .line = line, .wish = wish};
    client.ns = calloc(SAMPLES_MAX, sizeof(client.ns[0]));
    ferry_status_t status =
        client.ns == NULL ? error_raise(FERRY_ERR_NO_MEMORY, "no memory for samples") : FERRY_OK;
    for (size_t i = 0; status == FERRY_OK && i < wish->test_count; i++) {
        status = client_test(&client, wish->tests[i]);
    }
    if (status != FERRY_OK) {
        perf_control_tell_error(control);
    }
    for (size_t i = 0; i < SLOTS; i++) {
        slot_close(&client.slots[i]);
    }
    free(client.ns);
    return status;
}
