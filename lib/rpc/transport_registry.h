/* The transports there are. The one place in the library that names them. */
#ifndef FERRY_RPC_TRANSPORT_REGISTRY_H
#define FERRY_RPC_TRANSPORT_REGISTRY_H

#include <ferry/transport.h>

/* The ops of a transport, every slot filled: what it leaves empty says FERRY_ERR_UNSUPPORTED. NULL
 * (nothing raised): no such transport. */
const ferry_transport_ops_t *transport_find(const char *name);

/* The names there are, as a list for people. */
void transport_names(char *text, size_t capacity);

/* ops->open(), for ops from transport_find(): the instance then leads to these, whose slots are
 * all filled. */
ferry_status_t transport_open(const ferry_transport_ops_t *ops,
                              const ferry_transport_options_t *options,
                              ferry_transport_t **transport_out);

#endif
