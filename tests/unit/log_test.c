/* The log: levels, sinks, and one write a line on stderr. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/log.h"

struct heard {
    int lines;
    ferry_log_level_t level;
    char line[4096];
};

static void hear(void *context, ferry_log_level_t level, const char *line)
{
    struct heard *heard = context;
    heard->lines++;
    heard->level = level;
    snprintf(heard->line, sizeof heard->line, "%s", line);
}

Test(log, default_level_is_warn)
{
    cr_assert(log_enabled(FERRY_LOG_ERROR));
    cr_assert(log_enabled(FERRY_LOG_WARN));
    cr_assert_not(log_enabled(FERRY_LOG_INFO));
    cr_assert_not(log_enabled(FERRY_LOG_OFF));
}

Test(log, sink_gets_lines_of_enabled_levels)
{
    struct heard heard = {0};
    ferry_log_set_sink(hear, &heard);
    log_write(FERRY_LOG_INFO, "not heard");
    cr_assert_eq(heard.lines, 0);
    log_write(FERRY_LOG_WARN, "%s %d", "heard", 1);
    cr_assert_eq(heard.lines, 1);
    cr_assert_eq(heard.level, FERRY_LOG_WARN);
    cr_assert_str_eq(heard.line, "heard 1");
    ferry_log_set_level(FERRY_LOG_TRACE);
    log_write(FERRY_LOG_TRACE, "traced");
    cr_assert_str_eq(heard.line, "traced");
    ferry_log_set_level(FERRY_LOG_OFF);
    log_write(FERRY_LOG_ERROR, "off");
    cr_assert_str_eq(heard.line, "traced");
    ferry_log_set_sink(NULL, NULL);
}

Test(log, configuration_yields_to_an_explicit_level)
{
    log_configure(FERRY_LOG_DEBUG);
    cr_assert(log_enabled(FERRY_LOG_DEBUG));
    ferry_log_set_level(FERRY_LOG_ERROR);
    log_configure(FERRY_LOG_TRACE);
    cr_assert_not(log_enabled(FERRY_LOG_WARN));
}

/* What one write(2) to stderr carries: a datagram-like pipe keeps writes apart. */
static size_t stderr_of_one_line(const char *text, char *buffer, size_t capacity)
{
    int ends[2];
    int saved = dup(STDERR_FILENO);
    cr_assert_eq(pipe2(ends, O_DIRECT | O_CLOEXEC), 0);
    dup2(ends[1], STDERR_FILENO);
    log_write(FERRY_LOG_WARN, "%s", text);
    dup2(saved, STDERR_FILENO);
    ssize_t got = read(ends[0], buffer, capacity - 1);
    close(saved);
    close(ends[0]);
    close(ends[1]);
    cr_assert_gt(got, 0);
    buffer[got] = '\0';
    return (size_t)got;
}

Test(log, stderr_line_is_one_write)
{
    char buffer[4096];
    stderr_of_one_line("two\nlines", buffer, sizeof buffer);
    cr_assert_str_eq(buffer, "ferry: warn: two lines\n");
}

Test(log, long_line_is_cut_and_still_ends)
{
    char text[4000];
    char buffer[4096];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    size_t bytes = stderr_of_one_line(text, buffer, sizeof buffer);
    cr_assert_lt(bytes, 3000);
    cr_assert_eq(buffer[bytes - 1], '\n');
    cr_assert_eq(strchr(buffer, '\n'), buffer + bytes - 1);
}
