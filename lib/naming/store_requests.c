/* What clients ask of the naming store: names, and who waits for which. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "naming/store_internal.h"

#include "core/log.h"

/* ---- sending ---- */

static void client_send(struct store_client *client, struct fields_writer *writer)
{
    if (!client->doomed && (writer->failed || channel_send(client->channel, writer->buffer.data,
                                                           writer->buffer.size) != FERRY_OK)) {
        /* One that does not read is dropped, and comes back when it does. */
        log_write(FERRY_LOG_WARN, "naming store: dropping %s: %s", channel_peer(client->channel),
                  writer->failed ? "no memory" : ferry_last_error()->text);
        store_client_doom(client);
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
        store_client_doom(client);
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
        store_client_doom(name->owner);
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

bool store_request_serve(struct store_client *client, const struct fields *fields)
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

void store_client_forget(struct store_client *client)
{
    struct store_wait *wait;
    struct store_wait *next;
    name_release(client->store, client);
    DL_FOREACH_SAFE(client->waits, wait, next)
    {
        wait_remove(client, wait);
    }
}
