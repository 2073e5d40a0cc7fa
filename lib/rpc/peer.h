/* Peers: names to which links are made lazily. All under the agent's lock. */
#ifndef FERRY_RPC_PEER_H
#define FERRY_RPC_PEER_H

#include "rpc/agent.h"

/* The peer of that name, made at first use. NULL: raised (FERRY_ERR_INVALID_ARGUMENT, FERRY_ERR_NO_MEMORY). */
struct peer *peer_get(struct ferry_agent *agent, const char *name);

/* A link that is up, connecting first where there is none. Waits until deadline_ns, driving the agent, unless may_block is false. wait_for_name: a name that is not there
 * yet is waited for. Raises what ferry_agent_connect() says. */
ferry_status_t peer_require(struct peer *peer, bool wait_for_name, bool may_block,
                            int64_t deadline_ns);

/* From the naming service and from links. */
void peer_resolved(void *context, const char *name, const void *address, size_t bytes,
                   const struct error_record *error);
void peer_connected(struct peer *peer, struct link *link);
/* The present attempt ended without a link. */
void peer_failed(struct peer *peer, ferry_status_t status, const char *text);
/* The link that was up is gone. */
void peer_lost(struct peer *peer, struct link *link);
/* The peer is dialling us itself: our own attempt stops and its link is waited for. */
void peer_expect(struct peer *peer);

/* Tells ferry_agent_when_ready()'s waiters. */
void peer_notify(struct peer *peer, ferry_status_t status);
void peer_notify_all(struct ferry_agent *agent, ferry_status_t status);

void peer_destroy_all(struct ferry_agent *agent);

#endif
