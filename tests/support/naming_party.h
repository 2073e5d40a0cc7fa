/* One participant of a naming service with a poller of its own, and a record of the events it got. For tests of naming. */
#ifndef TESTS_SUPPORT_NAMING_PARTY_H
#define TESTS_SUPPORT_NAMING_PARTY_H

#include "core/clock.h"
#include "naming/naming.h"

#define PARTY_EVENTS_MAX 64

struct party_answer {
    char name[NAMING_NAME_BYTES_MAX + 1];
    struct error_record error; /* FERRY_OK: address holds the answer */
    char address[NAMING_ADDRESS_BYTES_MAX + 1];
    size_t bytes;
};

struct party {
    struct poller *poller;
    struct naming *naming;
    unsigned published; /* events */
    struct error_record published_error;
    unsigned answered;
    struct party_answer answers[PARTY_EVENTS_MAX]; /* the first ones */
    char members[4096];                            /* "+a +b -a" in the order of the events */
    uint64_t version;
    bool version_grew;      /* with every event */
    bool close_in_resolved; /* the event closes the naming it came from */
    bool inside_request;    /* a request is on the stack: no event may come */
    bool was_inside;        /* one came */
};

/* False: the error is the thread's last. url NULL: the configuration's. The party must not move afterwards. */
bool party_open(struct party *party, const char *url, bool serve,
                const struct config_values *config);
bool party_open_without_members(struct party *party, const char *url, bool serve);
void party_close(struct party *party);

/* naming_publish() and naming_resolve() with texts for addresses. */
ferry_status_t party_publish(struct party *party, const char *name, const char *address);
ferry_status_t party_resolve(struct party *party, const char *name, bool wait);

/* Serves the parties until done(context) or 15 s have passed, and returns done(context). */
bool parties_serve(struct party *const *parties, size_t count, bool (*done)(const void *context),
                   const void *context);
/* The same for common ends: party has had so many outcomes. Serves only that party. */
bool party_await_published(struct party *party, unsigned count);
bool party_await_answers(struct party *party, unsigned count);
bool party_await_members(struct party *party, const char *members);
/* Serves for a while in which nothing is expected; bounded by events, not a wait for something. */
void party_serve_for(struct party *party, int64_t ns);

#endif
