/* What went wrong, for whom, and whether it may be tried again. */
#ifndef FERRY_ERROR_H
#define FERRY_ERROR_H

#include <ferry/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    ferry_status_t status;
    ferry_effect_t effect;
    int32_t code;       /* the application's own, from ferry_request_fail(); else 0 */
    const char *origin; /* the agent that decided the error; "" for this process itself */
    const char *method; /* the call's method; "" outside a call */
    const char *text;   /* one line that names the offending value and what would be right */
} ferry_error_t;

/* The last error that a Ferry function returned (or a wait reported) in this thread. Never NULL: status is
 * FERRY_OK and text "" where there was none. Valid until the next Ferry function fails in this
 * thread. A success leaves it as it was. */
FERRY_API const ferry_error_t *ferry_last_error(void);

#ifdef __cplusplus
}
#endif

#endif
