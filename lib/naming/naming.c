/* The door to every naming service: picks the backend by URL, keeps the queries, and hands out events from the poller. */
#include "naming/naming.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <utlist.h>

#include "naming/naming_backend.h"

/* Queries handed out in one go; more wait for the next, so that a callback that asks again cannot
 * hold the loop. */
#define BURST 256

static const struct naming_backend *const BACKENDS[] = {&NAMING_INPROC, &NAMING_TCP, &NAMING_FILE,
                                                        &NAMING_ENV};
#define BACKEND_COUNT (sizeof BACKENDS / sizeof BACKENDS[0])

/* ---- handing out ---- */

void naming_signal(struct naming *naming)
{
    uint64_t one = 1;
    ssize_t put = write(naming->signal.fd, &one, sizeof one);
    (void)put; /* full means that it is readable already */
}

static void query_free(struct naming *naming, struct naming_query *query)
{
    free(query->address);
    free(query);
    naming->query_count--;
}

static void hand_out_published(struct naming *naming)
{
    if (!naming->published_due) {
        return;
    }
    naming->published_due = false;
    if (!naming->published_failed) {
        naming->events.published(naming->events.context, NULL);
        return;
    }
    /* The callback may publish again, so what it reads must not be what that overwrites. */
    struct error_record error = naming->published_error;
    naming->events.published(naming->events.context, &error);
}

static void hand_out_answer(struct naming *naming)
{
    struct naming_query *query = naming->answered;
    DL_DELETE(naming->answered, query);
    naming->events.resolved(naming->events.context, query->name,
                            query->failed ? NULL : query->address, query->failed ? 0 : query->bytes,
                            query->failed ? &query->error : NULL);
    query_free(naming, query);
}

static void naming_free(struct naming *naming)
{
    struct naming_query *query;
    struct naming_query *next;
    DL_FOREACH_SAFE(naming->pending, query, next)
    {
        query_free(naming, query);
    }
    DL_FOREACH_SAFE(naming->answered, query, next)
    {
        query_free(naming, query);
    }
    naming_changes_drop(naming);
    naming_members_drop(naming);
    free(naming->address);
    free(naming);
}

static void signal_ready(void *context, uint32_t events)
{
    struct naming *naming = context;
    uint64_t count;
    ssize_t got = read(naming->signal.fd, &count, sizeof count);
    (void)got;
    (void)events;
    naming->depth++;
    if (naming->backend->poll != NULL) {
        naming->backend->poll(naming);
    }
    naming_hand_out_changes(naming);
    if (!naming->closed) {
        hand_out_published(naming);
    }
    for (int i = 0; i < BURST && !naming->closed && naming->answered != NULL; i++) {
        hand_out_answer(naming);
    }
    if (!naming->closed && naming->answered != NULL) {
        naming_signal(naming);
    }
    naming->depth--;
    if (naming->closed && naming->depth == 0) {
        naming_free(naming);
    }
}

/* ---- what backends report ---- */

void naming_published(struct naming *naming, const struct error_record *error)
{
    naming->published_due = true;
    naming->published_failed = error != NULL;
    if (error != NULL) {
        naming->published_error = *error;
        naming->publishing = false;
    }
    naming_signal(naming);
}

static void query_finish(struct naming *naming, struct naming_query *query)
{
    DL_DELETE(naming->pending, query);
    DL_APPEND(naming->answered, query);
    naming_signal(naming);
}

void naming_answer(struct naming *naming, struct naming_query *query, const void *address,
                   size_t bytes)
{
    query->address = malloc(bytes + 1);
    if (query->address == NULL) {
        query->failed = true;
        error_record_set(&query->error, FERRY_ERR_NO_MEMORY, FERRY_NOT_RUN,
                         "no memory for the address of '%s'", query->name);
    } else {
        if (bytes > 0) {
            memcpy(query->address, address, bytes);
        }
        query->bytes = bytes;
    }
    query_finish(naming, query);
}

void naming_fail(struct naming *naming, struct naming_query *query,
                 const struct error_record *error)
{
    query->failed = true;
    query->error = *error;
    query_finish(naming, query);
}

void naming_fail_unknown(struct naming *naming, struct naming_query *query, const char *nearest)
{
    struct error_record error;
    if (nearest != NULL) {
        error_record_set(&error, FERRY_ERR_UNKNOWN_PEER, FERRY_NOT_RUN,
                         "no agent is called '%s'; did you mean '%s'?", query->name, nearest);
    } else {
        error_record_set(&error, FERRY_ERR_UNKNOWN_PEER, FERRY_NOT_RUN, "no agent is called '%s'",
                         query->name);
    }
    naming_fail(naming, query, &error);
}

/* ---- opening and closing ---- */

static ferry_status_t url_refuse(const char *url)
{
    const char *schemes[BACKEND_COUNT];
    char scheme[32];
    char forms[160];
    size_t used = 0;
    for (size_t i = 0; i < BACKEND_COUNT; i++) {
        schemes[i] = BACKENDS[i]->scheme;
        used += (size_t)snprintf(forms + used, sizeof forms - used, "%s%s", i == 0 ? "" : ", ",
                                 BACKENDS[i]->form);
    }
    snprintf(scheme, sizeof scheme, "%.*s", (int)strcspn(url, ":"), url);
    const char *nearest = config_nearest(scheme, schemes, BACKEND_COUNT);
    return error_raise(FERRY_ERR_CONFIG,
                       "the naming service '%s' has no form that Ferry knows%s%s%s: write %s", url,
                       nearest != NULL ? " (did you mean " : "", nearest != NULL ? nearest : "",
                       nearest != NULL ? "://?)" : "", forms);
}

static const struct naming_backend *backend_find(const char *url, const char **rest_out)
{
    for (size_t i = 0; i < BACKEND_COUNT; i++) {
        size_t length = strlen(BACKENDS[i]->scheme);
        if (strncmp(url, BACKENDS[i]->scheme, length) == 0 &&
            strncmp(url + length, "://", 3) == 0) {
            *rest_out = url + length + 3;
            return BACKENDS[i];
        }
    }
    return NULL;
}

static const char *url_of(const struct naming_options *options)
{
    if (options->url != NULL && *options->url != '\0') {
        return options->url;
    }
    if (options->config != NULL && *options->config->naming != '\0') {
        return options->config->naming;
    }
    return "inproc://";
}

ferry_status_t naming_open(const struct naming_options *options, struct naming **naming_out)
{
    const char *rest = NULL;
    const char *url = url_of(options);
    const struct naming_backend *backend = backend_find(url, &rest);
    if (backend == NULL) {
        return url_refuse(url);
    }
    struct naming *naming = calloc(1, backend->bytes);
    if (naming == NULL) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory to open %s", url);
    }
    naming->backend = backend;
    naming->events = options->events;
    naming->poller = options->poller;
    naming->clock = options->clock;
    naming->tracks_members = options->events.member != NULL;
    naming->signal =
        (struct poller_source){.events = EPOLLIN, .ready = signal_ready, .context = naming};

    ferry_status_t status;
    naming->signal.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (naming->signal.fd < 0) {
        status = error_raise_errno(errno, "cannot create an event descriptor");
        goto free_naming;
    }
    status = poller_add(naming->poller, &naming->signal);
    if (status != FERRY_OK) {
        goto close_signal;
    }
    status = backend->open(naming, options, rest);
    if (status != FERRY_OK) {
        goto remove_signal;
    }
    *naming_out = naming;
    return FERRY_OK;

remove_signal:
    poller_remove(naming->poller, &naming->signal);
close_signal:
    close(naming->signal.fd);
free_naming:
    naming_free(naming);
    return status;
}

void naming_close(struct naming *naming)
{
    if (naming == NULL || naming->closed) {
        return;
    }
    naming_withdraw(naming);
    naming->closed = true;
    naming->backend->close(naming);
    poller_remove(naming->poller, &naming->signal);
    close(naming->signal.fd);
    if (naming->depth == 0) {
        naming_free(naming);
    }
}

/* ---- requests ---- */

ferry_status_t naming_check_name(const char *name)
{
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                                  "0123456789_.-";
    if (name == NULL) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT, "a name is NULL");
    }
    size_t length = strlen(name);
    size_t good = strspn(name, allowed);
    if (length == 0) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT,
                           "a name is empty; names are 1-127 characters of [A-Za-z0-9_.-]");
    }
    if (good < length) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT,
                           "the name '%.140s' has a character at position %zu that names do not "
                           "have; they are 1-127 characters of [A-Za-z0-9_.-]",
                           name, good + 1);
    }
    if (length > NAMING_NAME_BYTES_MAX) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT,
                           "the name '%.20s...' has %zu characters; names are 1-127 characters of "
                           "[A-Za-z0-9_.-]",
                           name, length);
    }
    return FERRY_OK;
}

ferry_status_t naming_publish(struct naming *naming, const char *name, const void *address,
                              size_t bytes)
{
    ferry_status_t status = naming_check_name(name);
    if (status != FERRY_OK) {
        return status;
    }
    if (bytes > NAMING_ADDRESS_BYTES_MAX) {
        return error_raise(FERRY_ERR_LIMIT, "the address of '%s' has %zu bytes, the bound is %d",
                           name, bytes, NAMING_ADDRESS_BYTES_MAX);
    }
    if (naming->publishing) {
        return error_raise(FERRY_ERR_STATE, "cannot publish '%s': '%s' is published already", name,
                           naming->name);
    }
    void *copy = malloc(bytes + 1);
    if (copy == NULL) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory to publish '%s'", name);
    }
    if (bytes > 0) {
        memcpy(copy, address, bytes);
    }
    free(naming->address);
    naming->address = copy;
    naming->address_bytes = bytes;
    strcpy(naming->name, name);
    naming->publishing = true;
    naming->published_due = false;
    status = naming->backend->publish(naming);
    if (status != FERRY_OK) {
        naming->publishing = false;
    }
    return status;
}

void naming_withdraw(struct naming *naming)
{
    if (naming->publishing) {
        naming->backend->withdraw(naming);
        naming->publishing = false;
    }
    naming->published_due = false;
}

ferry_status_t naming_resolve(struct naming *naming, const char *name, bool wait)
{
    ferry_status_t status = naming_check_name(name);
    if (status != FERRY_OK) {
        return status;
    }
    if (naming->query_count >= NAMING_QUERIES_MAX) {
        return error_raise(FERRY_ERR_LIMIT, "cannot look up '%s': %d names are looked up already",
                           name, NAMING_QUERIES_MAX);
    }
    struct naming_query *query = calloc(1, sizeof *query);
    if (query == NULL) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory to look up '%s'", name);
    }
    strcpy(query->name, name);
    query->wait = wait;
    DL_APPEND(naming->pending, query);
    naming->query_count++;

    struct error_record before;
    error_record_take(&before);
    if (naming_check_member(naming, name) != FERRY_OK) {
        /* An outcome like any other: it comes by event, and the thread's last error stays. */
        struct error_record error;
        error_record_take(&error);
        error_raise_record(&before);
        naming_fail(naming, query, &error);
    } else {
        naming->backend->resolve(naming, query);
    }
    return FERRY_OK;
}

void naming_resolve_cancel(struct naming *naming, const char *name)
{
    struct naming_query *query;
    struct naming_query *next;
    DL_FOREACH_SAFE(naming->pending, query, next)
    {
        if (strcmp(query->name, name) == 0) {
            if (naming->backend->forget != NULL) {
                naming->backend->forget(naming, query);
            }
            DL_DELETE(naming->pending, query);
            query_free(naming, query);
        }
    }
    DL_FOREACH_SAFE(naming->answered, query, next)
    {
        if (strcmp(query->name, name) == 0) {
            DL_DELETE(naming->answered, query);
            query_free(naming, query);
        }
    }
}

/* ---- facts ---- */

const char *naming_default_name(const struct naming *naming)
{
    return naming->default_name;
}

int64_t naming_group_size(const struct naming *naming)
{
    return naming->group_size;
}

uint16_t naming_served_port(const struct naming *naming)
{
    return naming->served_port;
}

const char *naming_trouble(const struct naming *naming)
{
    return naming->trouble;
}
