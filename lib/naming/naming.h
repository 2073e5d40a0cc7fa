/* Where agents find each other: name -> address. An address is opaque bytes of at most NAMING_ADDRESS_BYTES_MAX.
 * Everything is asynchronous on the agent's poller, so that manual mode needs no thread: requests
 * return at once, events come
 * from poller_dispatch(), never from inside the request. The owner serialises all calls. */
#ifndef FERRY_NAMING_H
#define FERRY_NAMING_H

#include <stdbool.h>
#include <stddef.h>

#include "core/config.h"
#include "core/error.h"
#include "core/poller.h"

#define NAMING_NAME_BYTES_MAX 127
#define NAMING_ADDRESS_BYTES_MAX 4096

struct naming;

struct naming_events {
    void *context;
    /* The outcome of naming_publish(); error NULL when the name is ours. FERRY_ERR_NAME_TAKEN names the holder's address. */
    void (*published)(void *context, const struct error_record *error);
    /* One for each naming_resolve(). error NULL: address is there. FERRY_ERR_UNKNOWN_PEER: nobody has the name (without wait), with
     * the nearest live name where there is one. FERRY_ERR_NAMING: the service failed. */
    void (*resolved)(void *context, const char *name, const void *address, size_t bytes,
                     const struct error_record *error);
    /* A member joined or left; version grows with every change. May be NULL. */
    void (*member)(void *context, const char *name, bool joined, uint64_t version);
};

struct naming_options {
    const char *url;                    /* inproc:// | tcp://host:port | file:///dir | env:// */
    bool serve;                         /* tcp://: also serve the store, on that port */
    const struct config_values *config; /* borrowed during naming_open() */
    struct poller *poller;              /* borrowed until naming_close() */
    struct clock clock;
    struct naming_events events;
};

/* FERRY_ERR_CONFIG: the URL or the launcher's environment is wrong; the text names the value and the right form.
 * FERRY_ERR_SYSTEM: the store's port is taken, the directory is not usable. */
ferry_status_t naming_open(const struct naming_options *options, struct naming **naming_out);
/* Withdraws what was published (best effort, bounded to a few ms) and forgets what is pending without events. */
void naming_close(struct naming *naming);

/* Name rule: 1-127 of [A-Za-z0-9_.-]. Raises FERRY_ERR_INVALID_ARGUMENT that shows the name and the rule. */
ferry_status_t naming_check_name(const char *name);

/* The name a launcher gives this process ("worker3" by env://'s RANK), or "" where there is none. */
const char *naming_default_name(const struct naming *naming);
/* How many members a fixed group has (env://'s WORLD_SIZE), or 0: elastic. */
int64_t naming_group_size(const struct naming *naming);
/* Whether the group can have a member of that name. FERRY_ERR_UNKNOWN_PEER, with the nearest name: the group is fixed and all its
 * members are known and it is none of them, or it is workerN with N outside the group. An elastic
 * group can have any. */
ferry_status_t naming_check_member(const struct naming *naming, const char *name);
/* Why the service cannot be reached right now, for the text of a timeout; "" where it can. Lives until the next dispatch. */
const char *naming_trouble(const struct naming *naming);

ferry_status_t naming_publish(struct naming *naming, const char *name, const void *address,
                              size_t bytes);
/* Idempotent. */
void naming_withdraw(struct naming *naming);

/* wait: stay pending until somebody has the name (the caller ends it with naming_resolve_cancel at its deadline). Two resolves of one
 * name may be pending; each gets its event. */
ferry_status_t naming_resolve(struct naming *naming, const char *name, bool wait);
/* Ends all pending resolves of the name without events. */
void naming_resolve_cancel(struct naming *naming, const char *name);

/* The port the served tcp:// store listens on (the URL may say 0), or 0. */
uint16_t naming_served_port(const struct naming *naming);

#endif
