#include "support/placed.h"

#include <stdlib.h>

const DLDevice test_sim0 = {.device_type = kDLExtDev, .device_id = 0};
const DLDevice test_sim1 = {.device_type = kDLExtDev, .device_id = 1};

void test_sim_on(void)
{
    setenv("FERRY_SIM_DEVICES", "2", 1);
}

void placed_init(struct placed *placed, DLDevice device, const void *source, size_t bytes)
{
    *placed = (struct placed){.device = device, .bytes = bytes};
    TEST_CHECK(ferry_device_allocate(device, bytes, &placed->memory) == FERRY_OK);
    void *zeros = source == NULL ? calloc(1, bytes + 1) : NULL;
    TEST_CHECK(ferry_device_copy(device, placed->memory, test_cpu, source == NULL ? zeros : source,
                                 bytes) == FERRY_OK);
    free(zeros);
}

void placed_read(const struct placed *placed, void *target)
{
    TEST_CHECK(ferry_device_copy(test_cpu, target, placed->device, placed->memory, placed->bytes) ==
               FERRY_OK);
}

void placed_finish(struct placed *placed)
{
    ferry_device_free(placed->device, placed->memory);
    placed->memory = NULL;
}

ferry_tensor_t placed_tensor(const char *name, const struct placed *placed, int64_t shape[1])
{
    shape[0] = (int64_t)placed->bytes;
    ferry_tensor_t tensor = test_tensor(name, placed->memory, test_u8, 1, shape);
    tensor.view.device = placed->device;
    return tensor;
}

void test_fetch(const ferry_tensor_t *tensor, void *target)
{
    size_t bytes;
    TEST_CHECK(tensor != NULL);
    TEST_CHECK(ferry_tensor_bytes(&tensor->view, &bytes) == FERRY_OK);
    TEST_CHECK(ferry_device_copy(test_cpu, target, tensor->view.device,
                                 (const char *)tensor->view.data + tensor->view.byte_offset,
                                 bytes) == FERRY_OK);
}

bool test_on(const ferry_tensor_t *tensor, DLDevice device)
{
    return tensor != NULL && tensor->view.device.device_type == device.device_type &&
           tensor->view.device.device_id == device.device_id;
}
