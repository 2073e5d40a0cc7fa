/* Network interfaces by name. */
#ifndef FERRY_CORE_INTERFACE_H
#define FERRY_CORE_INTERFACE_H

#include <stddef.h>

#include <ferry/status.h>

/* The interface that FERRY_INTERFACE means: "" is the loopback one, a numeric address the one that has it, anything else a name as it is.
 * FERRY_ERR_CONFIG: no interface has the address. FERRY_ERR_SYSTEM. */
ferry_status_t interface_name(const char *setting, char *name, size_t capacity);

#endif
