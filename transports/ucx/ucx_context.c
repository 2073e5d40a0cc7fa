#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/config.h"
#include "core/error.h"
#include "core/interface.h"
#include "core/log.h"
#include "transports/ucx/ucx_internal.h"

/* The API that is asked for: what both builds know. A newer one makes an older library complain. */
#define API_MAJOR 1
#define API_MINOR 13

#define DEVICES_BYTES 256

/* The RDMA devices that share the network interface: "rxe0:1,". */
static void devices_of_interface(const char *interface, char *text, size_t capacity)
{
    const char *base = "/sys/class/infiniband";
    DIR *directory = opendir(base);
    struct dirent *entry;
    while (directory != NULL && (entry = readdir(directory)) != NULL) {
        char path[512], name[64] = "";
        if (entry->d_name[0] == '.') {
            continue;
        }
        snprintf(path, sizeof(path), "%s/%.100s/ports/1/gid_attrs/ndevs/0", base, entry->d_name);
        FILE *file = fopen(path, "re");
        if (file == NULL) {
            continue;
        }
        if (fscanf(file, "%63s", name) == 1 && strcmp(name, interface) == 0) {
            size_t used = strlen(text);
            snprintf(text + used, capacity - used, ",%s:1", entry->d_name);
        }
        fclose(file);
    }
    if (directory != NULL) {
        closedir(directory);
    }
}

/* What Ferry sets in UCX, and what UCX has there where the user set nothing. */
struct setting {
    const char *name, *value, *defaults[2];
};

/* Is the option as UCX made it? Both the environment and ucx.conf files can say otherwise. */
static bool is_default(const ucp_config_t *config, const struct setting *setting)
{
    char *text = NULL, line[64];
    size_t bytes;
    FILE *file = open_memstream(&text, &bytes);
    if (file == NULL) {
        return false;
    }
    ucp_config_print(config, file, NULL, UCS_CONFIG_PRINT_CONFIG);
    fclose(file);
    bool found = false;
    for (int i = 0; i < 2 && text != NULL && setting->defaults[i] != NULL; i++) {
        snprintf(line, sizeof(line), "UCX_%s=%s\n", setting->name, setting->defaults[i]);
        const char *place = strstr(text, line);
        found = found || (place != NULL && (place == text || place[-1] == '\n'));
    }
    free(text);
    return found;
}

static bool is_in_environment(const char *name)
{
    char variable[64];
    snprintf(variable, sizeof(variable), "UCX_%s", name);
    return config_environment(variable) != NULL;
}

static void configure(ucp_config_t *config, const struct setting *setting)
{
    if (is_in_environment(setting->name) ||
        (setting->defaults[0] != NULL && !is_default(config, setting))) {
        return; /* the user's own setting wins */
    }
    ucs_status_t status = ucp_config_modify(config, setting->name, setting->value);
    if (status != UCS_OK) {
        log_write(FERRY_LOG_DEBUG, "UCX does not take %s=%s: %s", setting->name, setting->value,
                  ucs_status_string(status));
    }
}

/*
 * Shared memory survives peer error mode only with MM_ERROR_HANDLING, which belongs to UCX's
 * transports: ucp_config_print() does not show those, so a ucx.conf that sets it is overruled. The
 * network is the interface that Ferry itself listens on.
 */
ferry_status_t ucx_configure(ucp_config_t *config, const char *interface)
{
    char name[64], devices[DEVICES_BYTES], threshold[16];
    ferry_status_t status = interface_name(interface == NULL ? "" : interface, name, sizeof(name));
    if (status != FERRY_OK) {
        return status;
    }
    snprintf(devices, sizeof(devices), "%s", name);
    devices_of_interface(name, devices, sizeof(devices));
    snprintf(threshold, sizeof(threshold), "%d", UCX_EAGER_BYTES);
    if (!is_in_environment("POSIX_ERROR_HANDLING") && !is_in_environment("SYSV_ERROR_HANDLING")) {
        configure(config, &(struct setting){.name = "MM_ERROR_HANDLING", .value = "y"});
    }
    configure(config,
              &(struct setting){.name = "NET_DEVICES", .value = devices, .defaults = {"all"}});
    configure(config, &(struct setting){.name = "RNDV_THRESH",
                                        .value = threshold,
                                        .defaults = {"auto", "intra:auto,inter:auto"}});
    return FERRY_OK;
}

ferry_status_t ucx_context_create(const char *interface, uint64_t features,
                                  ucp_context_h *context_out)
{
    ucp_config_t *config;
    ucs_status_t result = ucp_config_read(NULL, NULL, &config);
    if (result != UCS_OK) {
        return ucx_raise(result, "reading UCX's configuration (UCX_* variables)");
    }
    ferry_status_t status = ucx_configure(config, interface);
    if (status == FERRY_OK) {
        ucp_params_t params = {
            .field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED,
            .features = features,
            .mt_workers_shared = 0,
        };
        result = ucp_init_version(API_MAJOR, API_MINOR, &params, config, context_out);
        status = result == UCS_OK ? FERRY_OK : ucx_raise(result, "opening UCX");
    }
    ucp_config_release(config);
    return status;
}

static uint64_t checksum(const unsigned char *data, size_t bytes)
{
    uint64_t sum = UINT64_C(0xcbf29ce484222325); /* FNV-1a */
    for (size_t i = 0; i < bytes; i++) {
        sum = (sum ^ data[i]) * UINT64_C(0x100000001b3);
    }
    return sum;
}

const ucp_address_t *ucx_address_check(const void *address, size_t bytes)
{
    uint64_t sum;
    if (bytes <= sizeof(sum) || bytes > FERRY_TRANSPORT_ADDRESS_BYTES_MAX) {
        return NULL;
    }
    const unsigned char *proper = (const unsigned char *)address + sizeof(sum);
    memcpy(&sum, address, sizeof(sum));
    return sum == checksum(proper, bytes - sizeof(sum)) ? (const ucp_address_t *)proper : NULL;
}

static ferry_status_t address_take(struct ucx *ucx)
{
    ucp_address_t *address;
    size_t bytes;
    ucs_status_t result = ucp_worker_get_address(ucx->worker, &address, &bytes);
    if (result != UCS_OK) {
        return ucx_raise(result, "asking a UCX worker for its address");
    }
    ferry_status_t status = FERRY_OK;
    uint64_t sum = checksum((const unsigned char *)address, bytes);
    ucx->address_bytes = sizeof(sum) + bytes;
    ucx->address = malloc(ucx->address_bytes);
    if (ucx->address_bytes > FERRY_TRANSPORT_ADDRESS_BYTES_MAX) {
        status = error_raise(FERRY_ERR_LIMIT,
                             "UCX's address has %zu bytes, %d are allowed; UCX_NET_DEVICES or "
                             "UCX_TLS can make it smaller",
                             ucx->address_bytes, FERRY_TRANSPORT_ADDRESS_BYTES_MAX);
    } else if (ucx->address == NULL) {
        status = error_raise(FERRY_ERR_NO_MEMORY, "no memory for UCX's address");
    } else {
        memcpy(ucx->address, &sum, sizeof(sum));
        memcpy((char *)ucx->address + sizeof(sum), address, bytes);
    }
    ucp_worker_release_address(ucx->worker, address);
    return status;
}

ferry_status_t ucx_worker_create(ucp_context_h context, ucp_worker_h *worker_out)
{
    ucp_worker_params_t params = {
        .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
        .thread_mode = UCS_THREAD_MODE_SERIALIZED,
    };
    ucs_status_t result = ucp_worker_create(context, &params, worker_out);
    return result == UCS_OK ? FERRY_OK : ucx_raise(result, "creating a UCX worker");
}

static ferry_status_t worker_take(struct ucx *ucx)
{
    ferry_status_t status = ucx_worker_create(ucx->context, &ucx->worker);
    if (status != FERRY_OK) {
        return status;
    }
    ucs_status_t result = ucp_worker_get_efd(ucx->worker, &ucx->wait_fd);
    if (result != UCS_OK) {
        return ucx_raise(result, "asking a UCX worker for its descriptor");
    }
    return address_take(ucx);
}

static ferry_status_t query(struct ucx *ucx)
{
    ucp_context_attr_t attributes = {.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES};
    ucs_status_t result = ucp_context_query(ucx->context, &attributes);
    if (result != UCS_OK) {
        return ucx_raise(result, "asking UCX what memory it knows");
    }
    ucx->capabilities = FERRY_TRANSPORT_HOST | FERRY_TRANSPORT_ZERO_COPY | FERRY_TRANSPORT_DETECTS |
                        FERRY_TRANSPORT_SAFE_ABORT | FERRY_TRANSPORT_REGISTERS;
    ucx->memory_types =
        ucx->protocol->devices ? attributes.memory_types : UCS_BIT(UCS_MEMORY_TYPE_HOST);
    if ((ucx->memory_types & UCS_BIT(UCS_MEMORY_TYPE_CUDA)) != 0) {
        ucx->capabilities |= FERRY_TRANSPORT_CUDA;
    }
    unsigned major, minor, release;
    ucp_get_version(&major, &minor, &release);
    snprintf(ucx->identity, sizeof(ucx->identity), "ucx %u.%u %s", major, minor,
             ucx->protocol->name);
    return FERRY_OK;
}

ferry_status_t ucx_context_open(struct ucx *ucx, const ferry_transport_options_t *options)
{
    struct ucx_descriptors before;
    ucx_descriptors_note(&before);
    uint64_t features = ucx->protocol->features | UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
    ferry_status_t status = ucx_context_create(options->interface, features, &ucx->context);
    if (status == FERRY_OK) {
        status = query(ucx);
    }
    if (status == FERRY_OK) {
        status = worker_take(ucx);
    }
    ucx_descriptors_mark_new(&before);
    return status;
}

void ucx_context_close(struct ucx *ucx)
{
    free(ucx->address);
    if (ucx->worker != NULL) {
        ucp_worker_destroy(ucx->worker);
    }
    if (ucx->context != NULL) {
        ucp_cleanup(ucx->context);
    }
}
