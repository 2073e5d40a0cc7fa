/* Configuration: one table of options, read from four places. Explicit (ferry_config_set) beats the environment
 * (FERRY_<NAME>) beats the file named by FERRY_CONFIG beats the default; an empty value is unset.
 * docs/configuration.md is generated from the table. */
#ifndef FERRY_CONFIG_H
#define FERRY_CONFIG_H

#include <stddef.h>

#include <ferry/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ferry_config ferry_config_t; /* not thread-safe while it is being set */

/* Reads file and environment. Owned by the caller: ferry_config_destroy(). FERRY_ERR_CONFIG: a value cannot
 * be used; the text names the variable, the value and the form. An unknown FERRY_* variable is
 * warned about once
 * with the nearest name. */
FERRY_API ferry_status_t ferry_config_create(ferry_config_t **config_out);
FERRY_API void ferry_config_destroy(ferry_config_t *config);

/* name is the variable's with or without FERRY_, in any case: "FERRY_CHUNK", "chunk". FERRY_ERR_NOT_FOUND: no such option,
 * the nearest is named. FERRY_ERR_CONFIG: the value is of no use. */
FERRY_API ferry_status_t ferry_config_set(ferry_config_t *config, const char *name,
                                          const char *value);

typedef struct {
    const char *name;     /* "FERRY_CHUNK" */
    const char *fallback; /* default, in the option's text form */
    const char *unit;     /* "bytes", "time", "choice: tag|stream|am", "text", ... */
    const char *text;     /* what it is for */
    const char *value;    /* in force in this config */
    const char *origin;   /* "default", "file PATH", "environment", "explicit" */
} ferry_config_entry_t;

/* The index-th option of the table; strings live until the config changes or is destroyed. FERRY_ERR_NOT_FOUND: past the end. */
FERRY_API ferry_status_t ferry_config_entry(const ferry_config_t *config, size_t index,
                                            ferry_config_entry_t *entry_out);

#ifdef __cplusplus
}
#endif

#endif
