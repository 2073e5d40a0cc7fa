/* A file with a line of flags for each test, over those of the command line. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "ferry_perf/frame.h"

#define WORDS_MAX 64

/* Parses one line; FERRY_PENDING: it is empty or a comment. */
static ferry_status_t batch_parse(const char *file, unsigned number, char *text,
                                  const struct perf_command_line *line,
                                  struct perf_command_line *parsed)
{
    char *words[WORDS_MAX + 1] = {(char *)"ferry_perf"}, *rest = NULL;
    int count = 1;
    text[strcspn(text, "#")] = '\0';
    for (char *word = strtok_r(text, " \t\r\n", &rest); word != NULL && count < WORDS_MAX;
         word = strtok_r(NULL, " \t\r\n", &rest)) {
        words[count++] = word;
    }
    if (count == 1) {
        return FERRY_PENDING;
    }
    *parsed = *line;
    if (perf_wish_parse(parsed, count, words) != FERRY_OK) {
        char reason[ERROR_TEXT_BYTES];
        snprintf(reason, sizeof reason, "%s", ferry_last_error()->text);
        return error_raise(FERRY_ERR_INVALID_ARGUMENT, "%s:%u: %s", file, number, reason);
    }
    return FERRY_OK;
}

static ferry_status_t wish_keep(struct perf_command_line *line, const struct perf_wish *wish)
{
    size_t bytes = (line->wish_count + 1) * sizeof(line->wishes[0]);
    struct perf_wish *wishes = realloc(line->wishes, bytes);
    if (wishes == NULL) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory for the lines of -b '%s'", line->batch);
    }
    wishes[line->wish_count++] = *wish;
    line->wishes = wishes;
    return FERRY_OK;
}

ferry_status_t perf_batch_read(struct perf_command_line *line)
{
    char *text = NULL;
    size_t capacity = 0;
    ferry_status_t status = FERRY_OK;
    FILE *file = fopen(line->batch, "re");
    if (file == NULL) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT, "-b '%s' cannot be read: %s", line->batch,
                           strerror(errno));
    }
    for (unsigned number = 1; status == FERRY_OK && getline(&text, &capacity, file) >= 0;
         number++) {
        struct perf_command_line parsed;
        status = batch_parse(line->batch, number, text, line, &parsed);
        if (status == FERRY_OK) {
            status = wish_keep(line, &parsed.wish);
        } else if (status == FERRY_PENDING) {
            status = FERRY_OK;
        }
    }
    free(text);
    fclose(file);
    if (status == FERRY_OK && line->wish_count == 0) {
        status = error_raise(FERRY_ERR_INVALID_ARGUMENT,
                             "-b '%s' has no test: write a line for each, e.g. -t rpc_lat -s 4K",
                             line->batch);
    }
    return status;
}
