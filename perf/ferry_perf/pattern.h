/* Bytes that look random and that either end can say again from their seed. */
#ifndef FERRY_PERF_PATTERN_H
#define FERRY_PERF_PATTERN_H

#include <stddef.h>
#include <stdint.h>

#include <ferry/status.h>

void pattern_fill(void *data, size_t bytes, uint64_t seed);
/* FERRY_ERR_PROTOCOL names the first byte that is another. */
ferry_status_t pattern_check(const void *data, size_t bytes, uint64_t seed);

#endif
