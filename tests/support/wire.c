#include "support/wire.h"

#include <stdio.h>
#include <string.h>

#include "rpc/transport_registry.h"

struct wire wire_find(const char *name)
{
    char transport[FERRY_TRANSPORT_NAME_BYTES_MAX + 1];
    size_t bytes = strcspn(name, ":");
    snprintf(transport, sizeof transport, "%.*s", (int)bytes, name);
    return (struct wire){.ops = transport_find(transport),
                         .protocol = name[bytes] == ':' ? name + bytes + 1 : ""};
}
