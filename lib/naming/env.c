/* env://: the group that torchrun describes. Rank 0 serves the store; everybody is worker{RANK} unless the agent has another name. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "naming/tcp.h"

#define FORM "env:// needs MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE, as torchrun sets them"

/* A whole number in [least, most] from the environment. */
static ferry_status_t variable_read(const char *name, int64_t least, int64_t most,
                                    int64_t *number_out)
{
    const char *text = config_environment(name);
    if (text == NULL) {
        return error_raise(FERRY_ERR_CONFIG, "%s is not set; " FORM, name);
    }
    char *end = NULL;
    long long number = strtoll(text, &end, 10);
    if (strspn(text, "0123456789") != strlen(text) || strlen(text) > 18 || number < least ||
        number > most) {
        return error_raise(FERRY_ERR_CONFIG, "%s=%s: want a whole number from %lld to %lld", name,
                           text, (long long)least, (long long)most);
    }
    *number_out = number;
    return FERRY_OK;
}

static ferry_status_t port_choose(const struct naming_options *options, uint16_t *port_out)
{
    int64_t master_port;
    ferry_status_t status = variable_read("MASTER_PORT", 1, 65535, &master_port);
    if (status != FERRY_OK) {
        return status;
    }
    int64_t port = options->config != NULL ? options->config->port : 0;
    if (port == 0) {
        port = master_port + 1; /* the launcher itself listens on MASTER_PORT */
    }
    if (port > 65535) {
        return error_raise(FERRY_ERR_CONFIG,
                           "MASTER_PORT=%lld leaves no port behind it for the naming store; set "
                           "FERRY_PORT",
                           (long long)master_port);
    }
    *port_out = (uint16_t)port;
    return FERRY_OK;
}

static ferry_status_t env_open(struct naming *naming, const struct naming_options *options,
                               const char *rest)
{
    int64_t rank;
    int64_t world_size;
    struct tcp_target target = {
        .remedy = "set FERRY_PORT, alike in every process, to a free port of rank 0's machine"};
    if (*rest != '\0') {
        return error_raise(FERRY_ERR_CONFIG, "env://%s: nothing follows env://; " FORM, rest);
    }
    target.host = config_environment("MASTER_ADDR");
    if (target.host == NULL) {
        return error_raise(FERRY_ERR_CONFIG, "MASTER_ADDR is not set; " FORM);
    }
    if (strlen(target.host) >= TCP_HOST_BYTES) {
        return error_raise(FERRY_ERR_CONFIG, "MASTER_ADDR=%.40s... is too long for a host",
                           target.host);
    }
    ferry_status_t status = port_choose(options, &target.port);
    if (status == FERRY_OK) {
        status = variable_read("WORLD_SIZE", 1, INT32_MAX, &world_size);
    }
    if (status == FERRY_OK) {
        status = variable_read("RANK", 0, world_size - 1, &rank);
    }
    if (status != FERRY_OK) {
        return status;
    }
    snprintf(naming->default_name, sizeof naming->default_name, "worker%lld", (long long)rank);
    naming->group_size = world_size;
    naming->tracks_members = true; /* a fixed group knows who cannot come any more */
    target.serve = rank == 0;
    target.interface = options->config != NULL ? options->config->interface : "";
    return tcp_open_at(naming, &target);
}

const struct naming_backend NAMING_ENV = {
    .scheme = "env",
    .form = "env://",
    .bytes = sizeof(struct tcp),
    .open = env_open,
    .close = tcp_close,
    .publish = tcp_publish,
    .withdraw = tcp_withdraw,
    .resolve = tcp_resolve,
    .forget = tcp_forget,
};
