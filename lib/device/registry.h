/* The kinds of device of this process. The one place that names them: cpu, sim and, when its module
 * loads, cuda. Any thread. */
#ifndef FERRY_DEVICE_REGISTRY_H
#define FERRY_DEVICE_REGISTRY_H

#include <ferry/device.h>
#include <ferry/device_backend.h>

#include "device/device_text.h"

#define DEVICE_KINDS_MAX 8
#define DEVICE_LIST_MAX 256

/* Pinned host memory becomes cpu, managed memory its cuda device; cpu's index becomes 0. */
DLDevice device_normal(DLDevice device);

/* The back end of a normalised device kind, loading its module at first use; NULL where this process
 * has none (nothing is raised). */
const ferry_device_backend_t *device_backend(DLDeviceType type);

/* The same for one device, normalised here; raises FERRY_ERR_UNKNOWN_DEVICE that names the devices
 * there are and why a kind that Ferry knows is not here. */
ferry_status_t device_check(DLDevice device, const ferry_device_backend_t **backend_out);

/* The DLPack type of a kind's name ("sim"), whether present or not. FERRY_ERR_NOT_FOUND (not raised)
 * for unknown kinds. */
ferry_status_t device_kind_parse(const char *kind, size_t bytes, DLDeviceType *type_out);

/* All devices of this process, cpu first; returns how many were written (at most DEVICE_LIST_MAX). */
size_t device_list(DLDevice devices[DEVICE_LIST_MAX]);

/* Why a kind that Ferry knows has no device here ("libferry_cuda.so: cannot open shared object
 * file"); "" when it has. */
const char *device_missing(DLDeviceType type);

#endif
