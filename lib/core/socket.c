/* Listening and accepting: which address, which port, and what is wrong with them. */
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/channel.h"

#define BACKLOG 512

/* A socket address of either family, and what bind() wants to know of it. */
struct endpoint {
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } address;
    socklen_t bytes;
};

static bool endpoint_parse(const char *text, struct endpoint *endpoint)
{
    memset(endpoint, 0, sizeof *endpoint);
    if (inet_pton(AF_INET, text, &endpoint->address.v4.sin_addr) == 1) {
        endpoint->address.v4.sin_family = AF_INET;
        endpoint->bytes = sizeof endpoint->address.v4;
        return true;
    }
    if (inet_pton(AF_INET6, text, &endpoint->address.v6.sin6_addr) == 1) {
        endpoint->address.v6.sin6_family = AF_INET6;
        endpoint->bytes = sizeof endpoint->address.v6;
        return true;
    }
    return false;
}

static const char *endpoint_host(const struct endpoint *endpoint, char host[INET6_ADDRSTRLEN])
{
    const void *raw = endpoint->address.any.sa_family == AF_INET
                          ? (const void *)&endpoint->address.v4.sin_addr
                          : (const void *)&endpoint->address.v6.sin6_addr;
    inet_ntop(endpoint->address.any.sa_family, raw, host, INET6_ADDRSTRLEN);
    return host;
}

/* Fills text with "eth0 (10.0.0.1), lo (127.0.0.1)". */
static void interfaces_list(const struct ifaddrs *all, char *text, size_t capacity)
{
    size_t used = 0;
    text[0] = '\0';
    for (const struct ifaddrs *i = all; i != NULL; i = i->ifa_next) {
        char host[INET6_ADDRSTRLEN];
        if (i->ifa_addr == NULL || i->ifa_addr->sa_family != AF_INET) {
            continue;
        }
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)(const void *)i->ifa_addr;
        inet_ntop(AF_INET, &v4->sin_addr, host, sizeof host);
        int wrote = snprintf(text + used, capacity - used, "%s%s (%s)", used == 0 ? "" : ", ",
                             i->ifa_name, host);
        if (wrote < 0 || (size_t)wrote >= capacity - used) {
            return;
        }
        used += (size_t)wrote;
    }
}

/* IPv4 is preferred, because it is what people type at the other end. Link-local IPv6 is left out,
 * because it means nothing without its interface. */
static const struct ifaddrs *interface_find(const struct ifaddrs *all, const char *name)
{
    const struct ifaddrs *found = NULL;
    for (const struct ifaddrs *i = all; i != NULL; i = i->ifa_next) {
        if (i->ifa_addr == NULL || strcmp(i->ifa_name, name) != 0) {
            continue;
        }
        if (i->ifa_addr->sa_family == AF_INET) {
            return i;
        }
        if (i->ifa_addr->sa_family == AF_INET6 && found == NULL) {
            const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)i->ifa_addr;
            found = IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr) ? NULL : i;
        }
    }
    return found;
}

static ferry_status_t interface_endpoint(const char *name, struct endpoint *endpoint)
{
    struct ifaddrs *all = NULL;
    if (getifaddrs(&all) != 0) {
        return error_raise_errno(errno, "cannot list the network interfaces");
    }
    ferry_status_t status = FERRY_OK;
    const struct ifaddrs *found = interface_find(all, name);
    if (found == NULL) {
        char known[512];
        interfaces_list(all, known, sizeof known);
        status = error_raise(FERRY_ERR_CONFIG,
                             "'%s' is neither an IP address nor a network interface with one; "
                             "there are %s",
                             name, known);
    } else {
        memset(endpoint, 0, sizeof *endpoint);
        endpoint->bytes = found->ifa_addr->sa_family == AF_INET ? sizeof endpoint->address.v4
                                                                : sizeof endpoint->address.v6;
        memcpy(&endpoint->address, found->ifa_addr, endpoint->bytes);
    }
    freeifaddrs(all);
    return status;
}

static void endpoint_set_port(struct endpoint *endpoint, uint16_t port)
{
    if (endpoint->address.any.sa_family == AF_INET) {
        endpoint->address.v4.sin_port = htons(port);
    } else {
        endpoint->address.v6.sin6_port = htons(port);
    }
}

ferry_status_t socket_listen(const char *address, uint16_t port, int *fd_out,
                             char host_out[INET6_ADDRSTRLEN], uint16_t *port_out)
{
    struct endpoint endpoint;
    char host[INET6_ADDRSTRLEN];
    if (!endpoint_parse(*address == '\0' ? "127.0.0.1" : address, &endpoint)) {
        ferry_status_t status = interface_endpoint(address, &endpoint);
        if (status != FERRY_OK) {
            return status;
        }
    }
    endpoint_set_port(&endpoint, port);
    endpoint_host(&endpoint, host);

    int fd = socket(endpoint.address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return error_raise_errno(errno, "cannot create a socket for %s port %u", host, port);
    }
    int yes = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(fd, &endpoint.address.any, endpoint.bytes) != 0 || listen(fd, BACKLOG) != 0 ||
        getsockname(fd, &endpoint.address.any, &endpoint.bytes) != 0) {
        ferry_status_t status = error_raise_errno(errno, "cannot listen on %s port %u", host, port);
        close(fd);
        return status;
    }
    *fd_out = fd;
    strcpy(host_out, host);
    *port_out = ntohs(endpoint.address.any.sa_family == AF_INET ? endpoint.address.v4.sin_port
                                                                : endpoint.address.v6.sin6_port);
    return FERRY_OK;
}

ferry_status_t socket_accept(int listen_fd, int *fd_out)
{
    int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
        *fd_out = fd;
        return FERRY_OK;
    }
    switch (errno) {
    case EAGAIN:
    case EINTR:
    case ECONNABORTED: /* the peer went away while it waited */
    case EPROTO:
    case ENETDOWN:
    case EHOSTUNREACH:
    case ENETUNREACH:
        return FERRY_PENDING;
    default:
        return error_raise_errno(errno, "cannot accept a connection");
    }
}

ferry_status_t socket_resolve(const char *host, char numeric_out[INET6_ADDRSTRLEN])
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    int failed = getaddrinfo(host, NULL, &hints, &found);
    if (failed != 0) {
        return error_raise(FERRY_ERR_UNREACHABLE, "cannot resolve '%s': %s", host,
                           gai_strerror(failed));
    }
    const struct addrinfo *best = found;
    for (const struct addrinfo *a = found; a != NULL; a = a->ai_next) {
        if (a->ai_family == AF_INET) {
            best = a;
            break;
        }
    }
    struct endpoint endpoint;
    memset(&endpoint, 0, sizeof endpoint);
    memcpy(&endpoint.address, best->ai_addr, best->ai_addrlen);
    endpoint_host(&endpoint, numeric_out);
    freeaddrinfo(found);
    return FERRY_OK;
}
