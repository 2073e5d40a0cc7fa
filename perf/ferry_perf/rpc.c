/* The whole library: two agents, the client's calls, the server's handlers. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ferry/ferry.h>

#include "core/error.h"
#include "ferry_perf/frame.h"
#include "ferry_perf/rpc.h"

#define TAKEN_MOST 16

/* ---- the callee's methods ---- */

static ferry_status_t answer_nothing(ferry_request_t *request, void *context)
{
    (void)context;
    return ferry_request_reply(request, NULL);
}

static ferry_status_t answer_same(ferry_request_t *request, void *context)
{
    const ferry_message_t *message = ferry_request_message(request);
    ferry_message_t reply = {.tensors = message->tensors, .tensor_count = message->tensor_count};
    (void)context;
    return ferry_request_reply(request, &reply);
}

static ferry_status_t methods_register(struct rpc *rpc)
{
    ferry_method_options_t quick = ferry_method_options();
    quick.run_inline = !rpc->end->options->pool;
    ferry_status_t status =
        ferry_agent_register_with(rpc->agent, "sink", answer_nothing, NULL, &quick);
    if (status == FERRY_OK) {
        status = ferry_agent_register_with(rpc->agent, "echo", answer_same, NULL, &quick);
    }
    return status == FERRY_OK ? ferry_agent_register(rpc->agent, "check", rpc_answer_check, rpc)
                              : status;
}

/* ---- the agents ---- */

/* Where my tensors arrive in calls to the other end. */
static void map_print(const struct rpc *rpc, char *text, size_t capacity)
{
    char mine[FERRY_DEVICE_TEXT_BYTES], theirs[FERRY_DEVICE_TEXT_BYTES];
    const DLDevice *memory = rpc->end->options->memory;
    bool client = rpc->end->client;
    if (memory[0].device_type == kDLCPU && memory[1].device_type == kDLCPU) {
        text[0] = '\0';
        return;
    }
    snprintf(text, capacity, "%s: %s->%s", rpc->peer,
             ferry_device_print(memory[client ? 0 : 1], mine),
             ferry_device_print(memory[client ? 1 : 0], theirs));
}

static ferry_status_t agent_start(struct rpc *rpc, const char *naming, bool serve)
{
    char map[128];
    ferry_agent_options_t options = ferry_agent_options();
    map_print(rpc, map, sizeof map);
    options.name = rpc->end->client ? "client" : "server";
    options.naming = naming;
    options.serve_naming = serve;
    options.device_map = map;
    ferry_status_t status = ferry_agent_create(&options, &rpc->agent);
    if (status == FERRY_OK) {
        status = methods_register(rpc);
    }
    return status == FERRY_OK ? ferry_agent_start(rpc->agent) : status;
}

/* The server's agent keeps the names; the client learns at which port. */
static ferry_status_t agents_meet(struct rpc *rpc)
{
    char naming[128];
    uint16_t port = 0;
    struct perf_control *control = rpc->end->control;
    const char *host = perf_control_host(control);
    const char *form = strchr(host, ':') == NULL ? "tcp://%s:%u" : "tcp://[%s]:%u";
    ferry_status_t status = FERRY_OK;
    if (!rpc->end->client) {
        snprintf(naming, sizeof naming, form, host, 0U);
        status = agent_start(rpc, naming, true);
        port = status == FERRY_OK ? ferry_agent_naming_port(rpc->agent) : 0;
        return status == FERRY_OK ? perf_exchange(control, &port, sizeof port, NULL, 0, NULL)
                                  : status;
    }
    status = perf_exchange(control, NULL, 0, &port, sizeof port, NULL);
    if (status == FERRY_OK) {
        snprintf(naming, sizeof naming, form, host, port);
        status = agent_start(rpc, naming, false);
    }
    return status == FERRY_OK ? ferry_agent_connect(rpc->agent, rpc->peer, 0) : status;
}

static void rpc_close(void *state)
{
    struct rpc *rpc = state;
    ferry_agent_destroy(rpc->agent);
    rpc_buffers_free(rpc);
    free(rpc->futures);
    free(rpc);
}

static ferry_status_t rpc_open(struct perf_end *end, enum rpc_kind kind, void **state_out)
{
    char progress[32];
    if (strcmp(perf_setting("FERRY_PROGRESS", progress, sizeof progress), "manual") == 0) {
        return error_raise(FERRY_ERR_UNSUPPORTED,
                           "with FERRY_PROGRESS=manual nobody drives the server's agent: use "
                           "adaptive, spin or sleep");
    }
    struct rpc *rpc = calloc(1, sizeof *rpc);
    if (rpc == NULL) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory for a test");
    }
    rpc->end = end;
    rpc->kind = kind;
    rpc->peer = end->client ? "server" : "client";
    rpc->method = kind == RPC_ECHO ? "echo" : "sink";
    rpc->calls = end->client || kind == RPC_BIDIR;
    rpc->threads = end->client ? end->options->threads : 1;
    rpc->futures = calloc((size_t)rpc->threads * end->options->window, sizeof(rpc->futures[0]));
    ferry_status_t status = rpc->futures == NULL
                                ? error_raise(FERRY_ERR_NO_MEMORY, "no memory for futures")
                                : agents_meet(rpc);
    if (status != FERRY_OK) {
        rpc_close(rpc);
        return status;
    }
    *state_out = rpc;
    return FERRY_OK;
}

static ferry_status_t open_one_way(struct perf_end *end, void **state_out)
{
    return rpc_open(end, RPC_ONE_WAY, state_out);
}

static ferry_status_t open_echo(struct perf_end *end, void **state_out)
{
    return rpc_open(end, RPC_ECHO, state_out);
}

static ferry_status_t open_bidir(struct perf_end *end, void **state_out)
{
    return rpc_open(end, RPC_BIDIR, state_out);
}

static ferry_status_t rpc_prepare(void *state, size_t bytes)
{
    struct rpc *rpc = state;
    uint32_t window = rpc->end->options->window;
    rpc_buffers_free(rpc);
    while (window > 2 && (size_t)window * rpc->threads * bytes > RPC_IN_FLIGHT_BYTES) {
        window--;
    }
    rpc->window = window;
    return rpc->calls ? rpc_buffers_create(rpc, bytes) : FERRY_OK;
}

/* ---- the callers ---- */

static ferry_status_t call_begin(struct rpc *rpc, ferry_future_t **future_out)
{
    return ferry_call(rpc->agent, rpc->peer, rpc->method, &rpc->message, &rpc->call, future_out);
}

static ferry_status_t call_end(ferry_future_t *future)
{
    ferry_status_t status = ferry_future_wait(future, FERRY_FOREVER, NULL);
    ferry_future_release(future);
    return status;
}

/* What one thread of calls has and has done. */
struct caller {
    struct rpc *rpc;
    pthread_t thread;
    pthread_barrier_t *gate; /* NULL: the only one */
    _Atomic uint64_t *left;  /* of all threads together, so that each does what it can */
    ferry_future_t **futures;
    double *ns;
    size_t count, capacity;
    uint64_t done;
    ferry_status_t status;
    struct error_record error;
};

/* Takes a few of the operations that are left, fewer towards the end, so that all threads are at it
 * until then. */
static uint64_t caller_take(struct caller *caller)
{
    uint64_t left = atomic_load_explicit(caller->left, memory_order_relaxed), taken;
    do {
        uint64_t share = left / (2 * caller->rpc->threads) + 1;
        taken = left == 0 ? 0 : share < TAKEN_MOST ? share : TAKEN_MOST;
    } while (taken > 0 &&
             !atomic_compare_exchange_weak_explicit(caller->left, &left, left - taken,
                                                    memory_order_relaxed, memory_order_relaxed));
    return taken;
}

static ferry_status_t caller_one_by_one(struct caller *caller)
{
    ferry_status_t status = FERRY_OK;
    uint64_t taken;
    int64_t last_ns = perf_now_ns();
    while (status == FERRY_OK && (taken = caller_take(caller)) > 0) {
        for (uint64_t i = 0; status == FERRY_OK && i < taken; i++) {
            ferry_future_t *future;
            status = call_begin(caller->rpc, &future);
            status = status == FERRY_OK ? call_end(future) : status;
            int64_t now_ns = perf_now_ns();
            if (caller->count < caller->capacity) {
                caller->ns[caller->count++] = (double)(now_ns - last_ns);
            }
            last_ns = now_ns;
            caller->done += status == FERRY_OK;
        }
    }
    return status;
}

/* The oldest is waited for first. */
static ferry_status_t caller_windowed(struct caller *caller)
{
    uint64_t started = 0, finished = 0, ready = 0;
    const uint32_t window = caller->rpc->window;
    ferry_status_t status = FERRY_OK;
    while (status == FERRY_OK) {
        ready = ready > 0 ? ready : caller_take(caller);
        if (ready == 0) {
            break;
        }
        if (started - finished == window) {
            status = call_end(caller->futures[finished++ % window]);
        }
        if (status == FERRY_OK) {
            status = call_begin(caller->rpc, &caller->futures[started % window]);
            started += status == FERRY_OK;
            ready--;
        }
    }
    while (finished < started) {
        ferry_status_t ended = call_end(caller->futures[finished++ % window]);
        status = status == FERRY_OK ? ended : status;
    }
    caller->done = finished;
    return status;
}

static void *caller_run(void *context)
{
    struct caller *caller = context;
    if (caller->gate != NULL) {
        pthread_barrier_wait(caller->gate);
    }
    caller->status = caller->ns != NULL ? caller_one_by_one(caller) : caller_windowed(caller);
    if (caller->status != FERRY_OK) {
        error_record_take(&caller->error);
        atomic_store(caller->left, 0);
    }
    return NULL;
}

static void callers_init(struct rpc *rpc, struct caller *callers, _Atomic uint64_t *left,
                         pthread_barrier_t *gate, struct perf_samples *samples)
{
    bool timed = rpc->timed && samples != NULL;
    size_t part = timed ? (samples->capacity - samples->count) / rpc->threads : 0;
    for (uint32_t i = 0; i < rpc->threads; i++) {
        callers[i] = (struct caller){
            .rpc = rpc,
            .left = left,
            .gate = rpc->threads > 1 ? gate : NULL,
            .futures = rpc->futures + (size_t)i * rpc->end->options->window,
            .ns = timed ? samples->ns + samples->count + i * part : NULL,
            .capacity = part,
        };
    }
}

/* The samples of the threads lie apart; then not. */
static ferry_status_t callers_sum(struct rpc *rpc, const struct caller *callers,
                                  struct perf_samples *samples)
{
    for (uint32_t i = 0; i < rpc->threads; i++) {
        if (callers[i].status != FERRY_OK) {
            return error_raise_record(&callers[i].error);
        }
        if (samples != NULL) {
            if (callers[i].count > 0) {
                memmove(samples->ns + samples->count, callers[i].ns,
                        callers[i].count * sizeof(samples->ns[0]));
            }
            samples->count += callers[i].count;
            samples->operations += callers[i].done;
            samples->thread_operations[i] += callers[i].done;
        }
    }
    return FERRY_OK;
}

static ferry_status_t callers_run(struct rpc *rpc, uint64_t operations,
                                  struct perf_samples *samples)
{
    struct caller callers[PERF_THREADS_MAX];
    _Atomic uint64_t left = operations;
    pthread_barrier_t gate;
    uint32_t begun = 0;
    callers_init(rpc, callers, &left, &gate, samples);
    if (rpc->threads == 1) {
        caller_run(&callers[0]);
        return callers_sum(rpc, callers, samples);
    }
    pthread_barrier_init(&gate, NULL, rpc->threads);
    while (begun < rpc->threads &&
           pthread_create(&callers[begun].thread, NULL, caller_run, &callers[begun]) == 0) {
        begun++;
    }
    if (begun < rpc->threads) { /* those that wait at the gate cannot be let through */
        fprintf(stderr, "ferry_perf: cannot start %u threads\n", rpc->threads);
        exit(PERF_EXIT_FAILED);
    }
    for (uint32_t i = 0; i < begun; i++) {
        pthread_join(callers[i].thread, NULL);
    }
    pthread_barrier_destroy(&gate);
    return callers_sum(rpc, callers, samples);
}

static ferry_status_t path_find(struct rpc *rpc)
{
    ferry_future_t *future = NULL;
    ferry_status_t status = call_begin(rpc, &future);
    if (status == FERRY_OK) {
        status = ferry_future_wait(future, FERRY_FOREVER, NULL);
    }
    if (status == FERRY_OK && rpc->message.tensor_count > 0) {
        const char *path = ferry_future_path(future, "#0");
        snprintf(rpc->path, sizeof rpc->path, "%s", path == NULL ? "" : path);
    }
    ferry_future_release(future);
    return status;
}

static ferry_status_t rpc_run(struct rpc *rpc, uint64_t operations, struct perf_samples *samples)
{
    if (!rpc->calls) {
        return FERRY_OK; /* the agent's own thread serves */
    }
    if (rpc->end->options->validate) {
        return rpc_validate(rpc, operations, samples);
    }
    ferry_status_t status = rpc->path_known ? FERRY_OK : path_find(rpc);
    rpc->path_known = true;
    if (status == FERRY_OK && rpc->kind == RPC_BIDIR) {
        status = perf_barrier(rpc->end->control);
    }
    int64_t start_ns = perf_now_ns();
    if (status == FERRY_OK) {
        status = callers_run(rpc, operations, samples);
    }
    if (status == FERRY_OK && rpc->kind == RPC_BIDIR) {
        status = perf_barrier(rpc->end->control);
    }
    if (status == FERRY_OK && samples != NULL) {
        samples->elapsed_ns += (uint64_t)(perf_now_ns() - start_ns);
        samples->operations += rpc->kind == RPC_BIDIR ? operations : 0; /* the server's own */
        samples->window = rpc->window;
        snprintf(samples->path, sizeof samples->path, "%s", rpc->path);
    }
    return status;
}

static ferry_status_t run_timed(void *state, uint64_t operations, struct perf_samples *samples)
{
    struct rpc *rpc = state;
    rpc->timed = true;
    rpc->window = 1;
    return rpc_run(rpc, operations, samples);
}

static ferry_status_t run_windowed(void *state, uint64_t operations, struct perf_samples *samples)
{
    return rpc_run(state, operations, samples);
}

const struct perf_test perf_rpc_tests[] = {
    {
        .name = "rpc_lat",
        .text = "round trip of a call whose tensors (none: -s 0) go there, with an empty reply",
        .raw = "raw_*_lat",
        .against = PERF_REPLY_EMPTY,
        .unit = "us",
        .usual_bytes = 0,
        .open = open_one_way,
        .prepare = rpc_prepare,
        .run = run_timed,
        .close = rpc_close,
    },
    {
        .name = "rpc_rate",
        .text = "calls a second with a window of them in flight, empty by default",
        .unit = "msg/s",
        .usual_bytes = 0,
        .open = open_one_way,
        .prepare = rpc_prepare,
        .run = run_windowed,
        .close = rpc_close,
    },
    {
        .name = "rpc_bw",
        .text = "bandwidth of calls with tensors, a window of them in flight",
        .raw = "raw_*_bw",
        .unit = "MB/s",
        .usual_bytes = 1024 * 1024,
        .open = open_one_way,
        .prepare = rpc_prepare,
        .run = run_windowed,
        .close = rpc_close,
    },
    {
        .name = "rpc_echo",
        .text = "round trip of a call whose tensors come back into the caller's own buffers",
        .raw = "raw_*_lat",
        .against = PERF_REPLY_SAME,
        .unit = "us",
        .usual_bytes = 1024 * 1024,
        .open = open_echo,
        .prepare = rpc_prepare,
        .run = run_timed,
        .close = rpc_close,
    },
    {
        .name = "rpc_bidir",
        .text = "bandwidth of both ends calling each other at once, both ways together",
        .unit = "MB/s",
        .usual_bytes = 1024 * 1024,
        .open = open_bidir,
        .prepare = rpc_prepare,
        .run = run_windowed,
        .close = rpc_close,
    },
    {.name = NULL},
};
