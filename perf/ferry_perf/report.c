/* The rows: a table for people, CSV and JSON for programs. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <ferry/device.h>
#include <ferry/version.h>

#include "core/config.h"
#include "ferry_perf/frame.h"

#define FIELDS_MAX (32 + PERF_RANKS_MAX)

static bool progress_shown;

static const char *tls_text(void)
{
    const char *tls = config_environment("UCX_TLS");
    return tls == NULL ? "all" : tls;
}

/* ---- for people ---- */

static void begin_table(const struct perf_command_line *line)
{
    char protocol[32];
    printf("Ferry %s, UCX %s, UCX_TLS=%s, protocol %s, peer error mode\n", ferry_version(),
           perf_ucx_version(), tls_text(),
           perf_setting("FERRY_UCX_PROTOCOL", protocol, sizeof protocol));
    printf("%-15s %-13s %10s %6s %10s %10s", "test", "memory", "bytes", "window", "ops", "us");
    for (size_t i = 0; i < line->rank_count; i++) {
        char name[32];
        snprintf(name, sizeof name, "p%g us", line->ranks[i]);
        printf(" %10s", name);
    }
    printf(" %10s %11s", "MB/s", "ops/s");
    printf(" %15s %11s %6s  %s\n", "against", "raw", "ratio", "path");
}

/* One figure of a table's row, or that there is none. */
static void cell(bool known, int width, int decimals, double value)
{
    if (known) {
        printf(" %*.*f", width, decimals, value);
    } else {
        printf(" %*s", width, "-");
    }
}

static void row_table(const struct perf_command_line *line, const struct perf_row *row)
{
    char mine[FERRY_DEVICE_TEXT_BYTES], theirs[FERRY_DEVICE_TEXT_BYTES], memory[80];
    bool raw = row->raw_name[0] != '\0';
    snprintf(memory, sizeof memory, "%s,%s", ferry_device_print(row->options->memory[0], mine),
             ferry_device_print(row->options->memory[1], theirs));
    printf("%-15s %-13s %10zu %6u %10llu", row->test->name, memory, row->bytes, row->window,
           (unsigned long long)row->operations);
    cell(row->latency_us > 0, 10, 2, row->latency_us);
    for (size_t i = 0; i < line->rank_count; i++) {
        cell(row->timed, 10, 2, row->ranks_us[i]);
    }
    cell(row->bytes > 0, 10, 1, row->bandwidth);
    cell(true, 11, 0, row->rate);
    printf(" %15s", raw ? row->raw_name : "-");
    cell(raw, 11, 2, row->raw_value);
    cell(raw, 6, 2, row->ratio);
    printf("  %s\n", row->path[0] != '\0' ? row->path : "-");
}

/* ---- for programs ---- */

/* A column of CSV, a member of JSON; the latter leaves out what is empty. */
struct field {
    char name[32];
    bool text;
    char value[PERF_PATH_BYTES];
};

struct fields {
    struct field field[FIELDS_MAX];
    size_t count;
};

__attribute__((format(printf, 4, 5))) static void add(struct fields *fields, const char *name,
                                                      bool text, const char *format, ...)
{
    va_list arguments;
    struct field *field = &fields->field[fields->count++];
    *field = (struct field){.text = text};
    snprintf(field->name, sizeof field->name, "%s", name);
    va_start(arguments, format);
    vsnprintf(field->value, sizeof field->value, format, arguments);
    va_end(arguments);
}

static void add_number(struct fields *fields, const char *name, bool known, double value)
{
    add(fields, name, false, "%.8g", value);
    if (!known) {
        fields->field[fields->count - 1].value[0] = '\0';
    }
}

static void add_count(struct fields *fields, const char *name, uint64_t count)
{
    add(fields, name, false, "%llu", (unsigned long long)count);
}

static void add_options(struct fields *fields, const struct perf_options *options)
{
    char memory[FERRY_DEVICE_TEXT_BYTES];
    add(fields, "client_memory", true, "%s", ferry_device_print(options->memory[0], memory));
    add(fields, "server_memory", true, "%s", ferry_device_print(options->memory[1], memory));
    add_count(fields, "threads", options->threads);
    add_count(fields, "tensors", options->tensors);
    add(fields, "method", true, "%s", options->pool ? "pool" : "inline");
}

/* The names alone where there is no row. The first are those of PERF_CSV_COLUMNS. */
static void fields_of(const struct perf_command_line *line, const struct perf_row *row,
                      struct fields *fields)
{
    static const struct perf_test none = {.name = "", .unit = ""};
    static const struct perf_row empty = {.test = &none};
    char name[32], protocol[32];
    bool raw = row != NULL && row->raw_name[0] != '\0';
    const struct perf_options *options = row != NULL ? row->options : &line->wish.options;
    row = row != NULL ? row : &empty;
    fields->count = 0;
    add(fields, "test", true, "%s", row->test->name);
    add_count(fields, "bytes", row->bytes);
    add_count(fields, "operations", row->operations);
    add_number(fields, "latency_us", row->latency_us > 0, row->latency_us);
    add_number(fields, "mb_per_s", row->bytes > 0, row->bandwidth);
    add_number(fields, "per_s", true, row->rate);
    add_number(fields, "value", true, row->value);
    add(fields, "unit", true, "%s", row->test->unit);
    add_options(fields, options);
    add_count(fields, "window", row->window);
    add(fields, "seconds", false, "%.6f", row->seconds);
    for (size_t i = 0; i < line->rank_count; i++) {
        snprintf(name, sizeof name, "p%g_us", line->ranks[i]);
        add_number(fields, name, row->timed, row->ranks_us[i]);
    }
    add(fields, "raw_test", true, "%s", row->raw_name);
    add_number(fields, "raw_value", raw, row->raw_value);
    add_number(fields, "ratio", raw, row->ratio);
    add_count(fields, "least_thread_operations", row->least_share);
    add_count(fields, "most_thread_operations", row->most_share);
    add(fields, "path", true, "%s", row->path);
    add(fields, "ferry", true, "%s", ferry_version());
    add(fields, "ucx", true, "%s", perf_ucx_version());
    add(fields, "ucx_tls", true, "%s", tls_text());
    add(fields, "protocol", true, "%s",
        perf_setting("FERRY_UCX_PROTOCOL", protocol, sizeof protocol));
}

/* In quotation marks; those inside, and where it escapes itself the escape, come behind it. */
static void print_quoted(const char *text, char escape)
{
    putchar('"');
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == escape) {
            putchar(escape);
        }
        putchar((unsigned char)*text < ' ' ? ' ' : *text);
    }
    putchar('"');
}

static void begin_csv(const struct perf_command_line *line)
{
    struct fields fields;
    fields_of(line, NULL, &fields);
    for (size_t i = 0; i < fields.count; i++) {
        printf("%s%s", i > 0 ? "," : "", fields.field[i].name);
    }
    printf("\n");
}

static void row_csv(const struct fields *fields)
{
    for (size_t i = 0; i < fields->count; i++) {
        const char *value = fields->field[i].value;
        printf("%s", i > 0 ? "," : "");
        if (strpbrk(value, ",\" ") != NULL) {
            print_quoted(value, '"');
        } else {
            printf("%s", value);
        }
    }
    printf("\n");
}

static void row_json(const struct fields *fields)
{
    const char *before = "{";
    for (size_t i = 0; i < fields->count; i++) {
        const struct field *field = &fields->field[i];
        if (field->value[0] == '\0') {
            continue;
        }
        printf("%s\"%s\": ", before, field->name);
        if (field->text) {
            print_quoted(field->value, '\\');
        } else {
            printf("%s", field->value);
        }
        before = ", ";
    }
    printf("}\n");
}

/* ---- what the rest calls ---- */

void perf_report_begin(const struct perf_command_line *line)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (line->final) {
        return;
    }
    if (line->format == PERF_TABLE) {
        begin_table(line);
    } else if (line->format == PERF_CSV) {
        begin_csv(line);
    }
}

void perf_report_row(const struct perf_command_line *line, const struct perf_row *row)
{
    struct fields fields;
    if (progress_shown) {
        fprintf(stderr, "\r\033[K");
        progress_shown = false;
    }
    if (line->format == PERF_TABLE) {
        row_table(line, row);
        return;
    }
    fields_of(line, row, &fields);
    if (line->format == PERF_CSV) {
        row_csv(&fields);
    } else {
        row_json(&fields);
    }
}

void perf_progress(const struct perf_test *test, size_t bytes, double done)
{
    if (done < 1 && isatty(STDERR_FILENO)) {
        fprintf(stderr, "\r\033[K%s, %zu bytes: %.0f%%", test->name, bytes, 100 * done);
        progress_shown = true;
    }
}
