/* The kinds of device that have a name in texts. */
#ifndef FERRY_DEVICE_TEXT_H
#define FERRY_DEVICE_TEXT_H

#include <stdbool.h>
#include <stddef.h>

#include <ferry/device.h>

#define DEVICE_KINDS_TEXT "cpu, cuda and sim"

/* The largest index that a text may name. */
#define DEVICE_INDEX_MAX 999999

/* "cpu", "cuda", "sim"; NULL for a type without a name here. */
const char *device_kind_name(DLDeviceType type);

/* The type of the kind that the `bytes` bytes of text name; false when there is none. */
bool device_kind_find(const char *text, size_t bytes, DLDeviceType *type_out);

/* Digits and nothing else, at most DEVICE_INDEX_MAX. */
bool device_index_read(const char *text, size_t bytes, int32_t *index_out);

#endif
