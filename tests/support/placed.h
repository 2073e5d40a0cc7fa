/* Bytes on any device of this process: the tests of devices put them there and look at them again. */
#ifndef TESTS_SUPPORT_PLACED_H
#define TESTS_SUPPORT_PLACED_H

#include <ferry/sim.h>

#include "support/pair.h"

extern const DLDevice test_sim0, test_sim1;

/* TestSuite's .init: two simulated devices in this process. */
void test_sim_on(void);

struct placed {
    DLDevice device;
    void *memory;
    size_t bytes;
};

/* source NULL: zeros. Stops the process when there is no such device. */
void placed_init(struct placed *placed, DLDevice device, const void *source, size_t bytes);
void placed_read(const struct placed *placed, void *target);
void placed_finish(struct placed *placed);

/* A C-order tensor over all of it, of one dimension and bytes; shape is the caller's. */
ferry_tensor_t placed_tensor(const char *name, const struct placed *placed, int64_t shape[1]);

/* The bytes of a tensor in C order, from wherever it lies. */
void test_fetch(const ferry_tensor_t *tensor, void *target);

bool test_on(const ferry_tensor_t *tensor, DLDevice device);

#endif
