#include "rpc/call.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "core/log.h"
#include "rpc/control.h"
#include "rpc/engine.h"
#include "rpc/link.h"
#include "rpc/peer.h"
#include "rpc/results.h"

#define SLOTS_FIRST 64
#define SLOT_NONE UINT32_MAX

ferry_call_options_t ferry_call_options(void)
{
    return (ferry_call_options_t){.struct_bytes = sizeof(ferry_call_options_t)};
}

static ferry_status_t slots_grow(struct ferry_agent *agent)
{
    uint32_t count = agent->slot_count == 0 ? SLOTS_FIRST : agent->slot_count * 2;
    struct call_slot *slots = realloc(agent->slots, count * sizeof(*slots));
    if (slots == NULL) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory for %u pending calls", count);
    }
    agent->slots = slots;
    for (uint32_t i = agent->slot_count; i < count; i++) {
        slots[i] = (struct call_slot){.next_free = i + 1 < count ? i + 1 : SLOT_NONE};
    }
    agent->free_slot = agent->slot_count;
    agent->slot_count = count;
    return FERRY_OK;
}

static ferry_status_t slot_take(struct ferry_agent *agent, struct ferry_future *future)
{
    if (agent->slot_count == 0 || agent->free_slot == SLOT_NONE) {
        ferry_status_t status = slots_grow(agent);
        if (status != FERRY_OK) {
            return status;
        }
    }
    uint32_t index = agent->free_slot;
    struct call_slot *slot = &agent->slots[index];
    agent->free_slot = slot->next_free;
    slot->generation++;
    slot->future = future;
    future->slot = index;
    future->call_id = (uint64_t)slot->generation << 32 | index;
    return FERRY_OK;
}

static void slot_give(struct ferry_agent *agent, struct ferry_future *future)
{
    struct call_slot *slot = &agent->slots[future->slot];
    slot->future = NULL;
    slot->next_free = agent->free_slot;
    agent->free_slot = future->slot;
}

static struct ferry_future *slot_find(struct link *link, uint64_t call_id)
{
    struct ferry_agent *agent = link->agent;
    uint32_t index = (uint32_t)call_id;
    if (index >= agent->slot_count || agent->slots[index].future == NULL ||
        agent->slots[index].generation != (uint32_t)(call_id >> 32) ||
        agent->slots[index].future->link != link) {
        return NULL;
    }
    return agent->slots[index].future;
}

/* The pending call is over; the object may live on for its holders and for transfers. */
static void call_complete(struct ferry_future *future)
{
    struct ferry_agent *agent = future->agent;
    struct peer *peer = future->peer;
    poller_timer_clear(agent->poller, &future->timer);
    slot_give(agent, future);
    DL_DELETE(future->link->calls, future);
    shared_map_release(future->map);
    future->map = NULL;
    future->call_map = NULL;
    agent->counters.calls_pending--;
    if (future->failed) {
        agent->counters.calls_failed++;
        future->error_view = error_record_view(&future->error);
    } else {
        agent->counters.calls_succeeded++;
        agent->counters.bytes_received += future->incoming.total_bytes;
    }
    if (future->done_ns == 0) {
        future->done_ns = agent_now_ns(agent);
    }
    if (--peer->calls + 1 == (size_t)agent->values->max_calls) {
        peer_notify(peer, FERRY_OK);
    }
    atomic_store_explicit(&future->done, true, memory_order_release);
    future_completed(future);
    engine_changed(agent);
    future_unref(future);
}

static bool call_borrows(const struct ferry_future *future)
{
    return outgoing_borrows(&future->outgoing) || (future->receiving && future->buffer_count > 0);
}

static void call_try_complete(struct ferry_future *future)
{
    if (atomic_load_explicit(&future->done, memory_order_relaxed)) {
        return;
    }
    if (future->failed) {
        if (!call_borrows(future)) {
            call_complete(future);
        }
    } else if (future->answered && future->outgoing.outstanding == 0) {
        call_complete(future);
    }
}

/* The error is there; what still moves borrowed memory must end within FERRY_RELEASE_TIMEOUT. */
static void call_release_late(void *context)
{
    struct ferry_future *future = context;
    link_fail(future->link, FERRY_ERR_TRANSPORT,
              "%s: %s: the transport held memory for %lld ms after the call had ended with %s",
              future->peer->name, future->method,
              (long long)(future->agent->values->release_timeout_ns / 1000000),
              ferry_status_name(future->error.status));
}

static void call_end(struct ferry_future *future)
{
    struct ferry_agent *agent = future->agent;
    future->failed = true;
    snprintf(future->error.method, sizeof(future->error.method), "%s", future->method);
    future_retain(future);
    if (future->receiving) {
        incoming_cancel(&future->incoming);
    }
    if (!future->answered && !future->cancelled && future->link->state != LINK_DOWN) {
        future->cancelled = true;
        control_send(future->link, WIRE_CANCEL, future->call_id);
    }
    if (!atomic_load_explicit(&future->done, memory_order_relaxed) && call_borrows(future) &&
        future->link->state != LINK_DOWN) {
        future->timer.fire = call_release_late;
        poller_timer_set(agent->poller, &future->timer,
                         clock_deadline_ns(agent_now_ns(agent), agent->values->release_timeout_ns));
    }
    call_try_complete(future);
    future_unref(future);
}

void call_fail(struct ferry_future *future, ferry_status_t status, ferry_effect_t effect,
               const char *format, ...)
{
    if (future->failed || atomic_load_explicit(&future->done, memory_order_relaxed)) {
        return;
    }
    char text[ERROR_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    error_record_set(&future->error, status, effect, "%s", text);
    call_end(future);
}

static void call_timeout(void *context)
{
    struct ferry_future *future = context;
    call_fail(future, FERRY_ERR_TIMEOUT, future->receiving ? FERRY_RAN : FERRY_MAY_HAVE_RUN,
              "%s: %s: no %s within %lld ms", future->peer->name, future->method,
              future->receiving ? "complete result" : "answer",
              (long long)(future->timeout_ns / 1000000));
}

void call_link_down(struct link *link)
{
    struct ferry_future *future, *next;
    DL_FOREACH_SAFE(link->calls, future, next)
    {
        call_fail(future, link->down.status, future->receiving ? FERRY_RAN : FERRY_MAY_HAVE_RUN,
                  "%s: %s: %s", future->peer->name, future->method, error_reason_text(&link->down));
    }
}

void call_fail_all(struct ferry_agent *agent, ferry_status_t status, const char *text)
{
    for (uint32_t i = 0; i < agent->slot_count; i++) {
        struct ferry_future *future = agent->slots[i].future;
        if (future != NULL) {
            call_fail(future, status, FERRY_MAY_HAVE_RUN, "%s: %s: %s", future->peer->name,
                      future->method, text);
        }
    }
}

static void call_run_releases(struct action *action)
{
    struct ferry_future *future =
        (struct ferry_future *)((char *)action - offsetof(struct ferry_future, release_action));
    outgoing_run_releases(&future->outgoing);
    engine_lock(future->agent);
    future_unref(future);
}

/* Nothing of the arguments is read any more. */
static void call_arguments_sent(struct ferry_future *future)
{
    struct ferry_agent *agent = future->agent;
    if (outgoing_has_releases(&future->outgoing)) {
        future_retain(future);
        future->release_action.run = call_run_releases;
        engine_post_callback(agent, &future->release_action);
    }
}

static void call_outgoing_done(struct outgoing *outgoing)
{
    struct ferry_future *future =
        (struct ferry_future *)((char *)outgoing - offsetof(struct ferry_future, outgoing));
    future->sent_ns = agent_now_ns(future->agent);
    call_arguments_sent(future);
    if (outgoing->status != FERRY_OK) {
        call_fail(future, outgoing->status, FERRY_MAY_HAVE_RUN, "%s: %s: %s", future->peer->name,
                  future->method, outgoing->error.text);
        /* The callee waits for segments that will not come. */
        link_fail(future->link, FERRY_ERR_PEER_LOST, "an argument could not be sent: %s",
                  outgoing->error.text);
    }
    call_try_complete(future);
    future_unref(future);
}

/* ---- the reply ---- */

static void call_reply_complete(struct incoming *incoming)
{
    struct ferry_future *future =
        (struct ferry_future *)((char *)incoming - offsetof(struct ferry_future, incoming));
    future->receiving = false;
    if (incoming->status != FERRY_OK) {
        call_fail(future, incoming->status, FERRY_RAN, "%s: %s: %s", future->peer->name,
                  future->method, incoming->error.text);
    } else {
        future->answered = true;
        if (incoming->immediate) {
            future->done_ns = future->reply_ns;
        }
    }
    call_try_complete(future);
    future_unref(future);
}

static void call_take_error(struct ferry_future *future)
{
    const struct wire_message *wire = &future->incoming.wire;
    char origin[ERROR_NAME_BYTES];
    snprintf(origin, sizeof(origin), "%.*s", (int)wire->error_origin_bytes,
             wire->error_origin == NULL ? "" : wire->error_origin);
    if (origin[0] == '\0') {
        snprintf(origin, sizeof(origin), "%s", future->peer->name);
    }
    future->answered = true; /* no cancel needs to go out */
    error_record_set(&future->error, wire->status, wire->effect, "%s: %s: %.*s", origin,
                     future->method, (int)wire->error_text_bytes,
                     wire->error_text == NULL ? "" : wire->error_text);
    future->error.code = wire->code;
    snprintf(future->error.origin, sizeof(future->error.origin), "%s", origin);
    call_end(future);
}

static void call_reply_described(struct incoming *incoming)
{
    struct ferry_future *future =
        (struct ferry_future *)((char *)incoming - offsetof(struct ferry_future, incoming));
    if (future->failed) {
        incoming_refuse(incoming);
        incoming->wire.tensor_count = 0;
        call_reply_complete(incoming);
        return;
    }
    if (incoming->wire.status != FERRY_OK) {
        future->receiving = false;
        call_take_error(future);
        future_unref(future);
        return;
    }
    results_place(future);
    incoming_receive(incoming);
}

ferry_status_t call_reply(struct link *link, const void *data, size_t bytes,
                          const struct wire_message *header, size_t table_bytes)
{
    struct ferry_future *future = slot_find(link, header->call_id);
    if (future == NULL || future->failed || future->receiving || future->answered) {
        return control_drop(link, data, bytes, header, table_bytes);
    }
    future->reply_ns = engine_step_ns(link->agent);
    future->receiving = true;
    future->incoming.described = call_reply_described;
    future->incoming.complete = call_reply_complete;
    future_retain(future);
    ferry_status_t status =
        incoming_open(&future->incoming, link, data, bytes, header, table_bytes);
    if (status != FERRY_OK) {
        future->receiving = false;
        future_unref(future);
    }
    return status;
}

/* ---- starting a call ---- */

struct call_request {
    const char *peer, *method;
    size_t method_bytes;
    const ferry_message_t *message;
    const ferry_call_options_t *options;
    int64_t start_ns, deadline_ns;
    bool may_block;
    bool waited; /* for the peer, since start_ns */
};

static ferry_status_t call_check(const ferry_agent_t *agent, struct call_request *request)
{
    if (agent == NULL || request->peer == NULL || request->method == NULL) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT, "%s is NULL",
                           agent == NULL           ? "the agent"
                           : request->peer == NULL ? "the peer's name"
                                                   : "the method's name");
    }
    size_t length = request->method_bytes = strlen(request->method);
    if (length == 0 || length > WIRE_METHOD_BYTES_MAX) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT,
                           "the method name '%.40s%s' has %zu bytes; 1 to %d are allowed",
                           request->method, length > 40 ? "..." : "", length,
                           WIRE_METHOD_BYTES_MAX);
    }
    if (request->options->struct_bytes < sizeof(ferry_call_options_t)) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT,
                           "the call's options say struct_bytes = %zu; start from "
                           "ferry_call_options()",
                           request->options->struct_bytes);
    }
    if (request->options->timeout_ns < 0) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT,
                           "the call's timeout is %lld ns; 0 is the default, FERRY_FOREVER none",
                           (long long)request->options->timeout_ns);
    }
    return FERRY_OK;
}

struct room_wait {
    const struct peer *peer;
    const struct ferry_agent *agent;
};

static bool call_has_room(void *context)
{
    const struct room_wait *wait = context;
    return wait->peer->calls < (size_t)wait->agent->values->max_calls ||
           wait->peer->state != PEER_UP || wait->agent->state != AGENT_RUNNING;
}

/* A connected peer with room for one more call. */
static ferry_status_t call_reach(struct ferry_agent *agent, struct peer *peer,
                                 struct call_request *request)
{
    request->waited = peer->state != PEER_UP;
    for (;;) {
        if (agent->state != AGENT_RUNNING) {
            return error_raise(agent->state < AGENT_RUNNING ? FERRY_ERR_STATE : FERRY_ERR_SHUTDOWN,
                               "agent '%s' is %s", agent->name,
                               agent->state < AGENT_RUNNING ? "not started" : "shutting down");
        }
        ferry_status_t status = peer_require(peer, request->options->wait_for_peer,
                                             request->may_block, request->deadline_ns);
        if (status != FERRY_OK) {
            return status;
        }
        struct room_wait wait = {.peer = peer, .agent = agent};
        if (call_has_room(&wait)) {
            return FERRY_OK;
        }
        if (!request->may_block || agent->values->when_full == FULL_FAIL) {
            return error_raise(FERRY_ERR_WOULD_BLOCK,
                               "%zu calls to %s are in flight (FERRY_MAX_CALLS)", peer->calls,
                               peer->name);
        }
        request->waited = true;
        status = engine_wait_locked(agent, call_has_room, &wait, request->deadline_ns);
        if (status == FERRY_PENDING) {
            return error_raise(FERRY_ERR_TIMEOUT,
                               "%zu calls to %s are in flight (FERRY_MAX_CALLS) and none ended "
                               "within the timeout",
                               peer->calls, peer->name);
        }
        if (status != FERRY_OK) {
            return status;
        }
    }
}

/* Where each argument arrives, by the rules, and whether the peer has that device. */
static ferry_status_t call_map_arguments(struct ferry_future *future, struct peer *peer)
{
    struct ferry_agent *agent = future->agent;
    struct device_map_view call_view = {.map = NULL};
    if (future->call_map != NULL) {
        call_view = device_map_view(future->call_map, peer->name, peer->self);
    }
    if (peer->view_map != agent->map) {
        peer->view = device_map_view(agent->map->map, peer->name, peer->self);
        peer->view_map = agent->map;
    }
    for (uint64_t i = 0; i < future->outgoing.message.tensor_count; i++) {
        struct wire_tensor *tensor = &future->outgoing.wire[i];
        ferry_status_t status = device_map_view_target(
            &peer->view, future->call_map == NULL ? NULL : &call_view, tensor->source,
            FERRY_ARGUMENTS, tensor->name, i, &tensor->target, NULL);
        if (status == FERRY_OK) {
            status = results_check_peer_device(peer->link, tensor, i);
        }
        if (status != FERRY_OK) {
            return status;
        }
        bool host = tensor->target.device_type == kDLCPU;
        if (!host || tensor->bytes > peer->link->send_limits.inline_bytes) {
            tensor->inline_data = NULL;
        }
    }
    return FERRY_OK;
}

static ferry_status_t call_prepare(struct ferry_future *future, struct peer *peer,
                                   const struct call_request *request)
{
    struct ferry_agent *agent = future->agent;
    const ferry_call_options_t *options = request->options;
    future->peer = peer;
    future->timeout_ns = options->timeout_ns == 0 ? agent->values->timeout_ns : options->timeout_ns;
    future->start_ns = request->start_ns;
    future->call_map = options->device_map;
    memcpy(future->method, request->method, request->method_bytes + 1);
    ferry_status_t status = results_take_options(future, options);
    if (status == FERRY_OK) {
        status = outgoing_fill(&future->outgoing, request->message, "argument");
    }
    if (status == FERRY_OK) {
        status = call_map_arguments(future, peer);
    }
    if (status != FERRY_OK) {
        return status;
    }
    struct wire_message *wire = &future->outgoing.message;
    wire->kind = WIRE_CALL;
    wire->method = future->method;
    wire->method_bytes = request->method_bytes;
    wire->results_direct = !results_may_reach_host(future, peer);
    wire->timeout_ns = FERRY_FOREVER;
    if (request->deadline_ns != FERRY_FOREVER) {
        /* Connecting may have taken its time. */
        int64_t now = request->waited ? agent_now_ns(agent) : request->start_ns;
        wire->timeout_ns = request->deadline_ns > now ? request->deadline_ns - now : 0;
    }
    return FERRY_OK;
}

/* From here on the call is pending; on error it never was. */
static ferry_status_t call_launch(struct ferry_future *future, struct link *link,
                                  int64_t deadline_ns)
{
    struct ferry_agent *agent = future->agent;
    ferry_status_t status = slot_take(agent, future);
    if (status != FERRY_OK) {
        return status;
    }
    if (deadline_ns != FERRY_FOREVER) {
        future->timer.fire = call_timeout;
        future->timer.context = future;
        status = poller_timer_set(agent->poller, &future->timer, deadline_ns);
        if (status != FERRY_OK) {
            slot_give(agent, future);
            return status;
        }
    }
    future->timer.context = future;
    future->outgoing.message.call_id = future->call_id;
    future->outgoing.done = call_outgoing_done;
    future->link = link;
    future->map = agent->map;
    future->map->references++;
    future->peer->calls++;
    link_retain(link);
    DL_APPEND(link->calls, future);
    future_retain(future); /* the pending call's */
    future_retain(future); /* the sending half's */
    status = outgoing_post(&future->outgoing, link);
    if (status != FERRY_OK && status != FERRY_PENDING) {
        poller_timer_clear(agent->poller, &future->timer);
        slot_give(agent, future);
        DL_DELETE(link->calls, future);
        shared_map_release(future->map);
        future->map = NULL;
        future->peer->calls--;
        future->references -= 2;
        return status;
    }
    agent->counters.calls_started++;
    agent->counters.calls_pending++;
    uint64_t bytes = future->outgoing.message.body_bytes;
    for (uint64_t i = 0; i < future->outgoing.message.tensor_count; i++) {
        bytes += future->outgoing.wire[i].bytes;
    }
    agent->counters.bytes_sent += bytes;
    agent->counters.staged_bytes += future->outgoing.staged_bytes;
    agent->counters.direct_bytes += future->outgoing.direct_bytes;
    if (status == FERRY_OK) {
        future->sent_ns = future->outgoing.message.tensor_count == 0
                              ? future->start_ns /* not worth a look at the clock */
                              : agent_now_ns(agent);
        call_arguments_sent(future);
        call_try_complete(future); /* the link may have failed meanwhile */
        future_unref(future);
    } else {
        engine_kick_for_call(agent);
    }
    return FERRY_OK;
}

static ferry_status_t call_start(struct ferry_agent *agent, struct call_request *request,
                                 ferry_future_t **future_out)
{
    request->start_ns = agent_now_ns(agent);
    int64_t timeout = request->options->timeout_ns == 0 ? agent->values->timeout_ns
                                                        : request->options->timeout_ns;
    request->deadline_ns = clock_deadline_ns(request->start_ns, timeout);
    request->may_block = !agent_manual(agent) && user_scope_now() != USER_CALLBACK;
    struct peer *peer = peer_get(agent, request->peer);
    if (peer == NULL) {
        return ferry_last_error()->status;
    }
    ferry_status_t status = call_reach(agent, peer, request);
    if (status != FERRY_OK) {
        return status;
    }
    struct ferry_future *future = future_new(agent);
    if (future == NULL) {
        return FERRY_ERR_NO_MEMORY;
    }
    status = call_prepare(future, peer, request);
    if (status == FERRY_OK) {
        status = call_launch(future, peer->link, request->deadline_ns);
    }
    if (status != FERRY_OK) {
        struct error_record error;
        error_record_take(&error);
        future->outgoing.message.tensor_count = 0; /* no release runs: nothing was taken */
        future_unref(future);
        return error_raise_record(&error);
    }
    *future_out = future;
    return FERRY_OK;
}

ferry_status_t ferry_call(ferry_agent_t *agent, const char *peer, const char *method,
                          const ferry_message_t *message, const ferry_call_options_t *options,
                          ferry_future_t **future_out)
{
    ferry_call_options_t defaults = ferry_call_options();
    struct call_request request = {
        .peer = peer,
        .method = method,
        .message = message,
        .options = options == NULL ? &defaults : options,
    };
    ferry_status_t status = call_check(agent, &request);
    if (status == FERRY_OK && future_out == NULL) {
        status = error_raise(FERRY_ERR_INVALID_ARGUMENT, "future_out is NULL");
    }
    if (status != FERRY_OK) {
        return status;
    }
    engine_lock(agent);
    status = call_start(agent, &request, future_out);
    engine_unlock(agent);
    return status;
}
