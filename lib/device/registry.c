#include "device/registry.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"
#include "core/log.h"
#include "device/builtin.h"
#include "device/layout.h"

#ifndef FERRY_MODULE_DIR
#define FERRY_MODULE_DIR "/usr/local/lib/ferry"
#endif

#define CUDA_MODULE "libferry_cuda.so"

static struct {
    const ferry_device_backend_t *backend;
    char missing[512];
} cuda;

static pthread_once_t cuda_once = PTHREAD_ONCE_INIT;

static void host_log(int level, const char *format, ...)
{
    char line[ERROR_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    log_write((ferry_log_level_t)level, "%s", line);
}

static const ferry_device_host_t host = {
    .struct_bytes = sizeof(ferry_device_host_t),
    .raise = error_raise,
    .log = host_log,
    .layout = layout_init,
};

/* The folder of the file that this code was loaded from, "" when nobody can say. A program's own file
 * is known to the loader by the name it was started under, which may be relative. */
static void own_folder(char folder[PATH_MAX])
{
    Dl_info info;
    folder[0] = '\0';
    if (dladdr((const void *)(uintptr_t)&device_backend, &info) == 0 || info.dli_fname == NULL) {
        return;
    }
    if (info.dli_fname[0] == '/') {
        snprintf(folder, PATH_MAX, "%s", info.dli_fname);
    } else {
        ssize_t length = readlink("/proc/self/exe", folder, PATH_MAX - 1);
        folder[length < 0 ? 0 : length] = '\0';
    }
    char *slash = strrchr(folder, '/');
    if (slash != NULL) {
        *slash = '\0';
    }
}

/* A file that is there and does not load says more than the search path's "no such file". */
static void *module_open(char *missing, size_t missing_bytes)
{
    char folder[PATH_MAX];
    char paths[2][PATH_MAX + 64];
    own_folder(folder);
    snprintf(paths[0], sizeof paths[0], "%s/ferry/" CUDA_MODULE, folder);
    snprintf(paths[1], sizeof paths[1], "%s/" CUDA_MODULE, FERRY_MODULE_DIR);
    for (size_t i = folder[0] == '\0' ? 1 : 0; i < 2; i++) {
        if (access(paths[i], F_OK) == 0) {
            void *module = dlopen(paths[i], RTLD_NOW | RTLD_LOCAL);
            if (module == NULL) {
                snprintf(missing, missing_bytes, "%s", dlerror());
            }
            return module;
        }
    }
    void *module = dlopen(CUDA_MODULE, RTLD_NOW | RTLD_LOCAL);
    if (module == NULL) {
        snprintf(missing, missing_bytes, "%s", dlerror());
    }
    return module;
}

/* The module stays loaded to the process's end: its threads and destructors may run that long. */
static const ferry_device_backend_t *module_backend(void *module, char *missing,
                                                    size_t missing_bytes)
{
    union {
        void *symbol;
        ferry_device_backend_fn *function;
    } entry = {.symbol = dlsym(module, FERRY_DEVICE_BACKEND_SYMBOL)};
    if (entry.symbol == NULL) {
        snprintf(missing, missing_bytes, CUDA_MODULE " has no " FERRY_DEVICE_BACKEND_SYMBOL "()");
        return NULL;
    }
    const ferry_device_backend_t *backend = entry.function(&host);
    if (backend == NULL) {
        snprintf(missing, missing_bytes, "%s", ferry_last_error()->text);
        return NULL;
    }
    if (backend->abi != FERRY_DEVICE_BACKEND_ABI || backend->struct_bytes < sizeof *backend) {
        snprintf(missing, missing_bytes,
                 CUDA_MODULE " speaks device interface %u of %zu bytes, this libferry %u of %zu",
                 (unsigned)backend->abi, backend->struct_bytes, FERRY_DEVICE_BACKEND_ABI,
                 sizeof *backend);
        return NULL;
    }
    return backend;
}

/* A device that is not here is no error, so that the thread's last one stays what it was. */
static void cuda_load(void)
{
    struct error_record last;
    error_record_take(&last);
    void *module = module_open(cuda.missing, sizeof cuda.missing);
    if (module != NULL) {
        cuda.backend = module_backend(module, cuda.missing, sizeof cuda.missing);
    }
    if (cuda.backend != NULL && cuda.backend->count() == 0) {
        snprintf(cuda.missing, sizeof cuda.missing, "no CUDA device is visible");
    }
    log_write(FERRY_LOG_DEBUG, "cuda: %s", cuda.missing[0] == '\0' ? "loaded" : cuda.missing);
    error_raise_record(&last);
}

DLDevice device_normal(DLDevice device)
{
    switch ((int)device.device_type) {
    case kDLCPU:
    case kDLCUDAHost:
    case kDLROCMHost:
        return (DLDevice){.device_type = kDLCPU, .device_id = 0};
    case kDLCUDAManaged:
        return (DLDevice){.device_type = kDLCUDA, .device_id = device.device_id};
    default:
        return device;
    }
}

const ferry_device_backend_t *device_backend(DLDeviceType type)
{
    switch ((int)type) {
    case kDLCPU:
        return &device_cpu;
    case FERRY_DEVICE_SIM:
        return &device_sim;
    case kDLCUDA:
        pthread_once(&cuda_once, cuda_load);
        return cuda.backend;
    default:
        return NULL;
    }
}

static int32_t kind_count(DLDeviceType type)
{
    const ferry_device_backend_t *backend = device_backend(type);
    return backend == NULL ? 0 : backend->count();
}

const char *device_missing(DLDeviceType type)
{
    switch ((int)type) {
    case kDLCPU:
        return "";
    case FERRY_DEVICE_SIM:
        return kind_count(type) > 0 ? "" : "FERRY_SIM_DEVICES is 0";
    case kDLCUDA:
        pthread_once(&cuda_once, cuda_load);
        return cuda.missing;
    default:
        return "Ferry has no back end of this kind";
    }
}

/* "cpu, cuda:0-7, sim:0" */
static void describe_present(char *text, size_t bytes)
{
    static const DLDeviceType kinds[] = {kDLCUDA, (DLDeviceType)FERRY_DEVICE_SIM};
    size_t length = (size_t)snprintf(text, bytes, "cpu");
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        int32_t count = kind_count(kinds[i]);
        if (count == 0 || length >= bytes) {
            continue;
        }
        length += (size_t)snprintf(text + length, bytes - length, ", %s:0%s",
                                   device_kind_name(kinds[i]), count > 1 ? "-" : "");
        if (count > 1 && length < bytes) {
            length += (size_t)snprintf(text + length, bytes - length, "%d", (int)count - 1);
        }
    }
}

ferry_status_t device_check(DLDevice device, const ferry_device_backend_t **backend_out)
{
    DLDevice normal = device_normal(device);
    const ferry_device_backend_t *backend = device_backend(normal.device_type);
    if (backend != NULL && normal.device_id >= 0 && normal.device_id < backend->count()) {
        *backend_out = backend;
        return FERRY_OK;
    }
    char text[FERRY_DEVICE_TEXT_BYTES];
    char present[128];
    const char *missing = device_missing(normal.device_type);
    describe_present(present, sizeof present);
    return error_raise(FERRY_ERR_UNKNOWN_DEVICE, "this process has no %s, it has %s%s%s%s",
                       ferry_device_print(device, text), present, missing[0] == '\0' ? "" : " (",
                       missing, missing[0] == '\0' ? "" : ")");
}

ferry_status_t device_kind_parse(const char *kind, size_t bytes, DLDeviceType *type_out)
{
    return device_kind_find(kind, bytes, type_out) ? FERRY_OK : FERRY_ERR_NOT_FOUND;
}

size_t device_list(DLDevice devices[DEVICE_LIST_MAX])
{
    static const DLDeviceType kinds[] = {kDLCPU, kDLCUDA, (DLDeviceType)FERRY_DEVICE_SIM};
    size_t written = 0;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        int32_t count = kind_count(kinds[i]);
        for (int32_t index = 0; index < count && written < DEVICE_LIST_MAX; index++) {
            devices[written++] = (DLDevice){.device_type = kinds[i], .device_id = index};
        }
    }
    return written;
}
