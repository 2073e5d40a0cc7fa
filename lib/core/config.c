/* A configuration: every option's value and where it came from. The only file that reads the environment. */
#include <ctype.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "core/config_table.h"
#include "core/error.h"
#include "core/log.h"

/* Where a value came from; a later origin beats an earlier one. */
enum config_origin { ORIGIN_DEFAULT, ORIGIN_FILE, ORIGIN_ENVIRONMENT, ORIGIN_EXPLICIT };

struct config_cell {
    char *value; /* owned; text fields of the values point to it */
    enum config_origin origin;
};

struct ferry_config {
    struct config_values values;
    struct config_cell cells[CONFIG_OPTION_COUNT];
    char *file; /* owned, "file PATH", or NULL */
};

/* What an unusable value does: a program's own configuration fails, the process's own says so and
 * goes on with the default. */
enum config_mode { MODE_STRICT, MODE_LENIENT };

static size_t option_index(const struct config_option *option)
{
    return (size_t)(option - CONFIG_OPTIONS);
}

/* where: what the error names in front, "FERRY_CHUNK" or "file:line: FERRY_CHUNK". */
static ferry_status_t cell_set(ferry_config_t *config, const struct config_option *option,
                               const char *value, enum config_origin origin, const char *where)
{
    struct config_cell *cell = &config->cells[option_index(option)];
    char *copy = strdup(value);
    if (copy == NULL) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory for the value of %s", where);
    }
    ferry_status_t status = config_option_parse(option, copy, where, &config->values);
    if (status != FERRY_OK) {
        free(copy);
        return status;
    }
    free(cell->value);
    cell->value = copy;
    cell->origin = origin;
    return FERRY_OK;
}

/* ---- sources ---- */

static ferry_status_t defaults_load(ferry_config_t *config)
{
    for (size_t i = 0; i < CONFIG_OPTION_COUNT; i++) {
        const struct config_option *option = &CONFIG_OPTIONS[i];
        ferry_status_t status =
            cell_set(config, option, option->fallback, ORIGIN_DEFAULT, option->name);
        if (status != FERRY_OK) {
            return status;
        }
    }
    return FERRY_OK;
}

static ferry_status_t unknown_raise(ferry_status_t status, const char *where, const char *name)
{
    const char *nearest = config_option_nearest(name);
    return nearest != NULL
               ? error_raise(status,
                             "%s: there is no option '%s'; did you mean " CONFIG_PREFIX "%s?",
                             where, name, nearest)
               : error_raise(status, "%s: there is no option '%s'", where, name);
}

/* Cuts spaces at both ends, in place. */
static char *text_trim(char *text)
{
    while (isspace((unsigned char)*text)) {
        text++;
    }
    size_t length = strlen(text);
    while (length > 0 && isspace((unsigned char)text[length - 1])) {
        text[--length] = '\0';
    }
    return text;
}

/* A comment starts at a '#' at the line's beginning or behind a space. */
static void comment_cut(char *line)
{
    for (char *c = line; *c != '\0'; c++) {
        if (*c == '#' && (c == line || isspace((unsigned char)c[-1]))) {
            *c = '\0';
            return;
        }
    }
}

/* One line of the file, cut in place. */
static ferry_status_t file_line_load(ferry_config_t *config, char *line, const char *position)
{
    comment_cut(line);
    char *name = text_trim(line);
    if (*name == '\0') {
        return FERRY_OK;
    }
    char *equals = strchr(name, '=');
    if (equals == NULL) {
        return error_raise(FERRY_ERR_CONFIG, "%s: '%s' is not of the form NAME = value", position,
                           name);
    }
    *equals = '\0';
    name = text_trim(name);
    char *value = text_trim(equals + 1);
    const struct config_option *option = config_option_find(name);
    if (option == NULL) {
        return unknown_raise(FERRY_ERR_CONFIG, position, name);
    }
    if (*value == '\0') {
        return FERRY_OK;
    }
    char where[512];
    snprintf(where, sizeof where, "%s: " CONFIG_PREFIX "%s", position, option->name);
    return cell_set(config, option, value, ORIGIN_FILE, where);
}

static ferry_status_t lenient(ferry_status_t status, enum config_mode mode)
{
    if (status != FERRY_OK && mode == MODE_LENIENT) {
        log_write(FERRY_LOG_WARN, "%s; the default is used", ferry_last_error()->text);
        return FERRY_OK;
    }
    return status;
}

static ferry_status_t file_load(ferry_config_t *config, const char *path, enum config_mode mode)
{
    ferry_status_t status = FERRY_OK;
    char *line = NULL;
    size_t capacity = 0;
    FILE *file = fopen(path, "re");
    if (file == NULL || asprintf(&config->file, "file %s", path) < 0) {
        status = error_raise(FERRY_ERR_CONFIG, CONFIG_FILE_VARIABLE ": cannot read '%s': %s", path,
                             strerror(errno));
        config->file = NULL;
        goto close_file;
    }
    for (unsigned number = 1; status == FERRY_OK; number++) {
        errno = 0;
        if (getline(&line, &capacity, file) < 0) {
            if (ferror(file) != 0) {
                status =
                    error_raise(FERRY_ERR_CONFIG, CONFIG_FILE_VARIABLE ": cannot read '%s': %s",
                                path, strerror(errno));
            }
            break;
        }
        char position[384];
        snprintf(position, sizeof position, "%s:%u", path, number);
        status = lenient(file_line_load(config, line, position), mode);
    }
close_file:
    free(line);
    if (file != NULL) {
        fclose(file);
    }
    return lenient(status, mode);
}

const char *config_environment(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && *value != '\0' ? value : NULL;
}

static ferry_status_t environment_load(ferry_config_t *config, enum config_mode mode)
{
    for (size_t i = 0; i < CONFIG_OPTION_COUNT; i++) {
        char variable[64];
        snprintf(variable, sizeof variable, CONFIG_PREFIX "%s", CONFIG_OPTIONS[i].name);
        const char *value = config_environment(variable);
        if (value == NULL) {
            continue;
        }
        ferry_status_t status = lenient(
            cell_set(config, &CONFIG_OPTIONS[i], value, ORIGIN_ENVIRONMENT, variable), mode);
        if (status != FERRY_OK) {
            return status;
        }
    }
    return FERRY_OK;
}

/* A misspelt variable is silent by nature, so the environment is searched for names that are not
 * ours; once, because every agent reads the same environment. */
static void environment_warn(const struct config_values *values)
{
    static atomic_flag warned = ATOMIC_FLAG_INIT;
    if (atomic_flag_test_and_set(&warned)) {
        return;
    }
    log_configure(values->log); /* FERRY_LOG=off silences these lines too */
    for (char **entry = environ; entry != NULL && *entry != NULL; entry++) {
        char name[128];
        size_t length = strcspn(*entry, "=");
        if (strncmp(*entry, CONFIG_PREFIX, strlen(CONFIG_PREFIX)) != 0 || length >= sizeof name) {
            continue;
        }
        memcpy(name, *entry, length);
        name[length] = '\0';
        if (strcmp(name, CONFIG_FILE_VARIABLE) == 0 ||
            config_option_find(name + strlen(CONFIG_PREFIX)) != NULL) {
            continue;
        }
        const char *nearest = config_option_nearest(name);
        if (nearest != NULL) {
            log_write(FERRY_LOG_WARN,
                      "the environment variable %s is unknown; did you mean " CONFIG_PREFIX "%s?",
                      name, nearest);
        } else {
            log_write(FERRY_LOG_WARN, "the environment variable %s is unknown", name);
        }
    }
}

/* ---- configurations ---- */

static ferry_status_t config_load(enum config_mode mode, ferry_config_t **config_out)
{
    ferry_config_t *config = calloc(1, sizeof *config);
    if (config == NULL) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory for a configuration");
    }
    ferry_status_t status = defaults_load(config);
    const char *path = config_environment(CONFIG_FILE_VARIABLE);
    if (status == FERRY_OK && path != NULL) {
        status = file_load(config, *path == '@' ? path + 1 : path, mode);
    }
    if (status == FERRY_OK) {
        status = environment_load(config, mode);
    }
    if (status != FERRY_OK) {
        ferry_config_destroy(config);
        return status;
    }
    environment_warn(&config->values);
    *config_out = config;
    return FERRY_OK;
}

ferry_status_t ferry_config_create(ferry_config_t **config_out)
{
    if (config_out == NULL) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT, "ferry_config_create: config_out is NULL");
    }
    return config_load(MODE_STRICT, config_out);
}

void ferry_config_destroy(ferry_config_t *config)
{
    if (config == NULL) {
        return;
    }
    for (size_t i = 0; i < CONFIG_OPTION_COUNT; i++) {
        free(config->cells[i].value);
    }
    free(config->file);
    free(config);
}

ferry_status_t ferry_config_set(ferry_config_t *config, const char *name, const char *value)
{
    if (config == NULL || name == NULL || value == NULL) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT, "ferry_config_set: %s is NULL",
                           config == NULL ? "config"
                           : name == NULL ? "name"
                                          : "value");
    }
    const struct config_option *option = config_option_find(name);
    if (option == NULL) {
        return unknown_raise(FERRY_ERR_NOT_FOUND, "ferry_config_set", name);
    }
    char where[64];
    snprintf(where, sizeof where, CONFIG_PREFIX "%s", option->name);
    if (*value == '\0') { /* empty is unset: back to what an unset option has */
        return cell_set(config, option, option->fallback, ORIGIN_DEFAULT, where);
    }
    return cell_set(config, option, value, ORIGIN_EXPLICIT, where);
}

const struct config_values *config_values(const ferry_config_t *config)
{
    return &config->values;
}

static ferry_config_t *process_config;

static void process_load(void)
{
    /* The caller did not fail, whatever the environment says: its last error stays as it was. */
    struct error_record before;
    error_record_take(&before);
    if (config_load(MODE_LENIENT, &process_config) != FERRY_OK) {
        /* Only memory can be missing here, and nothing sensible runs without it. */
        abort();
    }
    error_raise_record(&before);
}

const struct config_values *config_process(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, process_load);
    return &process_config->values;
}

/* ---- showing it ---- */

/* Rows' public names, built from the table once. */
static char full_names[CONFIG_OPTION_COUNT][64];

static void full_names_fill(void)
{
    for (size_t i = 0; i < CONFIG_OPTION_COUNT; i++) {
        snprintf(full_names[i], sizeof full_names[i], CONFIG_PREFIX "%s", CONFIG_OPTIONS[i].name);
    }
}

ferry_status_t ferry_config_entry(const ferry_config_t *config, size_t index,
                                  ferry_config_entry_t *entry_out)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    static const char *const origins[] = {"default", "file", "environment", "explicit"};
    if (config == NULL || entry_out == NULL) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT, "ferry_config_entry: %s is NULL",
                           config == NULL ? "config" : "entry_out");
    }
    if (index >= CONFIG_OPTION_COUNT) {
        return error_raise(FERRY_ERR_NOT_FOUND, "there is no option %zu; the table has %d", index,
                           CONFIG_OPTION_COUNT);
    }
    pthread_once(&once, full_names_fill);
    const struct config_option *option = &CONFIG_OPTIONS[index];
    const struct config_cell *cell = &config->cells[index];
    *entry_out = (ferry_config_entry_t){
        .name = full_names[index],
        .fallback = option->fallback,
        .unit = option->unit,
        .text = option->text,
        .value = cell->value,
        .origin = cell->origin == ORIGIN_FILE ? config->file : origins[cell->origin],
    };
    return FERRY_OK;
}
