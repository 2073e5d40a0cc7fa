#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "rpc/transfer_internal.h"

void transfer_paths_parse(struct transfer_engine *engine, const char *paths)
{
    engine->no_direct = false;
    engine->no_staged = false;
    while (paths != NULL && *paths != '\0') {
        size_t length = strcspn(paths, ", ");
        engine->no_direct = engine->no_direct || (length == 7 && memcmp(paths, "^direct", 7) == 0);
        engine->no_staged = engine->no_staged || (length == 7 && memcmp(paths, "^staged", 7) == 0);
        paths += length + (paths[length] != '\0');
    }
}

static bool link_takes(uint32_t capabilities, DLDeviceType type)
{
    switch ((int)type) {
    case kDLCUDA:
        return (capabilities & FERRY_TRANSPORT_CUDA) != 0;
    case kDLExtDev:
        return (capabilities & FERRY_TRANSPORT_SIM) != 0;
    default:
        return false;
    }
}

/* "4 MiB" where that is exact, else the plain number. */
static const char *bytes_print(char text[32], uint64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB"};
    size_t unit = 0;
    while (unit < 3 && bytes >= 1024 && bytes % 1024 == 0) {
        bytes /= 1024;
        unit++;
    }
    snprintf(text, 32, "%llu %s", (unsigned long long)bytes, units[unit]);
    return text;
}

/* Every segment is chosen for and few are asked about: without room for it no text is made. */
FERRY_PRINTF(3, 4)
static void reason_print(char *reason, size_t reason_bytes, const char *format, ...)
{
    if (reason_bytes == 0) {
        return;
    }
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, reason_bytes, format, arguments);
    va_end(arguments);
}

static enum transfer_path device_choose(const struct transfer_engine *engine, bool takes,
                                        const char *kind, uint64_t bytes, uint64_t operation_bytes,
                                        char *reason, size_t reason_bytes)
{
    char size[32];
    if (!takes || engine->no_direct) {
        const char *why = takes ? "FERRY_PATHS excludes direct" : "the transport takes host memory";
        if (engine->no_staged) {
            reason_print(reason, reason_bytes, "%s and FERRY_PATHS excludes staged", why);
            return TRANSFER_NONE;
        }
        reason_print(reason, reason_bytes, "%s%s", why, takes ? "" : " only");
        return TRANSFER_STAGED;
    }
    if (engine->no_staged) {
        reason_print(reason, reason_bytes,
                     "the transport takes %s memory; FERRY_PATHS excludes staged", kind);
        return TRANSFER_DIRECT;
    }
    if (bytes >= engine->direct_min_bytes) {
        reason_print(reason, reason_bytes, "the transport takes %s memory; %s >= FERRY_DIRECT_MIN",
                     kind, bytes_print(size, bytes));
        return TRANSFER_DIRECT;
    }
    if (operation_bytes > engine->chunk_bytes) {
        reason_print(
            reason, reason_bytes,
            "the transport takes %s memory; the peer's operations of %s exceed FERRY_CHUNK", kind,
            bytes_print(size, operation_bytes));
        return TRANSFER_DIRECT;
    }
    reason_print(reason, reason_bytes, "%s < FERRY_DIRECT_MIN", bytes_print(size, bytes));
    return TRANSFER_STAGED;
}

enum transfer_path transfer_choose(const struct transfer_engine *engine, uint32_t link_capabilities,
                                   DLDevice device, uint64_t bytes, uint64_t operation_bytes,
                                   char *reason, size_t reason_bytes)
{
    device = device_normal(device);
    if (bytes == 0) {
        reason_print(reason, reason_bytes, "no bytes");
        return TRANSFER_NONE;
    }
    if (device.device_type == kDLCPU) {
        reason_print(reason, reason_bytes, "host memory");
        return TRANSFER_HOST;
    }
    const ferry_device_backend_t *backend = device_backend(device.device_type);
    if (backend != NULL && backend->host_readable) {
        reason_print(reason, reason_bytes, "the host can read %s memory", backend->kind);
        return TRANSFER_HOST;
    }
    const char *kind = device_kind_name(device.device_type);
    return device_choose(engine, link_takes(link_capabilities, device.device_type),
                         kind != NULL ? kind : "this device's", bytes, operation_bytes, reason,
                         reason_bytes);
}

uint64_t transfer_operation_bytes(const struct transfer_engine *engine, uint32_t link_capabilities,
                                  DLDevice source, uint64_t bytes, uint64_t peer_operation_bytes)
{
    uint64_t bound = engine->chunk_bytes;
    if (transfer_choose(engine, link_capabilities, source, bytes, 0, NULL, 0) == TRANSFER_DIRECT) {
        bound = UINT64_MAX;
    }
    if (peer_operation_bytes != 0 && peer_operation_bytes < bound) {
        bound = peer_operation_bytes;
    }
    return bytes < bound ? bytes : bound;
}

uint64_t transfer_operation_count(uint64_t bytes, uint64_t operation_bytes)
{
    return bytes == 0 ? 0 : (bytes - 1) / operation_bytes + 1;
}

uint64_t transfer_receive_bound(const struct transfer_engine *engine, uint32_t link_capabilities)
{
    DLDevice devices[DEVICE_LIST_MAX];
    size_t count = device_list(devices);
    for (size_t i = 0; i < count; i++) {
        if (transfer_choose(engine, link_capabilities, devices[i], UINT64_MAX, UINT64_MAX, NULL,
                            0) == TRANSFER_STAGED) {
            return engine->chunk_bytes;
        }
    }
    return 0;
}
