/* The log inside the library. */
#ifndef FERRY_CORE_LOG_H
#define FERRY_CORE_LOG_H

#include <stdbool.h>

#include <ferry/log.h>

bool log_enabled(ferry_log_level_t level); /* one relaxed atomic load */
void log_write(ferry_log_level_t level, const char *format, ...) FERRY_PRINTF(2, 3);

/* Applies FERRY_LOG unless ferry_log_set_level() was called. */
void log_configure(ferry_log_level_t level);

#endif
