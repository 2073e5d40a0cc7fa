/* One line a message, to the program's sink or to stderr. */
#include "core/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LINE_BYTES 2048

static _Atomic int level_now = FERRY_LOG_WARN;
static atomic_bool level_explicit;

/* The sink and its context change together: a writer makes the version odd while it is at work, a
 * reader that saw an odd or a changed version reads again. Readers take no lock, so a fork while
 * another thread logs leaves the child's log usable. */
static pthread_mutex_t sink_writers = PTHREAD_MUTEX_INITIALIZER;
static atomic_uint sink_version;
static _Atomic(ferry_log_sink_fn *) sink_function;
static _Atomic(void *) sink_context;

void ferry_log_set_sink(ferry_log_sink_fn *sink, void *context)
{
    pthread_mutex_lock(&sink_writers);
    atomic_fetch_add(&sink_version, 1);
    atomic_store(&sink_function, sink);
    atomic_store(&sink_context, context);
    atomic_fetch_add(&sink_version, 1);
    pthread_mutex_unlock(&sink_writers);
}

static ferry_log_sink_fn *sink_load(void **context_out)
{
    for (;;) {
        unsigned before = atomic_load(&sink_version);
        ferry_log_sink_fn *sink = atomic_load(&sink_function);
        void *context = atomic_load(&sink_context);
        if (before % 2 == 0 && before == atomic_load(&sink_version)) {
            *context_out = context;
            return sink;
        }
    }
}

static int level_clamp(ferry_log_level_t level)
{
    return level > FERRY_LOG_TRACE ? FERRY_LOG_TRACE : (int)level;
}

void ferry_log_set_level(ferry_log_level_t level)
{
    atomic_store(&level_explicit, true);
    atomic_store(&level_now, level_clamp(level));
}

void log_configure(ferry_log_level_t level)
{
    if (!atomic_load(&level_explicit)) {
        atomic_store(&level_now, level_clamp(level));
    }
}

bool log_enabled(ferry_log_level_t level)
{
    return level != FERRY_LOG_OFF &&
           (int)level <= atomic_load_explicit(&level_now, memory_order_relaxed);
}

static const char *level_word(ferry_log_level_t level)
{
    static const char *const words[] = {"off", "error", "warn", "info", "debug", "trace"};
    return words[level_clamp(level)];
}

void log_write(ferry_log_level_t level, const char *format, ...)
{
    if (!log_enabled(level)) {
        return;
    }
    int saved_errno = errno;
    char line[LINE_BYTES];
    int prefix = snprintf(line, sizeof line, "ferry: %s: ", level_word(level));
    char *message = line + prefix;
    size_t room = sizeof line - (size_t)prefix - 1; /* one byte is kept for the newline */

    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(message, room, format, arguments);
    va_end(arguments);
    if (length < 0) {
        message[0] = '\0';
    }
    for (char *c = message; *c != '\0'; c++) {
        if ((unsigned char)*c < ' ' || *c == 0x7f) {
            *c = ' ';
        }
    }

    void *context = NULL;
    ferry_log_sink_fn *sink = sink_load(&context);
    if (sink != NULL) {
        sink(context, level, message);
    } else {
        size_t bytes = strlen(line);
        line[bytes++] = '\n';
        /* One write, so that lines of several threads and processes do not mix. A log that cannot
         * be written has nobody to tell. */
        ssize_t written = write(STDERR_FILENO, line, bytes);
        (void)written;
    }
    errno = saved_errno;
}
