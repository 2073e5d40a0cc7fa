/* The text form of maps. The strict reader finds the first mistake; then the texts that people
 * bring from elsewhere are tried, so that the error can show the same map in Ferry's words. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/device_text.h"
#include "rpc/device_map.h"

#define TOKEN_BYTES 64
#define OTHER_WORDS_BYTES 512

struct parser {
    struct device_map_builder builder;
    const char *text;
    size_t at;
};

static ferry_status_t fail(const struct parser *parser, size_t position, const char *format, ...)
    FERRY_PRINTF(3, 4);

static ferry_status_t fail(const struct parser *parser, size_t position, const char *format, ...)
{
    char where[DEVICE_MAP_WHERE_BYTES], text[ERROR_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return error_raise(FERRY_ERR_DEVICE_MAP, "%s: %.600s",
                       device_map_where(where, &parser->builder, position), text);
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_word(char c)
{
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static void skip_spaces(struct parser *parser)
{
    while (is_space(parser->text[parser->at])) {
        parser->at++;
    }
}

static size_t arrow_read(const char *text, ferry_direction_t *direction_out)
{
    static const struct {
        const char *text;
        ferry_direction_t direction;
    } arrows[] = {{"<->", FERRY_BOTH}, {"->", FERRY_ARGUMENTS}, {"<-", FERRY_RESULTS}};
    for (size_t i = 0; i < sizeof arrows / sizeof arrows[0]; i++) {
        size_t bytes = strlen(arrows[i].text);
        if (strncmp(text, arrows[i].text, bytes) == 0) {
            *direction_out = arrows[i].direction;
            return bytes;
        }
    }
    return 0;
}

/* Does the thing that began with `first` end in front of `text`? */
static bool token_ends(char first, const char *text)
{
    ferry_direction_t direction;
    return *text == '\0' || is_space(*text) || *text == ',' || *text == ';' ||
           (is_word(first) ? arrow_read(text, &direction) > 0 : is_word(*text));
}

/* Bytes of the well-formed multi-byte UTF-8 sequence here, else 0. */
static size_t utf8_bytes(const char *text)
{
    unsigned char lead = (unsigned char)text[0];
    size_t bytes = lead >= 0xf0 && lead < 0xf5 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc2 ? 2 : 0;
    for (size_t i = 1; i < bytes; i++) {
        if (((unsigned char)text[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    return lead < 0xf5 ? bytes : 0;
}

/* What stands at the position, quoted for a message: a word or what is between words, bytes that
 * cannot be shown as \xNN; "the end" at the end. */
static const char *token_print(const struct parser *parser, size_t position,
                               char token[TOKEN_BYTES])
{
    const char *text = parser->text + position;
    if (*text == '\0') {
        snprintf(token, TOKEN_BYTES, "the end");
        return token;
    }
    const char first = *text;
    size_t length = 0;
    token[length++] = '"';
    do {
        size_t wide = utf8_bytes(text);
        if ((*text >= ' ' && *text < 0x7f) || wide > 0) {
            wide = wide > 0 ? wide : 1;
            memcpy(token + length, text, wide);
            length += wide;
            text += wide;
        } else {
            length += (size_t)snprintf(token + length, TOKEN_BYTES - length, "\\x%02x",
                                       (unsigned)(unsigned char)*text);
            text++;
        }
    } while (!token_ends(first, text) && length < TOKEN_BYTES - 6);
    snprintf(token + length, TOKEN_BYTES - length, "\"");
    return token;
}

/* kind or kind with digits behind it: what is wrong with a word that is no device. */
static ferry_status_t fail_word(const struct parser *parser, size_t start, size_t bytes)
{
    const char *word = parser->text + start;
    char token[TOKEN_BYTES];
    token_print(parser, start, token);
    size_t letters = bytes;
    while (letters > 0 && is_digit(word[letters - 1])) {
        letters--;
    }
    DLDeviceType type;
    if (letters == 0 && bytes > 0) {
        return fail(parser, start, "%s is a bare index, a device has its kind too: cuda:%.*s",
                    token, (int)(bytes < 12 ? bytes : 12), word);
    }
    if (letters < bytes && device_kind_find(word, letters, &type) && type != kDLCPU) {
        return fail(parser, start, "%s: write %.*s:%.*s", token, (int)letters, word,
                    (int)(bytes - letters < 12 ? bytes - letters : 12), word + letters);
    }
    if (bytes == 3 && memcmp(word, "any", 3) == 0) {
        return fail(parser, start,
                    "\"any\" is reserved for the callee's own choice, which this version does not "
                    "offer; name a device");
    }
    if (device_kind_find(word, bytes, &type) && type != kDLCPU) {
        return fail(parser, start, "%s lacks its index: %.*s:0, or %.*s:* for all of them", token,
                    (int)bytes, word, (int)bytes, word);
    }
    return fail(parser, start,
                "%s where a device should be: cpu, or one of the kinds cuda and sim with an index "
                "(cuda:0) or all of them (cuda:*)",
                token);
}

/* device := "cpu" | kind ":" index | kind ":*" */
static ferry_status_t read_device(struct parser *parser, DLDevice *device_out)
{
    char token[TOKEN_BYTES];
    size_t start = parser->at, end = start;
    while (is_word(parser->text[end])) {
        end++;
    }
    size_t bytes = end - start;
    DLDeviceType type;
    bool known = device_kind_find(parser->text + start, bytes, &type);
    if (known && type == kDLCPU) {
        if (parser->text[end] == ':' &&
            (is_digit(parser->text[end + 1]) || parser->text[end + 1] == '*')) {
            return fail(parser, start, "%s: there is one cpu, write it without an index",
                        token_print(parser, start, token));
        }
        *device_out = (DLDevice){.device_type = kDLCPU, .device_id = 0};
        parser->at = end;
        return FERRY_OK;
    }
    if (!known || parser->text[end] != ':') {
        return fail_word(parser, start, bytes);
    }
    size_t index_at = end + 1;
    if (parser->text[index_at] == '*') {
        *device_out = (DLDevice){.device_type = type, .device_id = FERRY_DEVICE_ANY_INDEX};
        parser->at = index_at + 1;
        return FERRY_OK;
    }
    for (end = index_at; is_word(parser->text[end]); end++) {
    }
    int32_t index;
    if (!device_index_read(parser->text + index_at, end - index_at, &index)) {
        if (end - index_at == 3 && memcmp(parser->text + index_at, "any", 3) == 0) {
            return fail(parser, start,
                        "\"%.*s\" is reserved for the callee's own choice, which this version does "
                        "not offer; name a device",
                        (int)(end - start), parser->text + start);
        }
        return fail(parser, index_at, "%s is no index: a number from 0 to %d, or * for all",
                    token_print(parser, index_at, token), DEVICE_INDEX_MAX);
    }
    *device_out = (DLDevice){.device_type = type, .device_id = index};
    parser->at = end;
    return FERRY_OK;
}

static ferry_status_t read_arrow(struct parser *parser, ferry_direction_t *direction_out)
{
    size_t bytes = arrow_read(parser->text + parser->at, direction_out);
    if (bytes == 0) {
        char token[TOKEN_BYTES];
        return fail(parser, parser->at,
                    "%s where an arrow should be: -> (arguments go there), <- (results come back) "
                    "or <-> (both)%s",
                    token_print(parser, parser->at, token),
                    parser->text[parser->at] == '\0' ? "; if a shell took the arrow, quote the text"
                                                     : "");
    }
    parser->at += bytes;
    return FERRY_OK;
}

/* rule := device arrow device */
static ferry_status_t read_rule(struct parser *parser, size_t clause)
{
    struct device_map_rule rule = {.position = parser->at};
    ferry_status_t status = read_device(parser, &rule.mine);
    if (status != FERRY_OK) {
        return status;
    }
    skip_spaces(parser);
    status = read_arrow(parser, &rule.direction);
    if (status != FERRY_OK) {
        return status;
    }
    skip_spaces(parser);
    status = read_device(parser, &rule.theirs);
    if (status != FERRY_OK) {
        return status;
    }
    skip_spaces(parser);
    return device_map_builder_rule(&parser->builder, clause, &rule);
}

/* A clause whose peer was left out begins with a device or an arrow. */
static ferry_status_t fail_without_peer(const struct parser *parser, size_t start)
{
    return fail(parser, start,
                "a rule without a peer: put the peer's name and a colon in front, or \"*:\" for "
                "every peer");
}

/* peer ":" */
static ferry_status_t read_peer(struct parser *parser, size_t *clause_out)
{
    const char *text = parser->text;
    char token[TOKEN_BYTES];
    size_t start = parser->at, end = start;
    ferry_direction_t direction;
    if (text[end] == '*') {
        end++;
    } else {
        while ((is_word(text[end]) || text[end] == '.' || text[end] == '-') &&
               arrow_read(text + end, &direction) == 0) {
            end++;
        }
    }
    parser->at = end;
    skip_spaces(parser);
    if (end == start) {
        return fail(parser, start,
                    "%s where a peer should be: its name (letters, digits and _.-) or \"*\"",
                    token_print(parser, start, token));
    }
    DLDeviceType type;
    bool looks_like_device = device_kind_find(text + start, end - start, &type) &&
                             text[end] == ':' && (is_digit(text[end + 1]) || text[end + 1] == '*');
    if (looks_like_device || arrow_read(text + parser->at, &direction) > 0) {
        return fail_without_peer(parser, start);
    }
    if (text[parser->at] != ':') {
        return fail(parser, parser->at, "%s behind the peer \"%.*s\", where a colon should be",
                    token_print(parser, parser->at, token),
                    (int)(end - start < 60 ? end - start : 60), text + start);
    }
    parser->at++;
    skip_spaces(parser);
    return device_map_builder_clause(&parser->builder, text + start, end - start, start,
                                     clause_out);
}

/* clause := peer ":" [rule {"," rule}] */
static ferry_status_t read_clause(struct parser *parser)
{
    size_t clause;
    ferry_status_t status = read_peer(parser, &clause);
    if (status != FERRY_OK) {
        return status;
    }
    if (parser->text[parser->at] == ';' || parser->text[parser->at] == '\0') {
        return FERRY_OK;
    }
    for (;;) {
        status = read_rule(parser, clause);
        if (status != FERRY_OK) {
            return status;
        }
        char next = parser->text[parser->at];
        if (next == ';' || next == '\0') {
            return FERRY_OK;
        }
        if (next != ',') {
            char token[TOKEN_BYTES];
            return fail(parser, parser->at,
                        "%s behind a rule: rules are separated by \",\", peers by \";\"",
                        token_print(parser, parser->at, token));
        }
        parser->at++;
        skip_spaces(parser);
    }
}

/* map := [clause {";" clause}] [";"] */
static ferry_status_t read_map(struct parser *parser)
{
    skip_spaces(parser);
    if (parser->text[parser->at] == ';') {
        parser->at++;
        skip_spaces(parser);
        return parser->text[parser->at] == '\0'
                   ? FERRY_OK
                   : fail(parser, parser->at, "the clause in front of \";\" is missing");
    }
    while (parser->text[parser->at] != '\0') {
        ferry_status_t status = read_clause(parser);
        if (status != FERRY_OK) {
            return status;
        }
        if (parser->text[parser->at] == ';') {
            parser->at++;
            skip_spaces(parser);
        }
    }
    return FERRY_OK;
}

/* Strictly what the grammar says. */
static ferry_status_t parse_strict(const char *text, const char *path, ferry_device_map_t **map_out)
{
    struct parser parser = {.text = text};
    ferry_status_t status = device_map_builder_init(&parser.builder, text, path);
    if (status != FERRY_OK) {
        return status;
    }
    status = read_map(&parser);
    if (status == FERRY_OK) {
        status = device_map_builder_finish(&parser.builder, map_out);
    }
    device_map_builder_discard(&parser.builder);
    return status;
}

/* Shows a Python map in Ferry's words, if those make a map. */
static ferry_status_t fail_python(const char *text)
{
    char map[OTHER_WORDS_BYTES];
    const char *note;
    ferry_device_map_t *same = NULL;
    if (!device_map_from_python(text, map, sizeof map, &note) ||
        parse_strict(map, NULL, &same) != FERRY_OK) {
        return error_raise(FERRY_ERR_DEVICE_MAP,
                           "device map: this looks like Python; Ferry's maps are written like "
                           "\"worker1: cuda:0<->cuda:1, cuda:1->cpu\"");
    }
    ferry_device_map_destroy(same);
    return error_raise(FERRY_ERR_DEVICE_MAP,
                       "device map: this is Python's form; in Ferry's words the same map is "
                       "\"%s\"%s",
                       map, note);
}

/* A text ending like this lost the rest to a shell, which took > for a redirection. */
static bool lost_to_shell(const char *text)
{
    size_t length = strlen(text);
    while (length > 0 && is_space(text[length - 1])) {
        length--;
    }
    return length > 0 && (text[length - 1] == '-' || text[length - 1] == '<');
}

static ferry_status_t parse_text(const char *text, const char *path, ferry_device_map_t **map_out)
{
    if (strchr(text, '{') != NULL) {
        return fail_python(text);
    }
    ferry_status_t status = parse_strict(text, path, map_out);
    if (status != FERRY_ERR_DEVICE_MAP) {
        return status;
    }
    char raised[ERROR_TEXT_BYTES], map[OTHER_WORDS_BYTES];
    snprintf(raised, sizeof raised, "%s", ferry_last_error()->text);
    if (lost_to_shell(text)) {
        return error_raise(status,
                           "%.700s; the text ends in the middle of an arrow: a shell takes > and < "
                           "for itself, so quote it: 'worker1: cuda:0->cuda:1'",
                           raised);
    }
    ferry_device_map_t *same = NULL;
    if (device_map_from_near_miss(text, map, sizeof map) &&
        parse_strict(map, NULL, &same) == FERRY_OK) {
        ferry_device_map_destroy(same);
        return error_raise(status, "%.480s; in Ferry's words: \"%s\"", raised, map);
    }
    return error_raise(status, "%s", raised);
}

/* Reads a whole file as a string. Owned by the caller: free(). */
static ferry_status_t file_read(const char *path, char **text_out)
{
    ferry_status_t status = FERRY_ERR_SYSTEM;
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return error_raise_errno(errno, "device map @%.255s", path);
    }
    char *text = malloc((size_t)FERRY_DEVICE_MAP_TEXT_BYTES_MAX + 2);
    if (text == NULL) {
        status = error_raise(FERRY_ERR_NO_MEMORY, "no memory for the device map @%.255s", path);
        goto close_file;
    }
    size_t length = fread(text, 1, (size_t)FERRY_DEVICE_MAP_TEXT_BYTES_MAX + 1, file);
    if (ferror(file)) {
        status = error_raise_errno(errno, "device map @%.255s", path);
        goto free_text;
    }
    text[length] = '\0';
    if (strlen(text) != length) {
        status = error_raise(FERRY_ERR_DEVICE_MAP, "device map @%.255s holds a NUL byte", path);
        goto free_text;
    }
    *text_out = text;
    text = NULL;
    status = FERRY_OK;
free_text:
    free(text);
close_file:
    fclose(file);
    return status;
}

ferry_status_t ferry_device_map_parse(const char *text, ferry_device_map_t **map_out)
{
    if (map_out == NULL) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT, "ferry_device_map_parse: map_out is NULL");
    }
    text = text == NULL ? "" : text;
    const char *path = text[0] == '@' ? text + 1 : NULL;
    char *owned = NULL;
    ferry_status_t status = FERRY_OK;
    if (path != NULL) {
        status = file_read(path, &owned);
        text = owned;
    }
    if (status == FERRY_OK &&
        strnlen(text, FERRY_DEVICE_MAP_TEXT_BYTES_MAX + 1) > FERRY_DEVICE_MAP_TEXT_BYTES_MAX) {
        status = error_raise(FERRY_ERR_LIMIT, "device map: the text is over %d bytes long",
                             FERRY_DEVICE_MAP_TEXT_BYTES_MAX);
    }
    if (status == FERRY_OK) {
        status = parse_text(text, path, map_out);
    }
    free(owned);
    return status;
}
