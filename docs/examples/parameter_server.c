/* A parameter server on the CPU and workers with a GPU each, in synchronous steps: a worker pulls
 * the parameters into its GPU's memory, pushes a gradient from there, and goes on when everyone's
 * gradient of the step is in.
 *
 *   parameter_server [--device cuda|sim|cpu] [WORKERS]     starts all here, waits for the workers
 *
 * The server has no map and knows no GPU: gradients arrive on cpu because the workers' map says so
 * ("ps: cuda:0<->cpu"), and the parameters go straight into the buffer that a pull brings. */
#include <errno.h>
#include <ferry/ferry.h>
#include <ftw.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define COUNT 1024 /* parameters */
#define STEPS 5
#define WORKERS_MAX 16
#define SECOND INT64_C(1000000000)
#define RATE 0.0625f

static const DLDataType F32 = {kDLFloat, 32, 1};
static const DLDevice CPU = {kDLCPU, 0};

static int complain(const char *who)
{
    fprintf(stderr, "%s: %s\n", who, ferry_last_error()->text);
    return 1;
}

/* Worker `rank` wants parameter i to be this. Whole numbers, and a power of two as the rate,
 * make every sum exact in any order, so that the workers can check the server to the last bit. */
static float target(int rank, int i)
{
    return (float)((rank * 3 + i) % 8);
}

/* ---- the server ---- */

/* The parameters at one moment. A pull sends them without a copy while the next step makes new
 * ones. */
struct snapshot {
    atomic_int references;
    int64_t shape[1];
    float values[COUNT];
};

struct store {
    pthread_mutex_t mutex;
    struct snapshot *now;                 /* retained */
    ferry_request_t *pushed[WORKERS_MAX]; /* kept unanswered until the step's last gradient is in */
    const ferry_tensor_t *gradients[WORKERS_MAX]; /* of those requests */
    int pushed_count, workers;
};

/* Runs when Ferry has let go of a reply that carried the snapshot. */
static void snapshot_release(void *context)
{
    struct snapshot *snapshot = context;
    if (atomic_fetch_sub(&snapshot->references, 1) == 1) {
        free(snapshot);
    }
}

static struct snapshot *snapshot_create(void)
{
    struct snapshot *snapshot = calloc(1, sizeof(*snapshot));
    if (snapshot != NULL) {
        atomic_init(&snapshot->references, 1);
        snapshot->shape[0] = COUNT;
    }
    return snapshot;
}

static struct snapshot *store_snapshot(struct store *store)
{
    pthread_mutex_lock(&store->mutex);
    struct snapshot *snapshot = store->now;
    atomic_fetch_add(&snapshot->references, 1);
    pthread_mutex_unlock(&store->mutex);
    return snapshot;
}

static ferry_status_t pull(ferry_request_t *request, void *context)
{
    struct snapshot *snapshot = store_snapshot(context);
    ferry_tensor_t parameters = {.name = "parameters",
                                 .view = {.data = snapshot->values,
                                          .device = CPU,
                                          .ndim = 1,
                                          .dtype = F32,
                                          .shape = snapshot->shape},
                                 .release = snapshot_release,
                                 .context = snapshot};
    ferry_message_t message = {.tensors = &parameters, .tensor_count = 1};
    ferry_status_t status = ferry_request_reply(request, &message);
    if (status != FERRY_OK) {
        snapshot_release(snapshot); /* a reply that failed took nothing */
    }
    return status;
}

/* Everyone's gradient is in: new parameters, and everyone may go on. With the mutex. */
static ferry_status_t store_step(struct store *store)
{
    struct snapshot *next = snapshot_create();
    if (next == NULL) {
        return FERRY_ERR_NO_MEMORY;
    }
    for (int i = 0; i < COUNT; i++) {
        float sum = 0;
        for (int k = 0; k < store->pushed_count; k++) {
            sum += ((const float *)store->gradients[k]->view.data)[i];
        }
        next->values[i] = store->now->values[i] - RATE * sum;
    }
    snapshot_release(store->now);
    store->now = next;
    return FERRY_OK;
}

static void store_answer(struct store *store, ferry_status_t status)
{
    for (int k = 0; k < store->pushed_count; k++) {
        if (status == FERRY_OK) {
            ferry_request_reply(store->pushed[k], NULL);
        } else {
            ferry_request_fail(store->pushed[k], 1, "the step failed: %s",
                               ferry_status_text(status));
        }
        ferry_request_release(store->pushed[k]);
    }
    store->pushed_count = 0;
}

static ferry_status_t push(ferry_request_t *request, void *context)
{
    struct store *store = context;
    const ferry_tensor_t *gradient;
    ferry_status_t status = ferry_request_tensor(request, "gradient", F32, &gradient);
    if (status != FERRY_OK) {
        return status; /* the worker reads: ps: push: 'gradient' is float16, wanted float32 */
    }
    if (gradient->view.device.device_type != kDLCPU || gradient->view.ndim != 1 ||
        gradient->view.shape[0] != COUNT) {
        return ferry_request_fail(request, 2, "the gradient must be %d numbers on cpu", COUNT);
    }
    pthread_mutex_lock(&store->mutex);
    store->gradients[store->pushed_count] = gradient;
    store->pushed[store->pushed_count++] = request;
    if (store->pushed_count == store->workers) {
        store_answer(store, store_step(store));
    }
    pthread_mutex_unlock(&store->mutex);
    return FERRY_PENDING; /* answered later, by whoever brings the last gradient */
}

static ferry_agent_t *stopped_by_signal;

static void on_signal(int signal_number)
{
    (void)signal_number;
    ferry_agent_stop(stopped_by_signal);
}

static int serve(int workers)
{
    struct store store = {
        .mutex = PTHREAD_MUTEX_INITIALIZER, .now = snapshot_create(), .workers = workers};
    ferry_agent_options_t options = ferry_agent_options();
    options.name = "ps";
    ferry_agent_t *agent = NULL;
    int failed = store.now == NULL || ferry_agent_create(&options, &agent) != FERRY_OK;
    if (!failed) {
        stopped_by_signal = agent;
        signal(SIGTERM, on_signal);
    }
    failed = failed || ferry_agent_register(agent, "pull", pull, &store) != FERRY_OK ||
             ferry_agent_register(agent, "push", push, &store) != FERRY_OK ||
             ferry_agent_start(agent) != FERRY_OK || ferry_agent_run(agent) != FERRY_OK ||
             ferry_agent_shutdown(agent, 5 * SECOND) != FERRY_OK;
    if (failed) {
        complain("ps");
    }
    signal(SIGTERM, SIG_DFL);
    ferry_agent_destroy(agent);
    if (store.now != NULL) {
        snapshot_release(store.now);
    }
    return failed;
}

/* ---- a worker ---- */

struct worker {
    ferry_agent_t *agent;
    char name[32];
    int rank, workers;
    DLDevice device;
    void *parameters, *gradient; /* on the device */
    float expected[COUNT];       /* what the server should have, worked out here */
};

static ferry_tensor_t worker_tensor(const struct worker *worker, const char *name, void *data)
{
    static int64_t shape[1] = {COUNT};
    return (ferry_tensor_t){
        .name = name,
        .view = {.data = data, .device = worker->device, .ndim = 1, .dtype = F32, .shape = shape}};
}

/* A call whose result, where there is one, goes into `result`: the buffer decides on its own
 * device. */
static int worker_call(struct worker *worker, const char *method, const ferry_tensor_t *argument,
                       const ferry_tensor_t *result)
{
    ferry_message_t message = {.tensors = argument, .tensor_count = argument == NULL ? 0 : 1};
    ferry_call_options_t options = ferry_call_options();
    options.timeout_ns = 20 * SECOND;
    options.wait_for_peer = true;
    options.results = result;
    options.result_count = result == NULL ? 0 : 1;
    ferry_future_t *future = NULL;
    int failed = ferry_call(worker->agent, "ps", method, &message, &options, &future) != FERRY_OK ||
                 ferry_future_wait(future, FERRY_FOREVER, NULL) != FERRY_OK;
    if (failed) {
        complain(worker->name);
    } else if (worker->rank == 0) {
        const ferry_tensor_t *tensor = argument == NULL ? result : argument;
        printf("%s: %s: %s %s\n", worker->name, method, tensor->name,
               ferry_future_path(future, tensor->name));
    }
    ferry_future_release(future);
    return failed;
}

static int worker_check(const struct worker *worker, int step, const float *parameters)
{
    for (int i = 0; i < COUNT; i++) {
        if (parameters[i] != worker->expected[i]) {
            fprintf(stderr, "%s: step %d: parameter %d is %g, worked out here %g\n", worker->name,
                    step, i, parameters[i], worker->expected[i]);
            return 1;
        }
    }
    return 0;
}

/* The gradient of half the squared distance to this worker's targets. The arithmetic is done on
 * the host, so that the example needs no CUDA compiler; the tensors live on the device. */
static int worker_step(struct worker *worker, int step)
{
    float values[COUNT];
    ferry_tensor_t parameters = worker_tensor(worker, "parameters", worker->parameters);
    ferry_tensor_t gradient = worker_tensor(worker, "gradient", worker->gradient);
    if (worker_call(worker, "pull", NULL, &parameters)) {
        return 1;
    }
    if (ferry_device_copy(CPU, values, worker->device, worker->parameters, sizeof(values)) !=
        FERRY_OK) {
        return complain(worker->name);
    }
    if (worker_check(worker, step, values)) {
        return 1;
    }
    for (int i = 0; i < COUNT; i++) {
        float sum = 0;
        for (int rank = 0; rank < worker->workers; rank++) {
            sum += worker->expected[i] - target(rank, i);
        }
        values[i] -= target(worker->rank, i);
        worker->expected[i] -= RATE * sum;
    }
    if (ferry_device_copy(worker->device, worker->gradient, CPU, values, sizeof(values)) !=
        FERRY_OK) {
        return complain(worker->name);
    }
    return worker_call(worker, "push", &gradient, NULL);
}

static int worker_steps(struct worker *worker)
{
    for (int step = 0; step < STEPS; step++) {
        if (worker_step(worker, step)) {
            return 1;
        }
    }
    char device[FERRY_DEVICE_TEXT_BYTES];
    ferry_device_print(worker->device, device);
    printf("%s: %d gradients went from %s to ps's cpu, the parameters came back to %s; all are "
           "right\n",
           worker->name, STEPS, device, device);
    return 0;
}

static int work(int rank, int workers, DLDevice device)
{
    struct worker worker = {.rank = rank, .workers = workers, .device = device};
    snprintf(worker.name, sizeof(worker.name), "worker%d", rank);
    ferry_agent_options_t options = ferry_agent_options();
    char map[64], text[FERRY_DEVICE_TEXT_BYTES];
    snprintf(map, sizeof(map), "ps: %s<->cpu", ferry_device_print(device, text));
    options.name = worker.name;
    options.device_map = map;
    size_t bytes = sizeof(worker.expected);
    int failed;
    if (ferry_device_allocate(device, bytes, &worker.parameters) != FERRY_OK ||
        ferry_device_allocate(device, bytes, &worker.gradient) != FERRY_OK ||
        ferry_agent_create(&options, &worker.agent) != FERRY_OK ||
        ferry_agent_start(worker.agent) != FERRY_OK) {
        failed = complain(worker.name);
    } else {
        failed = worker_steps(&worker);
    }
    ferry_agent_destroy(worker.agent);
    ferry_device_free(device, worker.gradient);
    ferry_device_free(device, worker.parameters);
    return failed;
}

/* ---- all of them at once ---- */

/* A new program and not only a fork: UCX and CUDA do not work in a forked child. */
static pid_t start_process(const char *device, int workers, const char *role)
{
    char count[16];
    snprintf(count, sizeof(count), "%d", workers);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execl("/proc/self/exe", "parameter_server", "--device", device, count, role, (char *)NULL);
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

static int start_all(const char *device, int workers)
{
    char folder[] = "/tmp/parameter_server-XXXXXX", naming[64], rank_text[16];
    pid_t children[WORKERS_MAX];
    if (mkdtemp(folder) == NULL) {
        perror(folder);
        return 1;
    }
    snprintf(naming, sizeof(naming), "file://%s", folder);
    setenv("FERRY_NAMING", naming, 1); /* where they find each other */
    alarm(60);                         /* whatever happens, this ends */
    pid_t server = start_process(device, workers, "ps");
    for (int rank = 0; rank < workers; rank++) {
        snprintf(rank_text, sizeof(rank_text), "%d", rank);
        children[rank] = start_process(device, workers, rank_text);
    }
    int failed = 0;
    for (int rank = 0; rank < workers; rank++) {
        failed += wait_for(children[rank]);
    }
    if (server > 0) {
        kill(server, SIGTERM);
    }
    failed += wait_for(server);
    nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
    return failed != 0;
}

/* Worker `rank`'s GPU: one each, by turns where there are fewer. */
static DLDevice device_of(const char *kind, int rank)
{
    if (strcmp(kind, "cpu") == 0) {
        return CPU;
    }
    DLDeviceType type = strcmp(kind, "cuda") == 0 ? kDLCUDA : (DLDeviceType)FERRY_DEVICE_SIM;
    int count = ferry_device_count(type);
    return (DLDevice){type, count > 0 ? rank % count : 0};
}

static const char *choose_device(void)
{
    int gpus = ferry_device_count(kDLCUDA);
    printf("parameter_server: %d CUDA device%s here, so the workers use %s (--device overrides)\n",
           gpus, gpus == 1 ? "" : "s", gpus >= 1 ? "them" : "a simulated one");
    return gpus >= 1 ? "cuda" : "sim";
}

int main(int argc, char **argv)
{
    const char *device = NULL, *role = NULL;
    int workers = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--device") == 0 && i + 1 < argc) {
            device = argv[++i];
        } else if (workers == 0) {
            workers = atoi(argv[i]);
        } else {
            role = argv[i];
        }
    }
    bool known = device == NULL || strcmp(device, "cuda") == 0 || strcmp(device, "sim") == 0 ||
                 strcmp(device, "cpu") == 0;
    workers = workers == 0 ? 2 : workers;
    if (!known || workers < 0 || workers > WORKERS_MAX) {
        fprintf(stderr, "usage: parameter_server [--device cuda|sim|cpu] [WORKERS, at most %d]\n",
                WORKERS_MAX);
        return 2;
    }
    setenv("FERRY_SIM_DEVICES", "1", 0);
    device = device == NULL ? choose_device() : device;
    if (role == NULL) {
        return start_all(device, workers);
    }
    return strcmp(role, "ps") == 0 ? serve(workers)
                                   : work(atoi(role), workers, device_of(device, atoi(role)));
}
