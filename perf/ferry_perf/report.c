/* The rows: a table for people, CSV and JSON for programs. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <ferry/device.h>
#include <ferry/version.h>

#include "core/config.h"
#include "ferry_perf/frame.h"

static bool progress_shown;

static const char *tls_text(void)
{
    const char *tls = config_environment("UCX_TLS");
    return tls == NULL ? "all" : tls;
}

static void memory_print(const struct perf_options *options, char mine[FERRY_DEVICE_TEXT_BYTES],
                         char theirs[FERRY_DEVICE_TEXT_BYTES])
{
    ferry_device_print(options->memory[0], mine);
    ferry_device_print(options->memory[1], theirs);
}

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

static void begin_csv(const struct perf_command_line *line)
{
    printf("test,bytes,client_memory,server_memory,window,threads,tensors,method,operations,"
           "seconds,unit,value,latency_us,mb_per_s,per_s,");
    for (size_t i = 0; i < line->rank_count; i++) {
        printf("p%g_us,", line->ranks[i]);
    }
    printf("raw_test,raw_value,ratio,least_thread_operations,most_thread_operations,ferry,ucx,"
           "ucx_tls,protocol,path\n");
}

void perf_report_begin(const struct perf_command_line *line)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (line->format == PERF_TABLE) {
        begin_table(line);
    } else if (line->format == PERF_CSV) {
        begin_csv(line);
    }
}

static void row_table(const struct perf_command_line *line, const struct perf_row *row)
{
    char mine[FERRY_DEVICE_TEXT_BYTES], theirs[FERRY_DEVICE_TEXT_BYTES], memory[80];
    memory_print(row->options, mine, theirs);
    snprintf(memory, sizeof memory, "%s,%s", mine, theirs);
    printf("%-15s %-13s %10zu %6u %10llu %10.2f", row->test->name, memory, row->bytes, row->window,
           (unsigned long long)row->operations, row->latency_us);
    for (size_t i = 0; i < line->rank_count; i++) {
        if (row->timed) {
            printf(" %10.2f", row->ranks_us[i]);
        } else {
            printf(" %10s", "-");
        }
    }
    printf(" %10.1f %11.0f", row->bandwidth, row->rate);
    if (row->raw_name[0] != '\0') {
        printf(" %15s %11.2f %6.2f", row->raw_name, row->raw_value, row->ratio);
    } else {
        printf(" %15s %11s %6s", "-", "-", "-");
    }
    printf("  %s\n", row->path);
}

static void row_csv(const struct perf_command_line *line, const struct perf_row *row)
{
    char mine[FERRY_DEVICE_TEXT_BYTES], theirs[FERRY_DEVICE_TEXT_BYTES], protocol[32];
    memory_print(row->options, mine, theirs);
    printf("%s,%zu,%s,%s,%u,%u,%u,%s,%llu,%.6f,%s,%.4f,%.4f,%.3f,%.1f,", row->test->name,
           row->bytes, mine, theirs, row->window, row->options->threads, row->options->tensors,
           row->options->pool ? "pool" : "inline", (unsigned long long)row->operations,
           row->seconds, row->test->unit, row->value, row->latency_us, row->bandwidth, row->rate);
    for (size_t i = 0; i < line->rank_count; i++) {
        if (row->timed) {
            printf("%.4f", row->ranks_us[i]);
        }
        printf(",");
    }
    if (row->raw_name[0] != '\0') {
        printf("%s,%.4f,%.4f,", row->raw_name, row->raw_value, row->ratio);
    } else {
        printf(",,,");
    }
    printf("%llu,%llu,%s,%s,\"%s\",%s,\"%s\"\n", (unsigned long long)row->least_share,
           (unsigned long long)row->most_share, ferry_version(), perf_ucx_version(), tls_text(),
           perf_setting("FERRY_UCX_PROTOCOL", protocol, sizeof protocol), row->path);
}

/* No text of it has a quote or a control character but a user's UCX_TLS, which is left out. */
static void row_json(const struct perf_command_line *line, const struct perf_row *row)
{
    char mine[FERRY_DEVICE_TEXT_BYTES], theirs[FERRY_DEVICE_TEXT_BYTES], protocol[32];
    memory_print(row->options, mine, theirs);
    printf("{\"test\": \"%s\", \"bytes\": %zu, \"client_memory\": \"%s\", \"server_memory\": "
           "\"%s\", \"window\": %u, \"threads\": %u, \"tensors\": %u, \"method\": \"%s\", "
           "\"operations\": %llu, \"seconds\": %.6f, \"unit\": \"%s\", \"value\": %.4f, "
           "\"latency_us\": %.4f, \"mb_per_s\": %.3f, \"per_s\": %.1f",
           row->test->name, row->bytes, mine, theirs, row->window, row->options->threads,
           row->options->tensors, row->options->pool ? "pool" : "inline",
           (unsigned long long)row->operations, row->seconds, row->test->unit, row->value,
           row->latency_us, row->bandwidth, row->rate);
    for (size_t i = 0; row->timed && i < line->rank_count; i++) {
        printf(", \"p%g_us\": %.4f", line->ranks[i], row->ranks_us[i]);
    }
    if (row->raw_name[0] != '\0') {
        printf(", \"raw_test\": \"%s\", \"raw_value\": %.4f, \"ratio\": %.4f", row->raw_name,
               row->raw_value, row->ratio);
    }
    if (row->options->threads > 1) {
        printf(", \"least_thread_operations\": %llu, \"most_thread_operations\": %llu",
               (unsigned long long)row->least_share, (unsigned long long)row->most_share);
    }
    printf(", \"ferry\": \"%s\", \"ucx\": \"%s\", \"protocol\": \"%s\", \"path\": \"%s\"}\n",
           ferry_version(), perf_ucx_version(),
           perf_setting("FERRY_UCX_PROTOCOL", protocol, sizeof protocol), row->path);
}

void perf_report_row(const struct perf_command_line *line, const struct perf_row *row)
{
    if (progress_shown) {
        fprintf(stderr, "\r\033[K");
        progress_shown = false;
    }
    if (line->format == PERF_CSV) {
        row_csv(line, row);
    } else if (line->format == PERF_JSON) {
        row_json(line, row);
    } else {
        row_table(line, row);
    }
}

void perf_progress(const struct perf_test *test, size_t bytes, double done)
{
    if (done < 1 && isatty(STDERR_FILENO)) {
        fprintf(stderr, "\r\033[K%s, %zu bytes: %.0f%%", test->name, bytes, 100 * done);
        progress_shown = true;
    }
}
