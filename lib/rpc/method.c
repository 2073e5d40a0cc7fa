#include <stdlib.h>
#include <string.h>

#include "rpc/engine.h"
#include "rpc/serve.h"

#define CATCH_ALL "*"

ferry_method_options_t ferry_method_options(void)
{
    return (ferry_method_options_t){.struct_bytes = sizeof(ferry_method_options_t)};
}

static ferry_status_t method_check_name(const char *name)
{
    size_t bytes = name == NULL ? 0 : strlen(name);
    bool printable = bytes > 0 && bytes <= WIRE_METHOD_BYTES_MAX;
    for (size_t i = 0; printable && i < bytes; i++) {
        printable = (unsigned char)name[i] >= 0x20 && name[i] != 0x7f;
    }
    if (!printable) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT,
                           "the method name '%.40s' has %zu bytes; 1 to %d printable ones are "
                           "allowed",
                           name == NULL ? "(NULL)" : name, bytes, WIRE_METHOD_BYTES_MAX);
    }
    return FERRY_OK;
}

ferry_status_t ferry_agent_register(ferry_agent_t *agent, const char *method, ferry_method_fn *run,
                                    void *context)
{
    return ferry_agent_register_with(agent, method, run, context, NULL);
}

static struct method *method_new(const char *name, ferry_method_fn *run, void *context,
                                 const ferry_method_options_t *options)
{
    struct method *method = calloc(1, sizeof(*method));
    if (method == NULL) {
        error_raise(FERRY_ERR_NO_MEMORY, "no memory for method '%s'", name);
        return NULL;
    }
    snprintf(method->name, sizeof(method->name), "%s", name);
    method->run = run;
    method->context = context;
    method->run_inline = options->run_inline;
    method->concurrency = options->concurrency;
    if (options->allocator != NULL) {
        method->has_allocator = true;
        method->allocator = *options->allocator;
    }
    return method;
}

static ferry_status_t method_check_options(const char *name, const ferry_method_options_t *options)
{
    if (options->struct_bytes < sizeof(*options)) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT,
                           "%s: the options say struct_bytes = %zu; start from "
                           "ferry_method_options()",
                           name, options->struct_bytes);
    }
    if (options->concurrency < 0) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT,
                           "%s: concurrency is %d; 0 means no limit of its own", name,
                           options->concurrency);
    }
    if (options->allocator != NULL &&
        (options->allocator->allocate == NULL || options->allocator->deallocate == NULL)) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT,
                           "%s: an allocator needs both allocate and deallocate", name);
    }
    return FERRY_OK;
}

ferry_status_t ferry_agent_register_with(ferry_agent_t *agent, const char *name,
                                         ferry_method_fn *run, void *context,
                                         const ferry_method_options_t *options)
{
    if (agent == NULL || run == NULL) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT, "agent and handler must not be NULL");
    }
    ferry_method_options_t defaults = ferry_method_options();
    options = options == NULL ? &defaults : options;
    ferry_status_t status = method_check_name(name);
    if (status == FERRY_OK) {
        status = method_check_options(name, options);
    }
    if (status != FERRY_OK) {
        return status;
    }
    struct method *method = method_new(name, run, context, options);
    if (method == NULL) {
        return FERRY_ERR_NO_MEMORY;
    }
    struct method *present;
    engine_lock(agent);
    HASH_FIND_STR(agent->methods, name, present);
    if (present == NULL) {
        HASH_ADD_STR(agent->methods, name, method);
    } else {
        status =
            error_raise(FERRY_ERR_NAME_TAKEN, "%s has a method '%s' already", agent->name, name);
    }
    engine_unlock(agent);
    if (status != FERRY_OK) {
        free(method);
    }
    return status;
}

static void method_raise_unknown(struct ferry_agent *agent, const char *name, size_t bytes)
{
    char wanted[WIRE_METHOD_BYTES_MAX + 1];
    snprintf(wanted, sizeof(wanted), "%.*s", (int)bytes, name);
    size_t count = HASH_COUNT(agent->methods), used = 0;
    const char **names = calloc(count + 1, sizeof(*names));
    struct method *method, *next;
    HASH_ITER(hh, agent->methods, method, next)
    {
        if (names != NULL) {
            names[used++] = method->name;
        }
    }
    const char *nearest = config_nearest(wanted, names, used);
    error_raise(FERRY_ERR_UNKNOWN_METHOD, "no method '%s'%s%s%s", wanted,
                nearest == NULL ? "" : "; did you mean '", nearest == NULL ? "" : nearest,
                nearest == NULL ? "" : "'?");
    free(names);
}

struct method *method_find(struct ferry_agent *agent, const char *name, size_t name_bytes)
{
    struct method *method;
    HASH_FIND(hh, agent->methods, name, name_bytes, method);
    if (method == NULL) {
        HASH_FIND_STR(agent->methods, CATCH_ALL, method);
    }
    if (method == NULL) {
        method_raise_unknown(agent, name, name_bytes);
    }
    return method;
}

void method_release(struct ferry_agent *agent, struct method *method)
{
    method->open--;
    engine_changed(agent);
}

static bool method_is_idle(void *context)
{
    const struct method *method = context;
    return method->open == 0;
}

ferry_status_t ferry_agent_unregister(ferry_agent_t *agent, const char *name)
{
    if (agent == NULL || name == NULL) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT, "agent and method must not be NULL");
    }
    if (user_scope_now() != USER_NONE) {
        return error_raise(FERRY_ERR_STATE,
                           "%s: a handler or callback cannot wait for handlers to end", name);
    }
    struct method *method;
    ferry_status_t status = FERRY_OK;
    engine_lock(agent);
    HASH_FIND_STR(agent->methods, name, method);
    if (method == NULL) {
        status = error_raise(FERRY_ERR_NOT_FOUND, "%s has no method '%s' to unregister",
                             agent->name, name);
    } else {
        HASH_DEL(agent->methods, method);
        engine_wait_locked(agent, method_is_idle, method, FERRY_FOREVER);
        free(method);
    }
    engine_unlock(agent);
    return status;
}

void method_destroy_all(struct ferry_agent *agent)
{
    struct method *method, *next;
    HASH_ITER(hh, agent->methods, method, next)
    {
        HASH_DEL(agent->methods, method);
        free(method);
    }
}
