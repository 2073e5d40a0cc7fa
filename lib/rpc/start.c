#include "rpc/start.h"

#include <signal.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <unistd.h>

#include "core/log.h"
#include "rpc/engine.h"
#include "rpc/link.h"
#include "rpc/link_channel.h"
#include "rpc/peer.h"
#include "rpc/transport_registry.h"

/* One random number a process tells agents of one process apart from others; a forked child gets its own. */
static void process_token(uint8_t token_out[16])
{
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static uint8_t token[16];
    static pid_t owner;
    pthread_mutex_lock(&mutex);
    if (owner != getpid()) {
        if (getrandom(token, sizeof(token), 0) != sizeof(token)) {
            memset(token, 0, sizeof(token));
            memcpy(token, &(pid_t){getpid()}, sizeof(pid_t));
        }
        owner = getpid();
    }
    memcpy(token_out, token, sizeof(token));
    pthread_mutex_unlock(&mutex);
}

static void agent_on_published(void *context, const struct error_record *error)
{
    struct ferry_agent *agent = context;
    agent->published = true;
    if (error != NULL) {
        agent->start_error = *error;
        agent->naming_failed = true;
    }
    engine_changed(agent);
}

static void agent_on_connection(void *context, uint32_t events)
{
    (void)events;
    struct ferry_agent *agent = context;
    int fd;
    ferry_status_t status;
    while ((status = socket_accept(agent->listener.fd, &fd)) == FERRY_OK) {
        link_accept(agent, fd);
    }
    if (status != FERRY_PENDING) {
        log_write(FERRY_LOG_WARN, "%s: a connection could not be accepted: %s", agent->name,
                  ferry_last_error()->text);
    }
}

static ferry_status_t agent_open_transport(struct ferry_agent *agent, const char *name)
{
    const ferry_transport_ops_t *ops = transport_find(name);
    if (ops == NULL) {
        char names[512];
        transport_names(names, sizeof(names));
        return error_raise(FERRY_ERR_CONFIG,
                           "FERRY_TRANSPORT: there is no transport '%s'; there are auto, %s", name,
                           names);
    }
    ferry_transport_options_t options = {
        .struct_bytes = sizeof(options),
        .events = {.context = agent, .message = link_on_message, .link_down = link_on_down},
        .interface = agent->values->interface,
        .protocol = agent->values->ucx_protocol,
        .message_bytes = agent->receive_limits.eager_bytes,
    };
    struct agent_transport *transport = &agent->transports[agent->transport_count];
    /* Threads of a transport's library begin with this mask: the program's signals are not theirs. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    ferry_status_t status = transport_open(ops, &options, &transport->instance);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (status == FERRY_OK) {
        transport->capabilities = ops->capabilities(transport->instance);
        agent->transport_count++;
    }
    return status;
}

/* inproc always, first: for calls to oneself, and within the process where no other is named; ucx where a peer could be elsewhere. */
static ferry_status_t agent_open_transports(struct ferry_agent *agent)
{
    ferry_status_t status = agent_open_transport(agent, "inproc");
    const char *wanted = agent->values->transport;
    bool any = strcasecmp(wanted, "auto") == 0;
    bool elsewhere = strcmp(agent->naming_url, "inproc://") != 0;
    if (status == FERRY_OK && any && elsewhere) {
        status = agent_open_transport(agent, "ucx");
    } else if (status == FERRY_OK && !any && strcasecmp(wanted, "inproc") != 0) {
        status = agent_open_transport(agent, wanted);
    }
    agent->named =
        any || status != FERRY_OK ? NULL : &agent->transports[agent->transport_count - 1];
    return status;
}

static ferry_status_t agent_listen(struct ferry_agent *agent)
{
    char host[INET6_ADDRSTRLEN];
    ferry_status_t status =
        socket_listen(agent->values->interface, 0, &agent->listener.fd, host, &agent->address.port);
    if (status != FERRY_OK) {
        agent->listener.fd = -1;
        return status;
    }
    snprintf(agent->address.host, sizeof(agent->address.host), "%s", host);
    agent->address.pid = getpid();
    process_token(agent->address.process);
    memcpy(agent->address.agent, agent->id, sizeof(agent->id));
    agent->listener.events = EPOLLIN;
    agent->listener.ready = agent_on_connection;
    agent->listener.context = agent;
    return poller_add(agent->poller, &agent->listener);
}

static ferry_status_t agent_open_naming(struct ferry_agent *agent)
{
    struct naming_options options = {
        .url = agent->naming_url,
        .serve = agent->serve_naming,
        .config = agent->values,
        .poller = agent->poller,
        .clock = agent->clock,
        .events = {.context = agent, .published = agent_on_published, .resolved = peer_resolved},
    };
    ferry_status_t status = naming_open(&options, &agent->naming);
    if (status != FERRY_OK) {
        return status;
    }
    if (agent->name[0] == '\0') {
        snprintf(agent->name, sizeof(agent->name), "%s", naming_default_name(agent->naming));
    }
    if (agent->name[0] == '\0') {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT,
                           "the agent has no name: set options.name or FERRY_NAME");
    }
    return FERRY_OK;
}

/* A clause for a name that a fixed group cannot have would never apply. */
static ferry_status_t agent_check_map_names(const struct ferry_agent *agent)
{
    const ferry_device_map_t *map = agent->map->map;
    for (size_t i = 0; i < map->clause_count; i++) {
        const char *peer = map->clauses[i].peer;
        if (strcmp(peer, "*") != 0 && naming_check_member(agent->naming, peer) != FERRY_OK) {
            struct error_record error;
            error_record_take(&error);
            return error_raise(FERRY_ERR_DEVICE_MAP, "device map, clause '%s': %s", peer,
                               error.text);
        }
    }
    return FERRY_OK;
}

static ferry_status_t agent_open(struct ferry_agent *agent)
{
    agent->device_count = device_list(agent->devices);
    ferry_status_t status = device_map_check_mine(agent->map->map, ferry_device_count);
    if (status == FERRY_OK) {
        status = agent_open_naming(agent);
    }
    if (status == FERRY_OK) {
        status = agent_check_map_names(agent);
    }
    if (status == FERRY_OK) {
        status =
            transfer_engine_create(agent->memory, agent->values, agent->clock, &agent->transfers);
    }
    if (status == FERRY_OK) {
        status = agent_open_transports(agent);
    }
    if (status == FERRY_OK) {
        status = thread_pool_create(agent->values->pool_threads, agent->values->pool_max, 0,
                                    "ferry-pool", &agent->pool);
    }
    if (status == FERRY_OK) {
        status = agent_listen(agent);
    }
    if (status == FERRY_OK) {
        status = link_open_port(agent);
    }
    if (status == FERRY_OK) {
        status = engine_start(agent);
    }
    return status;
}

static bool agent_is_published(void *context)
{
    const struct ferry_agent *agent = context;
    return agent->published;
}

static ferry_status_t agent_publish(struct ferry_agent *agent)
{
    uint8_t address[HELLO_ADDRESS_BYTES_MAX];
    size_t bytes;
    ferry_status_t status = hello_address_pack(&agent->address, address, sizeof(address), &bytes);
    if (status == FERRY_OK) {
        status = naming_publish(agent->naming, agent->name, address, bytes);
    }
    if (status != FERRY_OK) {
        return status;
    }
    int64_t timeout = agent->values->connect_timeout_ns;
    status = engine_wait_locked(agent, agent_is_published, agent,
                                clock_deadline_ns(agent_now_ns(agent), timeout));
    if (status == FERRY_PENDING) {
        const char *trouble = naming_trouble(agent->naming);
        return error_raise(FERRY_ERR_NAMING, "%s did not take the name '%s' within %lld ms%s%s",
                           agent->naming_url, agent->name, (long long)(timeout / 1000000),
                           trouble[0] == '\0' ? "" : ": ", trouble);
    }
    if (status == FERRY_OK && agent->naming_failed) {
        return error_raise_record(&agent->start_error);
    }
    return status;
}

ferry_status_t ferry_agent_start(ferry_agent_t *agent)
{
    if (agent == NULL) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT, "the agent is NULL");
    }
    engine_lock(agent);
    if (agent->state != AGENT_CREATED) {
        engine_unlock(agent);
        return error_raise(FERRY_ERR_STATE, "agent '%s' was started already", agent->name);
    }
    agent->state = AGENT_STARTING;
    ferry_status_t status = agent_open(agent);
    if (status == FERRY_OK) {
        agent->state = AGENT_RUNNING; /* a peer may dial as soon as the name is out */
        status = agent_publish(agent);
    }
    if (status == FERRY_OK) {
        engine_unlock(agent);
        return FERRY_OK;
    }
    struct error_record error;
    error_record_take(&error);
    agent->state = AGENT_STOPPED;
    engine_unlock(agent);
    agent_close(agent);
    return error_raise_record(&error);
}

/* Copies on a device outlive the links; the device ends them. One that never ends is left behind rather than waited for. */
static void agent_finish_transfers(const struct ferry_agent *agent,
                                   struct transfer_engine *transfers)
{
    int64_t deadline = clock_deadline_ns(clock_monotonic_ns(), agent->values->release_timeout_ns);
    while (transfer_engine_active(transfers) > 0 && clock_monotonic_ns() < deadline) {
        transfer_engine_progress(transfers);
    }
    if (transfer_engine_active(transfers) == 0) {
        transfer_engine_destroy(transfers);
    } else {
        log_write(FERRY_LOG_ERROR, "%s: %zu transfers did not end; their memory is left behind",
                  agent->name, transfer_engine_active(transfers));
    }
}

void agent_close(struct ferry_agent *agent)
{
    engine_stop(agent);
    engine_lock(agent);
    link_bury_all(agent);
    if (agent->naming != NULL) {
        naming_close(agent->naming);
        agent->naming = NULL;
    }
    peer_destroy_all(agent);
    if (agent->listener.fd >= 0) {
        poller_remove(agent->poller, &agent->listener);
        close(agent->listener.fd);
        agent->listener.fd = -1;
    }
    local_port_close(agent->port);
    agent->port = NULL;
    for (size_t i = 0; i < agent->transport_count; i++) {
        agent->transports[i].instance->ops->close(agent->transports[i].instance);
    }
    agent->transport_count = 0;
    struct transfer_engine *transfers = agent->transfers;
    struct thread_pool *pool = agent->pool;
    agent->transfers = NULL;
    agent->pool = NULL;
    engine_unlock(agent);
    if (pool != NULL) {
        thread_pool_destroy(pool);
    }
    if (transfers != NULL) {
        agent_finish_transfers(agent, transfers);
    }
}
