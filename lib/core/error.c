/* The thread's last error, and errors by value. */
#include "core/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local struct error_record last_record;
static _Thread_local ferry_error_t last_view;

/* Texts quote what users typed and what peers sent, and are logged as one line. */
static void text_make_one_line(char *text)
{
    for (char *c = text; *c != '\0'; c++) {
        if ((unsigned char)*c < ' ' || *c == 0x7f) {
            *c = *c == '\n' || *c == '\t' ? ' ' : '?';
        }
    }
}

/* Drops the UTF-8 sequence that a cut at the buffer's end left incomplete. */
static void text_cut_at_character(char *text, size_t length)
{
    size_t start = length;
    while (start > 0 && length - start < 4) {
        unsigned char byte = (unsigned char)text[start - 1];
        if (byte < 0x80) {
            return;
        }
        start--;
        if (byte >= 0xc0) {
            size_t wanted = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : 2;
            if (length - start < wanted) {
                text[start] = '\0';
            }
            return;
        }
    }
}

static void text_format(char text[ERROR_TEXT_BYTES], const char *format, va_list arguments)
{
    int length = vsnprintf(text, ERROR_TEXT_BYTES, format, arguments);
    if (length < 0) {
        text[0] = '\0';
    } else if (length >= ERROR_TEXT_BYTES) {
        text_cut_at_character(text, ERROR_TEXT_BYTES - 1);
    }
    text_make_one_line(text);
}

static void record_fill(struct error_record *record, ferry_status_t status, ferry_effect_t effect,
                        const char *text)
{
    record->status = status;
    record->effect = effect;
    record->code = 0;
    record->origin[0] = '\0';
    record->method[0] = '\0';
    memcpy(record->text, text, strlen(text) + 1);
}

ferry_status_t error_raise(ferry_status_t status, const char *format, ...)
{
    /* Formatted beside the record, because an argument may be the last error's own text. */
    char text[ERROR_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    text_format(text, format, arguments);
    va_end(arguments);
    record_fill(&last_record, status, FERRY_NOT_RUN, text);
    return status;
}

ferry_status_t error_raise_errno(int error_number, const char *format, ...)
{
    char text[ERROR_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    text_format(text, format, arguments);
    va_end(arguments);
    char buffer[128];
    const char *words = strerror_r(error_number, buffer, sizeof buffer);
    return error_raise(FERRY_ERR_SYSTEM, "%s: %s", text, words);
}

void error_record_set(struct error_record *record, ferry_status_t status, ferry_effect_t effect,
                      const char *format, ...)
{
    char text[ERROR_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    text_format(text, format, arguments);
    va_end(arguments);
    record_fill(record, status, effect, text);
}

void error_record_take(struct error_record *record)
{
    *record = last_record;
}

ferry_status_t error_raise_record(const struct error_record *record)
{
    if (record != &last_record) {
        last_record = *record;
    }
    return last_record.status;
}

void error_reason_set(struct error_reason *reason, ferry_status_t status, const char *text)
{
    char *copy = strdup(text); /* before the old one goes: it may be a part of that */
    free(reason->text);
    *reason = (struct error_reason){.status = status, .text = copy};
}

const char *error_reason_text(const struct error_reason *reason)
{
    return reason->text != NULL ? reason->text : ferry_status_text(reason->status);
}

ferry_status_t error_raise_reason(const struct error_reason *reason)
{
    return error_raise(reason->status, "%s", error_reason_text(reason));
}

void error_reason_clear(struct error_reason *reason)
{
    free(reason->text);
    *reason = (struct error_reason){.status = FERRY_OK};
}

ferry_error_t error_record_view(const struct error_record *record)
{
    return (ferry_error_t){
        .status = record->status,
        .effect = record->effect,
        .code = record->code,
        .origin = record->origin,
        .method = record->method,
        .text = record->text,
    };
}

const ferry_error_t *ferry_last_error(void)
{
    last_view = error_record_view(&last_record);
    return &last_view;
}
