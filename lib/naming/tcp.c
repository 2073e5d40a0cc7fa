/* The client of the store: keeps a connection to the store, and asks again what a lost one left open. */
#include "naming/tcp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>
#include <utlist.h>

#include "core/log.h"
#include "naming/fields.h"

#define BACKOFF_FIRST_NS 50000000
#define BACKOFF_MOST_NS 1000000000
#define ANSWER_TIMEOUT_NS 5000000000
#define FAREWELL_NS 5000000

static struct tcp *tcp_of(struct naming *naming)
{
    return (struct tcp *)(void *)naming;
}

static void tcp_lost(struct tcp *tcp, const char *reason);

/* ---- requests to the store ---- */

static void tcp_send(struct tcp *tcp, struct fields_writer *writer)
{
    if (writer->failed) {
        tcp_lost(tcp, "no memory for a request");
    } else if (channel_send(tcp->channel, writer->buffer.data, writer->buffer.size) != FERRY_OK) {
        struct error_record error;
        error_record_take(&error);
        tcp_lost(tcp, error.text);
    }
    fields_write_finish(writer);
}

static void send_hello(struct tcp *tcp)
{
    struct fields_writer writer;
    fields_write(&writer, 3);
    fields_write_text(&writer, "op", "hello");
    fields_write_number(&writer, "version", STORE_PROTOCOL_VERSION);
    fields_write_bytes(&writer, "client", tcp->client_id, sizeof tcp->client_id);
    tcp_send(tcp, &writer);
}

static void send_op(struct tcp *tcp, const char *op)
{
    struct fields_writer writer;
    fields_write(&writer, 1);
    fields_write_text(&writer, "op", op);
    tcp_send(tcp, &writer);
}

static void send_publish(struct tcp *tcp)
{
    struct fields_writer writer;
    tcp->publish_id = ++tcp->next_id;
    fields_write(&writer, 4);
    fields_write_text(&writer, "op", "publish");
    fields_write_number(&writer, "id", tcp->publish_id);
    fields_write_text(&writer, "name", tcp->common.name);
    fields_write_bytes(&writer, "address", tcp->common.address, tcp->common.address_bytes);
    tcp_send(tcp, &writer);
}

static void send_resolve(struct tcp *tcp, struct naming_query *query)
{
    struct fields_writer writer;
    query->id = ++tcp->next_id;
    query->asked = true;
    fields_write(&writer, 4);
    fields_write_text(&writer, "op", "resolve");
    fields_write_number(&writer, "id", query->id);
    fields_write_text(&writer, "name", query->name);
    fields_write_flag(&writer, "wait", query->wait);
    tcp_send(tcp, &writer);
}

/* ---- the connection ---- */

static void tcp_dial(struct tcp *tcp);

static void redial_fire(void *context)
{
    struct error_record before;
    error_record_take(&before); /* whoever drives the poller did not fail */
    tcp_dial(context);
    error_raise_record(&before);
}

static void answer_fire(void *context)
{
    tcp_lost(context, "it does not answer as a Ferry naming store");
}

/* Queries that did not want to wait end here; the others are asked again on the next connection. */
static void queries_disappoint(struct tcp *tcp, bool everyone)
{
    struct naming_query *query;
    struct naming_query *next;
    DL_FOREACH_SAFE(tcp->common.pending, query, next)
    {
        query->asked = false;
        if (everyone || !query->wait) {
            naming_fail(&tcp->common, query, &tcp->failure);
        }
    }
}

static void connection_end(struct tcp *tcp)
{
    poller_timer_clear(tcp->common.poller, &tcp->answer);
    channel_destroy(tcp->channel);
    tcp->channel = NULL;
    tcp->ready = false;
    free(tcp->presence);
    tcp->presence = NULL;
    tcp->presence_count = 0;
    tcp->presence_capacity = 0;
}

static void failure_set(struct tcp *tcp, const char *reason)
{
    error_record_set(&tcp->failure, FERRY_ERR_NAMING, FERRY_NOT_RUN, "the naming store at %s: %s",
                     tcp->where, reason);
    snprintf(tcp->common.trouble, sizeof tcp->common.trouble, "%s", tcp->failure.text);
}

/* reason may lie in the channel that ends here. */
static void tcp_lost(struct tcp *tcp, const char *reason)
{
    struct naming_query *query;
    bool was_ready = tcp->ready;
    if (tcp->channel == NULL && tcp->redial.slot != 0) {
        return; /* noted already, and a redial is set */
    }
    failure_set(tcp, reason);
    connection_end(tcp);
    log_write(was_ready ? FERRY_LOG_WARN : FERRY_LOG_INFO, "%s; trying again", tcp->failure.text);
    if (was_ready) {
        /* One that was lost is dialled at once; only a dial that fails is an answer. */
        tcp->backoff_ns = BACKOFF_FIRST_NS;
        DL_FOREACH(tcp->common.pending, query)
        {
            query->asked = false;
        }
    } else {
        queries_disappoint(tcp, false);
    }
    int64_t now_ns = clock_now_ns(&tcp->common.clock);
    if (poller_timer_set(tcp->common.poller, &tcp->redial,
                         clock_deadline_ns(now_ns, tcp->backoff_ns)) != FERRY_OK) {
        queries_disappoint(tcp, true);
    }
    tcp->backoff_ns = tcp->backoff_ns * 2 < BACKOFF_MOST_NS ? tcp->backoff_ns * 2 : BACKOFF_MOST_NS;
    poller_wake(tcp->common.poller); /* whoever sleeps must learn of the timer */
}

/* The store says that it will never talk to us. */
static void tcp_refuse(struct tcp *tcp, const char *reason)
{
    failure_set(tcp, reason);
    connection_end(tcp);
    tcp->refused = true;
    log_write(FERRY_LOG_ERROR, "%s", tcp->failure.text);
    queries_disappoint(tcp, true);
    if (tcp->common.publishing && !tcp->publish_acknowledged) {
        naming_published(&tcp->common, &tcp->failure);
    }
}

static void on_connected(void *context)
{
    send_hello(context);
}

static void on_closed(void *context, const struct error_record *error)
{
    tcp_lost(context, error->text);
}

/* ---- answers from the store ---- */

/* Each returns false when the frame makes no sense. */

static bool on_hello(struct tcp *tcp)
{
    struct naming_query *query;
    struct naming_query *next;
    if (tcp->ready) {
        return false;
    }
    tcp->ready = true;
    tcp->backoff_ns = BACKOFF_FIRST_NS;
    tcp->common.trouble[0] = '\0';
    poller_timer_clear(tcp->common.poller, &tcp->answer);
    if (tcp->common.tracks_members) {
        send_op(tcp, "watch");
    }
    if (tcp->ready && tcp->common.publishing) {
        send_publish(tcp);
    }
    DL_FOREACH_SAFE(tcp->common.pending, query, next)
    {
        if (tcp->ready) { /* a send may have failed */
            send_resolve(tcp, query);
        }
    }
    return true;
}

static bool on_published(struct tcp *tcp, const struct fields *fields)
{
    uint64_t id;
    uint64_t code;
    struct error_record error;
    char text[ERROR_TEXT_BYTES] = "";
    if (!fields_number(fields, "id", &id)) {
        return false;
    }
    if (!tcp->common.publishing || id != tcp->publish_id) {
        return true; /* the answer to a publish that was withdrawn */
    }
    bool has_failed = fields_number(fields, "status", &code);
    if (!has_failed) {
        if (!tcp->publish_acknowledged) {
            tcp->publish_acknowledged = true;
            naming_published(&tcp->common, NULL);
        }
        return true;
    }
    if (code <= FERRY_PENDING || code >= FERRY_STATUS_COUNT) {
        code = FERRY_ERR_NAMING;
    }
    fields_text(fields, "text", text, sizeof text);
    if (tcp->publish_acknowledged) {
        /* Somebody took the name while the store was away. The agent lives on under it for those
         * who know its address, but nobody else will find it. */
        log_write(FERRY_LOG_ERROR, "%s: lost the name '%s': %s", tcp->where, tcp->common.name,
                  text);
        return true;
    }
    error_record_set(&error, (ferry_status_t)code, FERRY_NOT_RUN, "%s",
                     *text != '\0' ? text : ferry_status_text((ferry_status_t)code));
    naming_published(&tcp->common, &error);
    return true;
}

static bool on_resolved(struct tcp *tcp, const struct fields *fields)
{
    uint64_t id;
    uint64_t code;
    const void *address;
    size_t bytes;
    char nearest[NAMING_NAME_BYTES_MAX + 1];
    struct naming_query *query;
    if (!fields_number(fields, "id", &id)) {
        return false;
    }
    DL_FOREACH(tcp->common.pending, query)
    {
        if (query->asked && query->id == id) {
            break;
        }
    }
    if (fields_bytes(fields, "address", &address, &bytes) && bytes <= NAMING_ADDRESS_BYTES_MAX) {
        if (query != NULL) { /* else it was cancelled */
            naming_answer(&tcp->common, query, address, bytes);
        }
        return true;
    }
    if (!fields_number(fields, "status", &code)) {
        return false;
    }
    if (query != NULL) {
        bool has_nearest = fields_text(fields, "nearest", nearest, sizeof nearest);
        naming_fail_unknown(&tcp->common, query, has_nearest ? nearest : NULL);
    }
    return true;
}

static bool member_name(const struct fields *fields, char name[NAMING_NAME_BYTES_MAX + 1])
{
    return fields_text(fields, "name", name, NAMING_NAME_BYTES_MAX + 1) && *name != '\0';
}

static bool on_present(struct tcp *tcp, const struct fields *fields)
{
    if (tcp->presence_count >= NAMING_MEMBERS_MAX) {
        return false;
    }
    if (tcp->presence_count == tcp->presence_capacity) {
        size_t capacity = tcp->presence_capacity == 0 ? 16 : 2 * tcp->presence_capacity;
        struct naming_presence *grown = realloc(tcp->presence, capacity * sizeof *grown);
        if (grown == NULL) {
            return false;
        }
        tcp->presence = grown;
        tcp->presence_capacity = capacity;
    }
    struct naming_presence *presence = &tcp->presence[tcp->presence_count];
    if (!member_name(fields, presence->name) || !fields_number(fields, "stamp", &presence->stamp)) {
        return false;
    }
    tcp->presence_count++;
    return true;
}

static bool on_synced(struct tcp *tcp, const struct fields *fields)
{
    uint64_t version;
    if (!fields_number(fields, "version", &version)) {
        return false;
    }
    naming_members_apply(&tcp->common, tcp->presence, tcp->presence_count, version);
    free(tcp->presence);
    tcp->presence = NULL;
    tcp->presence_count = 0;
    tcp->presence_capacity = 0;
    return true;
}

static bool on_member(struct tcp *tcp, const struct fields *fields)
{
    char name[NAMING_NAME_BYTES_MAX + 1];
    uint64_t stamp;
    uint64_t version;
    bool joined;
    if (!member_name(fields, name) || !fields_number(fields, "stamp", &stamp) ||
        !fields_number(fields, "version", &version) || !fields_flag(fields, "joined", &joined)) {
        return false;
    }
    if (HASH_COUNT(tcp->common.members) >= 2 * NAMING_MEMBERS_MAX && joined) {
        return false;
    }
    naming_member_change(&tcp->common, name, joined, stamp, version);
    return true;
}

static bool answer_dispatch(struct tcp *tcp, const struct fields *fields)
{
    char op[16];
    if (!fields_text(fields, "op", op, sizeof op)) {
        return false;
    }
    if (strcmp(op, "hello") == 0) {
        return on_hello(tcp);
    }
    if (strcmp(op, "error") == 0) {
        char text[256] = "refused";
        fields_text(fields, "text", text, sizeof text);
        tcp_refuse(tcp, text);
        return true;
    }
    if (!tcp->ready) {
        return false;
    }
    if (strcmp(op, "published") == 0) {
        return on_published(tcp, fields);
    }
    if (strcmp(op, "resolved") == 0) {
        return on_resolved(tcp, fields);
    }
    if (strcmp(op, "present") == 0) {
        return on_present(tcp, fields);
    }
    if (strcmp(op, "synced") == 0) {
        return on_synced(tcp, fields);
    }
    if (strcmp(op, "member") == 0) {
        return on_member(tcp, fields);
    }
    return true; /* a newer store may say more than we know */
}

static void on_frame(void *context, const void *data, size_t bytes)
{
    struct tcp *tcp = context;
    struct fields fields;
    struct error_record before;
    bool understood = false;
    error_record_take(&before);
    if (fields_open(&fields, data, bytes)) {
        understood = answer_dispatch(tcp, &fields);
        fields_close(&fields);
    }
    if (!understood) {
        tcp_lost(tcp, "it does not answer as a Ferry naming store");
    }
    error_raise_record(&before);
}

static void tcp_dial(struct tcp *tcp)
{
    struct channel_events events = {
        .context = tcp, .connected = on_connected, .frame = on_frame, .closed = on_closed};
    if (channel_dial(tcp->common.poller, tcp->host, tcp->port, &events, &tcp->channel) !=
        FERRY_OK) {
        struct error_record error;
        error_record_take(&error);
        tcp->channel = NULL;
        tcp_lost(tcp, error.text);
        return;
    }
    int64_t now_ns = clock_now_ns(&tcp->common.clock);
    if (poller_timer_set(tcp->common.poller, &tcp->answer,
                         clock_deadline_ns(now_ns, ANSWER_TIMEOUT_NS)) != FERRY_OK) {
        tcp_lost(tcp, "no memory for a timer");
    }
}

/* ---- life ---- */

/* Listens on the address that clients are told to dial. Where that is not this machine's own (behind
 * a translation, or a name for another interface), the configured interface is the second choice.
 */
static ferry_status_t tcp_serve(struct tcp *tcp, const struct tcp_target *target)
{
    char numeric[INET6_ADDRSTRLEN];
    ferry_status_t status = socket_resolve(target->host, numeric);
    if (status == FERRY_OK) {
        status =
            store_open(tcp->common.poller, tcp->common.clock, numeric, target->port, &tcp->store);
    }
    if (status != FERRY_OK && target->interface != NULL && *target->interface != '\0') {
        status = store_open(tcp->common.poller, tcp->common.clock, target->interface, target->port,
                            &tcp->store);
    }
    if (status != FERRY_OK) {
        bool has_remedy = target->remedy != NULL && *target->remedy != '\0';
        return error_raise(status == FERRY_ERR_UNREACHABLE ? FERRY_ERR_CONFIG : status,
                           "cannot serve the naming store %s: %s%s%s", tcp->where,
                           ferry_last_error()->text, has_remedy ? "; " : "",
                           has_remedy ? target->remedy : "");
    }
    tcp->port = store_port(tcp->store);
    tcp->common.served_port = tcp->port;
    return FERRY_OK;
}

ferry_status_t tcp_open_at(struct naming *naming, const struct tcp_target *target)
{
    struct tcp *tcp = tcp_of(naming);
    const char *form = strchr(target->host, ':') != NULL ? "tcp://[%s]:%u" : "tcp://%s:%u";
    snprintf(tcp->host, sizeof tcp->host, "%s", target->host);
    tcp->port = target->port;
    snprintf(tcp->where, sizeof tcp->where, form, tcp->host, tcp->port);
    tcp->backoff_ns = BACKOFF_FIRST_NS;
    tcp->redial.fire = redial_fire;
    tcp->redial.context = tcp;
    tcp->answer.fire = answer_fire;
    tcp->answer.context = tcp;
    if (getrandom(tcp->client_id, sizeof tcp->client_id, 0) != (ssize_t)sizeof tcp->client_id) {
        return error_raise(FERRY_ERR_SYSTEM, "cannot get random bytes");
    }
    /* Several agents of one process may all be told to serve; the first does. */
    if (target->serve && !store_is_served_here(target->port)) {
        ferry_status_t status = tcp_serve(tcp, target);
        if (status != FERRY_OK) {
            return status;
        }
        snprintf(tcp->where, sizeof tcp->where, form, tcp->host, tcp->port);
    }
    tcp_dial(tcp);
    return FERRY_OK;
}

void tcp_close(struct naming *naming)
{
    struct tcp *tcp = tcp_of(naming);
    if (tcp->channel != NULL && tcp->store == NULL) {
        /* Not needed for the name, which ends with the connection, but for what was queued before. */
        channel_flush_blocking(tcp->channel, FAREWELL_NS);
    }
    connection_end(tcp);
    poller_timer_clear(naming->poller, &tcp->redial);
    store_close(tcp->store);
}

ferry_status_t tcp_publish(struct naming *naming)
{
    struct tcp *tcp = tcp_of(naming);
    tcp->publish_acknowledged = false;
    if (tcp->refused) {
        naming_published(naming, &tcp->failure);
    } else if (tcp->ready) {
        send_publish(tcp);
    }
    return FERRY_OK;
}

void tcp_withdraw(struct naming *naming)
{
    struct tcp *tcp = tcp_of(naming);
    tcp->publish_acknowledged = false;
    if (tcp->ready) {
        send_op(tcp, "withdraw");
    }
}

void tcp_resolve(struct naming *naming, struct naming_query *query)
{
    struct tcp *tcp = tcp_of(naming);
    if (tcp->refused) {
        naming_fail(naming, query, &tcp->failure);
    } else if (tcp->ready) {
        send_resolve(tcp, query);
    }
}

void tcp_forget(struct naming *naming, struct naming_query *query)
{
    struct tcp *tcp = tcp_of(naming);
    struct fields_writer writer;
    if (!tcp->ready || !query->asked || !query->wait) {
        return;
    }
    fields_write(&writer, 2);
    fields_write_text(&writer, "op", "cancel");
    fields_write_number(&writer, "id", query->id);
    tcp_send(tcp, &writer);
}
