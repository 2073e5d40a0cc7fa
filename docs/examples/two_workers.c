/* worker0's GPU 0 talks to worker1's GPU 1, and worker0's GPU 1 to worker1's GPU 0.
 *
 *   two_workers [--device cuda|sim|cpu]     starts both workers here and waits for them
 *   two_workers [--device ...] worker1      one of them, where FERRY_NAMING says where they meet;
 *   two_workers [--device ...] worker0      worker1 serves until it is interrupted
 *
 * Only worker0 has a map: worker1 takes each tensor where it arrives. */
#include <errno.h>
#include <ferry/ferry.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define COUNT 4
#define SECOND INT64_C(1000000000)

static const DLDataType F32 = {kDLFloat, 32, 1};
static const DLDevice CPU = {kDLCPU, 0};

static int complain(const char *who)
{
    fprintf(stderr, "%s: %s\n", who, ferry_last_error()->text);
    return 1;
}

static void *tensor_data(const DLTensor *view)
{
    return (char *)view->data + view->byte_offset;
}

/* ---- worker1 ---- */

/* Doubles on the host, so that the example needs no CUDA compiler; a real program launches a
 * kernel on the tensor where it lies. */
static ferry_status_t double_tensor(const ferry_tensor_t *tensor)
{
    float values[COUNT];
    size_t bytes;
    ferry_status_t status = ferry_tensor_bytes(&tensor->view, &bytes);
    if (status != FERRY_OK || bytes != sizeof(values)) {
        return status != FERRY_OK ? status : FERRY_ERR_INVALID_ARGUMENT;
    }
    DLDevice device = tensor->view.device;
    status = ferry_device_copy(CPU, values, device, tensor_data(&tensor->view), bytes);
    for (int i = 0; i < COUNT && status == FERRY_OK; i++) {
        values[i] *= 2;
    }
    if (status == FERRY_OK) {
        status = ferry_device_copy(device, tensor_data(&tensor->view), CPU, values, bytes);
    }
    return status;
}

/* An error that a handler returns is what the caller reads, with worker1's name before it. */
static ferry_status_t answer_double(ferry_request_t *request, void *context)
{
    (void)context;
    static const char *const slots[] = {"first", "second"};
    for (size_t i = 0; i < 2; i++) {
        const ferry_tensor_t *tensor;
        ferry_status_t status = ferry_request_tensor(request, slots[i], F32, &tensor);
        if (status == FERRY_OK) {
            char device[FERRY_DEVICE_TEXT_BYTES];
            printf("worker1: %s arrived on %s\n", slots[i],
                   ferry_device_print(tensor->view.device, device));
            status = double_tensor(tensor);
        }
        if (status != FERRY_OK) {
            return status;
        }
    }
    /* What arrived belongs to the request, so it may go back without a copy. */
    return ferry_request_reply(request, ferry_request_message(request));
}

static ferry_agent_t *stopped_by_signal;

static void on_signal(int signal_number)
{
    (void)signal_number;
    ferry_agent_stop(stopped_by_signal);
}

static int serve(void)
{
    ferry_agent_options_t options = ferry_agent_options();
    options.name = "worker1";
    ferry_agent_t *agent = NULL;
    int failed = ferry_agent_create(&options, &agent) != FERRY_OK;
    if (!failed) {
        stopped_by_signal = agent;
        signal(SIGTERM, on_signal);
        signal(SIGINT, on_signal);
    }
    failed = failed || ferry_agent_register(agent, "double", answer_double, NULL) != FERRY_OK ||
             ferry_agent_start(agent) != FERRY_OK || ferry_agent_run(agent) != FERRY_OK ||
             ferry_agent_shutdown(agent, 5 * SECOND) != FERRY_OK;
    if (failed) {
        complain("worker1");
    }
    signal(SIGTERM, SIG_DFL);
    signal(SIGINT, SIG_DFL);
    ferry_agent_destroy(agent);
    return failed;
}

/* ---- worker0 ---- */

static int report(const ferry_future_t *future, const ferry_tensor_t *sent)
{
    const ferry_tensor_t *got = ferry_message_tensor(ferry_future_result(future), sent->name);
    float before[COUNT], after[COUNT];
    size_t bytes = sizeof(after);
    if (got == NULL || got->view.ndim != 1 || got->view.shape[0] != COUNT) {
        fprintf(stderr, "worker0: %s did not come back as it went\n", sent->name);
        return 1;
    }
    if (ferry_device_copy(CPU, before, sent->view.device, sent->view.data, bytes) != FERRY_OK ||
        ferry_device_copy(CPU, after, got->view.device, tensor_data(&got->view), bytes) !=
            FERRY_OK) {
        return complain("worker0");
    }
    char device[FERRY_DEVICE_TEXT_BYTES];
    printf("worker0: %s went %s\n", sent->name, ferry_future_path(future, sent->name));
    printf("worker0: %s came back to %s:", sent->name,
           ferry_device_print(got->view.device, device));
    int wrong = got->view.device.device_type != sent->view.device.device_type ||
                got->view.device.device_id != sent->view.device.device_id;
    for (int i = 0; i < COUNT; i++) {
        printf(" %g", after[i]);
        wrong = wrong || after[i] != 2 * before[i];
    }
    printf("%s\n", wrong ? " WRONG" : "");
    return wrong;
}

static int call_double(ferry_agent_t *agent, const ferry_tensor_t tensors[2])
{
    ferry_message_t message = {.tensors = tensors, .tensor_count = 2};
    ferry_call_options_t options = ferry_call_options();
    options.timeout_ns = 10 * SECOND;
    options.wait_for_peer = true; /* worker1 may not be there yet */
    ferry_future_t *future = NULL;
    int failed;
    if (ferry_call(agent, "worker1", "double", &message, &options, &future) != FERRY_OK ||
        ferry_future_wait(future, FERRY_FOREVER, NULL) != FERRY_OK) {
        failed = complain("worker0");
    } else {
        failed = report(future, &tensors[0]) + report(future, &tensors[1]);
    }
    ferry_future_release(future);
    return failed;
}

static ferry_status_t make_tensor(const char *name, DLDevice device, float first,
                                  ferry_tensor_t *tensor_out)
{
    static int64_t shape[1] = {COUNT};
    float values[COUNT] = {first, first + 1, first + 2, first + 3};
    void *memory = NULL;
    ferry_status_t status = ferry_device_allocate(device, sizeof(values), &memory);
    if (status == FERRY_OK) {
        status = ferry_device_copy(device, memory, CPU, values, sizeof(values));
    }
    if (status != FERRY_OK) {
        ferry_device_free(device, memory);
        return status;
    }
    *tensor_out = (ferry_tensor_t){
        .name = name,
        .view = {.data = memory, .device = device, .ndim = 1, .dtype = F32, .shape = shape}};
    return FERRY_OK;
}

static int ask(const char *map, const DLDevice devices[2])
{
    ferry_agent_options_t options = ferry_agent_options();
    options.name = "worker0";
    options.device_map = map;
    ferry_agent_t *agent = NULL;
    ferry_tensor_t tensors[2] = {{.name = NULL}, {.name = NULL}};
    int failed;
    printf("worker0: map \"%s\"\n", map);
    if (make_tensor("first", devices[0], 1, &tensors[0]) != FERRY_OK ||
        make_tensor("second", devices[1], 10, &tensors[1]) != FERRY_OK ||
        ferry_agent_create(&options, &agent) != FERRY_OK || ferry_agent_start(agent) != FERRY_OK) {
        failed = complain("worker0");
    } else {
        failed = call_double(agent, tensors);
    }
    ferry_agent_destroy(agent);
    ferry_device_free(devices[0], tensors[0].view.data);
    ferry_device_free(devices[1], tensors[1].view.data);
    return failed;
}

/* ---- which devices, and both workers at once ---- */

static int run_worker(const char *role, const char *device)
{
    DLDevice devices[2] = {CPU, CPU};
    const char *map = "worker1: cpu<->cpu";
    if (strcmp(device, "cuda") == 0 && ferry_device_count(kDLCUDA) < 2) {
        devices[0] = devices[1] = (DLDevice){kDLCUDA, 0};
        map = "worker1: cuda:0<->cuda:0"; /* both share the only GPU */
    } else if (strcmp(device, "cuda") == 0) {
        devices[0] = (DLDevice){kDLCUDA, 0};
        devices[1] = (DLDevice){kDLCUDA, 1};
        map = "worker1: cuda:0<->cuda:1, cuda:1<->cuda:0";
    } else if (strcmp(device, "sim") == 0) {
        devices[0] = (DLDevice){(DLDeviceType)FERRY_DEVICE_SIM, 0};
        devices[1] = (DLDevice){(DLDeviceType)FERRY_DEVICE_SIM, 1};
        map = "worker1: sim:0<->sim:1, sim:1<->sim:0";
    }
    return strcmp(role, "worker1") == 0 ? serve() : ask(map, devices);
}

/* A new program and not only a fork: UCX and CUDA do not work in a forked child. */
static pid_t start_worker(const char *role, const char *device)
{
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execl("/proc/self/exe", "two_workers", "--device", device, role, (char *)NULL);
        _exit(127);
    }
    return child;
}

static int wait_for(pid_t child)
{
    int status = -1;
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *where)
{
    (void)info, (void)type, (void)where;
    return remove(path);
}

static int start_both(const char *device)
{
    char folder[] = "/tmp/two_workers-XXXXXX", naming[64];
    if (mkdtemp(folder) == NULL) {
        perror(folder);
        return 1;
    }
    snprintf(naming, sizeof(naming), "file://%s", folder);
    setenv("FERRY_NAMING", naming, 1); /* where the two find each other */
    alarm(60);                         /* whatever happens, this ends */
    pid_t worker1 = start_worker("worker1", device);
    pid_t worker0 = start_worker("worker0", device);
    int failed = wait_for(worker0);
    if (worker1 > 0) {
        kill(worker1, SIGTERM);
    }
    failed += wait_for(worker1);
    nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
    return failed != 0;
}

/* cuda where there are two GPUs, else the simulated accelerator that Ferry brings; says which
 * and why. */
static const char *choose_device(void)
{
    int gpus = ferry_device_count(kDLCUDA);
    printf("two_workers: %d CUDA device%s here, so the tensors are on %s (--device overrides)\n",
           gpus, gpus == 1 ? "" : "s", gpus >= 2 ? "cuda:0 and cuda:1" : "simulated devices");
    return gpus >= 2 ? "cuda" : "sim";
}

int main(int argc, char **argv)
{
    const char *device = NULL, *role = NULL;
    setvbuf(stdout, NULL, _IOLBF,
            0); /* the two workers' lines come in order, also through a pipe */
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--device") == 0 && i + 1 < argc) {
            device = argv[++i];
        } else {
            role = argv[i];
        }
    }
    bool known = device == NULL || strcmp(device, "cuda") == 0 || strcmp(device, "sim") == 0 ||
                 strcmp(device, "cpu") == 0;
    if (!known || (role != NULL && strcmp(role, "worker0") != 0 && strcmp(role, "worker1") != 0)) {
        fprintf(stderr, "usage: two_workers [--device cuda|sim|cpu] [worker0|worker1]\n");
        return 2;
    }
    setenv("FERRY_SIM_DEVICES", "2", 0);
    device = device == NULL ? choose_device() : device;
    return role == NULL ? start_both(device) : run_worker(role, device);
}
