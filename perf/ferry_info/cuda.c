/* CUDA devices: as the driver sees them, asked for by name so that this program runs without it, and
 * as Ferry's back end does. */
#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device/registry.h"
#include "ferry_info/info.h"

/* The driver interface's numbers. */
#define ATTRIBUTE_COMPUTE_MODE 20
#define ATTRIBUTE_DMABUF 124
#define MODE_PROHIBITED 2
#define MODE_EXCLUSIVE_PROCESS 3
#define ERROR_NO_DEVICE 100

struct driver {
    void *library;
    int (*init)(unsigned flags);
    int (*count)(int *count);
    int (*get)(int *device, int index);
    int (*attribute)(int *value, int attribute, int device);
    int (*can_access)(int *can, int device, int peer);
    int (*error_text)(int error, const char **text);
};

static bool driver_load(struct driver *driver)
{
    driver->library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (driver->library == NULL) {
        return false;
    }
    struct {
        const char *name;
        void *slot;
    } symbols[] = {
        {"cuInit", &driver->init},
        {"cuDeviceGetCount", &driver->count},
        {"cuDeviceGet", &driver->get},
        {"cuDeviceGetAttribute", &driver->attribute},
        {"cuDeviceCanAccessPeer", &driver->can_access},
        {"cuGetErrorString", &driver->error_text},
    };
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
        void *symbol = dlsym(driver->library, symbols[i].name);
        if (symbol == NULL) {
            return false;
        }
        memcpy(symbols[i].slot, &symbol, sizeof symbol);
    }
    return true;
}

static void find_pairs(const struct driver *driver, struct driver_facts *facts)
{
    for (int i = 0; i < facts->count; i++) {
        for (int k = i + 1; k < facts->count; k++) {
            int first, second, there = 0, back = 0;
            if (driver->get(&first, i) == 0 && driver->get(&second, k) == 0 &&
                (driver->can_access(&there, first, second) != 0 || there == 0 ||
                 driver->can_access(&back, second, first) != 0 || back == 0)) {
                text_add(facts->no_access, sizeof facts->no_access, "%scuda:%d and cuda:%d",
                         facts->no_access[0] == '\0' ? "" : ", ", i, k);
            }
        }
    }
}

static void find_attributes(const struct driver *driver, struct driver_facts *facts)
{
    facts->dmabuf = facts->count > 0;
    for (int i = 0; i < facts->count; i++) {
        int device, dmabuf = 0, mode = 0;
        if (driver->get(&device, i) != 0) {
            continue;
        }
        driver->attribute(&dmabuf, ATTRIBUTE_DMABUF, device);
        driver->attribute(&mode, ATTRIBUTE_COMPUTE_MODE, device);
        facts->dmabuf = facts->dmabuf && dmabuf != 0;
        facts->exclusive += mode == MODE_EXCLUSIVE_PROCESS;
        facts->prohibited += mode == MODE_PROHIBITED;
    }
}

void driver_facts_find(struct driver_facts *facts)
{
    struct driver driver = {.library = NULL};
    if (!driver_load(&driver)) {
        return; /* the library stays open, if it was one: drivers do not like to be unloaded */
    }
    facts->loaded = true;
    int error = driver.init(0);
    if (error == 0) {
        error = driver.count(&facts->count);
    }
    if (error != 0) {
        const char *text = NULL;
        facts->count = 0;
        if (error != ERROR_NO_DEVICE) {
            driver.error_text(error, &text);
            snprintf(facts->error, sizeof facts->error, "%s", text == NULL ? "unknown" : text);
        }
        return;
    }
    facts->count = facts->count > DRIVER_DEVICES_MAX ? DRIVER_DEVICES_MAX : facts->count;
    find_attributes(&driver, facts);
    find_pairs(&driver, facts);
}

/* "cuda:0 NVIDIA H200 139.8 GiB, ..." */
static void add_devices(const struct machine *machine, struct finding *finding)
{
    const ferry_device_backend_t *backend = device_backend(kDLCUDA);
    for (int32_t i = 0; backend != NULL && i < machine->cuda_count; i++) {
        ferry_device_info_t info;
        finding_add(finding, "%scuda:%" PRId32, i == 0 ? "" : ", ", i);
        if (backend->describe(i, &info) == FERRY_OK) {
            finding_add(finding, " %s %.1f GiB", info.name,
                        (double)info.memory_bytes / (double)((uint64_t)1 << 30));
        }
    }
}

static bool has_card(const struct machine *machine)
{
    char path[1024];
    machine_path(machine, "/proc/driver/nvidia/version", path, sizeof path);
    return access(path, R_OK) == 0;
}

/* Nothing for Ferry to use: because there is nothing, or because something is in the way? */
static void check_no_cuda(const struct machine *machine, struct finding *finding)
{
    const struct driver_facts *driver = &machine->driver;
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (driver->error[0] != '\0') {
        finding_set(finding, VERDICT_PROBLEM, "the driver does not start: %s", driver->error);
        finding_remedy(finding, "nvidia-smi must work first; after an upgrade reload the driver");
    } else if (driver->count > 0) {
        finding_set(finding, VERDICT_PROBLEM, "the driver has %d, Ferry none: %s", driver->count,
                    device_missing(kDLCUDA));
        finding_remedy(finding, "build Ferry where a CUDA toolkit is (-DFERRY_CUDA=ON), and keep "
                                "libferry_cuda.so in the folder ferry beside libferry.so");
    } else if (!driver->loaded && has_card(machine)) {
        finding_set(finding, VERDICT_PROBLEM,
                    "the kernel has NVIDIA's driver, but libcuda.so.1 is not found here");
        finding_remedy(finding, "start the container with --gpus=all (NVIDIA_DRIVER_CAPABILITIES "
                                "with compute), or add its folder to LD_LIBRARY_PATH");
    } else {
        finding_set(finding, VERDICT_NOTE, "no device%s%s%s: tensors on cpu and sim alone",
                    visible == NULL ? "" : " (CUDA_VISIBLE_DEVICES='",
                    visible == NULL ? "" : visible, visible == NULL ? "" : "')");
        finding_remedy(finding, "none if there is no GPU; FERRY_SIM_DEVICES=2 simulates two");
    }
}

void check_cuda(const struct machine *machine, struct finding *finding)
{
    if (machine->cuda_count == 0) {
        check_no_cuda(machine, finding);
        return;
    }
    add_devices(machine, finding);
    if (machine->driver.prohibited > 0) {
        finding->verdict = VERDICT_PROBLEM;
        finding_add(finding, "; on %d the compute mode is PROHIBITED", machine->driver.prohibited);
        finding_remedy(finding, "nvidia-smi -c DEFAULT");
    } else if (!text_lists(machine->ucx.knows, "cuda")) {
        finding->verdict = VERDICT_NOTE;
        finding_add(finding, "; this UCX has no CUDA, so tensors go through pinned memory");
        finding_remedy(finding, "use a UCX with libuct_cuda.so.0 (pip's libucx-cu13, HPC-X, "
                                "conda-forge), by -DFERRY_UCX or LD_LIBRARY_PATH");
    }
}

void check_p2p(const struct machine *machine, struct finding *finding)
{
    const struct driver_facts *driver = &machine->driver;
    if (driver->count < 2) {
        finding_set(finding, VERDICT_OK, "not needed: it takes two CUDA devices");
    } else if (driver->no_access[0] == '\0') {
        finding_set(finding, VERDICT_OK, "all %d CUDA devices reach each other's memory",
                    driver->count);
    } else {
        finding_set(finding, VERDICT_NOTE, "not between %s: tensors go through pinned memory there",
                    driver->no_access);
        finding_remedy(finding, "nvidia-smi topo -p2p r shows why; PCIe ACS and the IOMMU can be "
                                "in the way");
    }
}

void check_mps(const struct machine *machine, struct finding *finding)
{
    const ferry_device_backend_t *backend = device_backend(kDLCUDA);
    const char *chosen = getenv("CUDA_MPS_PIPE_DIRECTORY");
    const char *folder = chosen != NULL && *chosen != '\0' ? chosen : "/tmp/nvidia-mps";
    char control[1024];
    snprintf(control, sizeof control, "%s/control", folder);
    bool runs = access(control, F_OK) == 0, turns = !runs;
    for (int32_t i = 0; backend != NULL && i < machine->cuda_count; i++) {
        ferry_device_info_t info;
        turns = backend->describe(i, &info) == FERRY_OK ? info.shared_turns : turns;
        if (turns) {
            break;
        }
    }
    if (machine->driver.count == 0) {
        finding_set(finding, VERDICT_OK, "not needed: there is no CUDA device");
    } else if (!turns) {
        finding_set(finding, VERDICT_OK, "its control daemon is in %s", folder);
    } else {
        finding_set(finding, VERDICT_NOTE, "%s%s",
                    runs ? "a control daemon was started, but processes that share a GPU take turns"
                         : "no control daemon: processes that share a GPU take turns on it",
                    machine->driver.exclusive > 0
                        ? ", and its compute mode lets one process in at a time"
                        : "");
        finding_remedy(finding,
                       "none with a GPU for each process; else nvidia-cuda-mps-control -d");
    }
}
