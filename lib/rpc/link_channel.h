/* What carries a link's hello and stays as its sign of life: Ferry's own socket, or a channel within the process. */
#ifndef FERRY_RPC_LINK_CHANNEL_H
#define FERRY_RPC_LINK_CHANNEL_H

#include "rpc/agent.h"

/* The port under which agents of this process find this one. */
ferry_status_t link_open_port(struct ferry_agent *agent);

/* One frame to the other end. Raises what channel_send() and local_channel_send() say. */
ferry_status_t link_send_frame(struct link *link, const void *data, size_t bytes);
/* Who is there, for messages, where the peer's name is not known. */
const char *link_far_end(const struct link *link);
/* Has a network that falls silent end the link after FERRY_PEER_TIMEOUT. */
void link_watch_silence(struct link *link);
bool link_has_channel(const struct link *link);
/* Closes it; nothing more is heard of it. */
void link_drop_channel(struct link *link);

#endif
