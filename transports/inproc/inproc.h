#ifndef FERRY_TRANSPORTS_INPROC_H
#define FERRY_TRANSPORTS_INPROC_H

#include <ferry/transport.h>

extern const ferry_transport_ops_t inproc_ops;

#endif
