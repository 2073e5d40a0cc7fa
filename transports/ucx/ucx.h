#ifndef FERRY_TRANSPORTS_UCX_H
#define FERRY_TRANSPORTS_UCX_H

#include <ferry/transport.h>

extern const ferry_transport_ops_t ucx_ops;

#endif
