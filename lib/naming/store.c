/* The embedded naming store: connections, names, and who waits for what. */
#include "naming/store.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>
#include <utlist.h>

#define HASH_NONFATAL_OOM 1

#include "core/channel.h"
#include "core/fork_guard.h"
#include "core/log.h"
#include "naming/fields.h"
#include "naming/naming_backend.h"

#define HELLO_TIMEOUT_NS 10000000000 /* a connection that says nothing is a stranger's */
#define ACCEPT_RETRY_NS 100000000
#define ACCEPT_BURST 64

struct store_wait {
    uint64_t id; /* the client's */
    char name[NAMING_NAME_BYTES_MAX + 1];
    struct store_wait *prev, *next;
};

struct store_name {
    char name[NAMING_NAME_BYTES_MAX + 1];
    void *address; /* owned */
    size_t bytes;
    uint64_t stamp; /* the version at which it joined */
    struct store_client *owner;
    UT_hash_handle hh;
};

struct store_client {
    struct store *store;
    struct channel *channel;
    struct poller_timer hello_timer;
    uint8_t id[STORE_CLIENT_ID_BYTES];
    bool greeted;
    bool watching;
    bool doomed;             /* to be dropped when the current event has been dealt with */
    struct store_name *name; /* owned through the store's table, or NULL */
    struct store_wait *waits;
    size_t wait_count;
    struct store_client *prev, *next;
};

struct store {
    struct poller *poller;
    struct clock clock;
    struct poller_source listener; /* owns its fd */
    struct poller_timer accept_retry;
    uint16_t port;
    struct store_client *clients;
    size_t client_count;
    struct store_name *names;
    uint64_t version;
    bool has_doomed;
};

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

/* ---- sending ---- */

static void client_doom(struct store_client *client)
{
    client->doomed = true;
    client->store->has_doomed = true;
}

static void client_send(struct store_client *client, struct fields_writer *writer)
{
    if (!client->doomed && (writer->failed || channel_send(client->channel, writer->buffer.data,
                                                           writer->buffer.size) != FERRY_OK)) {
        /* One that does not read is dropped, and comes back when it does. */
        log_write(FERRY_LOG_WARN, "naming store: dropping %s: %s", channel_peer(client->channel),
                  writer->failed ? "no memory" : ferry_last_error()->text);
        client_doom(client);
    }
    fields_write_finish(writer);
}

static void send_member(struct store_client *client, const struct store_name *name, bool joined)
{
    struct fields_writer writer;
    fields_write(&writer, 5);
    fields_write_text(&writer, "op", "member");
    fields_write_text(&writer, "name", name->name);
    fields_write_flag(&writer, "joined", joined);
    fields_write_number(&writer, "stamp", name->stamp);
    fields_write_number(&writer, "version", client->store->version);
    client_send(client, &writer);
}

static void send_resolved(struct store_client *client, uint64_t id, const struct store_name *name)
{
    struct fields_writer writer;
    fields_write(&writer, 3);
    fields_write_text(&writer, "op", "resolved");
    fields_write_number(&writer, "id", id);
    fields_write_bytes(&writer, "address", name->address, name->bytes);
    client_send(client, &writer);
}

static void send_published(struct store_client *client, uint64_t id,
                           const struct error_record *error)
{
    struct fields_writer writer;
    fields_write(&writer, error != NULL ? 4 : 2);
    fields_write_text(&writer, "op", "published");
    fields_write_number(&writer, "id", id);
    if (error != NULL) {
        fields_write_number(&writer, "status", error->status);
        fields_write_text(&writer, "text", error->text);
    }
    client_send(client, &writer);
}

static void broadcast_member(struct store *store, const struct store_name *name, bool joined)
{
    struct store_client *client;
    DL_FOREACH(store->clients, client)
    {
        if (client->watching && !client->doomed) {
            send_member(client, name, joined);
        }
    }
}

/* ---- names ---- */

static void wait_remove(struct store_client *client, struct store_wait *wait)
{
    DL_DELETE(client->waits, wait);
    client->wait_count--;
    free(wait);
}

static void waits_answer(struct store *store, const struct store_name *name)
{
    struct store_client *client;
    struct store_wait *wait;
    struct store_wait *next;
    DL_FOREACH(store->clients, client)
    {
        DL_FOREACH_SAFE(client->waits, wait, next)
        {
            if (strcmp(wait->name, name->name) == 0) {
                send_resolved(client, wait->id, name);
                wait_remove(client, wait);
            }
        }
    }
}

static void name_release(struct store *store, struct store_client *client)
{
    struct store_name *name = client->name;
    if (name == NULL) {
        return;
    }
    client->name = NULL;
    HASH_DEL(store->names, name);
    store->version++;
    broadcast_member(store, name, false);
    free(name->address);
    free(name);
}

/* NULL when there is no memory. */
static struct store_name *name_add(struct store *store, struct store_client *client,
                                   const char *text, const void *address, size_t bytes)
{
    struct store_name *name = calloc(1, sizeof *name);
    void *copy = malloc(bytes + 1);
    if (name == NULL || copy == NULL) {
        goto free_both;
    }
    strcpy(name->name, text);
    HASH_ADD_STR(store->names, name, name);
    if (name->hh.tbl == NULL) {
        goto free_both;
    }
    if (bytes > 0) {
        memcpy(copy, address, bytes);
    }
    name->address = copy;
    name->bytes = bytes;
    name->owner = client;
    name->stamp = ++store->version;
    client->name = name;
    return name;

free_both:
    free(copy);
    free(name);
    return NULL;
}

static const char *name_nearest(const struct store *store, const char *text)
{
    const char *nearest = NULL;
    for (const struct store_name *n = store->names; n != NULL; n = n->hh.next) {
        const char *pair[2] = {nearest, n->name};
        nearest =
            nearest == NULL ? config_nearest(text, pair + 1, 1) : config_nearest(text, pair, 2);
    }
    return nearest;
}

/* ---- what clients ask ---- */

/* Each returns false when the frame makes no sense. */

static bool name_field(const struct fields *fields, char name[NAMING_NAME_BYTES_MAX + 1])
{
    return fields_text(fields, "name", name, NAMING_NAME_BYTES_MAX + 1) &&
           naming_check_name(name) == FERRY_OK;
}

static bool on_hello(struct store_client *client, const struct fields *fields)
{
    uint64_t version;
    const void *id;
    size_t bytes;
    struct fields_writer writer;
    if (client->greeted || !fields_number(fields, "version", &version)) {
        return false;
    }
    if (version != STORE_PROTOCOL_VERSION) {
        char text[128];
        snprintf(text, sizeof text,
                 "the naming store speaks protocol version %d, this client version %llu",
                 STORE_PROTOCOL_VERSION, (unsigned long long)version);
        fields_write(&writer, 2);
        fields_write_text(&writer, "op", "error");
        fields_write_text(&writer, "text", text);
        client_send(client, &writer);
        client_doom(client);
        return true;
    }
    if (!fields_bytes(fields, "client", &id, &bytes) || bytes != sizeof client->id) {
        return false;
    }
    memcpy(client->id, id, bytes);
    client->greeted = true;
    poller_timer_clear(client->store->poller, &client->hello_timer);
    fields_write(&writer, 2);
    fields_write_text(&writer, "op", "hello");
    fields_write_number(&writer, "version", STORE_PROTOCOL_VERSION);
    client_send(client, &writer);
    return true;
}

static bool on_publish(struct store_client *client, const struct fields *fields)
{
    struct store *store = client->store;
    char text[NAMING_NAME_BYTES_MAX + 1];
    const void *address;
    size_t bytes;
    uint64_t id;
    struct store_name *name;
    struct error_record error;
    if (!name_field(fields, text) || !fields_number(fields, "id", &id) ||
        !fields_bytes(fields, "address", &address, &bytes) || bytes > NAMING_ADDRESS_BYTES_MAX ||
        client->name != NULL) {
        return false;
    }
    HASH_FIND_STR(store->names, text, name);
    if (name != NULL && memcmp(name->owner->id, client->id, sizeof client->id) == 0) {
        /* The same client: its old connection is broken, though we have not been told. */
        client_doom(name->owner);
        name_release(store, name->owner);
        name = NULL;
    }
    if (name != NULL) {
        naming_taken_error(&error, text, name->address, name->bytes);
        send_published(client, id, &error);
        return true;
    }
    if (HASH_COUNT(store->names) >= NAMING_MEMBERS_MAX) {
        error_record_set(&error, FERRY_ERR_LIMIT, FERRY_NOT_RUN,
                         "cannot publish '%s': the naming store holds %d names", text,
                         NAMING_MEMBERS_MAX);
        send_published(client, id, &error);
        return true;
    }
    name = name_add(store, client, text, address, bytes);
    if (name == NULL) {
        error_record_set(&error, FERRY_ERR_NO_MEMORY, FERRY_NOT_RUN,
                         "the naming store has no memory for '%s'", text);
        send_published(client, id, &error);
        return true;
    }
    send_published(client, id, NULL);
    broadcast_member(store, name, true);
    waits_answer(store, name);
    return true;
}

static bool on_resolve(struct store_client *client, const struct fields *fields)
{
    struct store *store = client->store;
    char text[NAMING_NAME_BYTES_MAX + 1];
    bool wait = false;
    uint64_t id;
    struct store_name *name;
    if (!name_field(fields, text) || !fields_number(fields, "id", &id)) {
        return false;
    }
    fields_flag(fields, "wait", &wait);
    HASH_FIND_STR(store->names, text, name);
    if (name != NULL) {
        send_resolved(client, id, name);
        return true;
    }
    if (!wait) {
        const char *nearest = name_nearest(store, text);
        struct fields_writer writer;
        fields_write(&writer, nearest != NULL ? 4 : 3);
        fields_write_text(&writer, "op", "resolved");
        fields_write_number(&writer, "id", id);
        fields_write_number(&writer, "status", FERRY_ERR_UNKNOWN_PEER);
        if (nearest != NULL) {
            fields_write_text(&writer, "nearest", nearest);
        }
        client_send(client, &writer);
        return true;
    }
    struct store_wait *pending =
        client->wait_count < STORE_WAITS_MAX ? calloc(1, sizeof *pending) : NULL;
    if (pending == NULL) {
        return false;
    }
    pending->id = id;
    strcpy(pending->name, text);
    DL_APPEND(client->waits, pending);
    client->wait_count++;
    return true;
}

static bool on_cancel(struct store_client *client, const struct fields *fields)
{
    uint64_t id;
    struct store_wait *wait;
    struct store_wait *next;
    if (!fields_number(fields, "id", &id)) {
        return false;
    }
    DL_FOREACH_SAFE(client->waits, wait, next)
    {
        if (wait->id == id) {
            wait_remove(client, wait);
        }
    }
    return true;
}

static void on_watch(struct store_client *client)
{
    struct store *store = client->store;
    struct fields_writer writer;
    for (const struct store_name *n = store->names; n != NULL; n = n->hh.next) {
        fields_write(&writer, 3);
        fields_write_text(&writer, "op", "present");
        fields_write_text(&writer, "name", n->name);
        fields_write_number(&writer, "stamp", n->stamp);
        client_send(client, &writer);
    }
    fields_write(&writer, 2);
    fields_write_text(&writer, "op", "synced");
    fields_write_number(&writer, "version", store->version);
    client_send(client, &writer);
    client->watching = true;
}

static bool request_dispatch(struct store_client *client, const struct fields *fields)
{
    char op[16];
    if (!fields_text(fields, "op", op, sizeof op)) {
        return false;
    }
    if (strcmp(op, "hello") == 0) {
        return on_hello(client, fields);
    }
    if (!client->greeted) {
        return false;
    }
    if (strcmp(op, "publish") == 0) {
        return on_publish(client, fields);
    }
    if (strcmp(op, "withdraw") == 0) {
        name_release(client->store, client);
        return true;
    }
    if (strcmp(op, "resolve") == 0) {
        return on_resolve(client, fields);
    }
    if (strcmp(op, "cancel") == 0) {
        return on_cancel(client, fields);
    }
    if (strcmp(op, "watch") == 0) {
        on_watch(client);
        return true;
    }
    return false;
}

/* ---- connections ---- */

static void client_drop(struct store_client *client)
{
    struct store *store = client->store;
    struct store_wait *wait;
    struct store_wait *next;
    DL_DELETE(store->clients, client);
    store->client_count--;
    name_release(store, client);
    DL_FOREACH_SAFE(client->waits, wait, next)
    {
        wait_remove(client, wait);
    }
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
    bool understood = false;
    if (client->doomed) {
        return;
    }
    if (fields_open(&fields, data, bytes)) {
        understood = request_dispatch(client, &fields);
        fields_close(&fields);
    }
    if (!understood) {
        log_write(FERRY_LOG_INFO, "naming store: %s sent a frame that makes no sense; closing it",
                  channel_peer(client->channel));
        client_doom(client);
    }
    doomed_sweep(store);
}

static void client_closed(void *context, const struct error_record *error)
{
    struct store_client *client = context;
    struct store *store = client->store;
    log_write(FERRY_LOG_DEBUG, "naming store: %s", error->text);
    client_doom(client);
    doomed_sweep(store);
}

static void client_silent(void *context)
{
    struct store_client *client = context;
    struct store *store = client->store;
    log_write(FERRY_LOG_INFO, "naming store: %s said no hello; closing it",
              channel_peer(client->channel));
    client_doom(client);
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
    (void)events;
    for (int i = 0; i < ACCEPT_BURST; i++) {
        int fd;
        ferry_status_t status = socket_accept(store->listener.fd, &fd);
        if (status == FERRY_OK) {
            status = client_add(store, fd);
        }
        if (status != FERRY_OK) {
            if (status != FERRY_PENDING) {
                listener_pause(store);
            }
            return;
        }
    }
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
