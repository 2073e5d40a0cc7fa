#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <ucs/debug/debug.h>
#include <ucs/debug/log_def.h>

#include "core/config.h"
#include "core/error.h"
#include "core/log.h"
#include "transports/ucx/ucx_internal.h"

ferry_status_t ucx_status(ucs_status_t status)
{
    switch (status) {
    case UCS_OK:
        return FERRY_OK;
    case UCS_ERR_CANCELED:
        return FERRY_ERR_CANCELLED;
    case UCS_ERR_NO_MEMORY:
    case UCS_ERR_NO_RESOURCE:
        return FERRY_ERR_NO_MEMORY;
    case UCS_ERR_CONNECTION_RESET:
    case UCS_ERR_ENDPOINT_TIMEOUT:
    case UCS_ERR_NOT_CONNECTED:
    case UCS_ERR_REJECTED:
        return FERRY_ERR_PEER_LOST;
    case UCS_ERR_UNREACHABLE:
        return FERRY_ERR_UNREACHABLE;
    case UCS_ERR_UNSUPPORTED:
        return FERRY_ERR_UNSUPPORTED;
    default:
        return FERRY_ERR_TRANSPORT;
    }
}

ferry_status_t ucx_raise(ucs_status_t status, const char *what)
{
    return error_raise(ucx_status(status), "%s: %s", what, ucs_status_string(status));
}

ferry_status_t ucx_raise_disconnected(void)
{
    return error_raise(FERRY_ERR_PEER_LOST, "the link is disconnected");
}

static ferry_log_level_t level_of(ucs_log_level_t level)
{
    switch (level) {
    case UCS_LOG_LEVEL_FATAL:
    case UCS_LOG_LEVEL_ERROR:
        return FERRY_LOG_ERROR;
    case UCS_LOG_LEVEL_WARN:
        return FERRY_LOG_WARN;
    case UCS_LOG_LEVEL_DIAG:
    case UCS_LOG_LEVEL_INFO:
    case UCS_LOG_LEVEL_DEBUG:
        return FERRY_LOG_DEBUG;
    default:
        return FERRY_LOG_TRACE;
    }
}

/* UCX_LOG_LEVEL decides what UCX says at all; Ferry's level, what of it is shown. */
static ucs_log_func_rc_t log_handler(const char *file, unsigned line, const char *function,
                                     ucs_log_level_t level,
                                     const ucs_log_component_config_t *component,
                                     const char *format, va_list arguments)
{
    (void)file;
    (void)line;
    (void)function;
    if (level > component->log_level || !log_enabled(level_of(level))) {
        return UCS_LOG_FUNC_RC_STOP;
    }
    char text[512];
    vsnprintf(text, sizeof(text), format, arguments);
    /* Said of settings that Ferry made and that none of the transports in use has. */
    bool own = strncmp(text, "invalid configuration", strlen("invalid configuration")) == 0;
    log_write(own ? FERRY_LOG_DEBUG : level_of(level), "UCX: %s", text);
    return UCS_LOG_FUNC_RC_STOP;
}

static void tame(void)
{
    ucs_log_push_handler(log_handler);
}

void ucx_tame(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, tame);
}

/* Whether the handler of a signal is code of libucs. */
static bool taken_by_ucs(const struct sigaction *action)
{
    Dl_info handler, own;
    void *code = action->sa_flags & SA_SIGINFO ? (void *)(uintptr_t)action->sa_sigaction
                                               : (void *)(uintptr_t)action->sa_handler;
    return action->sa_handler != SIG_DFL && action->sa_handler != SIG_IGN &&
           dladdr(code, &handler) != 0 &&
           dladdr((void *)(uintptr_t)ucs_debug_disable_signal, &own) != 0 &&
           handler.dli_fbase == own.dli_fbase;
}

/* Loading libucs takes SIGSEGV, SIGHUP and others before any function of it is called; this
 * library is loaded right after it and gives them back. UCX_HANDLE_ERRORS and UCX_DEBUG_SIGNO set
 * by the user are an order to keep them. */
__attribute__((constructor)) static void give_signals_back(void)
{
    if (config_environment("UCX_HANDLE_ERRORS") != NULL ||
        config_environment("UCX_DEBUG_SIGNO") != NULL) {
        return;
    }
    for (int number = 1; number < SIGRTMIN; number++) {
        struct sigaction action;
        if (sigaction(number, NULL, &action) == 0 && taken_by_ucs(&action)) {
            ucs_debug_disable_signal(number);
        }
    }
}
