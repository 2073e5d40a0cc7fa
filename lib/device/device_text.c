#include "device/device_text.h"

#include <stdio.h>
#include <string.h>

#include <ferry/device_map.h>

#include "core/error.h"

static const struct {
    const char *name;
    DLDeviceType type;
} kinds[] = {
    {"cpu", kDLCPU},
    {"cuda", kDLCUDA},
    {"sim", (DLDeviceType)FERRY_DEVICE_SIM},
};

#define KIND_COUNT (sizeof kinds / sizeof kinds[0])

const char *device_kind_name(DLDeviceType type)
{
    for (size_t i = 0; i < KIND_COUNT; i++) {
        if (kinds[i].type == type) {
            return kinds[i].name;
        }
    }
    return NULL;
}

bool device_kind_find(const char *text, size_t bytes, DLDeviceType *type_out)
{
    for (size_t i = 0; i < KIND_COUNT; i++) {
        if (strlen(kinds[i].name) == bytes && memcmp(kinds[i].name, text, bytes) == 0) {
            *type_out = kinds[i].type;
            return true;
        }
    }
    return false;
}

bool device_index_read(const char *text, size_t bytes, int32_t *index_out)
{
    int32_t index = 0;
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] < '0' || text[i] > '9') {
            return false;
        }
        index = index * 10 + (text[i] - '0');
        if (index > DEVICE_INDEX_MAX) {
            return false;
        }
    }
    *index_out = index;
    return bytes > 0;
}

ferry_status_t ferry_device_parse(const char *text, DLDevice *device_out)
{
    if (text == NULL || device_out == NULL) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT, "ferry_device_parse: %s is NULL",
                           text == NULL ? "text" : "device_out");
    }
    if (strcmp(text, "cpu") == 0) {
        *device_out = (DLDevice){.device_type = kDLCPU, .device_id = 0};
        return FERRY_OK;
    }
    const char *colon = strchr(text, ':');
    DLDeviceType type;
    int32_t index;
    if (colon == NULL || !device_kind_find(text, (size_t)(colon - text), &type) || type == kDLCPU ||
        !device_index_read(colon + 1, strlen(colon + 1), &index)) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT,
                           "'%.60s' is no device: write cpu, cuda:0 or sim:0", text);
    }
    *device_out = (DLDevice){.device_type = type, .device_id = index};
    return FERRY_OK;
}

const char *ferry_device_print(DLDevice device, char buffer[FERRY_DEVICE_TEXT_BYTES])
{
    DLDeviceType type = device.device_type;
    if (type == kDLCPU || type == kDLCUDAHost) {
        snprintf(buffer, FERRY_DEVICE_TEXT_BYTES, "cpu");
        return buffer;
    }
    const char *kind = device_kind_name(type == kDLCUDAManaged ? kDLCUDA : type);
    if (kind == NULL) {
        snprintf(buffer, FERRY_DEVICE_TEXT_BYTES, "type%d:%d", (int)type, (int)device.device_id);
    } else if (device.device_id == FERRY_DEVICE_ANY_INDEX) {
        snprintf(buffer, FERRY_DEVICE_TEXT_BYTES, "%s:*", kind);
    } else {
        snprintf(buffer, FERRY_DEVICE_TEXT_BYTES, "%s:%d", kind, (int)device.device_id);
    }
    return buffer;
}
