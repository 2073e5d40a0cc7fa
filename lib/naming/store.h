/* The naming store that one agent serves for tcp:// and env://, on its own poller. Maps over channel frames:
 *
 *   client                                    store
 *   {op:hello, version, client:bin}           {op:hello, version}, or {op:error, text} and the end
 *   {op:publish, id, name, address:bin}       {op:published, id}, or with status, text
 *   {op:withdraw}
 *   {op:resolve, id, name, wait}              {op:resolved, id, address:bin}, or with status, nearest
 *   {op:cancel, id}
 *   {op:watch}                                {op:present, name, stamp} for each member, {op:synced, version},
 *                                             then {op:member, name, joined, stamp, version} for each change
 *
 * Unknown fields are ignored. A name lives as long as its owner's connection; the same client on a
 * new
 * connection takes its name over. A frame that makes no sense ends that connection and nothing
 * else. */
#ifndef FERRY_NAMING_STORE_H
#define FERRY_NAMING_STORE_H

#include "core/poller.h"

#define STORE_PROTOCOL_VERSION 1
#define STORE_CLIENT_ID_BYTES 16
#define STORE_CONNECTIONS_MAX 8192
#define STORE_WAITS_MAX 4096 /* pending resolves of one client */

struct store;

/* address: numeric; port 0 = any. FERRY_ERR_SYSTEM, FERRY_ERR_NO_MEMORY. */
ferry_status_t store_open(struct poller *poller, struct clock clock, const char *address,
                          uint16_t port, struct store **store_out);
void store_close(struct store *store);
uint16_t store_port(const struct store *store);

/* Whether an agent of this very process serves that port. */
bool store_is_served_here(uint16_t port);

#endif
