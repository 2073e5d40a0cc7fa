#include "rpc/serve.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "core/log.h"
#include "rpc/engine.h"
#include "rpc/link.h"

#define REQUESTS_KEPT 1024

static struct ferry_request *request_of_incoming(struct incoming *incoming)
{
    return (struct ferry_request *)((char *)incoming - offsetof(struct ferry_request, incoming));
}

/* ---- life of a request ---- */

static struct ferry_request *request_new(struct link *link, uint64_t call_id)
{
    struct ferry_agent *agent = link->agent;
    struct ferry_request *request = agent->free_requests;
    if (request != NULL) {
        agent->free_requests = request->next;
        agent->free_request_count--;
    } else {
        request = calloc(1, sizeof(*request));
        if (request == NULL) {
            error_raise(FERRY_ERR_NO_MEMORY, "no memory for a request");
            return NULL;
        }
    }
    request->agent = agent;
    request->references = 1;
    request->link = link;
    link_retain(link);
    request->call_id = call_id;
    request->method = NULL;
    request->method_name[0] = '\0';
    atomic_store_explicit(&request->cancelled, false, memory_order_relaxed);
    request->answered = request->receiving = false;
    request->stream_count = 0;
    request->outgoing.outstanding = 0;
    request->outgoing.message.tensor_count = 0;
    request->seen_ns = engine_step_ns(agent);
    request->ready_ns = request->started_ns = 0;
    DL_APPEND(link->requests, request);
    agent->counters.requests_received++;
    agent->counters.requests_pending++;
    agent->requests++;
    return request;
}

static void request_free(struct ferry_request *request)
{
    outgoing_finish(&request->outgoing);
    incoming_finish(&request->incoming);
    free(request->paths);
    free(request);
}

void request_free_recycled(struct ferry_agent *agent)
{
    while (agent->free_requests != NULL) {
        struct ferry_request *request = agent->free_requests;
        agent->free_requests = request->next;
        request_free(request);
    }
    agent->free_request_count = 0;
}

void request_retain(struct ferry_request *request)
{
    request->references++;
}

static void request_run_deallocators(struct action *action)
{
    struct ferry_request *request =
        (struct ferry_request *)((char *)action - offsetof(struct ferry_request, action));
    incoming_run_deallocators(&request->incoming);
    engine_lock(request->agent);
    request_unref(request);
}

static void request_give_allocations(struct ferry_request *request)
{
    while (request->allocations != NULL) {
        struct request_allocation *allocation = request->allocations;
        request->allocations = allocation->next;
        uintptr_t mine[AGENT_STREAMS_MAX];
        size_t count = 0;
        for (size_t i = 0; i < request->stream_count; i++) {
            if (tensor_device_equal(request->stream_devices[i], allocation->block.device)) {
                mine[count++] = request->streams[i];
            }
        }
        incoming_give(request->agent, &allocation->block, mine, count);
        free(allocation);
    }
}

void request_unref(struct ferry_request *request)
{
    if (--request->references > 0) {
        return;
    }
    struct ferry_agent *agent = request->agent;
    if (incoming_has_deallocators(&request->incoming)) {
        request->references = 1;
        request->action.run = request_run_deallocators;
        engine_post_callback(agent, &request->action);
        return;
    }
    incoming_release(&request->incoming, request->stream_devices, request->streams,
                     request->stream_count);
    request_give_allocations(request);
    if (request->method != NULL) {
        method_release(agent, request->method);
    }
    DL_DELETE(request->link->requests, request);
    link_release(request->link);
    agent->counters.requests_pending--;
    agent->requests--;
    engine_changed(agent);
    if (agent->destroyed || agent->free_request_count >= REQUESTS_KEPT) {
        request_free(request);
        return;
    }
    request->next = agent->free_requests;
    agent->free_requests = request;
    agent->free_request_count++;
}

/* ---- answering ---- */

static void request_run_releases(struct action *action)
{
    struct ferry_request *request =
        (struct ferry_request *)((char *)action - offsetof(struct ferry_request, release_action));
    outgoing_run_releases(&request->outgoing);
    engine_lock(request->agent);
    request_unref(request);
}

/* Nothing of the reply is read any more. */
static void serve_reply_sent(struct ferry_request *request)
{
    if (outgoing_has_releases(&request->outgoing)) {
        request_retain(request);
        request->release_action.run = request_run_releases;
        engine_post_callback(request->agent, &request->release_action);
    }
}

static void serve_outgoing_done(struct outgoing *outgoing)
{
    struct ferry_request *request =
        (struct ferry_request *)((char *)outgoing - offsetof(struct ferry_request, outgoing));
    if (outgoing->status != FERRY_OK && request->link->state != LINK_DOWN) {
        link_fail(request->link, outgoing->status, "a reply could not be sent: %s",
                  outgoing->error.text);
    }
    serve_reply_sent(request);
    request_unref(request);
}

static ferry_status_t serve_note_paths(struct ferry_request *request)
{
    struct incoming *incoming = &request->incoming;
    size_t count = incoming->wire.tensor_count;
    if (count > request->path_capacity) {
        uint8_t *paths = realloc(request->paths, count);
        if (paths == NULL) {
            return error_raise(FERRY_ERR_NO_MEMORY, "no memory for %zu paths", count);
        }
        request->paths = paths;
        request->path_capacity = count;
    }
    for (size_t i = 0; i < count; i++) {
        request->paths[i] = (uint8_t)incoming->tensors[i].path;
    }
    request->outgoing.message.argument_paths = request->paths;
    request->outgoing.message.argument_count = count;
    return FERRY_OK;
}

static uint64_t elapsed_ns(int64_t from_ns, int64_t to_ns)
{
    return from_ns == 0 || to_ns < from_ns ? 0 : (uint64_t)(to_ns - from_ns);
}

ferry_status_t serve_post_reply(struct ferry_request *request)
{
    struct ferry_agent *agent = request->agent;
    struct outgoing *outgoing = &request->outgoing;
    struct wire_message *message = &outgoing->message;
    ferry_status_t status = FERRY_OK;
    message->kind = WIRE_REPLY;
    message->call_id = request->call_id;
    if (message->status == FERRY_OK) {
        outgoing->host_peer = !request->incoming.wire.results_direct;
        status = serve_note_paths(request);
    }
    int64_t now = agent_now_ns(agent);
    message->receive_ns = elapsed_ns(request->seen_ns, request->ready_ns);
    message->queue_ns = elapsed_ns(request->ready_ns, request->started_ns);
    message->handler_ns = elapsed_ns(request->started_ns, now);
    outgoing->done = serve_outgoing_done;
    request_retain(request);
    if (status == FERRY_OK && request->link->state != LINK_DOWN) {
        status = outgoing_post(outgoing, request->link);
    }
    if (status == FERRY_PENDING) {
        engine_kick(agent);
    } else if (status == FERRY_OK) {
        serve_reply_sent(request);
        request_unref(request);
    } else {
        request_unref(request);
        return status;
    }
    request->answered = true;
    agent->counters.staged_bytes += outgoing->staged_bytes;
    agent->counters.direct_bytes += outgoing->direct_bytes;
    if (message->status == FERRY_OK) {
        agent->counters.requests_answered++;
    } else {
        agent->counters.requests_failed++;
    }
    agent->counters.bytes_sent += message->body_bytes;
    for (uint64_t i = 0; i < message->tensor_count; i++) {
        agent->counters.bytes_sent += outgoing->wire[i].bytes;
    }
    return FERRY_OK;
}

void serve_fail(struct ferry_request *request, ferry_status_t status, ferry_effect_t effect,
                int32_t code, const char *text)
{
    if (request->answered) {
        return;
    }
    outgoing_fill(&request->outgoing, NULL, "result");
    struct wire_message *message = &request->outgoing.message;
    message->status = status;
    message->effect = effect;
    message->code = code;
    message->error_text = text;
    message->error_text_bytes = strlen(text);
    message->error_origin = request->agent->name;
    message->error_origin_bytes = strlen(request->agent->name);
    if (serve_post_reply(request) != FERRY_OK) {
        request->answered = true;
        link_fail(request->link, FERRY_ERR_TRANSPORT, "an error reply could not be sent: %s",
                  ferry_last_error()->text);
    }
}

static void serve_fail_raised(struct ferry_request *request, ferry_effect_t effect)
{
    struct error_record error;
    error_record_take(&error);
    serve_fail(request, error.status, effect, 0, error.text);
}

/* ---- running handlers ---- */

static int32_t method_limit(const struct ferry_agent *agent, const struct method *method)
{
    return method->concurrency > 0 ? method->concurrency
           : method->run_inline    ? INT32_MAX
                                   : (int32_t)agent->values->pool_max;
}

static void serve_conclude(struct ferry_request *request, ferry_status_t status)
{
    if (!request->answered && status == FERRY_OK) {
        serve_fail(request, FERRY_ERR_UNANSWERED, FERRY_RAN, 0,
                   "the handler returned FERRY_OK without an answer");
    } else if (!request->answered) {
        const ferry_error_t *last = ferry_last_error();
        struct error_record error;
        error_record_set(&error, status, FERRY_RAN, "%s",
                         last->status == status ? last->text : ferry_status_text(status));
        serve_fail(request, status, FERRY_RAN, 0, error.text);
    }
}

static void serve_next(struct ferry_agent *agent, struct method *method);

static void serve_run(struct action *action)
{
    struct ferry_request *request =
        (struct ferry_request *)((char *)action - offsetof(struct ferry_request, action));
    struct ferry_agent *agent = request->agent;
    struct method *method = request->method;
    if (request->started_ns == 0) {
        request->started_ns = agent_now_ns(agent);
    }
    ferry_status_t status = method->run(request, method->context);
    engine_lock(agent);
    if (status != FERRY_PENDING) {
        serve_conclude(request, status);
        request_unref(request); /* the handler's */
    }
    method->active--;
    serve_next(agent, method);
    request_unref(request); /* the run's, which keeps the method */
}

/* Hands the request to its handler; one that is over already is answered instead. */
static void serve_begin(struct ferry_request *request, int64_t now_ns)
{
    struct ferry_agent *agent = request->agent;
    struct method *method = request->method;
    bool cancelled = atomic_load(&request->cancelled);
    if (cancelled || now_ns >= request->deadline_ns) {
        serve_fail(request, cancelled ? FERRY_ERR_CANCELLED : FERRY_ERR_TIMEOUT, FERRY_NOT_RUN, 0,
                   cancelled ? "cancelled before it ran" : "the time was up before it ran");
        request_unref(request);
        return;
    }
    method->active++;
    request_retain(request); /* the run's; the first one is the handler's from here on */
    request->action.run = serve_run;
    if (method->run_inline) {
        if (agent->actions.head == NULL && user_scope_now() == USER_NONE) {
            request->started_ns = now_ns; /* it runs at the end of this step */
        }
        engine_post(agent, &request->action);
    } else {
        engine_post_pool(agent, &request->action);
    }
}

/* Fills the method's free places. A request whose time is up takes none, and there may be many of
 * them: hence a loop. */
static void serve_next(struct ferry_agent *agent, struct method *method)
{
    while (method->waiting.head != NULL && method->active < method_limit(agent, method)) {
        struct ferry_request *next = method->waiting.head;
        method->waiting.head = next->queue_next;
        serve_begin(next, agent_now_ns(agent));
    }
}

static void serve_enqueue(struct ferry_request *request)
{
    struct method *method = request->method;
    if (method->active < method_limit(request->agent, method)) {
        serve_begin(request, request->ready_ns);
        return;
    }
    request->queue_next = NULL;
    if (method->waiting.head == NULL) {
        method->waiting.head = request;
    } else {
        method->waiting.tail->queue_next = request;
    }
    method->waiting.tail = request;
}

/* ---- arriving ---- */

static void serve_complete(struct incoming *incoming)
{
    struct ferry_request *request = request_of_incoming(incoming);
    struct ferry_agent *agent = request->agent;
    request->receiving = false;
    request->ready_ns = incoming->immediate ? request->seen_ns : agent_now_ns(agent);
    agent->counters.bytes_received += incoming->total_bytes;
    agent->counters.staged_bytes += incoming->staged_bytes;
    agent->counters.direct_bytes += incoming->direct_bytes;
    if (incoming->status != FERRY_OK) {
        serve_fail(request, incoming->status, FERRY_NOT_RUN, 0, incoming->error.text);
        request_unref(request);
        return;
    }
    serve_enqueue(request);
}

static ferry_status_t serve_place(struct ferry_request *request, const ferry_allocator_t *allocator)
{
    struct incoming *incoming = &request->incoming;
    ferry_status_t first = FERRY_OK;
    for (uint64_t i = 0; i < incoming->wire.tensor_count; i++) {
        const ferry_device_backend_t *backend;
        ferry_status_t status = device_check(incoming->tensors[i].target, &backend);
        if (status == FERRY_OK) {
            status = incoming_place(incoming, i, incoming->tensors[i].target, allocator);
        }
        if (status != FERRY_OK) {
            incoming_decline(incoming, i);
            first = first == FERRY_OK ? status : first;
        }
    }
    return first;
}

/* The user's allocator must not run under the lock. */
static void serve_run_allocator(struct action *action)
{
    struct ferry_request *request =
        (struct ferry_request *)((char *)action - offsetof(struct ferry_request, action));
    struct ferry_agent *agent = request->agent;
    serve_place(request, &request->method->allocator);
    engine_lock(agent);
    incoming_receive(&request->incoming);
}

static void serve_refuse(struct ferry_request *request, ferry_status_t status)
{
    (void)status;
    struct incoming *incoming = &request->incoming;
    request->receiving = false;
    incoming_refuse(incoming);
    incoming->wire.tensor_count = 0;
    serve_fail_raised(request, FERRY_NOT_RUN);
    request_unref(request);
}

static void serve_described(struct incoming *incoming)
{
    struct ferry_request *request = request_of_incoming(incoming);
    struct ferry_agent *agent = request->agent;
    const struct wire_message *wire = &incoming->wire;
    memcpy(request->method_name, wire->method, wire->method_bytes);
    request->method_name[wire->method_bytes] = '\0';
    request->deadline_ns = clock_deadline_ns(request->seen_ns, wire->timeout_ns);
    if (agent->state != AGENT_RUNNING) {
        serve_refuse(request, error_raise(FERRY_ERR_SHUTDOWN, "%s is shutting down", agent->name));
        return;
    }
    request->method = method_find(agent, wire->method, wire->method_bytes);
    if (request->method == NULL) {
        serve_refuse(request, FERRY_ERR_UNKNOWN_METHOD);
        return;
    }
    request->method->open++;
    if (request->method->has_allocator && wire->tensor_count > 0) {
        request->action.run = serve_run_allocator;
        engine_post(agent, &request->action);
        return;
    }
    serve_place(request, NULL);
    incoming_receive(incoming);
}

ferry_status_t serve_call(struct link *link, const void *data, size_t bytes,
                          const struct wire_message *header, size_t table_bytes)
{
    struct ferry_request *request = request_new(link, header->call_id);
    if (request == NULL) {
        return FERRY_ERR_NO_MEMORY;
    }
    request->receiving = true;
    request->incoming.described = serve_described;
    request->incoming.complete = serve_complete;
    ferry_status_t status =
        incoming_open(&request->incoming, link, data, bytes, header, table_bytes);
    if (status != FERRY_OK) {
        request->incoming.wire.tensor_count = 0;
        request_unref(request);
    }
    return status;
}

void serve_cancel(struct link *link, uint64_t call_id)
{
    struct ferry_request *request;
    DL_FOREACH(link->requests, request)
    {
        if (request->call_id == call_id) {
            atomic_store(&request->cancelled, true);
            return;
        }
    }
}

void serve_link_down(struct link *link)
{
    struct ferry_request *request;
    DL_FOREACH(link->requests, request)
    {
        atomic_store(&request->cancelled, true);
    }
}
