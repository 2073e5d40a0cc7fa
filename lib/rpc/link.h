/* Links: the hello over Ferry's own socket, the transport's link after it, and what happens when either ends. All under the agent's lock. */
#ifndef FERRY_RPC_LINK_H
#define FERRY_RPC_LINK_H

#include "rpc/agent.h"

/* Dials the peer at the address; its outcome goes to peer_connected() or peer_failed(). */
ferry_status_t link_dial(struct ferry_agent *agent, struct peer *peer,
                         const struct hello_address *address);
/* Takes an accepted socket, also on error (logged). */
void link_accept(struct ferry_agent *agent, int fd);
/* Both ends of a link to oneself over the agent's inproc instance; up at once. */
ferry_status_t link_to_self(struct ferry_agent *agent, struct peer *peer);

void link_retain(struct link *link);
void link_release(struct link *link); /* NULL is taken */

/* The link is down from now on: its calls fail, its requests learn it; the rest happens in link_bury_all(). May be called from a
 * transport's events. Down already: nothing. */
void link_fail(struct link *link, ferry_status_t status, const char *format, ...)
    FERRY_PRINTF(3, 4);
/* Says goodbye on the socket first. */
void link_close(struct link *link, ferry_status_t status, const char *text);
/* Disconnects what failed, now that no transport is on the stack; returns how many. */
unsigned link_bury_all(struct ferry_agent *agent);

/* The transports' events. */
void link_on_message(void *context, ferry_link_t *wire, const void *data, size_t bytes);
void link_on_down(void *context, ferry_link_t *wire, ferry_status_t status, const char *text);

/* Notes how its bytes travel: "ucx(sysv/memory, cma/memory)". */
void link_describe(struct link *link);
/* What was noted; "" before the link is up. */
const char *link_route(const struct link *link);

/* FERRY_ERR_NO_MEMORY. */
ferry_status_t link_set_name(struct link *link, const char *name);
/* Who is at the other end, for messages. */
const char *link_title(const struct link *link);

#endif
