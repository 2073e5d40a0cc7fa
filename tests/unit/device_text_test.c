/* Devices as text. */
#include <criterion/criterion.h>
#include <string.h>

#include <ferry/device_map.h>
#include <ferry/error.h>

static void expect_round_trip(const char *text, int type, int32_t index)
{
    DLDevice device;
    char buffer[FERRY_DEVICE_TEXT_BYTES];
    cr_assert_eq(ferry_device_parse(text, &device), FERRY_OK);
    cr_assert_eq((int)device.device_type, type);
    cr_assert_eq(device.device_id, index);
    cr_assert_str_eq(ferry_device_print(device, buffer), text);
}

Test(device_text, devices_are_read_and_printed)
{
    expect_round_trip("cpu", kDLCPU, 0);
    expect_round_trip("cuda:0", kDLCUDA, 0);
    expect_round_trip("cuda:17", kDLCUDA, 17);
    expect_round_trip("sim:3", FERRY_DEVICE_SIM, 3);
}

Test(device_text, other_texts_are_refused_by_value)
{
    static const char *const texts[] = {"",
                                        "cuda",
                                        "cuda:",
                                        "cuda:-1",
                                        "cuda:1x",
                                        "cuda:*",
                                        "gpu:0",
                                        "cpu:0",
                                        "CPU",
                                        " cpu",
                                        "cpu ",
                                        "cuda: 1",
                                        "cuda:99999999999999999999"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        DLDevice device = {.device_type = kDLVulkan, .device_id = 5};
        cr_assert_eq(ferry_device_parse(texts[i], &device), FERRY_ERR_INVALID_ARGUMENT, "'%s'",
                     texts[i]);
        cr_assert(strstr(ferry_last_error()->text, texts[i]) != NULL);
        cr_assert_eq(device.device_id, 5, "an error wrote the output");
    }
    DLDevice device;
    cr_assert_eq(ferry_device_parse(NULL, &device), FERRY_ERR_INVALID_ARGUMENT);
    cr_assert_eq(ferry_device_parse("cpu", NULL), FERRY_ERR_INVALID_ARGUMENT);
}

static void expect_print(int type, int32_t index, const char *expected)
{
    char buffer[FERRY_DEVICE_TEXT_BYTES];
    DLDevice device = {.device_type = (DLDeviceType)type, .device_id = index};
    cr_assert_str_eq(ferry_device_print(device, buffer), expected);
}

Test(device_text, what_counts_as_another_device_is_printed_as_that)
{
    expect_print(kDLCUDAHost, 2, "cpu");
    expect_print(kDLCUDAManaged, 2, "cuda:2");
    expect_print(kDLCUDA, FERRY_DEVICE_ANY_INDEX, "cuda:*");
    expect_print(kDLVulkan, 1, "type7:1");
}
