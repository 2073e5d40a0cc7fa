#include "rpc/peer.h"

#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "rpc/engine.h"
#include "rpc/link.h"

static void peer_attempt_late(void *context);

struct peer *peer_get(struct ferry_agent *agent, const char *name)
{
    if (name == NULL) {
        error_raise(FERRY_ERR_INVALID_ARGUMENT, "the peer's name is NULL");
        return NULL;
    }
    struct peer *peer = peer_table_find(&agent->peers, name);
    if (peer != NULL) {
        return peer;
    }
    if (naming_check_name(name) != FERRY_OK) {
        return NULL;
    }
    size_t name_bytes = strlen(name) + 1;
    peer = calloc(1, sizeof(*peer) + name_bytes);
    if (peer == NULL) {
        error_raise(FERRY_ERR_NO_MEMORY, "no memory for peer '%s'", name);
        return NULL;
    }
    peer->agent = agent;
    memcpy(peer->name, name, name_bytes);
    peer->self = strcmp(name, agent->name) == 0;
    peer->timer.fire = peer_attempt_late;
    peer->timer.context = peer;
    if (peer_table_add(&agent->peers, peer) != FERRY_OK) {
        free(peer);
        return NULL;
    }
    return peer;
}

/* Leaves the present attempt's means behind: a look-up, a dial, a timer. */
static void peer_abandon(struct peer *peer)
{
    struct ferry_agent *agent = peer->agent;
    poller_timer_clear(agent->poller, &peer->timer);
    if (peer->state == PEER_RESOLVING && agent->naming != NULL) {
        naming_resolve_cancel(agent->naming, peer->name);
    }
    struct link *link = peer->link;
    peer->link = NULL;
    if (link != NULL) {
        link->peer = NULL;
        link_fail(link, FERRY_ERR_CANCELLED, "the connection to %s was given up", peer->name);
        link_release(link);
    }
}

static void peer_settle(struct peer *peer, ferry_status_t status)
{
    peer->attempts++;
    peer_notify(peer, status);
    engine_changed(peer->agent);
}

void peer_failed(struct peer *peer, ferry_status_t status, const char *text)
{
    if (peer->state == PEER_IDLE || peer->state == PEER_UP) {
        return;
    }
    error_reason_set(&peer->error, status, text);
    peer_abandon(peer);
    peer->state = PEER_IDLE;
    peer_settle(peer, status);
}

static void peer_attempt_late(void *context)
{
    struct peer *peer = context;
    struct error_record error;
    if (peer->state == PEER_RESOLVING) {
        error_record_set(&error, FERRY_ERR_UNKNOWN_PEER, FERRY_NOT_RUN,
                         "nobody called '%s' came to %s in time", peer->name,
                         peer->agent->naming_url);
    } else {
        error_record_set(&error, FERRY_ERR_UNREACHABLE, FERRY_NOT_RUN,
                         "%s is known, but no connection came about in time", peer->name);
    }
    peer_failed(peer, error.status, error.text);
}

void peer_connected(struct peer *peer, struct link *link)
{
    if (peer->link != link) {
        peer_abandon(peer);
        link_retain(link);
        peer->link = link;
    } else {
        poller_timer_clear(peer->agent->poller, &peer->timer);
    }
    link->peer = peer;
    peer->state = PEER_UP;
    peer_settle(peer, FERRY_OK);
}

void peer_lost(struct peer *peer, struct link *link)
{
    if (peer->link != link) {
        return;
    }
    peer->link = NULL;
    peer->state = PEER_IDLE;
    error_reason_set(&peer->error, link->down.status, error_reason_text(&link->down));
    link_release(link);
    peer_settle(peer, FERRY_ERR_PEER_LOST);
}

void peer_expect(struct peer *peer)
{
    struct ferry_agent *agent = peer->agent;
    peer_abandon(peer);
    peer->state = PEER_EXPECTING;
    poller_timer_set(agent->poller, &peer->timer,
                     clock_deadline_ns(agent_now_ns(agent), agent->values->connect_timeout_ns));
}

void peer_resolved(void *context, const char *name, const void *address, size_t bytes,
                   const struct error_record *error)
{
    struct ferry_agent *agent = context;
    struct peer *peer = peer_table_find(&agent->peers, name);
    if (peer == NULL || peer->state != PEER_RESOLVING) {
        return;
    }
    struct error_record failure;
    if (error != NULL) {
        peer_failed(peer, error->status, error->text);
        return;
    }
    struct hello_address where;
    ferry_status_t status = hello_address_unpack(address, bytes, &where);
    if (status == FERRY_OK) {
        peer->state = PEER_DIALLING;
        status = link_dial(agent, peer, &where);
    }
    if (status != FERRY_OK) {
        error_record_take(&failure);
        peer_failed(peer, failure.status, failure.text);
    }
}

/* Begins an attempt where none is under way. */
static ferry_status_t peer_start(struct peer *peer, bool wait_for_name, int64_t deadline_ns)
{
    struct ferry_agent *agent = peer->agent;
    if (peer->self) {
        return link_to_self(agent, peer);
    }
    ferry_status_t status = naming_resolve(agent->naming, peer->name, wait_for_name);
    if (status != FERRY_OK) {
        return status;
    }
    peer->state = PEER_RESOLVING;
    int64_t bound = clock_deadline_ns(agent_now_ns(agent), agent->values->connect_timeout_ns);
    if (!wait_for_name && bound < deadline_ns) {
        deadline_ns = bound;
    }
    return poller_timer_set(agent->poller, &peer->timer, deadline_ns);
}

struct peer_wait {
    const struct peer *peer;
    uint64_t attempts;
};

static bool peer_wait_over(void *context)
{
    const struct peer_wait *wait = context;
    return wait->peer->state == PEER_UP || wait->peer->attempts != wait->attempts ||
           wait->peer->agent->state != AGENT_RUNNING;
}

ferry_status_t peer_require(struct peer *peer, bool wait_for_name, bool may_block,
                            int64_t deadline_ns)
{
    struct ferry_agent *agent = peer->agent;
    while (peer->state != PEER_UP) {
        struct peer_wait wait = {.peer = peer, .attempts = peer->attempts};
        if (peer->state == PEER_IDLE) {
            ferry_status_t status = peer_start(peer, wait_for_name, deadline_ns);
            if (status != FERRY_OK) {
                return status;
            }
            continue;
        }
        if (!may_block) {
            return error_raise(FERRY_ERR_WOULD_BLOCK,
                               "%s is not connected yet; ferry_agent_when_ready() tells when",
                               peer->name);
        }
        ferry_status_t status = engine_wait_locked(agent, peer_wait_over, &wait, deadline_ns);
        if (status == FERRY_PENDING) {
            return error_raise(peer->state == PEER_RESOLVING ? FERRY_ERR_UNKNOWN_PEER
                                                             : FERRY_ERR_UNREACHABLE,
                               "%s: no connection within the timeout (%s)", peer->name,
                               peer->state == PEER_RESOLVING ? "nobody has published the name"
                                                             : "its address does not answer");
        }
        if (status != FERRY_OK) {
            return status;
        }
        if (agent->state != AGENT_RUNNING) {
            return error_raise(FERRY_ERR_SHUTDOWN, "%s is shutting down", agent->name);
        }
        if (peer->state == PEER_IDLE && peer->attempts != wait.attempts) {
            return error_raise_reason(&peer->error);
        }
    }
    return FERRY_OK;
}

static void peer_run_waiter(struct action *action)
{
    struct ready_waiter *waiter =
        (struct ready_waiter *)((char *)action - offsetof(struct ready_waiter, action));
    struct ferry_agent *agent = action->agent;
    waiter->ready(waiter->context, waiter->status);
    free(waiter);
    engine_lock(agent);
}

void peer_notify(struct peer *peer, ferry_status_t status)
{
    while (peer->waiters != NULL) {
        struct ready_waiter *waiter = peer->waiters;
        peer->waiters = waiter->next;
        waiter->status = status;
        waiter->action.run = peer_run_waiter;
        engine_post_callback(peer->agent, &waiter->action);
    }
}

void peer_notify_all(struct ferry_agent *agent, ferry_status_t status)
{
    struct peer *peer;
    for (size_t at = 0; (peer = peer_table_next(&agent->peers, &at)) != NULL;) {
        peer_notify(peer, status);
    }
}

void peer_destroy_all(struct ferry_agent *agent)
{
    struct peer *peer;
    for (size_t at = 0; (peer = peer_table_next(&agent->peers, &at)) != NULL;) {
        poller_timer_clear(agent->poller, &peer->timer);
        link_release(peer->link);
        error_reason_clear(&peer->error);
        free(peer);
    }
    peer_table_finish(&agent->peers);
}
