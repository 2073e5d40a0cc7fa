/* Raising errors: whoever first decides one says it here; callers pass the status on in silence. */
#ifndef FERRY_CORE_ERROR_H
#define FERRY_CORE_ERROR_H

#include <stdarg.h>

#include <ferry/error.h>

#define ERROR_NAME_BYTES 128
#define ERROR_TEXT_BYTES 1024

/* An error by value, so that it can cross threads inside a future or a wire message. */
struct error_record {
    ferry_status_t status;
    ferry_effect_t effect;
    int32_t code;
    char origin[ERROR_NAME_BYTES];
    char method[ERROR_NAME_BYTES];
    char text[ERROR_TEXT_BYTES];
};

/* Makes this the thread's last error (effect FERRY_NOT_RUN, origin and method "") and returns status. The text is
 * cut to ERROR_TEXT_BYTES, at a character boundary. */
ferry_status_t error_raise(ferry_status_t status, const char *format, ...) FERRY_PRINTF(2, 3);

/* error_raise with ": " and errno's words behind the text; status FERRY_ERR_SYSTEM. */
ferry_status_t error_raise_errno(int error_number, const char *format, ...) FERRY_PRINTF(2, 3);

/* Fills a record without touching the thread's last error. */
void error_record_set(struct error_record *record, ferry_status_t status, ferry_effect_t effect,
                      const char *format, ...) FERRY_PRINTF(4, 5);

/* Copies the thread's last error into a record: for code that raised and now stores. */
void error_record_take(struct error_record *record);

/* Makes a stored record the thread's last error and returns its status. */
ferry_status_t error_raise_record(const struct error_record *record);

/* Why something ended: an error of effect FERRY_NOT_RUN for what there may be a great many of, most without one. */
struct error_reason {
    ferry_status_t status;
    char *text; /* owned; NULL: the status says it */
};
void error_reason_set(struct error_reason *reason, ferry_status_t status, const char *text);
const char *error_reason_text(const struct error_reason *reason);
/* Makes it the thread's last error and returns its status. */
ferry_status_t error_raise_reason(const struct error_reason *reason);
void error_reason_clear(struct error_reason *reason);

/* A public view of a record; lives as long as the record. */
ferry_error_t error_record_view(const struct error_record *record);

#endif
