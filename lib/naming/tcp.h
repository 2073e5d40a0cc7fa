/* The client of the naming store, for tcp:// and for env://, which finds host and port elsewhere. */
#ifndef FERRY_NAMING_TCP_H
#define FERRY_NAMING_TCP_H

#include "core/channel.h"
#include "naming/naming_backend.h"
#include "naming/store.h"

#define TCP_HOST_BYTES 256

struct tcp {
    struct naming common;
    char host[TCP_HOST_BYTES];
    uint16_t port;
    char where[TCP_HOST_BYTES + 16]; /* "tcp://host:port" */
    struct store *store;             /* owned, when this agent serves it */
    uint8_t client_id[STORE_CLIENT_ID_BYTES];

    struct channel *channel; /* owned; NULL between dials */
    bool ready;              /* the store has answered our hello */
    bool refused;            /* the store speaks another protocol: nothing more to hope for */
    struct poller_timer redial;
    struct poller_timer answer; /* ends a dial that nobody answers */
    int64_t backoff_ns;
    struct error_record failure; /* the last one, with `where` in it */

    uint64_t next_id;
    uint64_t publish_id;
    bool publish_acknowledged;

    struct naming_presence *presence; /* owned: members being received, until synced */
    size_t presence_count;
    size_t presence_capacity;
};

/* Where a store is, and who listens. */
struct tcp_target {
    const char *host;
    uint16_t port;
    bool serve;
    const char
        *interface; /* where to listen when the host is not this machine's; "" or NULL: nowhere */
    const char *remedy; /* behind an error about the port; "" or NULL: nothing */
};

ferry_status_t tcp_open_at(struct naming *naming, const struct tcp_target *target);
void tcp_close(struct naming *naming);
ferry_status_t tcp_publish(struct naming *naming);
void tcp_withdraw(struct naming *naming);
void tcp_resolve(struct naming *naming, struct naming_query *query);
void tcp_forget(struct naming *naming, struct naming_query *query);

#endif
