/* Frames over a non-blocking stream socket: 4 bytes of little-endian length, then the payload. Used by the naming
 * protocol and by every link's own socket. Payloads are msgpack maps; this file does not look into
 * them. */
#ifndef FERRY_CORE_CHANNEL_H
#define FERRY_CORE_CHANNEL_H

#include <netinet/in.h>
#include <stddef.h>

#include "core/error.h"
#include "core/poller.h"

#define CHANNEL_FRAME_BYTES_MAX (64 * 1024)
#define CHANNEL_QUEUE_BYTES_MAX (1024 * 1024) /* unsent bytes a channel may hold */

struct channel;

struct channel_events {
    void *context;
    void (*connected)(void *context);                             /* dialled channels only */
    void (*frame)(void *context, const void *data, size_t bytes); /* data valid during the call */
    /* Once, the last event: the peer closed (FERRY_ERR_PEER_LOST), could not be reached (FERRY_ERR_UNREACHABLE), or sent a
     * frame over the bound (FERRY_ERR_PROTOCOL); error names the address. The owner still destroys
     * the channel, here or later. */
    void (*closed)(void *context, const struct error_record *error);
};

/* Takes ownership of a connected socket, also on error. */
ferry_status_t channel_create(struct poller *poller, int fd, const struct channel_events *events,
                              struct channel **channel_out);
/* Starts to connect to "host" (name or numeric) and port; outcome by event. May block only in name resolution of a
 * host that is not numeric. */
ferry_status_t channel_dial(struct poller *poller, const char *host, uint16_t port,
                            const struct channel_events *events, struct channel **channel_out);
/* Safe inside its own events. Closes at once; unsent frames are lost unless channel_flush_blocking ran. No event follows. */
void channel_destroy(struct channel *channel);

/* Copies and queues one frame. FERRY_ERR_LIMIT: over either bound. FERRY_ERR_STATE: closed. Before `connected`, frames wait. */
ferry_status_t channel_send(struct channel *channel, const void *data, size_t bytes);

/* Sends what is queued, for at most timeout_ns; for the last words before a channel is destroyed. No event. */
void channel_flush_blocking(struct channel *channel, int64_t timeout_ns);

/* Has the kernel end the channel (FERRY_ERR_PEER_LOST) when the other end's machine answers nothing for so long, between a second and whatever; FERRY_FOREVER: never. A process
 * that is stopped still answers: its kernel does. */
void channel_set_silence(struct channel *channel, int64_t silence_ns);

/* "127.0.0.1:4711" of the other end. */
const char *channel_peer(const struct channel *channel);

/* A listening socket (SOCK_CLOEXEC, non-blocking). address: numeric IP, interface name, or "" for 127.0.0.1; port 0 = any.
 * host_out gets the numeric address. FERRY_ERR_SYSTEM, FERRY_ERR_CONFIG (no such interface: those
 * there are named). */
ferry_status_t socket_listen(const char *address, uint16_t port, int *fd_out,
                             char host_out[INET6_ADDRSTRLEN], uint16_t *port_out);
/* Accepts one pending connection; FERRY_PENDING when there is none. */
ferry_status_t socket_accept(int listen_fd, int *fd_out);
/* The numeric address of a host, IPv4 preferred; may block in name resolution. FERRY_ERR_UNREACHABLE. */
ferry_status_t socket_resolve(const char *host, char numeric_out[INET6_ADDRSTRLEN]);

#endif
