#include "rpc/agent.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "core/log.h"
#include "rpc/call.h"
#include "rpc/engine.h"
#include "rpc/link.h"
#include "rpc/peer.h"
#include "rpc/serve.h"
#include "rpc/start.h"

bool agent_manual(const struct ferry_agent *agent)
{
    return agent->values->progress == PROGRESS_MANUAL;
}

int64_t agent_now_ns(const struct ferry_agent *agent)
{
    return clock_now_ns(&agent->clock);
}

void shared_map_release(struct shared_map *map)
{
    if (map != NULL && --map->references == 0) {
        ferry_device_map_destroy(map->map);
        free(map);
    }
}

/* Takes the map over, also on error. */
static ferry_status_t shared_map_create(ferry_device_map_t *map, struct shared_map **shared_out)
{
    struct shared_map *shared = calloc(1, sizeof(*shared));
    if (shared == NULL) {
        ferry_device_map_destroy(map);
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory for a device map");
    }
    shared->map = map;
    shared->references = 1;
    *shared_out = shared;
    return FERRY_OK;
}

ferry_agent_options_t ferry_agent_options(void)
{
    return (ferry_agent_options_t){.struct_bytes = sizeof(ferry_agent_options_t)};
}

static ferry_status_t agent_read_map(struct ferry_agent *agent,
                                     const ferry_agent_options_t *options)
{
    ferry_device_map_t *map = NULL;
    ferry_status_t status;
    if (options->rule_count > 0) {
        status = ferry_device_map_create(options->rules, options->rule_count, &map);
    } else {
        status = ferry_device_map_parse(
            options->device_map == NULL ? agent->values->device_map : options->device_map, &map);
    }
    return status == FERRY_OK ? shared_map_create(map, &agent->map) : status;
}

static ferry_status_t agent_read_names(struct ferry_agent *agent,
                                       const ferry_agent_options_t *options)
{
    const char *name = options->name == NULL ? agent->values->name : options->name;
    const char *naming = options->naming == NULL ? agent->values->naming : options->naming;
    if (name[0] != '\0' || options->name != NULL) {
        ferry_status_t status = naming_check_name(name);
        if (status != FERRY_OK) {
            return status;
        }
    }
    snprintf(agent->name, sizeof(agent->name), "%s", name);
    agent->naming_url = strdup(naming[0] == '\0' ? "inproc://" : naming);
    agent->serve_naming = options->serve_naming || agent->values->naming_serve;
    if (agent->naming_url == NULL) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory for an agent");
    }
    return FERRY_OK;
}

static ferry_status_t agent_init_sync(struct ferry_agent *agent)
{
    pthread_mutex_init(&agent->lock, NULL);
    if (getrandom(agent->id, sizeof(agent->id), 0) != sizeof(agent->id)) {
        return error_raise(FERRY_ERR_SYSTEM, "no random bytes for an agent's id");
    }
    memcpy(&agent->peers.seed, agent->id, sizeof(agent->peers.seed));
    return FERRY_OK;
}

/* Frees what create made; the config stays the caller's where `keep_config`. */
static void agent_discard(struct ferry_agent *agent, bool keep_config)
{
    method_destroy_all(agent);
    shared_map_release(agent->map);
    poller_destroy(agent->poller);
    memory_pool_destroy(agent->memory);
    free(agent->naming_url);
    free(agent->slots);
    if (!keep_config) {
        ferry_config_destroy(agent->config);
    }
    pthread_mutex_destroy(&agent->lock);
    free(agent);
}

bool agent_is_unused(const struct ferry_agent *agent)
{
    return agent->destroyed && agent->futures == 0 && agent->requests == 0;
}

void agent_free(struct ferry_agent *agent)
{
    agent_discard(agent, false);
}

static ferry_status_t agent_check_options(const ferry_agent_options_t *options)
{
    if (options->struct_bytes < sizeof(*options)) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT,
                           "the agent's options say struct_bytes = %zu; start from "
                           "ferry_agent_options()",
                           options->struct_bytes);
    }
    if (options->rule_count > 0 && options->device_map != NULL) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT,
                           "give the device map as text or as rules, not both");
    }
    return FERRY_OK;
}

static ferry_status_t agent_fill(struct ferry_agent *agent, const ferry_agent_options_t *options)
{
    agent->clock = clock_monotonic();
    if (options->clock != NULL) {
        agent->user_clock = *options->clock;
        agent->clock =
            (struct clock){.now_ns = options->clock->now_ns, .context = options->clock->context};
    }
    agent->values = config_values(agent->config);
    log_configure(agent->values->log);
    ferry_status_t status = agent_read_names(agent, options);
    if (status == FERRY_OK) {
        status = agent_read_map(agent, options);
    }
    if (status == FERRY_OK) {
        status = poller_create(agent->clock, &agent->poller);
    }
    if (status == FERRY_OK) {
        status = memory_pool_create((size_t)agent->values->pool_bytes, &agent->memory);
    }
    agent->receive_limits = (struct wire_limits){
        .eager_bytes = (size_t)agent->values->eager_bytes,
        .inline_bytes = (size_t)agent->values->inline_bytes,
        .max_tensors = (uint64_t)agent->values->max_tensors,
        .max_message_bytes = (uint64_t)agent->values->max_message_bytes,
    };
    return status;
}

ferry_status_t ferry_agent_create(const ferry_agent_options_t *options, ferry_agent_t **agent_out)
{
    ferry_agent_options_t defaults = ferry_agent_options();
    options = options == NULL ? &defaults : options;
    if (agent_out == NULL) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT, "agent_out is NULL");
    }
    ferry_status_t status = agent_check_options(options);
    if (status != FERRY_OK) {
        return status;
    }
    struct ferry_agent *agent = calloc(1, sizeof(*agent));
    if (agent == NULL) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory for an agent");
    }
    agent->sleep_fd = -1;
    agent->listener.fd = -1;
    agent->config = options->config;
    status = agent_init_sync(agent);
    if (status == FERRY_OK && agent->config == NULL) {
        status = ferry_config_create(&agent->config);
    }
    if (status == FERRY_OK) {
        status = agent_fill(agent, options);
    }
    if (status != FERRY_OK) {
        struct error_record error;
        error_record_take(&error);
        agent_discard(agent, options->config != NULL);
        return error_raise_record(&error);
    }
    *agent_out = agent;
    return FERRY_OK;
}

const char *ferry_agent_name(const ferry_agent_t *agent)
{
    return agent->name;
}

uint16_t ferry_agent_naming_port(const ferry_agent_t *agent)
{
    return agent->naming == NULL ? 0 : naming_served_port(agent->naming);
}

ferry_status_t ferry_agent_set_device_map(ferry_agent_t *agent, const char *text)
{
    if (agent == NULL) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT, "the agent is NULL");
    }
    ferry_device_map_t *map;
    struct shared_map *shared = NULL; /* gcc does not see that an error never comes as FERRY_OK */
    ferry_status_t status = ferry_device_map_parse(text, &map);
    if (status == FERRY_OK) {
        status = device_map_check_mine(map, ferry_device_count);
        if (status != FERRY_OK) {
            ferry_device_map_destroy(map);
            return status;
        }
        status = shared_map_create(map, &shared);
    }
    if (status != FERRY_OK) {
        return status;
    }
    engine_lock(agent);
    shared_map_release(agent->map);
    agent->map = shared;
    struct peer *peer;
    for (size_t at = 0; (peer = peer_table_next(&agent->peers, &at)) != NULL;) {
        peer->view_map = NULL;
    }
    engine_unlock(agent);
    return FERRY_OK;
}

/* ---- peers, seen from outside ---- */

static ferry_status_t agent_connect(struct ferry_agent *agent, const char *name, int64_t timeout_ns)
{
    if (agent->state != AGENT_RUNNING) {
        return error_raise(agent->state < AGENT_RUNNING ? FERRY_ERR_STATE : FERRY_ERR_SHUTDOWN,
                           "agent '%s' is %s", agent->name,
                           agent->state < AGENT_RUNNING ? "not started" : "shutting down");
    }
    struct peer *peer = peer_get(agent, name);
    if (peer == NULL) {
        return ferry_last_error()->status;
    }
    int64_t timeout = timeout_ns == 0 ? agent->values->connect_timeout_ns : timeout_ns;
    bool may_block = !agent_manual(agent) && user_scope_now() != USER_CALLBACK;
    ferry_status_t status =
        peer_require(peer, true, may_block, clock_deadline_ns(agent_now_ns(agent), timeout));
    if (status != FERRY_OK || peer->self) {
        return status;
    }
    return device_map_check_peer(agent->map->map, peer->name, peer->link->devices,
                                 peer->link->device_count);
}

ferry_status_t ferry_agent_connect(ferry_agent_t *agent, const char *peer, int64_t timeout_ns)
{
    if (agent == NULL || timeout_ns < 0) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT, "the agent is NULL or the timeout %lld ns",
                           (long long)timeout_ns);
    }
    engine_lock(agent);
    ferry_status_t status = agent_connect(agent, peer, timeout_ns);
    engine_unlock(agent);
    return status;
}

ferry_status_t ferry_agent_when_ready(ferry_agent_t *agent, const char *name, ferry_ready_fn *ready,
                                      void *context)
{
    if (agent == NULL || ready == NULL) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT, "agent and callback must not be NULL");
    }
    struct ready_waiter *waiter = calloc(1, sizeof(*waiter));
    if (waiter == NULL) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory for a callback");
    }
    waiter->ready = ready;
    waiter->context = context;
    ferry_status_t status = FERRY_OK;
    engine_lock(agent);
    struct peer *peer = peer_get(agent, name);
    if (peer == NULL) {
        status = ferry_last_error()->status;
    } else if (agent->state != AGENT_RUNNING) {
        status = error_raise(FERRY_ERR_STATE, "agent '%s' is not running", agent->name);
    } else {
        waiter->next = peer->waiters;
        peer->waiters = waiter;
        if (peer->state == PEER_IDLE ||
            (peer->state == PEER_UP && peer->calls < (size_t)agent->values->max_calls)) {
            peer_notify(peer, peer->state == PEER_UP ? FERRY_OK : peer->error.status);
        }
    }
    engine_unlock(agent);
    if (status != FERRY_OK) {
        free(waiter);
    }
    return status;
}

ferry_status_t ferry_agent_counters(ferry_agent_t *agent, ferry_counters_t *counters_out)
{
    if (agent == NULL || counters_out == NULL ||
        counters_out->struct_bytes < sizeof(*counters_out)) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT,
                           "agent and counters must not be NULL and counters->struct_bytes must be "
                           "sizeof(ferry_counters_t)");
    }
    size_t used, kept;
    memory_pool_usage(agent->memory, &used, &kept);
    engine_lock(agent);
    *counters_out = agent->counters;
    engine_unlock(agent);
    counters_out->struct_bytes = sizeof(*counters_out);
    counters_out->memory_used_bytes = used;
    counters_out->memory_kept_bytes = kept;
    return FERRY_OK;
}

/* ---- run, stop, shutdown ---- */

static bool agent_stop_asked(void *context)
{
    struct ferry_agent *agent = context;
    return atomic_load(&agent->stop_requested) || agent->state != AGENT_RUNNING;
}

ferry_status_t ferry_agent_run(ferry_agent_t *agent)
{
    if (agent == NULL) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT, "the agent is NULL");
    }
    ferry_status_t status = FERRY_OK;
    engine_lock(agent);
    if (agent->state != AGENT_RUNNING) {
        status = error_raise(FERRY_ERR_STATE, "agent '%s' is not running", agent->name);
    } else {
        status = engine_wait_locked(agent, agent_stop_asked, agent, FERRY_FOREVER);
        atomic_store(&agent->stop_requested, false);
    }
    engine_unlock(agent);
    return status;
}

void ferry_agent_stop(ferry_agent_t *agent)
{
    if (agent != NULL) {
        atomic_store(&agent->stop_requested, true);
        poller_wake(agent->poller);
    }
}

static bool agent_is_quiet(void *context)
{
    const struct ferry_agent *agent = context;
    return agent->counters.calls_pending == 0 && agent->counters.requests_pending == 0 &&
           agent->actions_open == 0;
}

struct let_go {
    struct ferry_agent *agent;
    int64_t deadline_ns; /* for the transports; user code has none */
};

static bool agent_has_let_go(void *context)
{
    const struct let_go *wait = context;
    const struct ferry_agent *agent = wait->agent;
    size_t pending = 0;
    for (size_t i = 0; i < agent->transport_count; i++) {
        ferry_transport_t *instance = agent->transports[i].instance;
        pending += instance->ops->pending(instance);
    }
    bool quiet = pending == 0 && agent->links == NULL && agent->counters.calls_pending == 0 &&
                 transfer_engine_active(agent->transfers) == 0;
    return agent->actions_open == 0 && (quiet || agent_now_ns(agent) >= wait->deadline_ns);
}

static void agent_close_links(struct ferry_agent *agent)
{
    struct link *link, *next;
    for (link = agent->links; link != NULL; link = next) {
        next = link->next;
        link_close(link, FERRY_ERR_SHUTDOWN, "the agent was shut down");
    }
    link_bury_all(agent);
}

/* Handlers that were cut off still run; user code cannot be stopped, so its end is waited for. A request that a handler
 * kept is its holder's affair. */
static ferry_status_t agent_drain(struct ferry_agent *agent, int64_t drain_ns)
{
    int64_t deadline = clock_deadline_ns(agent_now_ns(agent), drain_ns);
    agent->state = AGENT_DRAINING;
    if (agent->naming != NULL) {
        naming_withdraw(agent->naming);
    }
    engine_changed(agent);
    ferry_status_t status = engine_wait_locked(agent, agent_is_quiet, agent, deadline);
    call_fail_all(agent, FERRY_ERR_SHUTDOWN, "the agent was shut down");
    agent_close_links(agent);
    peer_notify_all(agent, FERRY_ERR_SHUTDOWN);
    struct let_go wait = {
        .agent = agent,
        .deadline_ns = clock_deadline_ns(agent_now_ns(agent), agent->values->release_timeout_ns),
    };
    engine_wait_locked(agent, agent_has_let_go, &wait, FERRY_FOREVER);
    if (status == FERRY_PENDING) {
        return error_raise(FERRY_ERR_TIMEOUT, "%s: calls or requests were cut off after %lld ms",
                           agent->name, (long long)(drain_ns / 1000000));
    }
    return status;
}

ferry_status_t ferry_agent_shutdown(ferry_agent_t *agent, int64_t drain_ns)
{
    if (agent == NULL || drain_ns < 0) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT,
                           "the agent is NULL or the drain time %lld ns", (long long)drain_ns);
    }
    if (user_scope_now() != USER_NONE) {
        return error_raise(FERRY_ERR_STATE,
                           "%s: a handler or callback cannot shut its agent down; call "
                           "ferry_agent_stop() and shut down where ferry_agent_run() returns",
                           agent->name);
    }
    engine_lock(agent);
    ferry_status_t status = FERRY_OK;
    if (agent->state == AGENT_RUNNING || agent->state == AGENT_STARTING) {
        status = agent_drain(agent, drain_ns);
        agent->state = AGENT_STOPPED;
        engine_changed(agent);
        engine_unlock(agent);
        agent_close(agent);
        return status;
    }
    engine_unlock(agent);
    return status;
}

void ferry_agent_destroy(ferry_agent_t *agent)
{
    if (agent == NULL) {
        return;
    }
    if (agent->state == AGENT_RUNNING || agent->state == AGENT_STARTING) {
        ferry_agent_shutdown(agent, 0);
    }
    engine_lock(agent);
    agent->destroyed = true;
    future_free_recycled(agent);
    request_free_recycled(agent);
    bool last = agent_is_unused(agent);
    engine_unlock(agent);
    if (last) {
        agent_free(agent);
    }
}
