#include "core/interface.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"

static bool interface_has(const struct ifaddrs *entry, int family, const void *address)
{
    if (entry->ifa_addr == NULL || entry->ifa_addr->sa_family != family) {
        return false;
    }
    if (family == AF_INET) {
        const struct sockaddr_in *own = (const struct sockaddr_in *)(const void *)entry->ifa_addr;
        return memcmp(&own->sin_addr, address, sizeof(own->sin_addr)) == 0;
    }
    const struct sockaddr_in6 *own = (const struct sockaddr_in6 *)(const void *)entry->ifa_addr;
    return memcmp(&own->sin6_addr, address, sizeof(own->sin6_addr)) == 0;
}

ferry_status_t interface_name(const char *setting, char *name, size_t capacity)
{
    uint8_t address[sizeof(struct in6_addr)];
    int family = inet_pton(AF_INET, setting, address) == 1    ? AF_INET
                 : inet_pton(AF_INET6, setting, address) == 1 ? AF_INET6
                                                              : AF_UNSPEC;
    if (family == AF_UNSPEC && setting[0] != '\0') {
        snprintf(name, capacity, "%s", setting);
        return FERRY_OK;
    }
    struct ifaddrs *all;
    if (getifaddrs(&all) != 0) {
        return error_raise_errno(errno, "cannot list the network interfaces");
    }
    const struct ifaddrs *found = NULL;
    for (const struct ifaddrs *entry = all; entry != NULL && found == NULL;
         entry = entry->ifa_next) {
        bool loopback = setting[0] == '\0' && (entry->ifa_flags & IFF_LOOPBACK) != 0;
        if (loopback || (family != AF_UNSPEC && interface_has(entry, family, address))) {
            found = entry;
        }
    }
    ferry_status_t status = FERRY_OK;
    if (found != NULL) {
        snprintf(name, capacity, "%s", found->ifa_name);
    } else {
        status = error_raise(FERRY_ERR_CONFIG, "FERRY_INTERFACE=%s: no network interface has it",
                             setting[0] == '\0' ? "(loopback)" : setting);
    }
    freeifaddrs(all);
    return status;
}
