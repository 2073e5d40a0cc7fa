/* Which devices this process has, and the public functions on them. */
#include <criterion/criterion.h>
#include <ferry/error.h>
#include <stdlib.h>
#include <string.h>

#include "device/registry.h"

#define CPU ((DLDevice){.device_type = kDLCPU, .device_id = 0})
#define SIM(index) ((DLDevice){.device_type = (DLDeviceType)FERRY_DEVICE_SIM, .device_id = (index)})
#define CUDA(index) ((DLDevice){.device_type = kDLCUDA, .device_id = (index)})

static void sim_on(void)
{
    setenv("FERRY_SIM_DEVICES", "2", 1);
}

static void sim_off(void)
{
    unsetenv("FERRY_SIM_DEVICES");
}

TestSuite(device_registry, .init = sim_on);

Test(device_registry, normalises_devices)
{
    DLDevice pinned = {.device_type = kDLCUDAHost, .device_id = 3};
    DLDevice managed = {.device_type = kDLCUDAManaged, .device_id = 3};
    cr_assert_eq(device_normal(pinned).device_type, kDLCPU);
    cr_assert_eq(device_normal(pinned).device_id, 0);
    cr_assert_eq(device_normal(managed).device_type, kDLCUDA);
    cr_assert_eq(device_normal(managed).device_id, 3);
    cr_assert_eq(device_normal(SIM(1)).device_id, 1);
}

Test(device_registry, knows_kinds_by_name)
{
    DLDeviceType type;
    cr_assert_eq(device_kind_parse("sim:0", 3, &type), FERRY_OK);
    cr_assert_eq((int)type, FERRY_DEVICE_SIM);
    cr_assert_eq(device_kind_parse("cuda", 4, &type), FERRY_OK);
    cr_assert_eq(type, kDLCUDA);
    cr_assert_eq(device_kind_parse("gpu", 3, &type), FERRY_ERR_NOT_FOUND);
    cr_assert_eq(type, kDLCUDA, "written on success only");
}

Test(device_registry, counts_and_lists)
{
    DLDevice devices[DEVICE_LIST_MAX];
    cr_assert_eq(ferry_device_count(kDLCPU), 1);
    cr_assert_eq(ferry_device_count(SIM(0).device_type), 2);
    cr_assert_eq(ferry_device_count(kDLVulkan), 0);
    size_t count = device_list(devices);
    cr_assert_eq(count, 3 + (size_t)ferry_device_count(kDLCUDA));
    cr_assert_eq(devices[0].device_type, kDLCPU);
    cr_assert_eq(devices[count - 1].device_type, SIM(1).device_type);
    cr_assert_eq(devices[count - 1].device_id, 1);
    cr_assert_str_eq(device_missing(SIM(0).device_type), "");
    cr_assert_str_eq(device_missing(kDLCPU), "");
}

Test(device_registry, without_sim_devices, .init = sim_off)
{
    const ferry_device_backend_t *backend;
    cr_assert_eq(ferry_device_count(SIM(0).device_type), 0);
    cr_assert_not_null(strstr(device_missing(SIM(0).device_type), "FERRY_SIM_DEVICES"));
    cr_assert_eq(device_check(SIM(0), &backend), FERRY_ERR_UNKNOWN_DEVICE);
    cr_assert_not_null(strstr(ferry_last_error()->text, "FERRY_SIM_DEVICES"));
}

Test(device_registry, names_what_is_unknown_and_what_there_is)
{
    const ferry_device_backend_t *backend = NULL;
    cr_assert_eq(device_check(SIM(2), &backend), FERRY_ERR_UNKNOWN_DEVICE);
    cr_assert_null(backend);
    cr_assert_not_null(strstr(ferry_last_error()->text, "no sim:2"));
    cr_assert_not_null(strstr(ferry_last_error()->text, "sim:0-1"));
    cr_assert_eq(device_check(SIM(-1), &backend), FERRY_ERR_UNKNOWN_DEVICE);
    cr_assert_eq(device_check((DLDevice){kDLVulkan, 0}, &backend), FERRY_ERR_UNKNOWN_DEVICE);
    cr_assert_not_null(strstr(ferry_last_error()->text, "cpu, "));
}

/* Where there is no GPU, that is no error until somebody asks for one. */
Test(device_registry, a_missing_module_is_no_error)
{
    const ferry_device_backend_t *backend;
    if (ferry_device_count(kDLCUDA) > 0) {
        return;
    }
    cr_assert_eq(ferry_last_error()->status, FERRY_OK);
    cr_assert_str_not_empty(device_missing(kDLCUDA));
    cr_assert_eq(device_check(CUDA(0), &backend), FERRY_ERR_UNKNOWN_DEVICE);
    cr_assert_not_null(strstr(ferry_last_error()->text, device_missing(kDLCUDA)));
}

static void expect_copies(DLDevice from, DLDevice to)
{
    unsigned char sent[1000], back[1000] = {0};
    for (size_t i = 0; i < sizeof sent; i++) {
        sent[i] = (unsigned char)(i * 7 + 1);
    }
    void *source, *target;
    cr_assert_eq(ferry_device_allocate(from, sizeof sent, &source), FERRY_OK);
    cr_assert_eq(ferry_device_allocate(to, sizeof sent, &target), FERRY_OK);
    cr_assert_eq(ferry_device_copy(from, source, CPU, sent, sizeof sent), FERRY_OK);
    cr_assert_eq(ferry_device_copy(to, target, from, source, sizeof sent), FERRY_OK);
    cr_assert_eq(ferry_device_copy(CPU, back, to, target, sizeof sent), FERRY_OK);
    cr_assert_arr_eq(sent, back, sizeof sent);
    ferry_device_free(from, source);
    ferry_device_free(to, target);
}

Test(device_registry, copies_between_all_devices)
{
    DLDevice devices[DEVICE_LIST_MAX];
    size_t count = device_list(devices);
    for (size_t from = 0; from < count; from++) {
        for (size_t to = 0; to < count; to++) {
            expect_copies(devices[from], devices[to]);
        }
    }
}

Test(device_registry, refuses_what_makes_no_sense)
{
    char byte = 0;
    void *memory;
    uintptr_t stream;
    cr_assert_eq(ferry_device_allocate(SIM(2), 1, &memory), FERRY_ERR_UNKNOWN_DEVICE);
    cr_assert_eq(ferry_device_allocate(CPU, SIZE_MAX, &memory), FERRY_ERR_NO_MEMORY);
    cr_assert_eq(ferry_device_allocate(CPU, 1, NULL), FERRY_ERR_INVALID_ARGUMENT);
    cr_assert_eq(ferry_device_copy(CPU, &byte, SIM(2), &byte, 1), FERRY_ERR_UNKNOWN_DEVICE);
    cr_assert_eq(ferry_device_copy(CPU, &byte, CPU, NULL, 1), FERRY_ERR_INVALID_ARGUMENT);
    cr_assert_eq(ferry_device_copy(CPU, &byte, SIM(0), &byte, 1), FERRY_ERR_DEVICE);
    cr_assert_eq(ferry_device_copy(CPU, NULL, SIM(0), NULL, 0), FERRY_OK);
    cr_assert_eq(ferry_device_stream_create(CPU, &stream), FERRY_ERR_UNSUPPORTED);
    cr_assert_eq(ferry_device_stream_create(SIM(0), NULL), FERRY_ERR_INVALID_ARGUMENT);
    cr_assert_eq(ferry_device_stream_create(SIM(2), &stream), FERRY_ERR_UNKNOWN_DEVICE);
    cr_assert_eq(ferry_device_stream_synchronize(SIM(2), 1), FERRY_ERR_UNKNOWN_DEVICE);
    ferry_device_free(CPU, NULL);
    ferry_device_free(SIM(2), &byte);
}

Test(device_registry, creates_streams)
{
    uintptr_t stream;
    cr_assert_eq(ferry_device_stream_create(SIM(1), &stream), FERRY_OK);
    cr_assert_gt(stream, 2, "1 and 2 are the default streams");
    cr_assert_eq(ferry_device_stream_synchronize(SIM(1), stream), FERRY_OK);
    ferry_device_stream_destroy(SIM(1), stream);
}
