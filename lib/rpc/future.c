#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "core/log.h"
#include "rpc/call.h"
#include "rpc/engine.h"
#include "rpc/link.h"

#define FUTURES_KEPT 4096

struct ferry_future *future_new(struct ferry_agent *agent)
{
    struct ferry_future *future = agent->free_futures;
    if (future != NULL) {
        agent->free_futures = future->next;
        agent->free_future_count--;
    } else {
        future = calloc(1, sizeof(*future));
        if (future == NULL) {
            error_raise(FERRY_ERR_NO_MEMORY, "no memory for a call");
            return NULL;
        }
    }
    future->agent = agent;
    agent->futures++;
    future->references = 1; /* the program's */
    atomic_store_explicit(&future->done, false, memory_order_relaxed);
    future->receiving = future->answered = future->failed = future->cancelled = false;
    future->link = NULL;
    future->call_map = NULL;
    future->callback = NULL;
    future->stream_count = future->gate_count = 0;
    future->sent_ns = future->reply_ns = future->done_ns = 0;
    future->incoming.wire.tensor_count = 0;
    future->incoming.wire.argument_count = 0;
    future->incoming.body.data = NULL;
    future->incoming.message = (ferry_message_t){.body = NULL};
    return future;
}

static void future_free(struct ferry_future *future)
{
    outgoing_finish(&future->outgoing);
    incoming_finish(&future->incoming);
    free(future->buffers);
    free(future);
}

void future_free_recycled(struct ferry_agent *agent)
{
    while (agent->free_futures != NULL) {
        struct ferry_future *future = agent->free_futures;
        agent->free_futures = future->next;
        future_free(future);
    }
    agent->free_future_count = 0;
}

void future_retain(struct ferry_future *future)
{
    future->references++;
}

static void future_forget_paths(struct ferry_future *future)
{
    for (size_t i = 0; i < future->path_count; i++) {
        free(future->paths[i]);
    }
    free(future->paths);
    future->paths = NULL;
    future->path_count = 0;
}

void future_unref(struct ferry_future *future)
{
    if (--future->references > 0) {
        return;
    }
    struct ferry_agent *agent = future->agent;
    incoming_release(&future->incoming, future->stream_devices, future->streams,
                     future->stream_count);
    future_forget_paths(future);
    link_release(future->link);
    future->link = NULL;
    agent->futures--;
    if (agent->destroyed || agent->free_future_count >= FUTURES_KEPT) {
        future_free(future);
        return;
    }
    future->next = agent->free_futures;
    agent->free_futures = future;
    agent->free_future_count++;
}

/* ---- waiting ---- */

static bool future_is_done(void *context)
{
    const struct ferry_future *future = context;
    return atomic_load_explicit(&future->done, memory_order_acquire);
}

bool ferry_future_done(const ferry_future_t *future)
{
    return future != NULL && atomic_load_explicit(&future->done, memory_order_acquire);
}

static ferry_status_t future_outcome(struct ferry_future *future,
                                     const ferry_message_t **result_out)
{
    if (future->failed) {
        return error_raise_record(&future->error);
    }
    if (result_out != NULL) {
        *result_out = &future->incoming.message;
    }
    return FERRY_OK;
}

/* Moves the agent on once, where nobody else does: a test in a loop then gets somewhere. */
static void future_nudge(struct ferry_agent *agent)
{
    if (agent->driver == NULL && agent->sleep_fd >= 0 && user_scope_now() != USER_CALLBACK) {
        int me = 0;
        agent->driver = &me;
        engine_step(agent, &me);
        if (agent->driver == &me) {
            agent->driver = NULL;
            engine_hand_over(agent);
        }
    }
}

static ferry_status_t future_wait_for(struct ferry_agent *agent, bool (*ready)(void *context),
                                      void *context, int64_t timeout_ns)
{
    if (timeout_ns < 0) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT,
                           "the timeout is %lld ns; 0 tests, FERRY_FOREVER waits for ever",
                           (long long)timeout_ns);
    }
    engine_lock(agent);
    ferry_status_t status = FERRY_OK;
    if (timeout_ns == 0) {
        if (!ready(context)) {
            future_nudge(agent);
        }
        status = ready(context) ? FERRY_OK : FERRY_PENDING;
    } else if (!ready(context)) {
        int64_t deadline_ns = timeout_ns == FERRY_FOREVER
                                  ? FERRY_FOREVER /* no look at the clock */
                                  : clock_deadline_ns(agent_now_ns(agent), timeout_ns);
        status = engine_wait_locked(agent, ready, context, deadline_ns);
    }
    engine_unlock(agent);
    return status;
}

ferry_status_t ferry_future_wait(ferry_future_t *future, int64_t timeout_ns,
                                 const ferry_message_t **result_out)
{
    if (future == NULL) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT, "the future is NULL");
    }
    ferry_status_t status = FERRY_OK;
    if (!ferry_future_done(future)) {
        status = future_wait_for(future->agent, future_is_done, future, timeout_ns);
    }
    return status == FERRY_OK ? future_outcome(future, result_out) : status;
}

struct future_list {
    ferry_future_t *const *futures;
    size_t count;
    size_t next; /* all before have completed */
};

static bool future_list_all(void *context)
{
    struct future_list *list = context;
    while (list->next < list->count && future_is_done(list->futures[list->next])) {
        list->next++;
    }
    return list->next == list->count;
}

static bool future_list_any(void *context)
{
    struct future_list *list = context;
    for (size_t i = 0; i < list->count; i++) {
        if (future_is_done(list->futures[i])) {
            list->next = i;
            return true;
        }
    }
    return false;
}

/* One agent's futures are waited for by driving it; several agents' by taking turns. */
static ferry_status_t future_list_wait(struct future_list *list, bool (*ready)(void *context),
                                       int64_t timeout_ns)
{
    for (size_t i = 0; i < list->count; i++) {
        if (list->futures == NULL || list->futures[i] == NULL) {
            return error_raise(FERRY_ERR_INVALID_ARGUMENT, "futures[%zu] is NULL", i);
        }
    }
    if (list->count == 0) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT, "there are no futures to wait for");
    }
    int64_t deadline = clock_deadline_ns(clock_monotonic_ns(), timeout_ns);
    bool one_agent = true;
    for (size_t i = 1; i < list->count; i++) {
        one_agent = one_agent && list->futures[i]->agent == list->futures[0]->agent;
    }
    if (one_agent) {
        return future_wait_for(list->futures[0]->agent, ready, list, timeout_ns);
    }
    for (size_t turn = 0; !ready(list); turn++) {
        int64_t now = clock_monotonic_ns();
        if (now >= deadline) {
            return FERRY_PENDING;
        }
        ferry_future_t *future = list->futures[turn % list->count];
        int64_t left = deadline - now;
        ferry_status_t status =
            future_wait_for(future->agent, future_is_done, future, left < 100000 ? left : 100000);
        if (status != FERRY_OK && status != FERRY_PENDING) {
            return status;
        }
    }
    return FERRY_OK;
}

ferry_status_t ferry_future_wait_all(ferry_future_t *const *futures, size_t count,
                                     int64_t timeout_ns)
{
    struct future_list list = {.futures = futures, .count = count};
    ferry_status_t status = future_list_wait(&list, future_list_all, timeout_ns);
    for (size_t i = 0; status == FERRY_OK && i < count; i++) {
        status = future_outcome(futures[i], NULL);
    }
    return status;
}

ferry_status_t ferry_future_wait_any(ferry_future_t *const *futures, size_t count,
                                     int64_t timeout_ns, size_t *index_out)
{
    struct future_list list = {.futures = futures, .count = count};
    ferry_status_t status = future_list_wait(&list, future_list_any, timeout_ns);
    if (status == FERRY_OK && index_out != NULL) {
        *index_out = list.next;
    }
    return status;
}

/* ---- completion ---- */

static void future_run_callback(struct action *action)
{
    struct ferry_future *future =
        (struct ferry_future *)((char *)action - offsetof(struct ferry_future, callback_action));
    struct ferry_agent *agent = future->agent;
    future->callback(future, future->callback_context);
    engine_lock(agent);
    future_unref(future);
}

static void future_post_callback(struct ferry_future *future)
{
    future_retain(future);
    future->callback_action.run = future_run_callback;
    engine_post_callback(future->agent, &future->callback_action);
}

static void gate_open(struct ferry_agent *agent, struct stream_gate *gate)
{
    atomic_store_explicit((_Atomic uint32_t *)gate->block.data, 1, memory_order_release);
    transfer_give_after(agent->transfers, &gate->block, &gate->stream, 1);
}

void future_completed(struct ferry_future *future)
{
    for (size_t i = 0; i < future->gate_count; i++) {
        gate_open(future->agent, &future->gates[i]);
    }
    future->gate_count = 0;
    if (future->callback != NULL) {
        future_post_callback(future);
    }
}

ferry_status_t ferry_future_then(ferry_future_t *future, ferry_future_fn *done, void *context)
{
    if (future == NULL || done == NULL) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT, "future and callback must not be NULL");
    }
    ferry_status_t status = FERRY_OK;
    engine_lock(future->agent);
    if (future->callback != NULL) {
        status = error_raise(FERRY_ERR_STATE, "the future has a callback already");
    } else {
        future->callback = done;
        future->callback_context = context;
        if (future_is_done(future)) {
            future_post_callback(future);
        }
    }
    engine_unlock(future->agent);
    return status;
}

void ferry_future_cancel(ferry_future_t *future)
{
    if (future == NULL) {
        return;
    }
    engine_lock(future->agent);
    if (!future_is_done(future)) {
        call_fail(future, FERRY_ERR_CANCELLED, future->receiving ? FERRY_RAN : FERRY_MAY_HAVE_RUN,
                  "%s: %s: cancelled", future->peer->name, future->method);
    }
    engine_unlock(future->agent);
}

void ferry_future_release(ferry_future_t *future)
{
    if (future == NULL) {
        return;
    }
    struct ferry_agent *agent = future->agent;
    engine_lock(agent);
    if (!future_is_done(future)) {
        call_fail(future, FERRY_ERR_CANCELLED, future->receiving ? FERRY_RAN : FERRY_MAY_HAVE_RUN,
                  "%s: %s: released while pending", future->peer->name, future->method);
    }
    future_unref(future);
    bool last = agent_is_unused(agent);
    engine_unlock(agent);
    if (last) {
        agent_free(agent);
    }
}

/* ---- what is known of a completed call ---- */

const ferry_error_t *ferry_future_error(const ferry_future_t *future)
{
    return ferry_future_done(future) && future->failed ? &future->error_view : NULL;
}

const ferry_message_t *ferry_future_result(const ferry_future_t *future)
{
    return ferry_future_done(future) && !future->failed ? &future->incoming.message : NULL;
}

ferry_status_t ferry_future_stats(const ferry_future_t *future, ferry_call_stats_t *stats_out)
{
    if (future == NULL || stats_out == NULL ||
        stats_out->struct_bytes < sizeof(ferry_call_stats_t)) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT,
                           "future and stats must not be NULL and stats->struct_bytes must be "
                           "sizeof(ferry_call_stats_t)");
    }
    if (!ferry_future_done(future)) {
        return FERRY_PENDING;
    }
    const struct wire_message *reply = &future->incoming.wire;
    bool replied = future->reply_ns != 0;
    uint64_t argument_bytes = future->outgoing.message.body_bytes;
    for (uint64_t i = 0; i < future->outgoing.message.tensor_count; i++) {
        argument_bytes += future->outgoing.wire[i].bytes;
    }
    *stats_out = (ferry_call_stats_t){
        .struct_bytes = sizeof(*stats_out),
        .total_ns = future->done_ns - future->start_ns,
        .send_ns = future->sent_ns == 0 ? 0 : future->sent_ns - future->start_ns,
        .callee_receive_ns = replied ? (int64_t)reply->receive_ns : 0,
        .callee_queue_ns = replied ? (int64_t)reply->queue_ns : 0,
        .handler_ns = replied ? (int64_t)reply->handler_ns : 0,
        .result_ns = replied ? future->done_ns - future->reply_ns : 0,
        .argument_bytes = argument_bytes,
        .result_bytes = replied ? future->incoming.total_bytes : 0,
        .staged_bytes = future->outgoing.staged_bytes + future->incoming.staged_bytes,
        .direct_bytes = future->outgoing.direct_bytes + future->incoming.direct_bytes,
    };
    return FERRY_OK;
}

/* ---- streams ---- */

static ferry_status_t future_check_stream(DLDevice *device, const ferry_device_backend_t **backend)
{
    *device = tensor_device(*device);
    ferry_status_t status = device_check(*device, backend);
    if (status == FERRY_OK && (*backend)->host_readable) {
        status = error_raise(FERRY_ERR_INVALID_ARGUMENT, "cpu has no streams");
    }
    return status;
}

ferry_status_t ferry_future_use_stream(ferry_future_t *future, DLDevice device, uintptr_t stream)
{
    const ferry_device_backend_t *backend;
    if (future == NULL) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT, "the future is NULL");
    }
    ferry_status_t status = future_check_stream(&device, &backend);
    if (status != FERRY_OK) {
        return status;
    }
    engine_lock(future->agent);
    if (future->stream_count == AGENT_STREAMS_MAX) {
        status = error_raise(FERRY_ERR_LIMIT, "a future may name %d streams", AGENT_STREAMS_MAX);
    } else {
        future->stream_devices[future->stream_count] = device;
        future->streams[future->stream_count++] = stream;
    }
    engine_unlock(future->agent);
    return status;
}

static ferry_status_t future_add_gate(struct ferry_future *future, DLDevice device,
                                      const ferry_device_backend_t *backend, uintptr_t stream)
{
    struct ferry_agent *agent = future->agent;
    if (future->gate_count == AGENT_STREAMS_MAX) {
        return error_raise(FERRY_ERR_LIMIT, "%d streams may wait for a future", AGENT_STREAMS_MAX);
    }
    struct stream_gate *gate = &future->gates[future->gate_count];
    gate->stream = stream;
    ferry_status_t status = memory_pool_take(agent->memory, device, true, 64, &gate->block);
    if (status != FERRY_OK) {
        return status;
    }
    *(uint32_t *)gate->block.data = 0;
    status = backend->stream_wait_flag(device.device_id, stream, gate->block.data);
    if (status != FERRY_OK) {
        memory_pool_give(agent->memory, &gate->block);
        return status;
    }
    future->gate_count++;
    return FERRY_OK;
}

ferry_status_t ferry_future_enqueue_wait(ferry_future_t *future, DLDevice device, uintptr_t stream)
{
    const ferry_device_backend_t *backend;
    if (future == NULL) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT, "the future is NULL");
    }
    ferry_status_t status = future_check_stream(&device, &backend);
    if (status != FERRY_OK) {
        return status;
    }
    engine_lock(future->agent);
    if (!future_is_done(future)) {
        status = future_add_gate(future, device, backend, stream);
    }
    engine_unlock(future->agent);
    return status;
}
