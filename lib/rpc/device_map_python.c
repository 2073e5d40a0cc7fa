/* Maps in the form of PyTorch RPC: {"worker1": {0: 1}}, {0: 1}, {"cuda:0": "cuda:1"}, {0, 1}, also
 * inside device_maps=... or set_device_map("worker1", ...). */
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "device/device_text.h"
#include "rpc/device_map.h"

#define PAIRS_MAX 64
#define SCALAR_BYTES 128

struct pair {
    DLDevice mine, theirs;
};

struct python {
    const char *at;
    char *out;
    size_t capacity, length;
    bool clauses, shared, set, star;
};

static void skip_spaces(struct python *python)
{
    python->at += strspn(python->at, " \t\r\n");
}

static bool take(struct python *python, char c)
{
    skip_spaces(python);
    if (*python->at != c) {
        return false;
    }
    python->at++;
    return true;
}

static bool append(struct python *python, const char *format, ...) FERRY_PRINTF(2, 3);

static bool append(struct python *python, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    size_t room = python->capacity - python->length;
    int written = vsnprintf(python->out + python->length, room, format, arguments);
    va_end(arguments);
    if (written < 0 || (size_t)written >= room) {
        return false;
    }
    python->length += (size_t)written;
    return true;
}

static bool read_quoted(struct python *python, char scalar[SCALAR_BYTES])
{
    char quote = *python->at++;
    const char *end = strchr(python->at, quote);
    if (end == NULL || end - python->at >= SCALAR_BYTES) {
        return false;
    }
    memcpy(scalar, python->at, (size_t)(end - python->at));
    scalar[end - python->at] = '\0';
    python->at = end + 1;
    return true;
}

static bool is_quote(char c)
{
    return c == '"' || c == '\'';
}

/* torch.device("cuda:1") and torch.device("cuda", 1). */
static bool read_torch_device(struct python *python, char scalar[SCALAR_BYTES])
{
    skip_spaces(python);
    if (!is_quote(*python->at) || !read_quoted(python, scalar)) {
        return false;
    }
    if (take(python, ',')) {
        skip_spaces(python);
        size_t digits = strspn(python->at, "0123456789");
        size_t length = strlen(scalar);
        if (digits == 0 || length + digits + 2 > SCALAR_BYTES) {
            return false;
        }
        snprintf(scalar + length, SCALAR_BYTES - length, ":%.*s", (int)digits, python->at);
        python->at += digits;
    }
    return take(python, ')');
}

/* A key or a value that is no dict: a string, a number, a torch.device. */
static bool read_scalar(struct python *python, char scalar[SCALAR_BYTES])
{
    static const char *const calls[] = {"torch.device(", "device("};
    skip_spaces(python);
    if (is_quote(*python->at)) {
        return read_quoted(python, scalar);
    }
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        if (strncmp(python->at, calls[i], strlen(calls[i])) == 0) {
            python->at += strlen(calls[i]);
            return read_torch_device(python, scalar);
        }
    }
    size_t bytes = 0;
    while (isalnum((unsigned char)python->at[bytes]) || python->at[bytes] == '_') {
        bytes++;
    }
    /* Unquoted cuda:0 is no Python, and is typed all the same. */
    if (bytes == 4 && strncmp(python->at, "cuda:", 5) == 0 &&
        isdigit((unsigned char)python->at[5])) {
        bytes = 5 + strspn(python->at + 5, "0123456789");
    }
    if (bytes == 0 || bytes >= SCALAR_BYTES) {
        return false;
    }
    memcpy(scalar, python->at, bytes);
    scalar[bytes] = '\0';
    python->at += bytes;
    return true;
}

/* PyTorch reads a bare index as that cuda device, and "cuda" as the current one, which is the first
 * unless someone changed it. */
static bool scalar_device(const char *scalar, DLDevice *device_out)
{
    if (strcmp(scalar, "cpu") == 0 || strcmp(scalar, "cpu:0") == 0) {
        *device_out = (DLDevice){.device_type = kDLCPU, .device_id = 0};
        return true;
    }
    const char *digits = strncmp(scalar, "cuda:", 5) == 0 ? scalar + 5 : scalar;
    digits = strcmp(scalar, "cuda") == 0 ? "0" : digits;
    *device_out = (DLDevice){.device_type = kDLCUDA, .device_id = 0};
    return device_index_read(digits, strlen(digits), &device_out->device_id);
}

/* As in Python, a key that comes twice keeps its last value. */
static bool pair_add(struct pair *pairs, size_t *count, DLDevice mine, DLDevice theirs)
{
    for (size_t i = 0; i < *count; i++) {
        if (tensor_device_equal(pairs[i].mine, mine)) {
            pairs[i].theirs = theirs;
            return true;
        }
    }
    if (*count == PAIRS_MAX) {
        return false;
    }
    pairs[(*count)++] = (struct pair){.mine = mine, .theirs = theirs};
    return true;
}

static bool write_clause(struct python *python, const char *peer, const struct pair *pairs,
                         size_t count)
{
    if (!append(python, "%s%s:", python->clauses ? "; " : "", peer)) {
        return false;
    }
    python->clauses = true;
    python->star = python->star || strcmp(peer, "*") == 0;
    for (size_t i = 0; i < count; i++) {
        bool shared = false;
        for (size_t k = 0; k < count; k++) {
            shared = shared || (k != i && tensor_device_equal(pairs[k].theirs, pairs[i].theirs));
        }
        python->shared = python->shared || shared;
        char mine[FERRY_DEVICE_TEXT_BYTES], theirs[FERRY_DEVICE_TEXT_BYTES];
        if (!append(python, "%s%s%s%s", i == 0 ? " " : ", ",
                    ferry_device_print(pairs[i].mine, mine), shared ? "->" : "<->",
                    ferry_device_print(pairs[i].theirs, theirs))) {
            return false;
        }
    }
    return true;
}

/* The rest of a set whose first member was read: two members are taken as "the first to the
 * second". */
static bool read_set(struct python *python, const char *first, struct pair *pairs, size_t *count)
{
    char second[SCALAR_BYTES];
    DLDevice mine, theirs;
    python->set = true;
    if (!take(python, ',') || !read_scalar(python, second)) {
        return false;
    }
    take(python, ',');
    return take(python, '}') && *count == 0 && scalar_device(first, &mine) &&
           scalar_device(second, &theirs) && pair_add(pairs, count, mine, theirs);
}

/* The entries of a dict that maps devices, up to its closing brace. */
static bool read_devices(struct python *python, const char *first, struct pair *pairs,
                         size_t *count)
{
    char key[SCALAR_BYTES], value[SCALAR_BYTES];
    snprintf(key, sizeof key, "%s", first == NULL ? "" : first);
    for (bool have_key = first != NULL;; have_key = false) {
        if (!have_key) {
            if (take(python, '}')) {
                return true;
            }
            if (!read_scalar(python, key)) {
                return false;
            }
        }
        if (!take(python, ':')) {
            return read_set(python, key, pairs, count);
        }
        DLDevice mine, theirs;
        if (!read_scalar(python, value) || !scalar_device(key, &mine) ||
            !scalar_device(value, &theirs) || !pair_add(pairs, count, mine, theirs)) {
            return false;
        }
        if (!take(python, ',')) {
            return take(python, '}');
        }
    }
}

static bool write_devices(struct python *python, const char *peer, const char *first)
{
    struct pair pairs[PAIRS_MAX];
    size_t count = 0;
    return read_devices(python, first, pairs, &count) && write_clause(python, peer, pairs, count);
}

/* The outer dict: peers with dicts of devices, or devices at once. */
static bool read_outer(struct python *python, const char *peer)
{
    for (;;) {
        char key[SCALAR_BYTES];
        if (take(python, '}')) {
            return true;
        }
        if (!read_scalar(python, key)) {
            return false;
        }
        const char *behind_key = python->at;
        if (!take(python, ':') || !take(python, '{')) {
            python->at = behind_key;
            return !python->clauses && write_devices(python, peer, key);
        }
        if (!write_devices(python, key, NULL)) {
            return false;
        }
        if (!take(python, ',')) {
            return take(python, '}');
        }
    }
}

bool device_map_from_python(const char *text, char *out, size_t capacity, const char **note_out)
{
    struct python python = {.at = text, .out = out, .capacity = capacity};
    const char *brace = strchr(text, '{');
    if (brace == NULL || capacity == 0) {
        return false;
    }
    out[0] = '\0';
    char peer[SCALAR_BYTES] = "*";
    const char *quote = strpbrk(text, "\"'");
    if (quote != NULL && quote < brace) {
        python.at = quote;
        if (!read_quoted(&python, peer)) {
            return false;
        }
    }
    python.at = brace + 1;
    if (!read_outer(&python, peer)) {
        return false;
    }
    if (python.shared) {
        *note_out = " (-> where two devices share one there: results_device says where results go)";
    } else if (python.set) {
        *note_out = " if the first was meant to go to the second";
    } else if (python.star) {
        *note_out = " (put the peer's name in place of * to mean one peer)";
    } else {
        *note_out = "";
    }
    return true;
}
