/* The thread's last error and errors by value. */
#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "core/error.h"

Test(error, none_yet)
{
    const ferry_error_t *error = ferry_last_error();
    cr_assert_eq(error->status, FERRY_OK);
    cr_assert_str_empty(error->text);
    cr_assert_str_empty(error->origin);
    cr_assert_str_empty(error->method);
}

Test(error, raise_returns_its_status_and_keeps_the_text)
{
    cr_assert_eq(error_raise(FERRY_ERR_LIMIT, "%d is over %s", 7, "six"), FERRY_ERR_LIMIT);
    const ferry_error_t *error = ferry_last_error();
    cr_assert_eq(error->status, FERRY_ERR_LIMIT);
    cr_assert_eq(error->effect, FERRY_NOT_RUN);
    cr_assert_eq(error->code, 0);
    cr_assert_str_eq(error->text, "7 is over six");
}

Test(error, raise_may_quote_the_last_text)
{
    error_raise(FERRY_ERR_CONFIG, "inner");
    error_raise(FERRY_ERR_CONFIG, "outer: %s", ferry_last_error()->text);
    cr_assert_str_eq(ferry_last_error()->text, "outer: inner");
}

Test(error, errno_is_put_in_words)
{
    cr_assert_eq(error_raise_errno(ENOENT, "open '%s'", "x"), FERRY_ERR_SYSTEM);
    cr_assert_str_eq(ferry_last_error()->text, "open 'x': No such file or directory");
}

Test(error, text_is_one_line)
{
    error_raise(FERRY_ERR_PROTOCOL, "a\nb\tc\x1b[31m");
    cr_assert_str_eq(ferry_last_error()->text, "a b c?[31m");
}

/* Texts of every length around the bound, ending in characters of 2, 3 and 4 bytes: never half of
 * one. */
Test(error, long_text_is_cut_between_characters)
{
    const char *const characters[] = {"\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x9a\xa2"};
    for (size_t c = 0; c < 3; c++) {
        size_t width = strlen(characters[c]);
        for (size_t pad = 0; pad < width; pad++) {
            char text[2 * ERROR_TEXT_BYTES] = "";
            memset(text, '.', pad);
            for (size_t at = pad; at + width < sizeof text; at += width) {
                memcpy(text + at, characters[c], width);
            }
            error_raise(FERRY_ERR_PROTOCOL, "%s", text);
            size_t length = strlen(ferry_last_error()->text);
            cr_assert_lt(length, ERROR_TEXT_BYTES);
            cr_assert_gt(length, ERROR_TEXT_BYTES - 1 - width);
            cr_assert_eq((length - pad) % width, 0, "width %zu, pad %zu: %zu", width, pad, length);
        }
    }
}

static void *raise_elsewhere(void *context)
{
    (void)context;
    error_raise(FERRY_ERR_BUSY, "another thread's");
    return NULL;
}

Test(error, last_error_belongs_to_its_thread)
{
    pthread_t thread;
    error_raise(FERRY_ERR_STATE, "mine");
    cr_assert_eq(pthread_create(&thread, NULL, raise_elsewhere, NULL), 0);
    pthread_join(thread, NULL);
    cr_assert_eq(ferry_last_error()->status, FERRY_ERR_STATE);
    cr_assert_str_eq(ferry_last_error()->text, "mine");
}

Test(error, records_are_independent_of_the_last_error)
{
    struct error_record record;
    error_raise(FERRY_ERR_STATE, "last");
    error_record_set(&record, FERRY_ERR_PEER_LOST, FERRY_MAY_HAVE_RUN, "%s died", "ps");
    cr_assert_str_eq(ferry_last_error()->text, "last");
    strcpy(record.origin, "ps");
    strcpy(record.method, "push");
    record.code = 42;

    ferry_error_t view = error_record_view(&record);
    cr_assert_eq(view.effect, FERRY_MAY_HAVE_RUN);
    cr_assert_str_eq(view.text, "ps died");
    cr_assert_str_eq(view.origin, "ps");

    cr_assert_eq(error_raise_record(&record), FERRY_ERR_PEER_LOST);
    cr_assert_eq(ferry_last_error()->code, 42);
    cr_assert_str_eq(ferry_last_error()->method, "push");
}

Test(error, take_copies_the_last_error)
{
    struct error_record record;
    error_raise(FERRY_ERR_NAMING, "kept");
    error_record_take(&record);
    error_raise(FERRY_ERR_BUSY, "newer");
    cr_assert_eq(record.status, FERRY_ERR_NAMING);
    cr_assert_str_eq(record.text, "kept");
}

Test(error, a_reason_keeps_its_own_copy_of_the_text)
{
    struct error_reason reason = {.status = FERRY_OK};
    char text[] = "worker1 left";
    error_reason_set(&reason, FERRY_ERR_PEER_LOST, text);
    text[0] = 'W';
    cr_assert_str_eq(error_reason_text(&reason), "worker1 left");
    error_reason_set(&reason, FERRY_ERR_TIMEOUT, error_reason_text(&reason) + strlen("worker1 "));
    cr_assert_eq(error_raise_reason(&reason), FERRY_ERR_TIMEOUT);
    cr_assert_eq(ferry_last_error()->status, FERRY_ERR_TIMEOUT);
    cr_assert_str_eq(ferry_last_error()->text, "left");
    error_reason_clear(&reason);
    cr_assert_eq(reason.status, FERRY_OK);
}

Test(error, a_reason_without_a_text_says_its_status)
{
    struct error_reason reason = {.status = FERRY_ERR_PEER_LOST};
    cr_assert_str_eq(error_reason_text(&reason), ferry_status_text(FERRY_ERR_PEER_LOST));
}
