/* The handshake of a link; link.c's other half. */
#ifndef FERRY_RPC_LINK_HELLO_H
#define FERRY_RPC_LINK_HELLO_H

#include "rpc/agent.h"

/* A new link, in the agent's list, with one reference: the list's. NULL: raised. */
struct link *link_create(struct ferry_agent *agent);
/* A session number that no link of the agent has used: they come back after 2^32 links only, and begin where another agent's do not. */
uint32_t link_new_session(struct ferry_agent *agent);
/* Sends READY, REFUSE or BYE; failures close the link by themselves. */
void link_hello_short(struct link *link, enum hello_kind kind, ferry_status_t status,
                      const char *text);
/* DIAL or ACCEPT. */
void link_send_hello(struct link *link, enum hello_kind kind);
/* What the other end says. */
void link_on_frame(struct link *link, const void *data, size_t bytes);

#endif
