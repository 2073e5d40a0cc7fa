/* Devices, their contexts and errors. The module's runtime is its own copy, so that a program may use
 * another version of CUDA; both share the devices' primary contexts. */
#include "device/cuda/cuda_module.h"

#include <cuda.h>
#include <cudaTypedefs.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define DRIVER_VERSION 12000 /* of the driver functions whose types are used here */

const ferry_device_host_t *cuda_host;

static struct {
    PFN_cuDeviceGet_v2000 device_get;
    PFN_cuDeviceGetName_v2000 device_name;
    PFN_cuDeviceGetUuid_v11040 device_uuid;
    PFN_cuDeviceTotalMem_v3020 device_memory;
    PFN_cuDevicePrimaryCtxRetain_v7000 context_retain;
    PFN_cuCtxPushCurrent_v4000 context_push;
    PFN_cuCtxPopCurrent_v4000 context_pop;
    PFN_cuStreamWaitValue32_v11070 wait_value;
} driver;

static int32_t device_count;
static CUcontext *contexts; /* one a device, NULL until it is used; retained to the process's end */
static bool *shared_turns;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- errors ---- */

ferry_status_t cuda_check(cudaError_t error, int32_t index, const char *call)
{
    if (error == cudaSuccess) {
        return FERRY_OK;
    }
    cudaGetLastError();
    return cuda_host->raise(error == cudaErrorMemoryAllocation ? FERRY_ERR_NO_MEMORY
                                                               : FERRY_ERR_DEVICE,
                            "cuda:%d: %s: %s (%s)", (int)index, call, cudaGetErrorString(error),
                            cudaGetErrorName(error));
}

void cuda_complain(cudaError_t error, int32_t index, const char *call)
{
    if (error == cudaSuccess) {
        return;
    }
    cudaGetLastError();
    if (error != cudaErrorCudartUnloading) { /* at the process's end everything goes by itself */
        cuda_host->log(1, "cuda:%d: %s: %s (%s)", (int)index, call, cudaGetErrorString(error),
                       cudaGetErrorName(error));
    }
}

/* The driver's codes are the runtime's. */
static ferry_status_t driver_check(CUresult result, int32_t index, const char *call)
{
    return cuda_check((cudaError_t)result, index, call);
}

/* ---- start ---- */

static bool driver_find(const char *name, void *function_out)
{
    void *function = NULL;
    enum cudaDriverEntryPointQueryResult found;
    if (cudaGetDriverEntryPointByVersion(name, &function, DRIVER_VERSION, cudaEnableDefault,
                                         &found) != cudaSuccess ||
        found != cudaDriverEntryPointSuccess || function == NULL) {
        cudaGetLastError();
        cuda_host->raise(FERRY_ERR_DEVICE, "the CUDA driver has no %s", name);
        return false;
    }
    memcpy(function_out, &function, sizeof function);
    return true;
}

static bool driver_find_all(void)
{
    return driver_find("cuDeviceGet", &driver.device_get) &&
           driver_find("cuDeviceGetName", &driver.device_name) &&
           driver_find("cuDeviceGetUuid", &driver.device_uuid) &&
           driver_find("cuDeviceTotalMem", &driver.device_memory) &&
           driver_find("cuDevicePrimaryCtxRetain", &driver.context_retain) &&
           driver_find("cuCtxPushCurrent", &driver.context_push) &&
           driver_find("cuCtxPopCurrent", &driver.context_pop) &&
           driver_find("cuStreamWaitValue32", &driver.wait_value);
}

ferry_status_t cuda_start(const ferry_device_host_t *host)
{
    int count = 0;
    cuda_host = host;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess) {
        cudaGetLastError();
        return host->raise(FERRY_ERR_DEVICE, "cudaGetDeviceCount: %s (%s)",
                           cudaGetErrorString(error), cudaGetErrorName(error));
    }
    if (!driver_find_all()) {
        return FERRY_ERR_DEVICE;
    }
    contexts = calloc((size_t)count + 1, sizeof contexts[0]);
    shared_turns = calloc((size_t)count + 1, sizeof shared_turns[0]);
    if (contexts == NULL || shared_turns == NULL || !cuda_release_start(count)) {
        free(contexts);
        free(shared_turns);
        return host->raise(FERRY_ERR_NO_MEMORY, "no memory for a list of %d CUDA devices", count);
    }
    for (int i = 0; i < count; i++) {
        int served = 0; /* by MPS, under which processes share one context */
        if (cudaDeviceGetAttribute(&served, cudaDevAttrMpsEnabled, i) != cudaSuccess) {
            cudaGetLastError();
        }
        shared_turns[i] = served == 0;
    }
    device_count = count;
    return FERRY_OK;
}

int32_t cuda_count(void)
{
    return device_count;
}

bool cuda_shared_turns(int32_t index)
{
    return shared_turns[index];
}

/* By the driver, which needs no context to answer. */
ferry_status_t cuda_describe(int32_t index, ferry_device_info_t *info_out)
{
    ferry_device_info_t info = {.shared_turns = shared_turns[index]};
    CUdevice device;
    CUuuid uuid;
    size_t memory_bytes;
    ferry_status_t status = driver_check(driver.device_get(&device, index), index, "cuDeviceGet");
    if (status != FERRY_OK) {
        return status;
    }
    status = driver_check(driver.device_name(info.name, sizeof info.name, device), index,
                          "cuDeviceGetName");
    if (status != FERRY_OK) {
        return status;
    }
    status = driver_check(driver.device_uuid(&uuid, device), index, "cuDeviceGetUuid");
    if (status != FERRY_OK) {
        return status;
    }
    status = driver_check(driver.device_memory(&memory_bytes, device), index, "cuDeviceTotalMem");
    if (status != FERRY_OK) {
        return status;
    }
    memcpy(info.uuid, uuid.bytes, sizeof info.uuid);
    info.memory_bytes = memory_bytes;
    *info_out = info;
    return FERRY_OK;
}

/* ---- contexts ---- */

void cuda_leave(void)
{
    CUcontext context;
    driver.context_pop(&context);
}

static ferry_status_t context_make(int32_t index, CUcontext *context_out)
{
    CUdevice device;
    CUcontext context;
    ferry_status_t status = driver_check(driver.device_get(&device, index), index, "cuDeviceGet");
    if (status != FERRY_OK) {
        return status;
    }
    status =
        driver_check(driver.context_retain(&context, device), index, "cuDevicePrimaryCtxRetain");
    if (status != FERRY_OK) {
        return status;
    }
    status = driver_check(driver.context_push(context), index, "cuCtxPushCurrent");
    if (status == FERRY_OK) {
        cuda_pack_load();
        cuda_leave();
        *context_out = context;
    }
    return status;
}

static ferry_status_t context_find(int32_t index, CUcontext *context_out)
{
    ferry_status_t status = FERRY_OK;
    CUcontext context = __atomic_load_n(&contexts[index], __ATOMIC_ACQUIRE);
    if (context == NULL) {
        pthread_mutex_lock(&lock);
        context = contexts[index];
        if (context == NULL) {
            status = context_make(index, &context);
        }
        if (status == FERRY_OK) {
            __atomic_store_n(&contexts[index], context, __ATOMIC_RELEASE);
        }
        pthread_mutex_unlock(&lock);
    }
    if (status == FERRY_OK) {
        *context_out = context;
    }
    return status;
}

ferry_status_t cuda_enter(int32_t index)
{
    CUcontext context = NULL;
    ferry_status_t status = context_find(index, &context);
    if (status != FERRY_OK) {
        return status;
    }
    return driver_check(driver.context_push(context), index, "cuCtxPushCurrent");
}

ferry_status_t cuda_wait_flag(int32_t index, cudaStream_t stream, uint32_t *flag)
{
    struct cudaPointerAttributes attributes;
    cudaError_t error = cudaPointerGetAttributes(&attributes, flag);
    if (error != cudaSuccess || attributes.type != cudaMemoryTypeHost) {
        cudaGetLastError();
        return cuda_host->raise(FERRY_ERR_DEVICE,
                                "cuda:%d cannot wait for a flag at %p: it is not in staging memory",
                                (int)index, (void *)flag);
    }
    CUresult result =
        driver.wait_value((CUstream)stream, (CUdeviceptr)(uintptr_t)attributes.devicePointer,
                          UINT32_MAX, CU_STREAM_WAIT_VALUE_AND); /* any bit that is set */
    if (result == CUDA_ERROR_NOT_SUPPORTED) {
        return cuda_host->raise(FERRY_ERR_UNSUPPORTED, "cuda:%d cannot wait for a value in memory",
                                (int)index);
    }
    return driver_check(result, index, "cuStreamWaitValue32");
}
