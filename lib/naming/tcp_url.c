/* tcp://host:port: the URL, and the backend. */
#include <stdlib.h>
#include <string.h>

#include "naming/tcp.h"

static ferry_status_t url_refuse(const char *rest, const char *reason)
{
    return error_raise(FERRY_ERR_CONFIG,
                       "tcp://%s: %s; write tcp://host:port, e.g. tcp://10.0.0.1:7000 or "
                       "tcp://[fd00::1]:7000",
                       rest, reason);
}

static ferry_status_t port_parse(const char *rest, const char *text, uint16_t *port_out)
{
    char *end = NULL;
    size_t length = strcspn(text, "/");
    if (length == 0 || length > 5 || strspn(text, "0123456789") != length ||
        (text[length] == '/' && text[length + 1] != '\0')) {
        return url_refuse(rest, "the port is missing or is no number");
    }
    long port = strtol(text, &end, 10);
    if (port > 65535) {
        return url_refuse(rest, "the port is over 65535");
    }
    *port_out = (uint16_t)port;
    return FERRY_OK;
}

static ferry_status_t tcp_open(struct naming *naming, const struct naming_options *options,
                               const char *rest)
{
    char host[TCP_HOST_BYTES];
    bool is_bracketed = *rest == '[';
    const char *host_end = is_bracketed ? strchr(rest, ']') : strchr(rest, ':');
    const char *host_start = is_bracketed ? rest + 1 : rest;
    struct tcp_target target = {.host = host, .serve = options->serve};
    if (host_end == NULL) {
        return url_refuse(rest, is_bracketed ? "a ']' is missing" : "the port is missing");
    }
    size_t length = (size_t)(host_end - host_start);
    if (length == 0 || length >= sizeof host) {
        return url_refuse(rest, "the host is missing or too long");
    }
    memcpy(host, host_start, length);
    host[length] = '\0';
    const char *colon = is_bracketed ? host_end + 1 : host_end;
    if (*colon != ':') {
        return url_refuse(rest, "the port is missing");
    }
    if (!is_bracketed && strchr(colon + 1, ':') != NULL) {
        return url_refuse(rest, "an IPv6 address needs brackets");
    }
    ferry_status_t status = port_parse(rest, colon + 1, &target.port);
    if (status != FERRY_OK) {
        return status;
    }
    if (target.port == 0 && !options->serve) {
        return url_refuse(rest, "port 0 means any, which only the agent that serves can choose");
    }
    target.interface = options->config != NULL ? options->config->interface : "";
    return tcp_open_at(naming, &target);
}

const struct naming_backend NAMING_TCP = {
    .scheme = "tcp",
    .form = "tcp://host:port",
    .bytes = sizeof(struct tcp),
    .open = tcp_open,
    .close = tcp_close,
    .publish = tcp_publish,
    .withdraw = tcp_withdraw,
    .resolve = tcp_resolve,
    .forget = tcp_forget,
};
