/* Between store.c, which keeps the connections, and store_requests.c, which knows what is asked over them. */
#ifndef FERRY_NAMING_STORE_INTERNAL_H
#define FERRY_NAMING_STORE_INTERNAL_H

/* A name that does not fit into memory is refused rather than ending the process. */
#define HASH_NONFATAL_OOM 1

#include "core/channel.h"
#include "naming/fields.h"
#include "naming/naming_backend.h"
#include "naming/store.h"

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

/* Marks a client to be dropped when the current event has been dealt with. */
void store_client_doom(struct store_client *client);

/* Serves one request; false: it makes no sense. */
bool store_request_serve(struct store_client *client, const struct fields *fields);
/* Frees the client's name, which the watchers are told, and what it waits for. */
void store_client_forget(struct store_client *client);

#endif
