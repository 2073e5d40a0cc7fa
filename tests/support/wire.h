/* A transport by the name that tests give it: "inproc", or "ucx:am" where it has protocols. */
#ifndef TESTS_SUPPORT_WIRE_H
#define TESTS_SUPPORT_WIRE_H

#include <ferry/transport.h>

struct wire {
    const ferry_transport_ops_t *ops; /* NULL: there is none of that name */
    const char *protocol;             /* "": the transport's default; borrowed from the name */
};

struct wire wire_find(const char *name);

#endif
