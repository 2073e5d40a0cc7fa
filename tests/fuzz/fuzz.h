/* A fuzzer's two lives: with -DTEST_LIBFUZZER and clang's -fsanitize=fuzzer it searches; without, its
 * main() runs a fixed number of seeds, so that every build tests it. */
#ifndef TESTS_FUZZ_FUZZ_H
#define TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

#endif
