#include "rpc/link_channel.h"

#include <string.h>
#include <unistd.h>

#include "core/log.h"
#include "rpc/link.h"
#include "rpc/link_hello.h"

ferry_status_t link_send_frame(struct link *link, const void *data, size_t bytes)
{
    return link->local != NULL ? local_channel_send(link->local, data, bytes)
                               : channel_send(link->channel, data, bytes);
}

const char *link_far_end(const struct link *link)
{
    return link->channel != NULL ? channel_peer(link->channel) : "an agent of this process";
}

void link_watch_silence(struct link *link)
{
    if (link->channel != NULL) {
        channel_set_silence(link->channel, link->agent->values->peer_timeout_ns);
    }
}

bool link_has_channel(const struct link *link)
{
    return link->channel != NULL || link->local != NULL;
}

void link_drop_channel(struct link *link)
{
    channel_destroy(link->channel);
    link->channel = NULL;
    local_channel_destroy(link->local);
    link->local = NULL;
}

/* ---- what it tells ---- */

static void link_channel_connected(void *context)
{
    link_send_hello(context, HELLO_DIAL);
}

static void link_channel_frame(void *context, const void *data, size_t bytes)
{
    link_on_frame(context, data, bytes);
}

static void link_channel_closed(void *context, const struct error_record *error)
{
    struct link *link = context;
    bool was_up = link->state == LINK_UP;
    if (was_up) {
        link_fail(link, FERRY_ERR_PEER_LOST, "%s (pid %lld) is gone: %s", link_title(link),
                  (long long)link->remote_pid, error->text);
    } else {
        link_fail(link, error->status == FERRY_ERR_PROTOCOL ? error->status : FERRY_ERR_UNREACHABLE,
                  "%s: %s", link_title(link), error->text);
    }
}

static struct channel_events link_channel_events(struct link *link)
{
    return (struct channel_events){
        .context = link,
        .connected = link_channel_connected,
        .frame = link_channel_frame,
        .closed = link_channel_closed,
    };
}

static void link_handshake_late(void *context)
{
    struct link *link = context;
    link_fail(link, FERRY_ERR_UNREACHABLE, "%s did not finish the hello within %lld ms",
              link_title(link), (long long)(link->agent->values->connect_timeout_ns / 1000000));
}

static ferry_status_t link_bound_handshake(struct link *link)
{
    struct ferry_agent *agent = link->agent;
    link->timer.fire = link_handshake_late;
    link->timer.context = link;
    return poller_timer_set(
        agent->poller, &link->timer,
        clock_deadline_ns(agent_now_ns(agent), agent->values->connect_timeout_ns));
}

/* ---- dialling ---- */

/* An agent that is told to use what reaches others meets those of its own process as it meets others. */
static bool link_stays_inside(const struct ferry_agent *agent, const struct hello_address *address)
{
    bool inproc = agent->named == NULL || agent->named == &agent->transports[0];
    return inproc &&
           memcmp(address->process, agent->address.process, sizeof(address->process)) == 0;
}

static ferry_status_t link_open_channel(struct link *link, const struct hello_address *address)
{
    struct ferry_agent *agent = link->agent;
    struct channel_events events = link_channel_events(link);
    if (link_stays_inside(agent, address)) {
        return local_channel_dial(agent->port, address->agent, &events, &link->local);
    }
    return channel_dial(agent->poller, address->host, address->port, &events, &link->channel);
}

ferry_status_t link_dial(struct ferry_agent *agent, struct peer *peer,
                         const struct hello_address *address)
{
    struct link *link = link_create(agent);
    if (link == NULL) {
        return FERRY_ERR_NO_MEMORY;
    }
    link->state = LINK_DIALLING;
    link->local_session = link_new_session(agent);
    peer->epoch++;
    ferry_status_t status = link_set_name(link, peer->name);
    if (status == FERRY_OK) {
        status = link_open_channel(link, address);
    }
    if (status == FERRY_OK) {
        status = link_bound_handshake(link);
    }
    if (status != FERRY_OK) {
        link_fail(link, status, "%s", ferry_last_error()->text);
        return status;
    }
    link->peer = peer;
    link_retain(link);
    peer->link = link;
    if (link->local != NULL) {
        link_send_hello(link, HELLO_DIAL); /* connected already */
    }
    return FERRY_OK;
}

/* ---- accepting ---- */

static struct link *link_create_accepting(struct ferry_agent *agent)
{
    struct link *link = link_create(agent);
    if (link == NULL) {
        return NULL;
    }
    link->state = LINK_ACCEPTING;
    link->local_session = link_new_session(agent);
    return link;
}

static void link_accepted(struct link *link, ferry_status_t status)
{
    if (status == FERRY_OK) {
        status = link_bound_handshake(link);
    }
    if (status != FERRY_OK) {
        log_write(FERRY_LOG_WARN, "%s: a connection was dropped: %s", link->agent->name,
                  ferry_last_error()->text);
        link_fail(link, status, "%s", ferry_last_error()->text);
    }
}

void link_accept(struct ferry_agent *agent, int fd)
{
    struct link *link = link_create_accepting(agent);
    if (link == NULL) {
        close(fd);
        return;
    }
    struct channel_events events = link_channel_events(link);
    link_accepted(link, channel_create(agent->poller, fd, &events, &link->channel));
}

static void link_accept_local(void *context, struct local_channel *channel)
{
    struct link *link = link_create_accepting(context);
    if (link == NULL) {
        local_channel_destroy(channel);
        return;
    }
    struct channel_events events = link_channel_events(link);
    local_channel_take(channel, &events);
    link->local = channel;
    link_accepted(link, FERRY_OK);
}

ferry_status_t link_open_port(struct ferry_agent *agent)
{
    _Static_assert(sizeof(agent->id) == LOCAL_PORT_ID_BYTES, "an agent is found by its id");
    struct local_port_events events = {.context = agent, .accept = link_accept_local};
    return local_port_open(agent->poller, agent->id, &events, &agent->port);
}
