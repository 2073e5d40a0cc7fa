/* Small control messages of Ferry's own, and messages that nobody waits for any more. Under the agent's lock. */
#ifndef FERRY_RPC_CONTROL_H
#define FERRY_RPC_CONTROL_H

#include "rpc/agent.h"

/* Sends a header-only message, best effort: a failure is the link's matter. */
void control_send(struct link *link, enum wire_kind kind, uint64_t call_id);

/* Drops a reply whose call is over: its segments are declined. An error breaks the link. */
ferry_status_t control_drop(struct link *link, const void *data, size_t bytes,
                            const struct wire_message *header, size_t table_bytes);

#endif
