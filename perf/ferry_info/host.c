/* Checks of the machine and of this user's limits. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

#include "ferry_info/info.h"

#define MIB ((uint64_t)1 << 20)
#define SHARED_PROBLEM (16 * MIB) /* two agents' queues do not fit */
#define SHARED_NOTE (256 * MIB)   /* containers get 64 MiB unless told otherwise */
#define OPEN_FILES_PROBLEM 64
#define OPEN_FILES_NOTE 1024
#define CAP_SYS_PTRACE_BIT 19

/* "64 MiB", "1.5 GiB" */
static const char *bytes_print(uint64_t bytes, char text[32])
{
    if (bytes >= 1024 * MIB) {
        snprintf(text, 32, "%.1f GiB", (double)bytes / (double)(1024 * MIB));
    } else {
        snprintf(text, 32, "%.1f MiB", (double)bytes / (double)MIB);
    }
    return text;
}

void check_shared_memory(const struct machine *machine, struct finding *finding)
{
    char path[1024], total_text[32], free_text[32];
    struct statvfs space;
    machine_path(machine, "/dev/shm", path, sizeof path);
    if (statvfs(path, &space) != 0 || access(path, W_OK) != 0) {
        finding_set(finding, VERDICT_PROBLEM, "%s cannot be used: %s", path, strerror(errno));
        finding_remedy(finding, "mount -t tmpfs tmpfs /dev/shm, with mode 1777");
        return;
    }
    uint64_t total = (uint64_t)space.f_blocks * space.f_frsize;
    uint64_t left = (uint64_t)space.f_bavail * space.f_frsize;
    enum verdict verdict = left < SHARED_PROBLEM ? VERDICT_PROBLEM
                           : left < SHARED_NOTE  ? VERDICT_NOTE
                                                 : VERDICT_OK;
    finding_set(finding, verdict, "%s, %s of it free", bytes_print(total, total_text),
                bytes_print(left, free_text));
    if (verdict != VERDICT_OK) {
        finding_remedy(finding, "%s",
                       total < SHARED_NOTE
                           ? "mount -o remount,size=1g /dev/shm; in a container start it with "
                             "--shm-size=1g or --ipc=host"
                           : "remove what nobody uses there any more");
    }
}

/* The effective capabilities that /proc/self/status shows. */
static bool has_ptrace_capability(const struct machine *machine)
{
    char status[8192];
    if (!machine_read(machine, "/proc/self/status", status, sizeof status)) {
        return false;
    }
    const char *line = strstr(status, "\nCapEff:");
    return line != NULL && (strtoull(line + 8, NULL, 16) >> CAP_SYS_PTRACE_BIT & 1) != 0;
}

/* A container's system call filter forbids the call even on oneself. */
static bool is_call_forbidden(void)
{
    char from = 1, to = 0;
    struct iovec local = {.iov_base = &to, .iov_len = 1};
    struct iovec remote = {.iov_base = &from, .iov_len = 1};
    return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) != 1;
}

void check_cma(const struct machine *machine, struct finding *finding)
{
    char scope[16] = "absent";
    bool yama = machine_read(machine, "/proc/sys/kernel/yama/ptrace_scope", scope, sizeof scope);
    long level = yama ? strtol(scope, NULL, 10) : 0;
    if (level >= 3 || (level == 2 && !has_ptrace_capability(machine))) {
        finding_set(finding, VERDICT_NOTE,
                    "kernel.yama.ptrace_scope is %s: no process may read another's memory, large "
                    "messages are copied twice",
                    scope);
        finding_remedy(finding, "%s",
                       level >= 3 ? "boot with kernel.yama.ptrace_scope=1 (3 holds until then)"
                                  : "sysctl kernel.yama.ptrace_scope=1, or grant CAP_SYS_PTRACE");
    } else if (is_call_forbidden()) {
        finding_set(finding, VERDICT_NOTE,
                    "process_vm_readv() is forbidden here: large messages are copied twice");
        finding_remedy(finding, "start the container with --cap-add=SYS_PTRACE");
    } else if (!text_lists(machine->ucx.knows, "cma")) {
        finding_set(finding, VERDICT_NOTE,
                    "this UCX has no cma module: large messages are copied twice");
        finding_remedy(finding, "use a UCX whose folder %s has libuct_cma.so.0",
                       machine->ucx.folder);
    } else if (machine->ucx.error[0] == '\0' && !text_lists(machine->ucx.transports, "cma")) {
        finding_set(finding, VERDICT_NOTE, "UCX leaves cma out: large messages are copied twice");
        finding_remedy(finding, "add cma to UCX_TLS if it is set; UCX_LOG_LEVEL=info says more");
    } else {
        finding_set(finding, VERDICT_OK,
                    "one copy from process to process (kernel.yama.ptrace_scope is %s)", scope);
    }
}

static void limit_print(rlim_t limit, char text[32])
{
    if (limit == RLIM_INFINITY) {
        snprintf(text, 32, "unlimited");
    } else {
        snprintf(text, 32, "%" PRIu64, (uint64_t)limit);
    }
}

void check_locked_memory(const struct machine *machine, struct finding *finding)
{
    struct rlimit limit = {.rlim_cur = RLIM_INFINITY};
    char text[32];
    getrlimit(RLIMIT_MEMLOCK, &limit);
    bool unlimited = limit.rlim_cur == RLIM_INFINITY || geteuid() == 0;
    if (limit.rlim_cur == RLIM_INFINITY) {
        snprintf(text, sizeof text, "unlimited");
    } else {
        bytes_print((uint64_t)limit.rlim_cur, text);
    }
    if (unlimited || machine->verbs.count == 0) {
        finding_set(finding, VERDICT_OK, "%s%s", text,
                    limit.rlim_cur == RLIM_INFINITY ? ""
                    : machine->verbs.count == 0     ? ", which only verbs would want more of"
                                                    : ", which does not bind root");
        return;
    }
    finding_set(finding, VERDICT_NOTE, "%s: RDMA registers more than that for large tensors", text);
    finding_remedy(finding,
                   "ulimit -l unlimited (limits.conf: memlock; systemd: LimitMEMLOCK=infinity; "
                   "a container: --ulimit memlock=-1)");
}

void check_open_files(const struct machine *machine, struct finding *finding)
{
    (void)machine;
    struct rlimit limit = {.rlim_cur = RLIM_INFINITY, .rlim_max = RLIM_INFINITY};
    char now[32], most[32];
    getrlimit(RLIMIT_NOFILE, &limit);
    limit_print(limit.rlim_cur, now);
    limit_print(limit.rlim_max, most);
    enum verdict verdict = limit.rlim_cur < OPEN_FILES_PROBLEM ? VERDICT_PROBLEM
                           : limit.rlim_cur < OPEN_FILES_NOTE  ? VERDICT_NOTE
                                                               : VERDICT_OK;
    finding_set(finding, verdict, "%s", now);
    if (verdict != VERDICT_OK) {
        finding_add(finding, " (at most %s): each peer takes several", most);
        finding_remedy(finding, "ulimit -n %d", OPEN_FILES_NOTE);
    }
}
