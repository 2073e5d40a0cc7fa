/* RDMA devices, and whether GPU memory can travel over them directly. */
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ferry_info/info.h"

#define DMABUF_MAJOR 1
#define DMABUF_MINOR 14

typedef void entry_fn(struct machine *machine, const char *folder, const char *name);

/* Calls each for every entry of a folder below the root. */
static void for_entries(struct machine *machine, const char *folder, entry_fn *each)
{
    char path[1024];
    machine_path(machine, folder, path, sizeof path);
    DIR *entries = opendir(path);
    for (struct dirent *entry; entries != NULL && (entry = readdir(entries)) != NULL;) {
        if (entry->d_name[0] != '.') {
            each(machine, folder, entry->d_name);
        }
    }
    if (entries != NULL) {
        closedir(entries);
    }
}

/* A port's files read "4: ACTIVE", "InfiniBand", "400 Gb/sec (4X NDR)". */
static void add_port(struct machine *machine, const char *folder, const char *port)
{
    struct verbs_facts *verbs = &machine->verbs;
    char path[1024], state[64] = "?", layer[64] = "?", rate[64] = "?", device[64] = "?";
    sscanf(folder, "/sys/class/infiniband/%63[^/]", device);
    snprintf(path, sizeof path, "%s/%s/state", folder, port);
    machine_read(machine, path, state, sizeof state);
    snprintf(path, sizeof path, "%s/%s/link_layer", folder, port);
    machine_read(machine, path, layer, sizeof layer);
    snprintf(path, sizeof path, "%s/%s/rate", folder, port);
    machine_read(machine, path, rate, sizeof rate);
    const char *word = strchr(state, ' ');
    char *lanes = strstr(rate, " (");
    if (lanes != NULL) {
        *lanes = '\0';
    }
    verbs->active = verbs->active || strncmp(state, "4:", 2) == 0;
    text_add(verbs->devices, sizeof verbs->devices, "%s%s:%s %s %s %s",
             verbs->devices[0] == '\0' ? "" : ", ", device, port, word == NULL ? state : word + 1,
             rate, layer);
}

static void add_device(struct machine *machine, const char *folder, const char *name)
{
    char ports[512];
    machine->verbs.count++;
    snprintf(ports, sizeof ports, "%s/%.200s/ports", folder, name);
    for_entries(machine, ports, add_port);
}

static void try_device_file(struct machine *machine, const char *folder, const char *name)
{
    char path[1024], file[512];
    snprintf(file, sizeof file, "%s/%.200s", folder, name);
    machine_path(machine, file, path, sizeof path);
    if (strncmp(name, "uverbs", 6) == 0 && access(path, R_OK | W_OK) == 0) {
        machine->verbs.reachable = true;
    }
}

void verbs_facts_find(struct machine *machine)
{
    for_entries(machine, "/sys/class/infiniband", add_device);
    for_entries(machine, "/dev/infiniband", try_device_file);
}

void check_verbs(const struct machine *machine, struct finding *finding)
{
    const struct verbs_facts *verbs = &machine->verbs;
    bool knows = text_lists(machine->ucx.knows, "verbs");
    if (verbs->count == 0) {
        finding_set(finding, VERDICT_NOTE,
                    "no InfiniBand or RoCE device: other machines are reached by tcp");
        finding_remedy(finding, "none if there is no such card; else load its driver, rdma link "
                                "must show it");
        return;
    }
    finding_set(finding, VERDICT_NOTE, "%s", verbs->devices);
    if (!knows) {
        finding_add(finding, "; this UCX has no verbs and leaves them to tcp");
        finding_remedy(finding, "use a UCX with libuct_ib.so.0 (Debian's libucx0, HPC-X, DOCA, "
                                "conda-forge), by -DFERRY_UCX or LD_LIBRARY_PATH");
    } else if (!verbs->reachable) {
        finding_add(finding, "; this user cannot open /dev/infiniband/uverbs*");
        finding_remedy(finding,
                       "give the container --device=/dev/infiniband, or the user the rights");
    } else if (!verbs->active) {
        finding_add(finding, "; no port is active");
        finding_remedy(finding,
                       "look at the cable, ip link and, on InfiniBand, the subnet manager");
    } else {
        finding->verdict = VERDICT_OK;
    }
}

/* The kernel's module that lets network cards reach GPU memory, by its new or its old name. */
static bool has_peermem(const struct machine *machine)
{
    static char modules[256 * 1024];
    if (!machine_read(machine, "/proc/modules", modules, sizeof modules)) {
        return false;
    }
    return strncmp(modules, "nvidia_peermem ", 15) == 0 ||
           strstr(modules, "\nnvidia_peermem ") != NULL ||
           strncmp(modules, "nv_peer_mem ", 12) == 0 || strstr(modules, "\nnv_peer_mem ") != NULL;
}

void check_gpudirect(const struct machine *machine, struct finding *finding)
{
    const struct ucx_facts *ucx = &machine->ucx;
    bool takes_dmabuf =
        ucx->major > DMABUF_MAJOR || (ucx->major == DMABUF_MAJOR && ucx->minor >= DMABUF_MINOR);
    bool peermem = has_peermem(machine);
    bool needed = machine->verbs.count > 0 && machine->driver.count > 0;
    if (peermem || (machine->driver.dmabuf && takes_dmabuf)) {
        finding_set(finding, VERDICT_OK, "by %s%s",
                    peermem ? "nvidia-peermem" : "the driver's dmabuf",
                    needed ? "" : ", though there is no use for it here");
    } else if (!needed) {
        finding_set(finding, VERDICT_OK, "not needed: it takes a CUDA and a verbs device");
    } else {
        finding_set(finding, VERDICT_NOTE,
                    "neither nvidia-peermem nor dmabuf%s: tensors between GPU and network go "
                    "through pinned memory",
                    machine->driver.dmabuf ? " that this UCX takes (1.14 or newer)" : "");
        finding_remedy(finding, "modprobe nvidia-peermem, or the driver's open kernel modules with "
                                "UCX 1.14 or newer");
    }
}
