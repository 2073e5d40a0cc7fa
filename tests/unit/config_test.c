/* The configuration table: four origins, their order, and what is said about values of no use. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/config.h"
#include "core/error.h"
#include "core/log.h"

static char heard[8192];

static void hear(void *context, ferry_log_level_t level, const char *line)
{
    (void)context;
    (void)level;
    strncat(heard, line, sizeof heard - strlen(heard) - 2);
    strcat(heard, "\n");
}

/* The caller's own FERRY_* variables must not decide these tests. */
static void clean(void)
{
    extern char **environ;
    for (size_t i = 0; environ[i] != NULL;) {
        char name[256];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(environ[i], "="), environ[i]);
        if (strncmp(name, "FERRY_", 6) == 0) {
            unsetenv(name);
        } else {
            i++;
        }
    }
    heard[0] = '\0';
    ferry_log_set_sink(hear, NULL);
}

TestSuite(config, .init = clean);

static void expect_text(const char *part)
{
    cr_assert_not_null(strstr(ferry_last_error()->text, part), "'%s' lacks '%s'",
                       ferry_last_error()->text, part);
}

static ferry_config_t *create(void)
{
    ferry_config_t *config = NULL;
    cr_assert_eq(ferry_config_create(&config), FERRY_OK, "%s", ferry_last_error()->text);
    return config;
}

static ferry_config_entry_t entry(const ferry_config_t *config, const char *name)
{
    ferry_config_entry_t found;
    for (size_t i = 0; ferry_config_entry(config, i, &found) == FERRY_OK; i++) {
        if (strcmp(found.name, name) == 0) {
            return found;
        }
    }
    cr_assert_fail("no entry %s", name);
    return (ferry_config_entry_t){0};
}

static char file_path[64];

static void file_write(const char *text)
{
    strcpy(file_path, "/tmp/ferry-config-XXXXXX");
    int fd = mkstemp(file_path);
    cr_assert_geq(fd, 0);
    cr_assert_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    setenv("FERRY_CONFIG", file_path, 1);
}

Test(config, defaults)
{
    ferry_config_t *config = create();
    const struct config_values *values = config_values(config);
    cr_assert_str_eq(values->name, "");
    cr_assert_str_eq(values->naming, "inproc://");
    cr_assert_not(values->naming_serve);
    cr_assert_eq(values->log, FERRY_LOG_WARN);
    cr_assert_eq(values->timeout_ns, 60000000000);
    cr_assert_eq(values->connect_timeout_ns, 10000000000);
    cr_assert_eq(values->peer_timeout_ns, 5000000000);
    cr_assert_eq(values->release_timeout_ns, 5000000000);
    cr_assert_eq(values->spin_ns, 100000);
    cr_assert_eq(values->progress, PROGRESS_ADAPTIVE);
    cr_assert_eq(values->pool_threads, 4);
    cr_assert_eq(values->pool_max, 64);
    cr_assert_str_eq(values->transport, "auto");
    cr_assert_str_eq(values->ucx_protocol, "tag");
    cr_assert_eq(values->chunk_bytes, 2 << 20);
    cr_assert_eq(values->chunk_window, 4);
    cr_assert_eq(values->direct_min_bytes, 64 << 10);
    cr_assert_eq(values->eager_bytes, 8192);
    cr_assert_eq(values->inline_bytes, 2048);
    cr_assert_eq(values->max_tensors, 4096);
    cr_assert_eq(values->max_message_bytes, 64LL << 30);
    cr_assert_eq(values->max_calls, 4096);
    cr_assert_eq(values->when_full, FULL_WAIT);
    cr_assert_eq(values->staging_bytes, 256 << 20);
    cr_assert_eq(values->pool_bytes, 1 << 30);
    cr_assert_eq(values->sim_devices, 0);
    cr_assert_str_eq(entry(config, "FERRY_CHUNK").origin, "default");
    cr_assert_str_eq(entry(config, "FERRY_CHUNK").value, "2MiB");
    ferry_config_destroy(config);
    ferry_config_destroy(NULL);
}

Test(config, explicit_beats_environment_beats_file_beats_default)
{
    file_write("# all three set something\n"
               "FERRY_CHUNK = 1MiB   # a comment\n"
               "chunk_window=7\n"
               "\n"
               "  Log =  info\n"
               "NAME =\n");
    setenv("FERRY_CHUNK_WINDOW", "8", 1);
    setenv("FERRY_LOG", "debug", 1);
    setenv("FERRY_NAME", "", 1);
    ferry_config_t *config = create();
    cr_assert_eq(ferry_config_set(config, "log", "TRACE"), FERRY_OK);

    const struct config_values *values = config_values(config);
    cr_assert_eq(values->chunk_bytes, 1 << 20);
    cr_assert_eq(values->chunk_window, 8);
    cr_assert_eq(values->log, FERRY_LOG_TRACE);
    cr_assert_str_eq(values->name, "");

    char origin[80];
    snprintf(origin, sizeof origin, "file %s", file_path);
    cr_assert_str_eq(entry(config, "FERRY_CHUNK").origin, origin);
    cr_assert_str_eq(entry(config, "FERRY_CHUNK_WINDOW").origin, "environment");
    cr_assert_str_eq(entry(config, "FERRY_LOG").origin, "explicit");
    cr_assert_str_eq(entry(config, "FERRY_NAME").origin, "default");
    ferry_config_destroy(config);
    unlink(file_path);
}

Test(config, an_at_sign_before_the_file_is_taken)
{
    char named[80];
    file_write("POOL_THREADS = 9\n");
    snprintf(named, sizeof named, "@%s", file_path);
    setenv("FERRY_CONFIG", named, 1);
    ferry_config_t *config = create();
    cr_assert_eq(config_values(config)->pool_threads, 9);
    ferry_config_destroy(config);
    unlink(file_path);
}

static void file_refused(const char *text, const char *line, const char *part)
{
    ferry_config_t *config = NULL;
    char position[96];
    file_write(text);
    cr_assert_eq(ferry_config_create(&config), FERRY_ERR_CONFIG);
    cr_assert_null(config);
    snprintf(position, sizeof position, "%s:%s", file_path, line);
    expect_text(position);
    expect_text(part);
    unlink(file_path);
}

Test(config, errors_of_the_file_show_line_and_remedy)
{
    file_refused("\nCHUNK 2MiB\n", "2:", "NAME = value");
    file_refused("CHUNK_WINDWO = 3\n", "1:", "FERRY_CHUNK_WINDOW");
    file_refused("NOTHING_LIKE_IT = 3\n", "1:", "NOTHING_LIKE_IT");
    file_refused("LOG=warn\n\nLOG = loud\n", "3: FERRY_LOG", "off|error|warn|info|debug|trace");
}

Test(config, a_missing_file_is_an_error)
{
    ferry_config_t *config = NULL;
    setenv("FERRY_CONFIG", "/nonexistent/ferry.conf", 1);
    cr_assert_eq(ferry_config_create(&config), FERRY_ERR_CONFIG);
    expect_text("/nonexistent/ferry.conf");
    expect_text("No such file");
    setenv("FERRY_CONFIG", "/tmp", 1);
    cr_assert_eq(ferry_config_create(&config), FERRY_ERR_CONFIG);
    expect_text("directory");
}

Test(config, values_of_no_use_name_variable_value_and_form)
{
    static const struct {
        const char *name, *value, *part;
    } cases[] = {
        {"FERRY_CHUNK", "2MB?", "2MiB"},
        {"FERRY_CHUNK", "1", "64KiB to 64MiB"},
        {"FERRY_CHUNK", "-1", "not a size"},
        {"FERRY_TIMEOUT", "5", "unit"},
        {"FERRY_TIMEOUT", "0", "1ns to infinite"},
        {"FERRY_POOL_THREADS", "0", "1 to 1024"},
        {"FERRY_POOL_THREADS", "1.5", "whole number"},
        {"FERRY_POOL_THREADS", "4x", "whole number"},
        {"FERRY_PROGRESS", "fast", "adaptive|spin|sleep|manual"},
        {"FERRY_PROGRESS", "adaptive|spin", "none of"},
        {"FERRY_UCX_PROTOCOL", "rma", "none of"},
        {"FERRY_NAMING_SERVE", "2", "neither 0 nor 1"},
        {"FERRY_PATHS", "own_ipc", "^name"},
        {"FERRY_PATHS", "^own_ipc,^indirect", "own_ipc|direct"},
        {"FERRY_PORT", "65536", "0 to 65535"},
        {"FERRY_MAX_MESSAGE", "99999999999999999999", "not a size"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ferry_config_t *config = NULL;
        setenv(cases[i].name, cases[i].value, 1);
        cr_assert_eq(ferry_config_create(&config), FERRY_ERR_CONFIG, "%s=%s", cases[i].name,
                     cases[i].value);
        expect_text(cases[i].name);
        expect_text(cases[i].value);
        expect_text(cases[i].part);
        unsetenv(cases[i].name);

        config = create();
        cr_assert_eq(ferry_config_set(config, cases[i].name, cases[i].value), FERRY_ERR_CONFIG);
        expect_text(cases[i].part);
        cr_assert_str_eq(entry(config, cases[i].name).origin, "default");
        ferry_config_destroy(config);
    }
}

Test(config, choices_flags_and_paths)
{
    ferry_config_t *config = create();
    const struct config_values *values = config_values(config);
    cr_assert_eq(ferry_config_set(config, "progress", "manual"), FERRY_OK);
    cr_assert_eq(values->progress, PROGRESS_MANUAL);
    cr_assert_eq(ferry_config_set(config, "FERRY_TRANSPORT", "ucx"), FERRY_OK);
    cr_assert_str_eq(values->transport, "ucx");
    cr_assert_eq(ferry_config_set(config, "ferry_when_full", "fail"), FERRY_OK);
    cr_assert_eq(values->when_full, FULL_FAIL);
    cr_assert_eq(ferry_config_set(config, "naming_serve", "yes"), FERRY_OK);
    cr_assert(values->naming_serve);
    cr_assert_eq(ferry_config_set(config, "naming_serve", "0"), FERRY_OK);
    cr_assert_not(values->naming_serve);
    cr_assert_eq(ferry_config_set(config, "paths", "^own_ipc,^direct"), FERRY_OK);
    cr_assert_str_eq(values->paths, "^own_ipc,^direct");
    cr_assert_eq(ferry_config_set(config, "timeout", "infinite"), FERRY_OK);
    cr_assert_eq(values->timeout_ns, FERRY_FOREVER);
    ferry_config_destroy(config);
}

Test(config, an_empty_value_is_unset)
{
    ferry_config_t *config = create();
    cr_assert_eq(ferry_config_set(config, "chunk", "1MiB"), FERRY_OK);
    cr_assert_eq(ferry_config_set(config, "chunk", ""), FERRY_OK);
    cr_assert_eq(config_values(config)->chunk_bytes, 2 << 20);
    cr_assert_str_eq(entry(config, "FERRY_CHUNK").origin, "default");
    ferry_config_destroy(config);
}

Test(config, unknown_options_name_the_nearest)
{
    ferry_config_t *config = create();
    cr_assert_eq(ferry_config_set(config, "FERRY_TIMOUT", "5s"), FERRY_ERR_NOT_FOUND);
    expect_text("FERRY_TIMEOUT");
    cr_assert_eq(ferry_config_set(config, "xyzzy", "5s"), FERRY_ERR_NOT_FOUND);
    expect_text("xyzzy");
    cr_assert_null(strstr(ferry_last_error()->text, "mean"));
    cr_assert_eq(ferry_config_set(NULL, "log", "warn"), FERRY_ERR_INVALID_ARGUMENT);
    cr_assert_eq(ferry_config_set(config, "log", NULL), FERRY_ERR_INVALID_ARGUMENT);
    cr_assert_eq(ferry_config_create(NULL), FERRY_ERR_INVALID_ARGUMENT);
    ferry_config_entry_t ignored;
    cr_assert_eq(ferry_config_entry(config, 100000, &ignored), FERRY_ERR_NOT_FOUND);
    cr_assert_eq(ferry_config_entry(NULL, 0, &ignored), FERRY_ERR_INVALID_ARGUMENT);
    ferry_config_destroy(config);
}

Test(config, unknown_variables_are_warned_about_once)
{
    setenv("FERRY_DEVICE_MAPS", "x", 1);
    setenv("FERRY_ZZZZZZZZ", "x", 1);
    setenv("NOT_FERRY_X", "x", 1);
    ferry_config_destroy(create());
    cr_assert_not_null(strstr(heard, "FERRY_DEVICE_MAPS is unknown; did you mean FERRY_DEVICE_MAP"),
                       "%s", heard);
    cr_assert_not_null(strstr(heard, "FERRY_ZZZZZZZZ is unknown\n"), "%s", heard);
    cr_assert_null(strstr(heard, "NOT_FERRY_X"));
    heard[0] = '\0';
    ferry_config_destroy(create());
    cr_assert_str_empty(heard);
}

Test(config, ferry_log_off_silences_the_warning)
{
    setenv("FERRY_DEVICE_MAPS", "x", 1);
    setenv("FERRY_LOG", "off", 1);
    ferry_config_destroy(create());
    cr_assert_str_empty(heard);
}

Test(config, the_process_goes_on_with_defaults)
{
    setenv("FERRY_SIM_DEVICES", "2", 1);
    setenv("FERRY_CHUNK", "nonsense", 1);
    error_raise(FERRY_ERR_BUSY, "untouched");
    cr_assert_eq(config_process()->sim_devices, 2);
    cr_assert_eq(config_process()->chunk_bytes, 2 << 20);
    cr_assert_not_null(strstr(heard, "FERRY_CHUNK"), "%s", heard);
    cr_assert_str_eq(ferry_last_error()->text, "untouched");
}

Test(config, raw_environment)
{
    setenv("MASTER_ADDR", "node0", 1);
    cr_assert_str_eq(config_environment("MASTER_ADDR"), "node0");
    setenv("MASTER_ADDR", "", 1);
    cr_assert_null(config_environment("MASTER_ADDR"));
    unsetenv("MASTER_ADDR");
    cr_assert_null(config_environment("MASTER_ADDR"));
}

Test(config, sizes)
{
    static const struct {
        const char *text;
        int64_t bytes;
    } good[] = {
        {"0", 0},          {"64", 64},      {"64K", 65536},     {"64k", 65536},
        {"64KiB", 65536},  {"64kb", 65536}, {"2MiB", 2 << 20},  {"1.5g", 1610612736},
        {"1T", 1LL << 40}, {"7b", 7},       {"8 MiB", 8 << 20}, {"9223372036854775807", INT64_MAX},
    };
    static const char *const bad[] = {"",
                                      "K",
                                      "1.",
                                      "1..5",
                                      "-1",
                                      "+1",
                                      "1KK",
                                      "1Kx",
                                      "0x10",
                                      " 1",
                                      "1e3",
                                      "9223372036854775808",
                                      "9000000000G",
                                      "1iB",
                                      "inf"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        int64_t bytes = -1;
        cr_assert_eq(config_parse_bytes(good[i].text, &bytes), FERRY_OK, "%s", good[i].text);
        cr_assert_eq(bytes, good[i].bytes, "%s: %lld", good[i].text, (long long)bytes);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        int64_t bytes = 77;
        cr_assert_eq(config_parse_bytes(bad[i], &bytes), FERRY_ERR_CONFIG, "%s", bad[i]);
        cr_assert_eq(bytes, 77);
    }
}

Test(config, times)
{
    static const struct {
        const char *text;
        int64_t ns;
    } good[] = {
        {"0", 0},
        {"10us", 10000},
        {"5s", 5000000000},
        {"2m", 120000000000},
        {"1h", 3600000000000},
        {"1.5ms", 1500000},
        {"0.1s", 100000000},
        {"3 s", 3000000000},
        {"7ns", 7},
        {"infinite", FERRY_FOREVER},
        {"Infinite", FERRY_FOREVER},
    };
    static const char *const bad[] = {"",   "5", "s", "-5s", "5 minutes", "1d", "99999999999h",
                                      "5s5"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        int64_t ns = -1;
        cr_assert_eq(config_parse_time(good[i].text, &ns), FERRY_OK, "%s", good[i].text);
        cr_assert_eq(ns, good[i].ns, "%s: %lld", good[i].text, (long long)ns);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        int64_t ns = 77;
        cr_assert_eq(config_parse_time(bad[i], &ns), FERRY_ERR_CONFIG, "%s", bad[i]);
        cr_assert_eq(ns, 77);
    }
}

Test(config, nearest_by_edit_distance)
{
    static const char *const names[] = {"worker0", "worker1", "parameter_server", "ps"};
    cr_assert_str_eq(config_nearest("worker2", names, 4), "worker0");
    cr_assert_str_eq(config_nearest("worker1x", names, 4), "worker1");
    cr_assert_str_eq(config_nearest("parameterserver", names, 4), "parameter_server");
    cr_assert_str_eq(config_nearest("ps", names, 4), "ps");
    cr_assert_str_eq(config_nearest("wroker1", names, 4), "worker1");
    cr_assert_null(config_nearest("px", names, 4));
    cr_assert_null(config_nearest("trainer", names, 4));
    cr_assert_null(config_nearest("worker0", names, 0));
    char huge[600];
    memset(huge, 'w', sizeof huge - 1);
    huge[sizeof huge - 1] = '\0';
    cr_assert_null(config_nearest(huge, names, 4));
}

/* Every default is a value that the option itself takes, and the page names every option. */
Test(config, the_document_lists_the_table)
{
    char *page = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&page, &bytes);
    cr_assert_not_null(out);
    config_document(out);
    fclose(out);
    ferry_config_t *config = create();
    ferry_config_entry_t row;
    size_t count = 0;
    for (; ferry_config_entry(config, count, &row) == FERRY_OK; count++) {
        char start[96];
        snprintf(start, sizeof start, "| `%s` | ", row.name);
        cr_assert_not_null(strstr(page, start), "%s is not in the page", row.name);
        cr_assert_gt(strlen(row.text), 10);
        cr_assert_eq(ferry_config_set(config, row.name, row.fallback), FERRY_OK);
    }
    cr_assert_gt(count, 20);
    cr_assert_not_null(strstr(page, "bytes, 64KiB to 64MiB"));
    cr_assert_not_null(strstr(page, "choice: wait\\|fail"));
    ferry_config_destroy(config);
    free(page);
}
