/* What every back end of a kind of device must do: one list of checks, run by a Criterion test where
 * there is one and by a plain program on machines with GPUs. */
#ifndef TESTS_SUPPORT_DEVICE_CONTRACT_H
#define TESTS_SUPPORT_DEVICE_CONTRACT_H

#include <stdbool.h>
#include <stddef.h>

#include <ferry/device_backend.h>

size_t device_contract_count(void);
const char *device_contract_name(size_t check);
/* Runs one check on one device; false, with a text, when it does not hold. */
bool device_contract_run(size_t check, const ferry_device_backend_t *backend, int32_t index,
                         char *failure, size_t failure_bytes);

#endif
