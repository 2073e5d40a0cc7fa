/* The back ends inside libferry: between the files that define them and the registry. */
#ifndef FERRY_DEVICE_BUILTIN_H
#define FERRY_DEVICE_BUILTIN_H

#include <ferry/device_backend.h>

extern const ferry_device_backend_t device_cpu;
extern const ferry_device_backend_t device_sim;

#endif
