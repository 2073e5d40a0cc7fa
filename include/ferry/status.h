/* The closed list of status codes. Every Ferry function that can fail returns one of these; the
 * text that explains a particular failure is in ferry_last_error() or in the future's error. */
#ifndef FERRY_STATUS_H
#define FERRY_STATUS_H

#include <stdint.h>

#if defined(FERRY_STATIC) || !defined(__GNUC__)
#define FERRY_API
#else
#define FERRY_API __attribute__((visibility("default")))
#endif

#if defined(__GNUC__)
#define FERRY_PRINTF(format_index, first_index)                                                    \
    __attribute__((format(printf, format_index, first_index)))
#else
#define FERRY_PRINTF(format_index, first_index)
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Waits for ever where a timeout in nanoseconds is asked for; written "infinite" in text. */
#define FERRY_FOREVER INT64_MAX

/* Codes travel between peers of different versions: values are fixed, new ones come last. */
typedef enum {
    FERRY_OK = 0,
    FERRY_PENDING = 1, /* not yet: a wait ran out, a test found nothing; never a failure */

    /* raised by the function that was called; nothing was taken, nothing ran */
    FERRY_ERR_INVALID_ARGUMENT = 2, /* any function: an argument is out of its range */
    FERRY_ERR_NO_MEMORY = 3,        /* any function: an allocation failed or a pool is exhausted */
    FERRY_ERR_STATE = 4,       /* agent, request: not allowed in this state, e.g. answered twice */
    FERRY_ERR_CONFIG = 5,      /* agent_create, config_set: an option's value cannot be used */
    FERRY_ERR_UNSUPPORTED = 6, /* this build, transport or device cannot do it */
    FERRY_ERR_LIMIT = 7,       /* a count or length is over a configured bound */
    FERRY_ERR_WOULD_BLOCK = 8, /* call in manual mode or in a callback: no room now */
    FERRY_ERR_BUSY = 9,        /* callee: a pool or a method's concurrency limit is exhausted */
    FERRY_ERR_SYSTEM = 10,     /* an operating system call failed; the text has errno's words */

    /* devices and device maps */
    FERRY_ERR_DEVICE_MAP = 11,      /* parse, start, connect: the map's text or a rule is wrong */
    FERRY_ERR_UNMAPPED_DEVICE = 12, /* call: no rule says where a device tensor should arrive */
    FERRY_ERR_UNKNOWN_DEVICE = 13,  /* a device that this process or that peer does not have */
    FERRY_ERR_DEVICE = 14,          /* a device's own operation failed */
    FERRY_ERR_RESULT_MISMATCH = 15, /* caller: a result does not fit the buffer given for it */

    /* messages */
    FERRY_ERR_TYPE = 16,      /* a field or tensor has another type than the reader asked for */
    FERRY_ERR_NOT_FOUND = 17, /* no such slot, field, method to unregister or option */

    /* names and connections */
    FERRY_ERR_NAMING = 18,       /* the naming service cannot be reached or answered nonsense */
    FERRY_ERR_NAME_TAKEN = 19,   /* start: a live agent has this name; register: a method has it */
    FERRY_ERR_UNKNOWN_PEER = 20, /* connect, call: nobody of that name (in time) */
    FERRY_ERR_UNREACHABLE = 21,  /* connect, call: the name is known, its address does not answer */
    FERRY_ERR_INCOMPATIBLE = 22, /* connect, call: the peer's Ferry or UCX version does not fit */
    FERRY_ERR_REFUSED = 23,      /* connect, call: the peer refused the connection and said why */
    FERRY_ERR_PROTOCOL = 24,     /* the peer sent bytes that make no sense; its link is closed */
    FERRY_ERR_TRANSPORT = 25,    /* the transport's own operation failed */
    FERRY_ERR_PEER_LOST = 26,    /* the peer died, left or became unreachable during the call */

    /* calls */
    FERRY_ERR_UNKNOWN_METHOD = 27, /* callee: no method of that name and no catch-all */
    FERRY_ERR_UNANSWERED = 28,     /* callee: the request was released without an answer */
    FERRY_ERR_APPLICATION = 29,    /* callee: the handler failed the request; see error.code */
    FERRY_ERR_TIMEOUT = 30,        /* caller: the call's own timeout passed */
    FERRY_ERR_CANCELLED = 31,      /* caller: the future was cancelled or released while pending */
    FERRY_ERR_SHUTDOWN = 32,       /* the agent, here or there, is shutting down */
    FERRY_ERR_FORKED = 33,         /* UCX was used in a child forked after an agent existed */

    FERRY_STATUS_COUNT /* not a status: how many there are */
} ferry_status_t;

/* May a failed call be retried? */
typedef enum {
    FERRY_NOT_RUN = 0,      /* the handler did not run and will not */
    FERRY_MAY_HAVE_RUN = 1, /* nobody here can know */
    FERRY_RAN = 2           /* the handler ran; only its answer failed or was a failure */
} ferry_effect_t;

/* "FERRY_ERR_TIMEOUT" and the like; "unknown status" for a value outside the list. Never NULL,
 * static storage, any thread. */
FERRY_API const char *ferry_status_name(ferry_status_t status);

/* One short sentence for the code alone, e.g. "the call's own timeout passed". Never NULL, static
 * storage, any thread. */
FERRY_API const char *ferry_status_text(ferry_status_t status);

#ifdef __cplusplus
}
#endif

#endif
