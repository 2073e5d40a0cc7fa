#include "rpc/link.h"

#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "core/log.h"
#include "rpc/call.h"
#include "rpc/link_channel.h"
#include "rpc/link_hello.h"
#include "rpc/peer.h"
#include "rpc/serve.h"

void link_retain(struct link *link)
{
    link->references++;
}

void link_release(struct link *link)
{
    if (link == NULL || --link->references > 0) {
        return;
    }
    free(link->remote_transport);
    free(link->devices);
    free(link->remote_name);
    free(link->text);
    error_reason_clear(&link->down);
    free(link);
}

struct link *link_create(struct ferry_agent *agent)
{
    struct link *link = calloc(1, sizeof(*link));
    if (link == NULL) {
        error_raise(FERRY_ERR_NO_MEMORY, "no memory for a link");
        return NULL;
    }
    link->agent = agent;
    link->references = 1;
    DL_APPEND(agent->links, link);
    return link;
}

static void link_bury(struct link *link)
{
    struct ferry_agent *agent = link->agent;
    poller_timer_clear(agent->poller, &link->timer);
    if (link->wire != NULL) {
        link->wire->transport->ops->disconnect(link->wire);
        link->wire = NULL;
    }
    link_drop_channel(link);
    DL_DELETE(agent->links, link);
    link_release(link);
}

unsigned link_bury_all(struct ferry_agent *agent)
{
    unsigned count = 0;
    while (agent->dying != NULL) {
        struct link *link = agent->dying;
        agent->dying = link->next_dying;
        link_bury(link);
        count++;
    }
    return count;
}

static void link_down(struct link *link)
{
    struct ferry_agent *agent = link->agent;
    enum link_state before = link->state;
    link->state = LINK_DOWN;
    link->dying = true;
    link->next_dying = agent->dying;
    agent->dying = link;
    if (before == LINK_UP) {
        agent->counters.links_lost++;
        log_write(agent->state >= AGENT_DRAINING ? FERRY_LOG_DEBUG : FERRY_LOG_INFO,
                  "%s: link to %s is down: %s", agent->name, link_title(link),
                  error_reason_text(&link->down));
    }
    if (link->wire != NULL) {
        error_raise_reason(&link->down); /* what the transfers under way will say */
        transfer_link_lost(agent->transfers, link->wire, link->down.status);
    }
    call_link_down(link);
    serve_link_down(link);
    if (link->twin != NULL && link->twin->state != LINK_DOWN) {
        link_fail(link->twin, link->down.status, "%s", error_reason_text(&link->down));
    }
    if (link->peer != NULL) {
        if (before == LINK_UP) {
            peer_lost(link->peer, link);
        } else if (link->peer->link == link) {
            peer_failed(link->peer, link->down.status, error_reason_text(&link->down));
        }
    }
}

void link_fail(struct link *link, ferry_status_t status, const char *format, ...)
{
    if (link->state == LINK_DOWN) {
        return;
    }
    char text[ERROR_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    error_reason_set(&link->down, status, text);
    link_down(link);
}

void link_close(struct link *link, ferry_status_t status, const char *text)
{
    if (link->state == LINK_DOWN) {
        return;
    }
    if (link_has_channel(link)) {
        link_hello_short(link, HELLO_BYE, status, text);
    }
    link_fail(link, status, "%s", text);
}

/* One message: the kinds that carry a call go to the caller's or the callee's side. */
void link_on_message(void *context, ferry_link_t *wire, const void *data, size_t bytes)
{
    (void)context;
    struct link *link = wire->context;
    if (link->state == LINK_DOWN) {
        return;
    }
    struct wire_message message;
    size_t table_bytes = 0;
    ferry_status_t status =
        wire_decode_header(data, bytes, &link->agent->receive_limits, &message, &table_bytes);
    if (status == FERRY_OK) {
        switch (message.kind) {
        case WIRE_CALL:
            status = serve_call(link, data, bytes, &message, table_bytes);
            break;
        case WIRE_REPLY:
            status = call_reply(link, data, bytes, &message, table_bytes);
            break;
        case WIRE_CANCEL:
            serve_cancel(link, message.call_id);
            break;
        case WIRE_PING:
        case WIRE_PONG:
        case WIRE_BYE:
            break; /* no use for them yet; a peer that sends them does no harm */
        }
    }
    if (status != FERRY_OK) {
        log_write(FERRY_LOG_WARN, "%s: message from %s refused: %s", link->agent->name,
                  link_title(link), ferry_last_error()->text);
        link_fail(link, status, "%s sent a message that cannot be taken: %s", link_title(link),
                  ferry_last_error()->text);
    }
}

void link_on_down(void *context, ferry_link_t *wire, ferry_status_t status, const char *text)
{
    (void)context;
    struct link *link = wire->context;
    link_fail(link, status == FERRY_ERR_TRANSPORT ? FERRY_ERR_PEER_LOST : status, "%s: %s",
              link_title(link), text);
}

void link_describe(struct link *link)
{
    char lanes[80], text[2 * sizeof(lanes)];
    const ferry_transport_ops_t *ops = link->wire->transport->ops;
    ops->describe(link->wire, lanes, sizeof(lanes));
    snprintf(text, sizeof(text), "%s%s%s%s", ops->name, lanes[0] == '\0' ? "" : "(", lanes,
             lanes[0] == '\0' ? "" : ")");
    free(link->text);
    link->text = strdup(text);
}

const char *link_route(const struct link *link)
{
    return link->text == NULL ? "" : link->text;
}

ferry_status_t link_set_name(struct link *link, const char *name)
{
    free(link->remote_name);
    link->remote_name = strdup(name);
    return link->remote_name != NULL
               ? FERRY_OK
               : error_raise(FERRY_ERR_NO_MEMORY, "no memory for a link to %s", name);
}

const char *link_title(const struct link *link)
{
    bool named = link->remote_name != NULL && link->remote_name[0] != '\0';
    return named ? link->remote_name : link_far_end(link);
}

static ferry_status_t link_join_self(struct link *link, struct peer *peer, uint32_t local_session,
                                     uint32_t remote_session)
{
    struct ferry_agent *agent = link->agent;
    const void *address;
    size_t bytes;
    struct agent_transport *transport = &agent->transports[0];
    transport->instance->ops->address(transport->instance, &address, &bytes);
    link->transport = transport;
    link->local_session = local_session;
    link->remote_session = remote_session;
    link->peer = peer;
    memcpy(link->remote_agent, agent->id, sizeof(link->remote_agent));
    link->send_limits = agent->receive_limits;
    link->peer_operation_bytes = transfer_receive_bound(agent->transfers, transport->capabilities);
    link->devices = malloc(agent->device_count * sizeof(DLDevice));
    if (link->devices == NULL || link_set_name(link, agent->name) != FERRY_OK) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory for a link to oneself");
    }
    memcpy(link->devices, agent->devices, agent->device_count * sizeof(DLDevice));
    link->device_count = agent->device_count;
    ferry_status_t status = transport->instance->ops->connect(
        transport->instance, address, bytes, local_session, remote_session, link, &link->wire);
    if (status == FERRY_OK) {
        link->state = LINK_UP;
        link_describe(link);
    }
    return status;
}

ferry_status_t link_to_self(struct ferry_agent *agent, struct peer *peer)
{
    struct link *calls = link_create(agent);
    struct link *serves = calls == NULL ? NULL : link_create(agent);
    if (serves == NULL) {
        if (calls != NULL) {
            calls->state = LINK_DOWN;
            link_bury(calls);
        }
        return FERRY_ERR_NO_MEMORY;
    }
    uint32_t first = link_new_session(agent), second = link_new_session(agent);
    calls->twin = serves;
    serves->twin = calls;
    ferry_status_t status = link_join_self(calls, peer, first, second);
    if (status == FERRY_OK) {
        status = link_join_self(serves, peer, second, first);
    }
    serves->peer = NULL; /* the peer's link is the calling one */
    if (status != FERRY_OK) {
        calls->peer = NULL;
        link_fail(calls, status, "%s", ferry_last_error()->text);
        return status;
    }
    agent->counters.links_opened++;
    peer_connected(peer, calls);
    return FERRY_OK;
}
