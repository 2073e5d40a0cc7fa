/* From text to values: sizes, times, choices, and what the user may have meant. */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/config_table.h"
#include "core/error.h"

/* ---- numbers with units ---- */

struct decimal {
    int64_t whole;
    double fraction;
    const char *rest; /* what follows the digits */
};

/* Digits with an optional fraction. Not strtod(), whose decimal point depends on the locale. */
static bool decimal_read(const char *text, struct decimal *decimal_out)
{
    struct decimal decimal = {0};
    const char *c = text;
    if (!isdigit((unsigned char)*c)) {
        return false;
    }
    for (; isdigit((unsigned char)*c); c++) {
        int digit = *c - '0';
        if (decimal.whole > (INT64_MAX - digit) / 10) {
            return false;
        }
        decimal.whole = decimal.whole * 10 + digit;
    }
    if (*c == '.') {
        c++;
        if (!isdigit((unsigned char)*c)) {
            return false;
        }
        double weight = 0.1;
        for (; isdigit((unsigned char)*c); c++, weight /= 10) {
            decimal.fraction += weight * (*c - '0');
        }
    }
    while (*c == ' ') {
        c++;
    }
    decimal.rest = c;
    *decimal_out = decimal;
    return true;
}

/* decimal * unit, or false where that is over INT64_MAX. */
static bool decimal_scale(const struct decimal *decimal, int64_t unit, int64_t *value_out)
{
    int64_t rest = (int64_t)(decimal->fraction * (double)unit + 0.5);
    if (decimal->whole > (INT64_MAX - rest) / unit) {
        return false;
    }
    *value_out = decimal->whole * unit + rest;
    return true;
}

static bool bytes_unit(const char *suffix, int64_t *unit_out)
{
    static const char letters[] = "kmgt";
    int64_t unit = 1;
    if (*suffix != '\0' && strcasecmp(suffix, "b") != 0) {
        const char *letter = strchr(letters, tolower((unsigned char)*suffix));
        if (letter == NULL) {
            return false;
        }
        suffix++;
        if (*suffix != '\0' && strcasecmp(suffix, "b") != 0 && strcasecmp(suffix, "ib") != 0) {
            return false;
        }
        unit = (int64_t)1 << (10 * (letter - letters + 1));
    }
    *unit_out = unit;
    return true;
}

ferry_status_t config_parse_bytes(const char *text, int64_t *bytes_out)
{
    struct decimal decimal;
    int64_t unit;
    if (!decimal_read(text, &decimal) || !bytes_unit(decimal.rest, &unit) ||
        !decimal_scale(&decimal, unit, bytes_out)) {
        return error_raise(FERRY_ERR_CONFIG,
                           "'%s' is not a size; write it like 64, 64K, 2MiB or 1.5g", text);
    }
    return FERRY_OK;
}

static bool time_unit(const char *suffix, int64_t *unit_out)
{
    static const struct {
        const char *suffix;
        int64_t unit_ns;
    } units[] = {
        {"ns", 1},           {"us", 1000},         {"ms", 1000000},
        {"s", 1000000000LL}, {"m", 60000000000LL}, {"h", 3600000000000LL},
    };
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        if (strcasecmp(suffix, units[i].suffix) == 0) {
            *unit_out = units[i].unit_ns;
            return true;
        }
    }
    return false;
}

ferry_status_t config_parse_time(const char *text, int64_t *ns_out)
{
    struct decimal decimal;
    int64_t unit;
    if (strcasecmp(text, "infinite") == 0) {
        *ns_out = FERRY_FOREVER;
        return FERRY_OK;
    }
    if (decimal_read(text, &decimal)) {
        /* Only zero means the same in every unit. */
        if (*decimal.rest == '\0' && decimal.whole == 0 && decimal.fraction == 0) {
            *ns_out = 0;
            return FERRY_OK;
        }
        if (time_unit(decimal.rest, &unit) && decimal_scale(&decimal, unit, ns_out)) {
            return FERRY_OK;
        }
    }
    return error_raise(
        FERRY_ERR_CONFIG,
        "'%s' is not a time; write it with its unit, like 10us, 500ms, 5s, 2m or infinite", text);
}

static ferry_status_t number_parse(const char *text, int64_t *number_out)
{
    struct decimal decimal;
    if (!decimal_read(text, &decimal) || *decimal.rest != '\0' || strchr(text, '.') != NULL) {
        return error_raise(FERRY_ERR_CONFIG, "'%s' is not a whole number", text);
    }
    *number_out = decimal.whole;
    return FERRY_OK;
}

/* ---- choices ---- */

/* The position of word in "a|b|c", or -1. */
static int choice_index(const char *choices, const char *word, size_t length)
{
    int index = 0;
    for (const char *c = choices;; index++) {
        size_t span = strcspn(c, "|");
        if (span == length && strncasecmp(c, word, length) == 0) {
            return index;
        }
        if (c[span] == '\0') {
            return -1;
        }
        c += span + 1;
    }
}

static ferry_status_t choice_parse(const char *choices, const char *text, unsigned *index_out)
{
    int index = choice_index(choices, text, strlen(text));
    if (index < 0) {
        return error_raise(FERRY_ERR_CONFIG, "'%s' is none of %s", text, choices);
    }
    *index_out = (unsigned)index;
    return FERRY_OK;
}

static ferry_status_t flag_parse(const char *text, bool *flag_out)
{
    /* The odd positions are the ones that mean yes. */
    int index = choice_index("0|1|no|yes|off|on|false|true", text, strlen(text));
    if (index < 0) {
        return error_raise(FERRY_ERR_CONFIG, "'%s' is neither 0 nor 1", text);
    }
    *flag_out = index % 2 == 1;
    return FERRY_OK;
}

static ferry_status_t paths_check(const char *choices, const char *text)
{
    for (const char *c = text; *c != '\0';) {
        size_t span = strcspn(c, ",");
        if (*c != '^' || choice_index(choices, c + 1, span - 1) < 0) {
            return error_raise(
                FERRY_ERR_CONFIG,
                "'%s': '%.*s' is no path that can be switched off; write a comma list of "
                "^name with the names %s",
                text, (int)span, c, choices);
        }
        c += span;
        if (*c == ',') {
            c++;
        }
    }
    return FERRY_OK;
}

/* ---- one option ---- */

static void size_print(int64_t bytes, char *buffer, size_t capacity)
{
    static const char *const units[] = {"", "KiB", "MiB", "GiB", "TiB"};
    size_t unit = 0;
    while (unit < 4 && bytes != 0 && bytes % 1024 == 0) {
        bytes /= 1024;
        unit++;
    }
    snprintf(buffer, capacity, "%lld%s", (long long)bytes, units[unit]);
}

static void time_print(int64_t ns, char *buffer, size_t capacity)
{
    static const char *const units[] = {"ns", "us", "ms", "s"};
    if (ns == FERRY_FOREVER) {
        snprintf(buffer, capacity, "infinite");
        return;
    }
    if (ns == 0) {
        snprintf(buffer, capacity, "0");
        return;
    }
    size_t unit = 0;
    while (unit < 3 && ns % 1000 == 0) {
        ns /= 1000;
        unit++;
    }
    snprintf(buffer, capacity, "%lld%s", (long long)ns, units[unit]);
}

const char *config_option_range(const struct config_option *option, char buffer[CONFIG_RANGE_BYTES])
{
    char least[32];
    char most[32];
    buffer[0] = '\0';
    switch (option->kind) {
    case CONFIG_NUMBER:
        snprintf(least, sizeof least, "%lld", (long long)option->min);
        snprintf(most, sizeof most, "%lld", (long long)option->max);
        break;
    case CONFIG_BYTES:
        size_print(option->min, least, sizeof least);
        size_print(option->max, most, sizeof most);
        break;
    case CONFIG_TIME:
        time_print(option->min, least, sizeof least);
        time_print(option->max, most, sizeof most);
        break;
    default:
        return buffer;
    }
    if (option->max < INT64_MAX || option->kind == CONFIG_TIME) {
        snprintf(buffer, CONFIG_RANGE_BYTES, "%s to %s", least, most);
    } else {
        snprintf(buffer, CONFIG_RANGE_BYTES, "%s or more", least);
    }
    return buffer;
}

static ferry_status_t scalar_parse(const struct config_option *option, const char *value,
                                   int64_t *scalar_out)
{
    int64_t scalar = 0;
    ferry_status_t status = option->kind == CONFIG_BYTES  ? config_parse_bytes(value, &scalar)
                            : option->kind == CONFIG_TIME ? config_parse_time(value, &scalar)
                                                          : number_parse(value, &scalar);
    if (status != FERRY_OK) {
        return status;
    }
    if (scalar < option->min || scalar > option->max) {
        char range[CONFIG_RANGE_BYTES];
        return error_raise(FERRY_ERR_CONFIG, "'%s' is out of range: %s", value,
                           config_option_range(option, range));
    }
    *scalar_out = scalar;
    return FERRY_OK;
}

static ferry_status_t value_parse(const struct config_option *option, const char *value,
                                  struct config_values *values)
{
    char *field = (char *)values + option->offset;
    ferry_status_t status = FERRY_OK;
    unsigned index = 0;
    bool flag = false;
    int64_t scalar = 0;
    switch (option->kind) {
    case CONFIG_PATHS:
        status = paths_check(option->choices, value);
        break;
    case CONFIG_WORD:
        status = choice_parse(option->choices, value, &index);
        break;
    case CONFIG_TEXT:
        break;
    case CONFIG_CHOICE:
        status = choice_parse(option->choices, value, &index);
        if (status == FERRY_OK) {
            memcpy(field, &index, sizeof index);
        }
        return status;
    case CONFIG_FLAG:
        status = flag_parse(value, &flag);
        if (status == FERRY_OK) {
            memcpy(field, &flag, sizeof flag);
        }
        return status;
    case CONFIG_NUMBER:
    case CONFIG_BYTES:
    case CONFIG_TIME:
        status = scalar_parse(option, value, &scalar);
        if (status == FERRY_OK) {
            memcpy(field, &scalar, sizeof scalar);
        }
        return status;
    }
    if (status == FERRY_OK) {
        memcpy(field, &value, sizeof value);
    }
    return status;
}

_Static_assert(sizeof(enum config_progress) == sizeof(unsigned), "choices are stored as unsigned");
_Static_assert(sizeof(ferry_log_level_t) == sizeof(unsigned), "choices are stored as unsigned");

ferry_status_t config_option_parse(const struct config_option *option, const char *value,
                                   const char *where, struct config_values *values)
{
    ferry_status_t status = value_parse(option, value, values);
    if (status != FERRY_OK) {
        return error_raise(status, "%s: %s", where, ferry_last_error()->text);
    }
    return FERRY_OK;
}

/* ---- names ---- */

const struct config_option *config_option_find(const char *name)
{
    size_t prefix = strlen(CONFIG_PREFIX);
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < CONFIG_OPTION_COUNT; i++) {
            if (strcasecmp(CONFIG_OPTIONS[i].name, name) == 0) {
                return &CONFIG_OPTIONS[i];
            }
        }
        if (strncasecmp(name, CONFIG_PREFIX, prefix) != 0) {
            return NULL;
        }
        name += prefix;
    }
    return NULL;
}

const char *config_option_nearest(const char *name)
{
    const char *names[CONFIG_OPTION_COUNT];
    char upper[64];
    size_t length = 0;
    for (size_t i = 0; i < CONFIG_OPTION_COUNT; i++) {
        names[i] = CONFIG_OPTIONS[i].name;
    }
    /* Compared without the prefix, which would make any two short names look alike. */
    if (strncasecmp(name, CONFIG_PREFIX, strlen(CONFIG_PREFIX)) == 0) {
        name += strlen(CONFIG_PREFIX);
    }
    for (; name[length] != '\0' && length < sizeof upper - 1; length++) {
        upper[length] = (char)toupper((unsigned char)name[length]);
    }
    upper[length] = '\0';
    return config_nearest(upper, names, CONFIG_OPTION_COUNT);
}

#define NEAREST_BYTES_MAX 255

/* Edits (insert, delete, replace, swap of neighbours) that turn one text into the other. */
static size_t edit_distance(const char *a, size_t a_length, const char *b, size_t b_length)
{
    size_t rows[3][NEAREST_BYTES_MAX + 1]; /* of the last three characters of a */
    for (size_t j = 0; j <= b_length; j++) {
        rows[0][j] = j;
    }
    for (size_t i = 1; i <= a_length; i++) {
        size_t *row = rows[i % 3];
        const size_t *above = rows[(i + 2) % 3];
        const size_t *above_that = rows[(i + 1) % 3];
        row[0] = i;
        for (size_t j = 1; j <= b_length; j++) {
            size_t replaced = above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
            size_t edited = (above[j] < row[j - 1] ? above[j] : row[j - 1]) + 1;
            row[j] = replaced < edited ? replaced : edited;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                above_that[j - 2] + 1 < row[j]) {
                row[j] = above_that[j - 2] + 1;
            }
        }
    }
    return rows[a_length % 3][b_length];
}

const char *config_nearest(const char *text, const char *const *candidates, size_t count)
{
    size_t length = strlen(text);
    const char *nearest = NULL;
    size_t nearest_distance = 0;
    if (length > NEAREST_BYTES_MAX) {
        return NULL;
    }
    for (size_t i = 0; i < count; i++) {
        size_t other = strlen(candidates[i]);
        if (other > NEAREST_BYTES_MAX) {
            continue;
        }
        size_t distance = edit_distance(text, length, candidates[i], other);
        size_t longer = other > length ? other : length;
        if (distance <= longer / 3 && (nearest == NULL || distance < nearest_distance)) {
            nearest = candidates[i];
            nearest_distance = distance;
        }
    }
    return nearest;
}
