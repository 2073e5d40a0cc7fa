/* Ferry's transport contract without the calls above it. */
#include "ferry_perf/perf.h"

const struct perf_test perf_transport_tests[] = {{.name = NULL}};
