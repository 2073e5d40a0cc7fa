#include "rpc/link_hello.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>
#include <utlist.h>

#include <ferry/version.h>

#include "core/log.h"
#include "rpc/link.h"
#include "rpc/link_channel.h"
#include "rpc/peer.h"

/* The hello is large (addresses, devices); one at a time is in use, under the lock of its agent. */
struct hello_exchange {
    struct hello hello;
    uint8_t bytes[HELLO_BYTES_MAX];
};

uint32_t link_new_session(struct ferry_agent *agent)
{
    uint32_t first, session;
    memcpy(&first, agent->id, sizeof(first));
    do {
        session = first + agent->links_made++ * 2654435761u; /* odd: every number once */
    } while (session == 0);
    return session;
}

void link_hello_short(struct link *link, enum hello_kind kind, ferry_status_t status,
                      const char *text)
{
    uint8_t bytes[2048];
    size_t count;
    ferry_status_t result = hello_pack_short(kind, status, text, bytes, sizeof(bytes), &count);
    if (result == FERRY_OK) {
        result = link_send_frame(link, bytes, count);
    }
    if (result != FERRY_OK && kind == HELLO_READY) {
        link_fail(link, result, "the hello to %s could not be sent: %s", link_title(link),
                  ferry_last_error()->text);
    }
}

/* What this agent says of itself. */
static void link_fill_hello(struct link *link, struct hello *hello)
{
    struct ferry_agent *agent = link->agent;
    memset(hello, 0, sizeof(*hello));
    hello->version = HELLO_VERSION;
    snprintf(hello->ferry_version, sizeof(hello->ferry_version), "%s", ferry_version());
    snprintf(hello->name, sizeof(hello->name), "%s", agent->name);
    snprintf(hello->wanted, sizeof(hello->wanted), "%s", link->remote_name);
    memcpy(hello->process, agent->address.process, sizeof(hello->process));
    memcpy(hello->agent, agent->id, sizeof(hello->agent));
    hello->pid = getpid();
    hello->epoch = link->peer == NULL ? 0 : link->peer->epoch;
    hello->session = link->local_session;
    hello->eager_bytes = (uint32_t)agent->receive_limits.eager_bytes;
    hello->inline_bytes = (uint32_t)agent->receive_limits.inline_bytes;
    hello->max_tensors = agent->receive_limits.max_tensors;
    hello->max_message_bytes = agent->receive_limits.max_message_bytes;
    hello->device_count = agent->device_count;
    memcpy(hello->devices, agent->devices, agent->device_count * sizeof(DLDevice));
    for (size_t i = 0; i < agent->transport_count; i++) {
        const struct agent_transport *transport = &agent->transports[i];
        struct hello_transport *mine = &hello->transports[hello->transport_count++];
        const ferry_transport_ops_t *ops = transport->instance->ops;
        snprintf(mine->name, sizeof(mine->name), "%s", ops->name);
        snprintf(mine->identity, sizeof(mine->identity), "%s", ops->identity(transport->instance));
        const void *address;
        ops->address(transport->instance, &address, &mine->address_bytes);
        memcpy(mine->address, address, mine->address_bytes);
        mine->capabilities = transport->capabilities;
        mine->operation_bytes_max =
            transfer_receive_bound(agent->transfers, transport->capabilities);
    }
    if (link->transport != NULL) {
        snprintf(hello->chosen, sizeof(hello->chosen), "%s", link->transport->instance->ops->name);
    }
}

void link_send_hello(struct link *link, enum hello_kind kind)
{
    struct hello_exchange *exchange = malloc(sizeof(*exchange));
    if (exchange == NULL) {
        link_fail(link, FERRY_ERR_NO_MEMORY, "no memory for a hello");
        return;
    }
    link_fill_hello(link, &exchange->hello);
    size_t bytes;
    ferry_status_t status =
        hello_pack(kind, &exchange->hello, exchange->bytes, sizeof(exchange->bytes), &bytes);
    if (status == FERRY_OK) {
        status = link_send_frame(link, exchange->bytes, bytes);
    }
    free(exchange);
    if (status != FERRY_OK) {
        link_fail(link, status, "the hello to %s could not be sent: %s", link_title(link),
                  ferry_last_error()->text);
    }
}

static const struct hello_transport *hello_find(const struct hello *hello, const char *name)
{
    for (size_t i = 0; i < hello->transport_count; i++) {
        if (strcmp(hello->transports[i].name, name) == 0) {
            return &hello->transports[i];
        }
    }
    return NULL;
}

/* Keeps of the peer's hello what the link needs. */
static ferry_status_t link_adopt(struct link *link, const struct hello *hello)
{
    struct ferry_agent *agent = link->agent;
    link->remote_session = hello->session;
    link->remote_pid = hello->pid;
    memcpy(link->remote_agent, hello->agent, sizeof(link->remote_agent));
    link->send_limits = agent->receive_limits;
    if (hello->eager_bytes < link->send_limits.eager_bytes) {
        link->send_limits.eager_bytes = hello->eager_bytes;
    }
    if (hello->inline_bytes < link->send_limits.inline_bytes) {
        link->send_limits.inline_bytes = hello->inline_bytes;
    }
    if (hello->max_tensors < link->send_limits.max_tensors) {
        link->send_limits.max_tensors = hello->max_tensors;
    }
    if (hello->max_message_bytes < link->send_limits.max_message_bytes) {
        link->send_limits.max_message_bytes = hello->max_message_bytes;
    }
    link->devices = malloc((hello->device_count + 1) * sizeof(DLDevice));
    if (link->devices == NULL) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory for a device list");
    }
    memcpy(link->devices, hello->devices, hello->device_count * sizeof(DLDevice));
    link->device_count = hello->device_count;
    return FERRY_OK;
}

/* Chooses among what both have: inproc within a process, else the other one of the same identity. */
static ferry_status_t link_choose_transport(struct link *link, const struct hello *hello)
{
    struct ferry_agent *agent = link->agent;
    bool same_process = memcmp(hello->process, agent->address.process, sizeof(hello->process)) == 0;
    char mine[256] = "", theirs[256] = "";
    for (size_t i = 0; i < agent->transport_count; i++) {
        struct agent_transport *transport = &agent->transports[i];
        const ferry_transport_ops_t *ops = transport->instance->ops;
        bool local = (transport->capabilities & FERRY_TRANSPORT_LOCAL) != 0;
        bool unwanted = agent->named != NULL && transport != agent->named;
        if (unwanted || (local && !same_process)) {
            continue;
        }
        const char *identity = ops->identity(transport->instance);
        snprintf(mine + strlen(mine), sizeof(mine) - strlen(mine), "%s%s",
                 mine[0] == '\0' ? "" : ", ", identity);
        const struct hello_transport *other = hello_find(hello, ops->name);
        if (other != NULL && strcmp(other->identity, identity) == 0) {
            link->transport = transport;
            return FERRY_OK;
        }
        if (other != NULL) {
            snprintf(theirs + strlen(theirs), sizeof(theirs) - strlen(theirs), "%s%s",
                     theirs[0] == '\0' ? "" : ", ", other->identity);
        }
    }
    return error_raise(FERRY_ERR_INCOMPATIBLE,
                       "%s and %s have no transport in common: %s has %s, %s has %s; both need the "
                       "same FERRY_TRANSPORT, FERRY_UCX_PROTOCOL and UCX version",
                       hello->name, agent->name, hello->name,
                       theirs[0] == '\0' ? "none that reaches here" : theirs, agent->name,
                       mine[0] == '\0' ? "none that reaches there" : mine);
}

static ferry_status_t link_join_transport(struct link *link, const struct hello_transport *remote)
{
    ferry_transport_t *instance = link->transport->instance;
    link->peer_operation_bytes = remote->operation_bytes_max;
    return instance->ops->connect(instance, remote->address, remote->address_bytes,
                                  link->local_session, link->remote_session, link, &link->wire);
}

static void link_up(struct link *link)
{
    struct ferry_agent *agent = link->agent;
    poller_timer_clear(agent->poller, &link->timer);
    link->state = LINK_UP;
    link_watch_silence(link);
    agent->counters.links_opened++;
    link_describe(link);
    log_write(FERRY_LOG_INFO, "%s: connected to %s (pid %lld) over %s", agent->name,
              link->remote_name, (long long)link->remote_pid, link_route(link));
    peer_connected(link->peer, link);
}

/* The acceptor's transport address, kept between its answer and the dialler's READY. */
static ferry_status_t link_keep_remote(struct link *link, const struct hello_transport *remote)
{
    link->remote_transport = malloc(sizeof(*remote));
    if (link->remote_transport == NULL) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory for a transport address");
    }
    *link->remote_transport = *remote;
    return FERRY_OK;
}

static void link_refuse(struct link *link, ferry_status_t status)
{
    char text[ERROR_TEXT_BYTES];
    snprintf(text, sizeof(text), "%s", ferry_last_error()->text);
    link_hello_short(link, HELLO_REFUSE, status, text);
    link->peer = NULL; /* the refusal is theirs, not an end of our own attempt */
    link_fail(link, status, "refused %s: %s", link_title(link), text);
}

/* Our dial has the peer's word: it may count the link as up before we hear of it. */
static bool link_is_agreed(const struct peer *peer, const struct hello *hello)
{
    return peer->state == PEER_DIALLING && peer->link->state == LINK_CONFIRMING &&
           memcmp(peer->link->remote_agent, hello->agent, sizeof(hello->agent)) == 0;
}

/* Two agents dial each other at once: the one with the smaller name keeps its dial, unless the other's was accepted before. Where a link is up already it stays until this
 * one is ready to replace it: the dial may be one that the peer has given up meanwhile. */
static ferry_status_t link_settle_crossing(struct ferry_agent *agent, struct peer *peer,
                                           const struct hello *hello)
{
    if (link_is_agreed(peer, hello) ||
        (peer->state == PEER_DIALLING && strcmp(agent->name, peer->name) < 0)) {
        return error_raise(FERRY_ERR_BUSY, "%s is dialling %s already", agent->name, peer->name);
    }
    if (peer->state != PEER_IDLE && peer->state != PEER_UP) {
        peer_expect(peer);
    }
    return FERRY_OK;
}

static ferry_status_t link_judge_dial(struct link *link, const struct hello *hello)
{
    struct ferry_agent *agent = link->agent;
    if (agent->state != AGENT_RUNNING) {
        return error_raise(FERRY_ERR_SHUTDOWN, "%s is %s", agent->name,
                           agent->state < AGENT_RUNNING ? "not started yet" : "shutting down");
    }
    if (hello->version != HELLO_VERSION) {
        return error_raise(FERRY_ERR_INCOMPATIBLE,
                           "%s speaks hello version %u (Ferry %s), %s speaks %u (Ferry %s)",
                           hello->name, hello->version, hello->ferry_version, agent->name,
                           HELLO_VERSION, ferry_version());
    }
    ferry_status_t status = naming_check_name(hello->name);
    if (status != FERRY_OK) {
        return status;
    }
    if (strcmp(hello->wanted, agent->name) != 0) {
        return error_raise(FERRY_ERR_UNKNOWN_PEER, "'%s' is wanted, but this is '%s'",
                           hello->wanted, agent->name);
    }
    if (strcmp(hello->name, agent->name) == 0) {
        return error_raise(FERRY_ERR_NAME_TAKEN, "another agent calls itself '%s' too",
                           hello->name);
    }
    return FERRY_OK;
}

static void link_on_dial(struct link *link, const struct hello *hello)
{
    ferry_status_t status = link_set_name(link, hello->name);
    if (status == FERRY_OK) {
        status = link_judge_dial(link, hello);
    }
    struct peer *peer = status == FERRY_OK ? peer_get(link->agent, hello->name) : NULL;
    if (peer != NULL) {
        status = link_choose_transport(link, hello);
        if (status == FERRY_OK) {
            status = link_settle_crossing(link->agent, peer, hello);
        }
    } else if (status == FERRY_OK) {
        status = ferry_last_error()->status;
    }
    if (status == FERRY_OK) {
        status = link_adopt(link, hello);
    }
    if (status == FERRY_OK) {
        status = link_keep_remote(link, hello_find(hello, link->transport->instance->ops->name));
    }
    if (status != FERRY_OK) {
        link_refuse(link, status);
        return;
    }
    link->state = LINK_ACCEPTED;
    link->accepted_peer = peer;
    link_send_hello(link, HELLO_ACCEPT);
}

static void link_on_accept(struct link *link, const struct hello *hello)
{
    struct ferry_agent *agent = link->agent;
    if (strcmp(hello->name, link->remote_name) != 0) {
        link_fail(link, FERRY_ERR_PROTOCOL, "%s answered the hello to %s", hello->name,
                  link->remote_name);
        return;
    }
    const struct hello_transport *remote = hello_find(hello, hello->chosen);
    for (size_t i = 0; i < agent->transport_count && remote != NULL; i++) {
        const ferry_transport_ops_t *ops = agent->transports[i].instance->ops;
        if (strcmp(ops->name, remote->name) == 0 &&
            strcmp(ops->identity(agent->transports[i].instance), remote->identity) == 0) {
            link->transport = &agent->transports[i];
        }
    }
    if (link->transport == NULL) {
        link_fail(link, FERRY_ERR_PROTOCOL, "%s chose the transport '%s', which was not offered",
                  hello->name, hello->chosen);
        return;
    }
    ferry_status_t status = link_adopt(link, hello);
    if (status == FERRY_OK) {
        status = link_join_transport(link, remote);
    }
    if (status != FERRY_OK) {
        link_close(link, status, ferry_last_error()->text);
        return;
    }
    link->state = LINK_CONFIRMING;
    link_hello_short(link, HELLO_READY, FERRY_OK, "");
}

/* The dialler's end exists: make ours. Ours is the last word, so calls may flow from here on. */
static void link_on_ready(struct link *link)
{
    if (link->state == LINK_CONFIRMING) {
        link_up(link);
        return;
    }
    struct peer *peer = link->accepted_peer;
    if (peer->state == PEER_UP) {
        /* The old end must be gone before the new one is made: UCX pairs endpoints in their order. */
        link_fail(peer->link, FERRY_ERR_PEER_LOST, "%s connected anew", peer->name);
        link_bury_all(link->agent);
    }
    ferry_status_t status = link_join_transport(link, link->remote_transport);
    free(link->remote_transport);
    link->remote_transport = NULL;
    if (status != FERRY_OK) {
        link_close(link, status, ferry_last_error()->text);
        return;
    }
    link->peer = peer;
    link_hello_short(link, HELLO_READY, FERRY_OK, "");
    if (link->state != LINK_DOWN) {
        link_up(link);
    }
}

static bool link_expects(const struct link *link, enum hello_kind kind)
{
    switch (kind) {
    case HELLO_DIAL:
        return link->state == LINK_ACCEPTING;
    case HELLO_ACCEPT:
    case HELLO_REFUSE:
        return link->state == LINK_DIALLING;
    case HELLO_READY:
        return link->state == LINK_ACCEPTED || link->state == LINK_CONFIRMING;
    case HELLO_BYE:
        return true;
    }
    return false;
}

static void link_on_refusal(struct link *link, const struct error_record *error)
{
    if (error->status == FERRY_ERR_BUSY) {
        /* The peer's own dial crosses ours and wins. */
        struct peer *peer = link->peer;
        link->peer = NULL;
        peer_expect(peer);
        link_fail(link, FERRY_ERR_BUSY, "%s", error->text);
        return;
    }
    bool speaks = error->status == FERRY_ERR_INCOMPATIBLE || error->status == FERRY_ERR_SHUTDOWN;
    link_fail(link, speaks ? error->status : FERRY_ERR_REFUSED, "%s refused the connection: %s",
              link->remote_name, error->text);
}

static void link_on_hello(struct link *link, enum hello_kind kind, const struct hello *hello,
                          const struct error_record *error)
{
    if (!link_expects(link, kind)) {
        link_fail(link, FERRY_ERR_PROTOCOL, "%s sent a hello of kind %d out of turn",
                  link_far_end(link), (int)kind);
        return;
    }
    switch (kind) {
    case HELLO_DIAL:
        link_on_dial(link, hello);
        break;
    case HELLO_ACCEPT:
        link_on_accept(link, hello);
        break;
    case HELLO_REFUSE:
        link_on_refusal(link, error);
        break;
    case HELLO_READY:
        link_on_ready(link);
        break;
    case HELLO_BYE:
        link_fail(link, FERRY_ERR_PEER_LOST, "%s left: %s", link->remote_name, error->text);
        break;
    }
}

void link_on_frame(struct link *link, const void *data, size_t bytes)
{
    if (link->state == LINK_DOWN) {
        return;
    }
    struct {
        struct hello hello;
        struct error_record error;
    } *received = malloc(sizeof(*received));
    if (received == NULL) {
        link_fail(link, FERRY_ERR_NO_MEMORY, "no memory for a hello");
        return;
    }
    enum hello_kind kind;
    ferry_status_t status = hello_unpack(data, bytes, &kind, &received->hello, &received->error);
    if (status == FERRY_OK) {
        link_on_hello(link, kind, &received->hello, &received->error);
    } else {
        link_fail(link, status, "%s: %s", link_far_end(link), ferry_last_error()->text);
    }
    free(received);
}
