/* The ops table of a naming service, and what naming.c keeps for all of them. A backend finds the answers; naming.c hands
 * them out from the poller, never from inside a request. */
#ifndef FERRY_NAMING_BACKEND_H
#define FERRY_NAMING_BACKEND_H

#include <uthash.h>

#include "naming/naming.h"

#define NAMING_QUERIES_MAX 4096 /* resolves pending at a time */
#define NAMING_MEMBERS_MAX 4096 /* names one service holds */

/* One naming_resolve() that has no event yet. */
struct naming_query {
    char name[NAMING_NAME_BYTES_MAX + 1];
    bool wait;
    bool asked;  /* the backend's own */
    uint64_t id; /* the backend's own */

    bool failed;
    struct error_record error;
    void *address; /* owned, when answered and not failed */
    size_t bytes;
    struct naming_query *prev, *next;
};

/* A name that is known to be live. stamp differs between two holders of one name, one after the other. */
struct naming_member {
    char name[NAMING_NAME_BYTES_MAX + 1];
    uint64_t stamp;
    bool present; /* scratch of naming_members_apply() */
    UT_hash_handle hh;
};

struct naming_change; /* a member event that is to be handed out */

struct naming_backend {
    const char *scheme; /* "tcp" */
    const char *form;   /* "tcp://host:port", for error texts */
    size_t bytes;       /* of its struct, which begins with struct naming */

    /* rest: the URL behind "scheme://". On error nothing is left behind. */
    ferry_status_t (*open)(struct naming *naming, const struct naming_options *options,
                           const char *rest);
    void (*close)(struct naming *naming);
    /* naming->name and address are set. The outcome goes to naming_published(), now or later; an error returned means that there is none. */
    ferry_status_t (*publish)(struct naming *naming);
    void (*withdraw)(struct naming *naming);
    /* The outcome goes to naming_answer() or naming_fail(), now or later. */
    void (*resolve)(struct naming *naming, struct naming_query *query);
    /* The query is about to be freed without an answer. May be NULL. */
    void (*forget)(struct naming *naming, struct naming_query *query);
    /* Something was signalled; called before events are handed out. May be NULL. */
    void (*poll)(struct naming *naming);
};

/* The common part, embedded first in every backend's struct. */
struct naming {
    const struct naming_backend *backend;
    struct naming_events events;
    struct poller *poller; /* borrowed */
    struct clock clock;
    struct poller_source signal; /* an eventfd: there may be something to hand out */

    /* what naming_publish() asked for */
    bool publishing; /* a name is wanted or held */
    char name[NAMING_NAME_BYTES_MAX + 1];
    void *address; /* owned */
    size_t address_bytes;
    bool published_due; /* its outcome is to be handed out */
    bool published_failed;
    struct error_record published_error;

    struct naming_query *pending;  /* owned list */
    struct naming_query *answered; /* owned list */
    size_t query_count;            /* of both */

    bool tracks_members;           /* somebody wants to know them */
    struct naming_member *members; /* owned hash */
    uint64_t version;              /* of the last change noted */
    struct naming_change *changes; /* owned list */

    char default_name[NAMING_NAME_BYTES_MAX + 1];
    int64_t group_size;
    uint16_t served_port;
    char trouble[ERROR_TEXT_BYTES];

    unsigned depth; /* handing-out loops on the stack */
    bool closed;    /* naming_close() was called inside one of them */
};

/* Makes the poller call poll() and hand out what is due. Any thread. */
void naming_signal(struct naming *naming);

/* Ends the publish under way: error NULL, the name is ours. */
void naming_published(struct naming *naming, const struct error_record *error);
/* End one query. The address is copied. */
void naming_answer(struct naming *naming, struct naming_query *query, const void *address,
                   size_t bytes);
void naming_fail(struct naming *naming, struct naming_query *query,
                 const struct error_record *error);
/* naming_fail with FERRY_ERR_UNKNOWN_PEER; nearest is a live name or NULL. */
void naming_fail_unknown(struct naming *naming, struct naming_query *query, const char *nearest);

/* One member came or went. */
void naming_member_change(struct naming *naming, const char *name, bool joined, uint64_t stamp,
                          uint64_t version);
/* All that are there now; the difference becomes events. */
struct naming_presence {
    char name[NAMING_NAME_BYTES_MAX + 1];
    uint64_t stamp;
};
void naming_members_apply(struct naming *naming, const struct naming_presence *present,
                          size_t count, uint64_t version);

/* Between naming.c and members.c. */
void naming_hand_out_changes(struct naming *naming);
void naming_changes_drop(struct naming *naming);
void naming_members_drop(struct naming *naming);

/* An opaque address in a form that a text can show: a msgpack map's fields, else escaped bytes. */
#define NAMING_ADDRESS_TEXT_BYTES 256
const char *naming_address_text(const void *address, size_t bytes,
                                char text[NAMING_ADDRESS_TEXT_BYTES]);
/* "'ps' is taken by the agent at ADDRESS" */
void naming_taken_error(struct error_record *error, const char *name, const void *address,
                        size_t bytes);

extern const struct naming_backend NAMING_INPROC;
extern const struct naming_backend NAMING_TCP;
extern const struct naming_backend NAMING_FILE;
extern const struct naming_backend NAMING_ENV;

#endif
