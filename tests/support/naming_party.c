/* A participant of a naming service, and what it saw. */
#include "support/naming_party.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>

#define PATIENCE_NS 15000000000
#define PARTIES_MAX 16

static void on_published(void *context, const struct error_record *error)
{
    struct party *party = context;
    party->was_inside = party->was_inside || party->inside_request;
    party->published++;
    memset(&party->published_error, 0, sizeof party->published_error);
    if (error != NULL) {
        party->published_error = *error;
    }
}

static void on_resolved(void *context, const char *name, const void *address, size_t bytes,
                        const struct error_record *error)
{
    struct party *party = context;
    party->was_inside = party->was_inside || party->inside_request;
    if (party->answered < PARTY_EVENTS_MAX) {
        struct party_answer *answer = &party->answers[party->answered];
        memset(answer, 0, sizeof *answer);
        snprintf(answer->name, sizeof answer->name, "%s", name);
        if (error != NULL) {
            answer->error = *error;
        } else {
            memcpy(answer->address, address, bytes);
            answer->bytes = bytes;
        }
    }
    party->answered++;
    if (party->close_in_resolved) {
        naming_close(party->naming);
        party->naming = NULL;
    }
}

static void on_member(void *context, const char *name, bool joined, uint64_t version)
{
    struct party *party = context;
    size_t used = strlen(party->members);
    party->was_inside = party->was_inside || party->inside_request;
    snprintf(party->members + used, sizeof party->members - used, "%s%c%s", used > 0 ? " " : "",
             joined ? '+' : '-', name);
    party->version_grew = party->version_grew && version > party->version;
    party->version = version;
}

static bool open_with(struct party *party, const char *url, bool serve,
                      const struct config_values *config, bool with_members)
{
    memset(party, 0, sizeof *party);
    party->version_grew = true;
    if (poller_create(clock_monotonic(), &party->poller) != FERRY_OK) {
        return false;
    }
    struct naming_options options = {
        .url = url,
        .serve = serve,
        .config = config,
        .poller = party->poller,
        .clock = clock_monotonic(),
        .events = {.context = party,
                   .published = on_published,
                   .resolved = on_resolved,
                   .member = with_members ? on_member : NULL},
    };
    if (naming_open(&options, &party->naming) != FERRY_OK) {
        poller_destroy(party->poller);
        party->poller = NULL;
        return false;
    }
    return true;
}

bool party_open(struct party *party, const char *url, bool serve,
                const struct config_values *config)
{
    return open_with(party, url, serve, config, true);
}

bool party_open_without_members(struct party *party, const char *url, bool serve)
{
    return open_with(party, url, serve, NULL, false);
}

void party_close(struct party *party)
{
    naming_close(party->naming);
    poller_destroy(party->poller);
    party->naming = NULL;
    party->poller = NULL;
}

ferry_status_t party_publish(struct party *party, const char *name, const char *address)
{
    party->inside_request = true;
    ferry_status_t status = naming_publish(party->naming, name, address, strlen(address));
    party->inside_request = false;
    return status;
}

ferry_status_t party_resolve(struct party *party, const char *name, bool wait)
{
    party->inside_request = true;
    ferry_status_t status = naming_resolve(party->naming, name, wait);
    party->inside_request = false;
    return status;
}

/* Sleeps until one of the parties has something to do. */
static void parties_wait(struct party *const *parties, size_t count, int64_t most_ns)
{
    struct pollfd ready[PARTIES_MAX];
    int64_t sleep_ns = most_ns;
    int64_t now_ns = clock_monotonic_ns();
    for (size_t i = 0; i < count; i++) {
        int64_t deadline_ns = poller_next_deadline_ns(parties[i]->poller);
        ready[i] = (struct pollfd){.fd = poller_fd(parties[i]->poller), .events = POLLIN};
        if (deadline_ns != FERRY_FOREVER && deadline_ns - now_ns < sleep_ns) {
            sleep_ns = deadline_ns - now_ns;
        }
    }
    if (sleep_ns < 0) {
        sleep_ns = 0;
    }
    struct timespec limit = {.tv_sec = sleep_ns / 1000000000, .tv_nsec = sleep_ns % 1000000000};
    ppoll(ready, count, &limit, NULL);
}

static bool serve_until(struct party *const *parties, size_t count,
                        bool (*done)(const void *context), const void *context, int64_t patience_ns)
{
    int64_t end_ns = clock_monotonic_ns() + patience_ns;
    while (done == NULL || !done(context)) {
        int64_t left_ns = end_ns - clock_monotonic_ns();
        if (left_ns <= 0) {
            return false;
        }
        parties_wait(parties, count, left_ns);
        for (size_t i = 0; i < count; i++) {
            poller_dispatch(parties[i]->poller);
        }
    }
    return true;
}

bool parties_serve(struct party *const *parties, size_t count, bool (*done)(const void *context),
                   const void *context)
{
    return serve_until(parties, count, done, context, PATIENCE_NS);
}

struct party_goal {
    const struct party *party;
    unsigned count;
    const char *members;
};

static bool goal_published(const void *context)
{
    const struct party_goal *goal = context;
    return goal->party->published >= goal->count;
}

static bool goal_answered(const void *context)
{
    const struct party_goal *goal = context;
    return goal->party->answered >= goal->count;
}

static bool goal_members(const void *context)
{
    const struct party_goal *goal = context;
    return strcmp(goal->party->members, goal->members) == 0;
}

bool party_await_published(struct party *party, unsigned count)
{
    struct party_goal goal = {.party = party, .count = count};
    return serve_until(&party, 1, goal_published, &goal, PATIENCE_NS);
}

bool party_await_answers(struct party *party, unsigned count)
{
    struct party_goal goal = {.party = party, .count = count};
    return serve_until(&party, 1, goal_answered, &goal, PATIENCE_NS);
}

bool party_await_members(struct party *party, const char *members)
{
    struct party_goal goal = {.party = party, .members = members};
    return serve_until(&party, 1, goal_members, &goal, PATIENCE_NS);
}

void party_serve_for(struct party *party, int64_t ns)
{
    serve_until(&party, 1, NULL, NULL, ns);
}
