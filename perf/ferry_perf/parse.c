/* The values of flags, and what is wrong with those that are none. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ferry/device.h>

#include "core/error.h"
#include "ferry_perf/frame.h"

#define SIZE_MOST (UINT64_C(1) << 40)
#define CPU_MOST 4095

bool perf_list_next(const char **list, char *part, size_t capacity)
{
    size_t length = strcspn(*list, ",");
    if (length == 0 || length >= capacity) {
        return false;
    }
    memcpy(part, *list, length);
    part[length] = '\0';
    *list += length + ((*list)[length] == ',' && (*list)[length + 1] != '\0');
    return true;
}

/* Digits, and K, M or G where units are taken. */
static bool number_read(const char *text, bool units, uint64_t *number_out)
{
    char *end = NULL;
    if (text[0] < '0' || text[0] > '9') {
        return false;
    }
    errno = 0;
    uint64_t number = strtoull(text, &end, 10);
    unsigned shift = 0;
    switch (units ? *end : '\0') {
    case 'K':
    case 'k':
        shift = 10;
        break;
    case 'M':
    case 'm':
        shift = 20;
        break;
    case 'G':
    case 'g':
        shift = 30;
        break;
    default:
        break;
    }
    end += shift > 0;
    if (errno != 0 || *end != '\0' || number > UINT64_MAX >> shift) {
        return false;
    }
    *number_out = number << shift;
    return true;
}

ferry_status_t perf_parse_count(const char *flag, const char *text, uint64_t least, uint64_t most,
                                uint64_t *count_out)
{
    uint64_t count;
    if (!number_read(text, true, &count) || count < least || count > most) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT, "%s '%s' is no number from %llu to %llu",
                           flag, text, (unsigned long long)least, (unsigned long long)most);
    }
    *count_out = count;
    return FERRY_OK;
}

static ferry_status_t sizes_refuse(const char *text, const char *reason)
{
    return error_raise(FERRY_ERR_INVALID_ARGUMENT,
                       "-s '%s' %s: write 4096, a list 4,64K,1M, or powers of two 1K:1M", text,
                       reason);
}

/* "1K:1M": 1K, 2K, 4K, ... up to 1M. */
static bool powers_read(char *part, uint64_t *first_out, uint64_t *last_out)
{
    char *colon = strchr(part, ':');
    if (colon == NULL) {
        bool good = number_read(part, true, first_out);
        *last_out = *first_out;
        return good;
    }
    *colon = '\0';
    return number_read(part, true, first_out) && number_read(colon + 1, true, last_out) &&
           *first_out > 0 && *first_out <= *last_out;
}

ferry_status_t perf_parse_sizes(const char *text, size_t sizes[PERF_SIZES_MAX], size_t *count_out)
{
    char part[64];
    size_t count = 0;
    const char *rest = text;
    while (*rest != '\0') {
        uint64_t first = 0, last = 0;
        if (!perf_list_next(&rest, part, sizeof part) || !powers_read(part, &first, &last) ||
            last > SIZE_MOST) {
            return sizes_refuse(text, "is no size");
        }
        for (uint64_t bytes = first; bytes <= last; bytes *= 2) {
            if (count == PERF_SIZES_MAX) {
                return sizes_refuse(text, "has more than 64 sizes");
            }
            sizes[count++] = bytes;
            if (bytes == 0) {
                break;
            }
        }
    }
    if (count == 0) {
        return sizes_refuse(text, "is no size");
    }
    *count_out = count;
    return FERRY_OK;
}

/* Splits "client,server" or one text for both; false: neither. */
static bool pair_split(const char *text, char parts[2][32], size_t *count_out)
{
    const char *comma = strchr(text, ',');
    size_t first = comma == NULL ? strlen(text) : (size_t)(comma - text);
    if (first >= 32 || (comma != NULL && strlen(comma + 1) >= 32)) {
        return false;
    }
    snprintf(parts[0], 32, "%.*s", (int)first, text);
    snprintf(parts[1], 32, "%s", comma == NULL ? text : comma + 1);
    *count_out = comma == NULL ? 1 : 2;
    return true;
}

ferry_status_t perf_parse_memory(const char *text, DLDevice memory_out[2])
{
    char parts[2][32];
    DLDevice memory[2];
    size_t count;
    bool good = pair_split(text, parts, &count);
    for (size_t i = 0; good && i < 2; i++) {
        const char *name = parts[i];
        if (strcmp(name, "host") == 0) {
            name = "cpu";
        } else if (strcmp(name, "cuda") == 0) {
            name = "cuda:0";
        }
        good = ferry_device_parse(name, &memory[i]) == FERRY_OK;
    }
    if (!good) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT,
                           "-m '%s' is no memory: write host, cuda:0 or sim:0, or a pair "
                           "client,server: cuda:0,host",
                           text);
    }
    memory_out[0] = memory[0];
    memory_out[1] = memory[1];
    return FERRY_OK;
}

/* "3" or "0-3". */
static bool cpus_read(char *text, struct perf_cpus *cpus)
{
    uint64_t first, last;
    char *dash = strchr(text, '-');
    if (dash != NULL) {
        *dash = '\0';
    }
    if (!number_read(text, false, &first) ||
        !number_read(dash == NULL ? text : dash + 1, false, &last) || last < first ||
        last > CPU_MOST) {
        return false;
    }
    *cpus = (struct perf_cpus){.first = (int)first, .last = (int)last};
    return true;
}

ferry_status_t perf_parse_cpus(const char *text, struct perf_cpus cpus_out[2])
{
    char parts[2][32];
    struct perf_cpus cpus[2];
    size_t count;
    bool good = pair_split(text, parts, &count);
    for (size_t i = 0; good && i < count; i++) {
        good = cpus_read(parts[i], &cpus[i]);
    }
    if (!good) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT,
                           "-c '%s' is no CPU list: write the client's and the server's, 0,1 or "
                           "0-3,4-7",
                           text);
    }
    cpus_out[0] = cpus[0];
    cpus_out[1] = count == 2 ? cpus[1] : (struct perf_cpus){.first = -1};
    return FERRY_OK;
}

static bool real_read(const char *text, double *real_out)
{
    char *end = NULL;
    if (strspn(text, "0123456789.") != strlen(text) || *text == '\0') {
        return false;
    }
    *real_out = strtod(text, &end);
    return *end == '\0' && end != text;
}

ferry_status_t perf_parse_ranks(const char *text, double ranks[PERF_RANKS_MAX], size_t *count_out)
{
    char part[32];
    size_t count = 0;
    const char *rest = text;
    bool good = *text != '\0';
    while (good && *rest != '\0') {
        good = count < PERF_RANKS_MAX && perf_list_next(&rest, part, sizeof part) &&
               real_read(part, &ranks[count]) && ranks[count] <= 100;
        count++;
    }
    if (!good) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT,
                           "-R '%s' is no list of percentiles: write up to %d from 0 to 100, e.g. "
                           "50,99,99.9",
                           text, PERF_RANKS_MAX);
    }
    *count_out = count;
    return FERRY_OK;
}

ferry_status_t perf_parse_seconds(const char *text, double *seconds_out)
{
    double seconds;
    if (!real_read(text, &seconds) || seconds < 0.001 || seconds > 86400) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT,
                           "-D '%s' is no time: write seconds from 0.001 to 86400, e.g. 0.5", text);
    }
    *seconds_out = seconds;
    return FERRY_OK;
}
