#include "ferry_perf/pattern.h"

#include <string.h>

#include "core/error.h"

/* SplitMix64 over the word's place: each word is told alone. */
static uint64_t word_of(uint64_t seed, size_t index)
{
    uint64_t word = (seed << 40) + index * UINT64_C(0x9e3779b97f4a7c15);
    word = (word ^ (word >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    word = (word ^ (word >> 27)) * UINT64_C(0x94d049bb133111eb);
    return word ^ (word >> 31);
}

void pattern_fill(void *data, size_t bytes, uint64_t seed)
{
    unsigned char *at = data;
    for (size_t i = 0; i < bytes; i += sizeof(uint64_t)) {
        uint64_t word = word_of(seed, i / sizeof(word) + 1);
        size_t part = bytes - i < sizeof(word) ? bytes - i : sizeof(word);
        memcpy(at + i, &word, part);
    }
}

ferry_status_t pattern_check(const void *data, size_t bytes, uint64_t seed)
{
    const unsigned char *at = data;
    for (size_t i = 0; i < bytes; i += sizeof(uint64_t)) {
        uint64_t word = word_of(seed, i / sizeof(word) + 1);
        size_t part = bytes - i < sizeof(word) ? bytes - i : sizeof(word);
        if (memcmp(at + i, &word, part) == 0) {
            continue;
        }
        unsigned char wanted[sizeof(word)];
        memcpy(wanted, &word, sizeof(word));
        size_t first = 0;
        while (at[i + first] == wanted[first]) {
            first++;
        }
        return error_raise(FERRY_ERR_PROTOCOL,
                           "the data is not what was sent: byte %zu of %zu is 0x%02x, not 0x%02x",
                           i + first, bytes, at[i + first], wanted[first]);
    }
    return FERRY_OK;
}
