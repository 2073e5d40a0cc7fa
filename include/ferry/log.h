/* Leveled log. Ferry never writes to stdout; without a sink lines go to stderr. UCX's own log
 * comes through here too. */
#ifndef FERRY_LOG_H
#define FERRY_LOG_H

#include <ferry/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    FERRY_LOG_OFF = 0,
    FERRY_LOG_ERROR = 1,
    FERRY_LOG_WARN = 2, /* the default */
    FERRY_LOG_INFO = 3, /* one line a peer: path and reason */
    FERRY_LOG_DEBUG = 4,
    FERRY_LOG_TRACE = 5
} ferry_log_level_t;

/* Receives one line without a newline; valid during the call only. May be called from any thread,
 * also from two at once, sometimes under Ferry's locks: it must not call Ferry and should not
 * block. */
typedef void ferry_log_sink_fn(void *context, ferry_log_level_t level, const char *line);

/* Process-wide. NULL restores stderr. Lines already under way may still reach the old sink. */
FERRY_API void ferry_log_set_sink(ferry_log_sink_fn *sink, void *context);

/* Process-wide; FERRY_LOG sets it when the first agent is created unless this was called. */
FERRY_API void ferry_log_set_level(ferry_log_level_t level);

#ifdef __cplusplus
}
#endif

#endif
