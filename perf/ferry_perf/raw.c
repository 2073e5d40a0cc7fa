/* UCX alone, as a program that is written by hand uses it. */
#include "ferry_perf/perf.h"

const struct perf_test perf_raw_tests[] = {{.name = NULL}};
