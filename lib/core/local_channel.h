/* Frames between two owners of one process: what channel.h does over a socket, at no descriptor a
 * connection. Each owner has a port, under an id by which the others find it, and is served from
 * its own poller; owners of different threads may connect, send and leave at any time. */
#ifndef FERRY_CORE_LOCAL_CHANNEL_H
#define FERRY_CORE_LOCAL_CHANNEL_H

#include "core/channel.h"

#define LOCAL_PORT_ID_BYTES 16

struct local_port;
struct local_channel;

struct local_port_events {
    void *context;
    /* Somebody connected. The channel is the callee's from here on, who says with
     * local_channel_take() what hears of its frames, or destroys it. */
    void (*accept)(void *context, struct local_channel *channel);
};

/* FERRY_ERR_SYSTEM, FERRY_ERR_NO_MEMORY. */
ferry_status_t local_port_open(struct poller *poller, const uint8_t id[LOCAL_PORT_ID_BYTES],
                               const struct local_port_events *events,
                               struct local_port **port_out);
/* Its channels must be destroyed; those that nobody has accepted yet are. NULL is taken. */
void local_port_close(struct local_port *port);

/* The events are those of channel.h, but that there is no `connected`: frames may be sent at once.
 * FERRY_ERR_UNREACHABLE: no port of that id is open in this process. */
ferry_status_t local_channel_dial(struct local_port *port, const uint8_t id[LOCAL_PORT_ID_BYTES],
                                  const struct channel_events *events,
                                  struct local_channel **channel_out);
/* Of an accepted one, before anything else. */
void local_channel_take(struct local_channel *channel, const struct channel_events *events);

/* Copies one frame to the other end, which gets it from its poller; one that has left is told of by
 * `closed`. FERRY_ERR_LIMIT: over CHANNEL_FRAME_BYTES_MAX, or the other end has not taken
 * CHANNEL_QUEUE_BYTES_MAX. FERRY_ERR_NO_MEMORY. */
ferry_status_t local_channel_send(struct local_channel *channel, const void *data, size_t bytes);

/* Safe inside its own events. What it has sent still arrives; then the other end hears `closed`. No
 * event follows here. NULL is taken. */
void local_channel_destroy(struct local_channel *channel);

#endif
