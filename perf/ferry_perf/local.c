/* Both ends on this machine, and the table that --local alone shows. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ferry/device.h>

#include "core/error.h"
#include "ferry_perf/frame.h"

ferry_status_t perf_pin(struct perf_cpus cpus)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int cpu = cpus.first; cpus.first >= 0 && cpu <= cpus.last && cpu < CPU_SETSIZE; cpu++) {
        CPU_SET((size_t)cpu, &set);
    }
    if (cpus.first >= 0 && sched_setaffinity(0, sizeof set, &set) != 0) {
        char range[32] = "";
        if (cpus.last > cpus.first) {
            snprintf(range, sizeof range, "-%d", cpus.last);
        }
        return error_raise_errno(errno, "-c: cannot run on CPU %d%s", cpus.first, range);
    }
    return FERRY_OK;
}

/* A new program and not only a fork: UCX and CUDA do not work in a forked child. */
ferry_status_t perf_local_server(int listen_fd, pid_t *child_out)
{
    char descriptor[16];
    snprintf(descriptor, sizeof descriptor, "%d", listen_fd);
    pid_t parent = getpid(), child = fork();
    if (child < 0) {
        return error_raise_errno(errno, "cannot start the server");
    }
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() == parent && fcntl(listen_fd, F_SETFD, 0) == 0) {
            execl("/proc/self/exe", "ferry_perf", "--listen-fd", descriptor, (char *)NULL);
        }
        _exit(127);
    }
    *child_out = child;
    return FERRY_OK;
}

/* What the overview shows of one pair of memories. */
static const struct {
    const char *test;
    size_t bytes;
    double seconds;
} OVERVIEW[] = {
    {"rpc_lat", 0, 0.3},
    {"rpc_lat", 4096, 0.3},
    {"rpc_bw", 64 * 1024, 0.3},
    {"rpc_bw", 1024 * 1024, 0.3},
    {"rpc_bw", 64 * 1024 * 1024, 0.6},
};

static ferry_status_t overview_of(struct perf_control *control,
                                  const struct perf_command_line *line, DLDevice mine,
                                  DLDevice theirs)
{
    ferry_status_t status = FERRY_OK;
    bool host = mine.device_type == kDLCPU;
    for (size_t i = 0; status == FERRY_OK && i < sizeof OVERVIEW / sizeof OVERVIEW[0]; i++) {
        struct perf_wish wish = line->wish;
        if (OVERVIEW[i].bytes == 0 && !host) {
            continue;
        }
        wish.tests[0] = perf_test_find(OVERVIEW[i].test);
        wish.test_count = 1;
        wish.sizes[0] = OVERVIEW[i].bytes;
        wish.size_count = 1;
        wish.seconds = OVERVIEW[i].seconds;
        wish.rounds = 3;
        wish.ratio = true;
        wish.options.memory[0] = mine;
        wish.options.memory[1] = theirs;
        wish.options.window = 8;
        status = perf_client_run(control, line, &wish);
    }
    return status;
}

ferry_status_t perf_overview_run(struct perf_control *control, const struct perf_command_line *line)
{
    const DLDevice host = {kDLCPU, 0}, cuda = {kDLCUDA, 0};
    ferry_status_t status = overview_of(control, line, host, host);
    if (status == FERRY_OK && ferry_device_count(kDLCUDA) > 0) {
        status = overview_of(control, line, cuda, cuda);
    }
    return status;
}
