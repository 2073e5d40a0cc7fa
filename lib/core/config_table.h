/* The rows of the configuration table, between config_table.c, which states them, and config.c. */
#ifndef FERRY_CORE_CONFIG_TABLE_H
#define FERRY_CORE_CONFIG_TABLE_H

#include <stddef.h>
#include <stdint.h>

#include "core/config.h"

enum config_kind {
    CONFIG_TEXT,   /* const char *, any text */
    CONFIG_WORD,   /* const char *, one of the choices */
    CONFIG_PATHS,  /* const char *, a comma list of ^word, each one of the choices */
    CONFIG_CHOICE, /* an enum whose values count the choices from 0 */
    CONFIG_FLAG,   /* bool */
    CONFIG_NUMBER, /* int64_t */
    CONFIG_BYTES,  /* int64_t */
    CONFIG_TIME    /* int64_t nanoseconds */
};

struct config_option {
    const char *name;     /* without FERRY_ */
    const char *fallback; /* in text form; it must itself parse */
    const char *unit;
    const char *choices; /* "a|b|c" where the kind has choices, else NULL */
    const char *text;
    enum config_kind kind;
    size_t offset;    /* of the field in struct config_values */
    int64_t min, max; /* NUMBER, BYTES, TIME */
};

#define CONFIG_PREFIX "FERRY_"
/* Names the file; read from the environment only, so it has no row. */
#define CONFIG_FILE_VARIABLE "FERRY_CONFIG"

#define CONFIG_OPTION_COUNT 30

extern const struct config_option CONFIG_OPTIONS[CONFIG_OPTION_COUNT];

/* The row of that name (with or without FERRY_, any case) or NULL. */
const struct config_option *config_option_find(const char *name);
/* The nearest row's name without FERRY_, or NULL. */
const char *config_option_nearest(const char *name);

/* Parses value as the option's kind into its field of values (text kinds store the pointer itself). Raises
 * FERRY_ERR_CONFIG, with "where" (a variable, or file:line) in front. */
ferry_status_t config_option_parse(const struct config_option *option, const char *value,
                                   const char *where, struct config_values *values);

/* "64KiB to 64MiB" or "" where every value of the kind will do. */
#define CONFIG_RANGE_BYTES 96
const char *config_option_range(const struct config_option *option,
                                char buffer[CONFIG_RANGE_BYTES]);

#endif
