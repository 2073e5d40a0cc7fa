/* The device contract, on the host and on simulated devices. tests/gpu runs the same on CUDA. */
#include <criterion/criterion.h>
#include <stdlib.h>

#include "device/registry.h"
#include "support/device_contract.h"

static void sim_on(void)
{
    setenv("FERRY_SIM_DEVICES", "2", 1);
}

TestSuite(device_contract, .init = sim_on);

static void expect_contract(DLDeviceType type, int32_t index)
{
    const ferry_device_backend_t *backend = device_backend(type);
    cr_assert_not_null(backend);
    cr_assert_gt(device_contract_count(), 0);
    for (size_t i = 0; i < device_contract_count(); i++) {
        char failure[512] = "";
        cr_expect(device_contract_run(i, backend, index, failure, sizeof failure), "%s:%d: %s: %s",
                  backend->kind, (int)index, device_contract_name(i), failure);
    }
}

Test(device_contract, cpu)
{
    expect_contract(kDLCPU, 0);
}

Test(device_contract, sim_0)
{
    expect_contract((DLDeviceType)FERRY_DEVICE_SIM, 0);
}

Test(device_contract, sim_1)
{
    expect_contract((DLDeviceType)FERRY_DEVICE_SIM, 1);
}
