/* A transport of one's own, over Unix sockets: docs/transports.md. */
#ifndef UNIX_TRANSPORT_H
#define UNIX_TRANSPORT_H

#include <ferry/transport.h>

extern const ferry_transport_ops_t unix_transport_ops;

#endif
