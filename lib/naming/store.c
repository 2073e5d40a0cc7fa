/* The embedded naming store: its listener and its connections. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>
#include <utlist.h>

#include "naming/store_internal.h"

#include "core/fork_guard.h"
#include "core/log.h"

#define HELLO_TIMEOUT_NS 10000000000 /* a connection that says nothing is a stranger's */
#define ACCEPT_RETRY_NS 100000000
#define ACCEPT_BURST 64

/* ---- which stores this process serves ---- */

#define SERVED_MAX 64

static pthread_mutex_t served_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct {
    pid_t process;
    uint16_t port;
} served[SERVED_MAX];

static void served_replace(pid_t process, uint16_t port, pid_t new_process, uint16_t new_port)
{
    pthread_mutex_lock(&served_mutex);
    for (size_t i = 0; i < SERVED_MAX; i++) {
        if (served[i].process == process && served[i].port == port) {
            served[i].process = new_process;
            served[i].port = new_port;
            break;
        }
    }
    pthread_mutex_unlock(&served_mutex);
}

bool store_is_served_here(uint16_t port)
{
    bool found = false;
    pthread_mutex_lock(&served_mutex);
    for (size_t i = 0; i < SERVED_MAX; i++) {
        found = found || (port != 0 && served[i].port == port && served[i].process == getpid());
    }
    pthread_mutex_unlock(&served_mutex);
    return found;
}

/* ---- connections ---- */

void store_client_doom(struct store_client *client)
{
    client->doomed = true;
    client->store->has_doomed = true;
}

static void client_drop(struct store_client *client)
{
    struct store *store = client->store;
    DL_DELETE(store->clients, client);
    store->client_count--;
    store_client_forget(client);
    poller_timer_clear(store->poller, &client->hello_timer);
    channel_destroy(client->channel);
    free(client);
}

/* Dropping one client tells the others that its name is gone, which may doom further ones; so they
 * are dropped here, outside any walk over the list. */
static void doomed_sweep(struct store *store)
{
    while (store->has_doomed) {
        struct store_client *client;
        struct store_client *next;
        store->has_doomed = false;
        DL_FOREACH_SAFE(store->clients, client, next)
        {
            if (client->doomed) {
                client_drop(client);
            }
        }
    }
}

static void client_frame(void *context, const void *data, size_t bytes)
{
    struct store_client *client = context;
    struct store *store = client->store;
    struct fields fields;
    struct error_record before;
    bool understood = false;
    if (client->doomed) {
        return;
    }
    error_record_take(&before); /* a peer's nonsense is no failure of whoever drives the poller */
    if (fields_open(&fields, data, bytes)) {
        understood = store_request_serve(client, &fields);
        fields_close(&fields);
    }
    if (!understood) {
        log_write(FERRY_LOG_INFO, "naming store: %s sent a frame that makes no sense; closing it",
                  channel_peer(client->channel));
        store_client_doom(client);
    }
    doomed_sweep(store);
    error_raise_record(&before);
}

static void client_closed(void *context, const struct error_record *error)
{
    struct store_client *client = context;
    struct store *store = client->store;
    log_write(FERRY_LOG_DEBUG, "naming store: %s", error->text);
    store_client_doom(client);
    doomed_sweep(store);
}

static void client_silent(void *context)
{
    struct store_client *client = context;
    struct store *store = client->store;
    log_write(FERRY_LOG_INFO, "naming store: %s said no hello; closing it",
              channel_peer(client->channel));
    store_client_doom(client);
    doomed_sweep(store);
}

/* Takes the descriptor, also on error. */
static ferry_status_t client_add(struct store *store, int fd)
{
    struct store_client *client = NULL;
    if (store->client_count < STORE_CONNECTIONS_MAX) {
        client = calloc(1, sizeof *client);
    }
    if (client == NULL) {
        close(fd);
        return error_raise(FERRY_ERR_LIMIT, "no room for another connection");
    }
    client->store = store;
    client->hello_timer.fire = client_silent;
    client->hello_timer.context = client;
    struct channel_events events = {
        .context = client, .frame = client_frame, .closed = client_closed};
    ferry_status_t status = channel_create(store->poller, fd, &events, &client->channel);
    if (status != FERRY_OK) {
        goto free_client;
    }
    status = poller_timer_set(store->poller, &client->hello_timer,
                              clock_deadline_ns(clock_now_ns(&store->clock), HELLO_TIMEOUT_NS));
    if (status != FERRY_OK) {
        goto destroy_channel;
    }
    DL_APPEND(store->clients, client);
    store->client_count++;
    return FERRY_OK;

destroy_channel:
    channel_destroy(client->channel);
free_client:
    free(client);
    return status;
}

static void listener_pause(struct store *store)
{
    /* Out of descriptors or memory: a listener that stays readable would keep the poller busy. */
    log_write(FERRY_LOG_WARN, "naming store: %s", ferry_last_error()->text);
    if (poller_timer_set(store->poller, &store->accept_retry,
                         clock_deadline_ns(clock_now_ns(&store->clock), ACCEPT_RETRY_NS)) ==
        FERRY_OK) {
        poller_remove(store->poller, &store->listener);
    }
}

static void listener_ready(void *context, uint32_t events)
{
    struct store *store = context;
    struct error_record before;
    ferry_status_t status = FERRY_OK;
    (void)events;
    error_record_take(&before);
    for (int i = 0; i < ACCEPT_BURST && status == FERRY_OK; i++) {
        int fd;
        status = socket_accept(store->listener.fd, &fd);
        if (status == FERRY_OK) {
            status = client_add(store, fd);
        }
    }
    if (status != FERRY_OK && status != FERRY_PENDING) {
        listener_pause(store);
    }
    error_raise_record(&before);
}

static void listener_resume(void *context)
{
    struct store *store = context;
    if (poller_add(store->poller, &store->listener) != FERRY_OK) {
        listener_pause(store);
    }
}

/* ---- life ---- */

ferry_status_t store_open(struct poller *poller, struct clock clock, const char *address,
                          uint16_t port, struct store **store_out)
{
    char host[INET6_ADDRSTRLEN];
    struct store *store = calloc(1, sizeof *store);
    if (store == NULL) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory for a naming store");
    }
    store->poller = poller;
    store->clock = clock;
    store->accept_retry.fire = listener_resume;
    store->accept_retry.context = store;
    store->listener =
        (struct poller_source){.events = EPOLLIN, .ready = listener_ready, .context = store};
    ferry_status_t status = socket_listen(address, port, &store->listener.fd, host, &store->port);
    if (status != FERRY_OK) {
        goto free_store;
    }
    status = poller_add(poller, &store->listener);
    if (status != FERRY_OK) {
        goto close_listener;
    }
    fork_guard_add(store->listener.fd);
    served_replace(0, 0, getpid(), store->port);
    log_write(FERRY_LOG_INFO, "naming store: listening on %s port %u", host, store->port);
    *store_out = store;
    return FERRY_OK;

close_listener:
    close(store->listener.fd);
free_store:
    free(store);
    return status;
}

void store_close(struct store *store)
{
    if (store == NULL) {
        return;
    }
    served_replace(getpid(), store->port, 0, 0);
    poller_remove(store->poller, &store->listener);
    poller_timer_clear(store->poller, &store->accept_retry);
    fork_guard_remove(store->listener.fd);
    close(store->listener.fd);
    /* Nobody needs to hear of each member's leaving: the store itself is going. */
    struct store_client *client;
    DL_FOREACH(store->clients, client)
    {
        client->watching = false;
    }
    while (store->clients != NULL) {
        client_drop(store->clients);
    }
    free(store);
}

uint16_t store_port(const struct store *store)
{
    return store->port;
}
