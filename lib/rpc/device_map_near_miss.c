/* Texts that are almost maps: "0->1", "worker1: cuda0 => cuda1", "cuda:0:cuda:1", arrows from other
 * alphabets. They are read generously and written strictly; whether that makes a map is the strict
 * reader's decision. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "device/device_text.h"
#include "rpc/device_map.h"

#define TOKENS_MAX 256

enum token_kind { TOKEN_WORD, TOKEN_COLON, TOKEN_COMMA, TOKEN_ARROW };

struct token {
    enum token_kind kind;
    const char *text; /* a word's */
    int bytes;
    ferry_direction_t direction; /* an arrow's */
};

struct output {
    char *text;
    size_t capacity, length;
    bool cut;
};

static void put(struct output *output, const char *text, size_t bytes)
{
    if (output->length + bytes >= output->capacity) {
        output->cut = true;
        return;
    }
    memcpy(output->text + output->length, text, bytes);
    output->length += bytes;
    output->text[output->length] = '\0';
}

static void put_text(struct output *output, const char *text)
{
    put(output, text, strlen(text));
}

/* Longer arrows come before those they begin with. */
static size_t arrow_find(const char *text, size_t bytes, ferry_direction_t *direction_out)
{
    static const struct {
        const char *text;
        ferry_direction_t direction;
    } arrows[] = {
        {"<-->", FERRY_BOTH},        {"<==>", FERRY_BOTH},      {"<->", FERRY_BOTH},
        {"<=>", FERRY_BOTH},         {"-->", FERRY_ARGUMENTS},  {"==>", FERRY_ARGUMENTS},
        {"<--", FERRY_RESULTS},      {"<==", FERRY_RESULTS},    {"->", FERRY_ARGUMENTS},
        {"=>", FERRY_ARGUMENTS},     {"<-", FERRY_RESULTS},     {"<=", FERRY_RESULTS},
        {"\u2192", FERRY_ARGUMENTS}, {"\u2190", FERRY_RESULTS}, {"\u2194", FERRY_BOTH},
        {"\u21d2", FERRY_ARGUMENTS}, {"\u21d0", FERRY_RESULTS}, {"\u21d4", FERRY_BOTH},
        {"\u27f6", FERRY_ARGUMENTS}, {"\u27f5", FERRY_RESULTS}, {"\u27f7", FERRY_BOTH},
        {">", FERRY_ARGUMENTS},      {"<", FERRY_RESULTS},
    };
    for (size_t i = 0; i < sizeof arrows / sizeof arrows[0]; i++) {
        size_t length = strlen(arrows[i].text);
        if (length <= bytes && memcmp(text, arrows[i].text, length) == 0) {
            *direction_out = arrows[i].direction;
            return length;
        }
    }
    return 0;
}

static bool is_word(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           c == '.' || c == '-';
}

/* Splits one clause; false when something stands there that has no meaning even here. */
static bool clause_split(const char *text, size_t bytes, struct token *tokens, size_t *count_out)
{
    size_t count = 0;
    for (size_t i = 0; i < bytes;) {
        struct token token = {.text = text + i};
        size_t arrow = arrow_find(text + i, bytes - i, &token.direction);
        size_t length = arrow;
        if (strchr(" \t\r\n\"'", text[i]) != NULL) {
            i++;
            continue;
        }
        if (arrow > 0) {
            token.kind = TOKEN_ARROW;
        } else if (text[i] == ':' || text[i] == '=') {
            token.kind = TOKEN_COLON;
            length = 1;
        } else if (text[i] == ',') {
            token.kind = TOKEN_COMMA;
            length = 1;
        } else {
            token.kind = TOKEN_WORD;
            length = text[i] == '*' ? 1 : 0;
            ferry_direction_t ignored;
            while (length + i < bytes && text[i] != '*' && is_word(text[i + length]) &&
                   arrow_find(text + i + length, bytes - i - length, &ignored) == 0) {
                length++;
            }
        }
        if (length == 0 || count == TOKENS_MAX) {
            return false;
        }
        token.bytes = (int)length;
        tokens[count++] = token;
        i += length;
    }
    *count_out = count;
    return true;
}

static bool word_is(const struct token *token, const char *text)
{
    return token->kind == TOKEN_WORD && (size_t)token->bytes == strlen(text) &&
           strncasecmp(token->text, text, (size_t)token->bytes) == 0;
}

/* Puts `kind` and the index in Ferry's form. */
static bool put_indexed(struct output *output, const char *kind, const char *index, int bytes)
{
    int32_t number;
    char text[FERRY_DEVICE_TEXT_BYTES];
    if (bytes == 1 && index[0] == '*') {
        snprintf(text, sizeof text, "%s:*", kind);
    } else if (device_index_read(index, (size_t)bytes, &number)) {
        snprintf(text, sizeof text, "%s:%d", kind, (int)number);
    } else {
        return false;
    }
    put_text(output, text);
    return true;
}

/* Reads a device at the front of the tokens and puts it; returns how many it takes, 0 when there is
 * none. */
static size_t device_put(struct output *output, const struct token *tokens, size_t count)
{
    static const struct {
        const char *typed, *kind;
    } words[] = {{"cuda", "cuda"}, {"gpu", "cuda"}, {"sim", "sim"}};
    if (count == 0 || tokens[0].kind != TOKEN_WORD) {
        return 0;
    }
    if (word_is(tokens, "cpu")) {
        bool indexed = count >= 3 && tokens[1].kind == TOKEN_COLON && word_is(&tokens[2], "0");
        put_text(output, "cpu");
        return indexed ? 3 : 1;
    }
    if (put_indexed(output, "cuda", tokens[0].text, tokens[0].bytes)) {
        return tokens[0].text[0] == '*' ? 0 : 1;
    }
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        int bytes = (int)strlen(words[i].typed);
        if (tokens[0].bytes < bytes ||
            strncasecmp(tokens[0].text, words[i].typed, (size_t)bytes) != 0) {
            continue;
        }
        if (tokens[0].bytes > bytes) {
            return put_indexed(output, words[i].kind, tokens[0].text + bytes,
                               tokens[0].bytes - bytes);
        }
        if (count >= 3 && tokens[1].kind == TOKEN_COLON && tokens[2].kind == TOKEN_WORD &&
            put_indexed(output, words[i].kind, tokens[2].text, tokens[2].bytes)) {
            return 3;
        }
    }
    return 0;
}

/* Rules up to the end. A colon between two devices is a dict's, which maps both ways. */
static bool rules_put(struct output *output, const struct token *tokens, size_t count)
{
    for (size_t i = 0;;) {
        size_t mine = device_put(output, tokens + i, count - i);
        i += mine;
        if (mine == 0 || i >= count ||
            (tokens[i].kind != TOKEN_ARROW && tokens[i].kind != TOKEN_COLON)) {
            return false;
        }
        put_text(output, device_map_arrow(tokens[i].kind == TOKEN_COLON ? FERRY_BOTH
                                                                        : tokens[i].direction));
        i++;
        size_t theirs = device_put(output, tokens + i, count - i);
        i += theirs;
        if (theirs == 0 || i == count) {
            return theirs > 0;
        }
        if (tokens[i++].kind != TOKEN_COMMA) {
            return false;
        }
        put_text(output, ", ");
    }
}

/* A clause without a peer is tried first: "cuda:0:cuda:1" is no peer of the name cuda. */
static bool clause_put(struct output *output, const char *text, size_t bytes)
{
    struct token tokens[TOKENS_MAX] = {{.text = ""}};
    size_t count, start = output->length;
    if (!clause_split(text, bytes, tokens, &count)) {
        return false;
    }
    put_text(output, "*: ");
    if (rules_put(output, tokens, count)) {
        return true;
    }
    output->length = start;
    if (count < 2 || tokens[0].kind != TOKEN_WORD || tokens[1].kind != TOKEN_COLON) {
        return false;
    }
    put(output, tokens[0].text, (size_t)tokens[0].bytes);
    put_text(output, count == 2 ? ":" : ": ");
    return count == 2 || rules_put(output, tokens + 2, count - 2);
}

bool device_map_from_near_miss(const char *text, char *out, size_t capacity)
{
    struct output output = {.text = out, .capacity = capacity};
    while (*text != '\0') {
        size_t bytes = strcspn(text, ";");
        if (strspn(text, " \t\r\n") < bytes) {
            if (output.length > 0) {
                put_text(&output, "; ");
            }
            if (!clause_put(&output, text, bytes) || output.cut) {
                return false;
            }
        }
        text += bytes + (text[bytes] == ';');
    }
    return output.length > 0;
}
