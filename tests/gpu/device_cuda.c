/* The device contract on every CUDA device, and what holds for CUDA alone. A plain program: machines
 * with GPUs need no test framework. Ends with 77 where there is no GPU. */
#include <dlfcn.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ferry/error.h>

#include "device/memory_pool.h"
#include "device/registry.h"
#include "support/device_contract.h"

#define SKIPPED 77

static const ferry_device_backend_t *cuda;
static int failures;

static void expect(bool condition, const char *format, ...) FERRY_PRINTF(2, 3);

static void expect(bool condition, const char *format, ...)
{
    if (!condition) {
        va_list arguments;
        va_start(arguments, format);
        fputs("FAILED: ", stderr);
        vfprintf(stderr, format, arguments);
        fputc('\n', stderr);
        va_end(arguments);
        failures++;
    }
}

/* ---- the driver, asked directly: it was loaded by the module ---- */

static struct {
    int (*context_state)(int device, unsigned *flags, int *active);
    int (*context_current)(void **context);
} driver;

static bool driver_load(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    void *state = library == NULL ? NULL : dlsym(library, "cuDevicePrimaryCtxGetState");
    void *current = library == NULL ? NULL : dlsym(library, "cuCtxGetCurrent");
    memcpy(&driver.context_state, &state, sizeof state);
    memcpy(&driver.context_current, &current, sizeof current);
    return state != NULL && current != NULL;
}

static bool context_is_active(int32_t index)
{
    unsigned flags;
    int active = 0;
    expect(driver.context_state(index, &flags, &active) == 0, "cuDevicePrimaryCtxGetState");
    return active != 0;
}

static void expect_no_current_context(const char *when)
{
    void *context = &context;
    expect(driver.context_current(&context) == 0, "cuCtxGetCurrent");
    expect(context == NULL, "%s, the thread has a current context", when);
}

/* Asking about devices creates no context, and using one creates none on another. */
static void check_contexts(void)
{
    DLDevice devices[DEVICE_LIST_MAX];
    ferry_device_info_t info;
    int32_t count = cuda->count();
    device_list(devices);
    for (int32_t i = 0; i < count; i++) {
        expect(cuda->describe(i, &info) == FERRY_OK, "describe: %s", ferry_last_error()->text);
        expect(!context_is_active(i), "describing made a context on cuda:%d", (int)i);
    }
    expect_no_current_context("after describing");
    for (int32_t i = count; i-- > 0;) {
        void *memory;
        expect(cuda->allocate(i, 100, &memory) == FERRY_OK, "allocate: %s",
               ferry_last_error()->text);
        expect(context_is_active(i), "there is memory without a context on cuda:%d", (int)i);
        expect(i == 0 || !context_is_active(0), "using cuda:%d made a context on cuda:0", (int)i);
        cuda->deallocate(i, memory);
        expect_no_current_context("after an allocation");
    }
}

/* A deadlock is said to be one, and where. */
static const char *under_way;

static void say_where(int signal_number)
{
    (void)signal_number;
    static const char words[] = "FAILED: nothing happens for 60 s in the check of ";
    if (write(STDERR_FILENO, words, sizeof words - 1) < 0 ||
        write(STDERR_FILENO, under_way, strlen(under_way)) < 0 ||
        write(STDERR_FILENO, "\n", 1) < 0) {
        _exit(2);
    }
    _exit(1);
}

static void check_contract(void)
{
    signal(SIGALRM, say_where);
    for (int32_t index = 0; index < cuda->count(); index++) {
        for (size_t i = 0; i < device_contract_count(); i++) {
            char failure[512] = "";
            under_way = device_contract_name(i);
            alarm(60);
            expect(device_contract_run(i, cuda, index, failure, sizeof failure), "cuda:%d: %s: %s",
                   (int)index, device_contract_name(i), failure);
            expect_no_current_context(device_contract_name(i));
        }
    }
    alarm(0);
}

/* Errors name the device and the call, and the next operation works. */
static void check_errors(void)
{
    uint32_t pageable = 1;
    void *memory;
    DLDevice last = {.device_type = kDLCUDA, .device_id = cuda->count()};
    const ferry_device_backend_t *backend;
    ferry_status_t status = cuda->stream_wait_flag(0, 2, &pageable);
    expect(status == FERRY_ERR_DEVICE, "a flag in pageable memory: %s", ferry_status_name(status));
    expect(strstr(ferry_last_error()->text, "cuda:0") != NULL, "%s", ferry_last_error()->text);
    status = cuda->allocate(0, (size_t)1 << 45, &memory);
    expect(status == FERRY_ERR_NO_MEMORY, "32 TiB: %s", ferry_status_name(status));
    expect(strstr(ferry_last_error()->text, "cuda:0") != NULL, "%s", ferry_last_error()->text);
    status = device_check(last, &backend);
    expect(status == FERRY_ERR_UNKNOWN_DEVICE, "one device too many: %s",
           ferry_status_name(status));
    expect(cuda->allocate(0, 100, &memory) == FERRY_OK, "after errors: %s",
           ferry_last_error()->text);
    cuda->deallocate(0, memory);
}

/* ---- views of more than 2^31 elements ---- */

#define MANY (((int64_t)1 << 31) + 5)

static void byte_put(uintptr_t stream, char *target, char value)
{
    expect(cuda->copy(0, stream, FERRY_COPY_FROM_HOST, target, &value, 1) == FERRY_OK, "copy");
    expect(cuda->stream_synchronize(0, stream) == FERRY_OK, "stream_synchronize");
}

static char byte_get(uintptr_t stream, const char *source)
{
    char value = 0;
    expect(cuda->copy(0, stream, FERRY_COPY_TO_HOST, &value, source, 1) == FERRY_OK, "copy");
    expect(cuda->stream_synchronize(0, stream) == FERRY_OK, "stream_synchronize");
    return value;
}

static void check_many_elements(void)
{
    static const int64_t places[] = {0,       1, 77777, ((int64_t)1 << 31) - 1, (int64_t)1 << 31,
                                     MANY - 1};
    int64_t shape[] = {MANY}, strides[] = {2};
    void *memory, *packed;
    uintptr_t stream;
    if (cuda->allocate(0, 2 * (size_t)MANY, &memory) != FERRY_OK) {
        return; /* a small GPU */
    }
    if (cuda->allocate(0, (size_t)MANY, &packed) != FERRY_OK) {
        cuda->deallocate(0, memory);
        return;
    }
    DLTensor view = {.data = memory,
                     .device = {.device_type = kDLCUDA, .device_id = 0},
                     .ndim = 1,
                     .dtype = {.code = kDLUInt, .bits = 8, .lanes = 1},
                     .shape = shape,
                     .strides = strides};
    expect(cuda->stream_create(0, &stream) == FERRY_OK, "stream_create");
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        byte_put(stream, (char *)memory + 2 * places[i], (char)(40 + i));
        byte_put(stream, (char *)packed + places[i], 0);
    }
    expect(cuda->gather(0, stream, packed, &view) == FERRY_OK, "%s", ferry_last_error()->text);
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        char value = byte_get(stream, (char *)packed + places[i]);
        expect(value == (char)(40 + i), "element %lld of many is %d", (long long)places[i], value);
    }
    cuda->stream_destroy(0, stream);
    cuda->deallocate(0, memory);
    cuda->deallocate(0, packed);
}

/* ---- the public functions and the pool ---- */

static void check_public_copies(void)
{
    DLDevice devices[DEVICE_LIST_MAX];
    unsigned char sent[5000], back[5000];
    DLDevice cpu = {.device_type = kDLCPU, .device_id = 0};
    size_t count = device_list(devices);
    for (size_t i = 0; i < sizeof sent; i++) {
        sent[i] = (unsigned char)(i * 31);
    }
    for (size_t from = 0; from < count; from++) {
        for (size_t to = 0; to < count; to++) {
            void *source = NULL, *target = NULL;
            memset(back, 0, sizeof back);
            bool works =
                ferry_device_allocate(devices[from], sizeof sent, &source) == FERRY_OK &&
                ferry_device_allocate(devices[to], sizeof sent, &target) == FERRY_OK &&
                ferry_device_copy(devices[from], source, cpu, sent, sizeof sent) == FERRY_OK &&
                ferry_device_copy(devices[to], target, devices[from], source, sizeof sent) ==
                    FERRY_OK &&
                ferry_device_copy(cpu, back, devices[to], target, sizeof sent) == FERRY_OK;
            expect(works && memcmp(sent, back, sizeof sent) == 0, "device %zu to device %zu: %s",
                   from, to, ferry_last_error()->text);
            ferry_device_free(devices[from], source);
            ferry_device_free(devices[to], target);
        }
    }
}

static void check_pool(void)
{
    struct memory_pool *pool;
    struct memory_block first, again;
    DLDevice device = {.device_type = kDLCUDA, .device_id = 0};
    expect(memory_pool_create((size_t)1 << 30, &pool) == FERRY_OK, "memory_pool_create");
    for (int staging = 0; staging < 2; staging++) {
        expect(memory_pool_take(pool, device, staging, 1 << 20, &first) == FERRY_OK, "%s",
               ferry_last_error()->text);
        memory_pool_give(pool, &first);
        expect(memory_pool_take(pool, device, staging, 1 << 20, &again) == FERRY_OK, "%s",
               ferry_last_error()->text);
        expect(again.data == first.data, "memory was not kept");
        memory_pool_give(pool, &again);
    }
    memory_pool_destroy(pool);
}

int main(void)
{
    setenv("FERRY_SIM_DEVICES", "1", 1);
    if (ferry_device_count(kDLCUDA) == 0) {
        fprintf(stderr, "skipped: %s\n", device_missing(kDLCUDA));
        return SKIPPED;
    }
    cuda = device_backend(kDLCUDA);
    if (!driver_load()) {
        fprintf(stderr, "FAILED: libcuda.so.1 does not load\n");
        return 1;
    }
    check_contexts();
    check_contract();
    check_errors();
    check_many_elements();
    check_public_copies();
    check_pool();
    return failures > 0;
}
