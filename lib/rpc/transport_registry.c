#include "rpc/transport_registry.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "core/error.h"
#include "transports/inproc/inproc.h"
#include "transports/ucx/ucx.h"

#define OUTSIDE_MAX 8

static struct {
    pthread_mutex_t mutex;
    ferry_transport_ops_t all[2 + OUTSIDE_MAX]; /* completed copies; an entry never changes */
    size_t count;
} registry = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static ferry_status_t no_register(ferry_transport_t *transport, const ferry_memory_t *memory,
                                  void **handle_out)
{
    (void)memory;
    (void)handle_out;
    return error_raise(FERRY_ERR_UNSUPPORTED, "%s has no use for registered memory",
                       transport->ops->name);
}

static void no_unregister(ferry_transport_t *transport, void *handle)
{
    (void)transport;
    (void)handle;
}

static void no_description(const ferry_link_t *link, char *text, size_t capacity)
{
    (void)link;
    if (capacity > 0) {
        text[0] = '\0';
    }
}

static size_t none_pending(const ferry_transport_t *transport)
{
    (void)transport;
    return 0;
}

static ferry_status_t always_busy(ferry_transport_t *transport)
{
    (void)transport;
    return FERRY_PENDING;
}

static bool is_name(const char *name)
{
    size_t bytes = name == NULL ? 0 : strlen(name);
    return bytes > 0 && bytes <= FERRY_TRANSPORT_NAME_BYTES_MAX && strcasecmp(name, "auto") != 0;
}

static bool is_complete(const ferry_transport_ops_t *ops)
{
    return ops->open != NULL && ops->close != NULL && ops->capabilities != NULL &&
           ops->identity != NULL && ops->address != NULL && ops->connect != NULL &&
           ops->disconnect != NULL && ops->send_message != NULL && ops->send != NULL &&
           ops->receive != NULL && ops->decline != NULL && ops->progress != NULL &&
           ops->wait_fd != NULL;
}

/* With the mutex. */
static void registry_add(const ferry_transport_ops_t *ops)
{
    ferry_transport_ops_t *own = &registry.all[registry.count++];
    *own = *ops;
    own->register_memory = ops->register_memory == NULL ? no_register : ops->register_memory;
    own->unregister_memory =
        ops->unregister_memory == NULL ? no_unregister : ops->unregister_memory;
    own->describe = ops->describe == NULL ? no_description : ops->describe;
    own->pending = ops->pending == NULL ? none_pending : ops->pending;
    own->arm = ops->arm == NULL ? always_busy : ops->arm;
}

/* With the mutex. */
static const ferry_transport_ops_t *registry_find(const char *name)
{
    if (registry.count == 0) {
        registry_add(&inproc_ops);
        registry_add(&ucx_ops);
    }
    for (size_t i = 0; i < registry.count; i++) {
        if (strcasecmp(registry.all[i].name, name) == 0) {
            return &registry.all[i];
        }
    }
    return NULL;
}

const ferry_transport_ops_t *transport_find(const char *name)
{
    pthread_mutex_lock(&registry.mutex);
    const ferry_transport_ops_t *ops = registry_find(name);
    pthread_mutex_unlock(&registry.mutex);
    return ops;
}

void transport_names(char *text, size_t capacity)
{
    size_t used = 0;
    text[0] = '\0';
    pthread_mutex_lock(&registry.mutex);
    for (size_t i = 0; i < registry.count && used < capacity; i++) {
        used += (size_t)snprintf(text + used, capacity - used, "%s%s", i == 0 ? "" : ", ",
                                 registry.all[i].name);
    }
    pthread_mutex_unlock(&registry.mutex);
}

ferry_status_t transport_open(const ferry_transport_ops_t *ops,
                              const ferry_transport_options_t *options,
                              ferry_transport_t **transport_out)
{
    ferry_status_t status = ops->open(options, transport_out);
    if (status == FERRY_OK) {
        (*transport_out)->ops = ops;
    }
    return status;
}

ferry_status_t ferry_transport_register(const ferry_transport_ops_t *ops)
{
    if (ops == NULL || ops->struct_bytes < sizeof(*ops) || ops->abi != FERRY_TRANSPORT_ABI ||
        !is_name(ops->name) || !is_complete(ops)) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT,
                           "a transport needs struct_bytes %zu, abi %d, a name of 1 to %d bytes "
                           "other than 'auto', and every slot but register_memory, "
                           "unregister_memory, describe, pending and arm",
                           sizeof(*ops), FERRY_TRANSPORT_ABI, FERRY_TRANSPORT_NAME_BYTES_MAX);
    }
    ferry_status_t status = FERRY_OK;
    pthread_mutex_lock(&registry.mutex);
    if (registry_find(ops->name) != NULL) {
        status = error_raise(FERRY_ERR_NAME_TAKEN, "there is a transport '%s' already", ops->name);
    } else if (registry.count == sizeof(registry.all) / sizeof(*registry.all)) {
        status = error_raise(FERRY_ERR_LIMIT, "%d outside transports are registered", OUTSIDE_MAX);
    } else {
        registry_add(ops);
    }
    pthread_mutex_unlock(&registry.mutex);
    return status;
}

ferry_status_t ferry_transport_raise(ferry_status_t status, const char *format, ...)
{
    char text[ERROR_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    return error_raise(status, "%s", text);
}
