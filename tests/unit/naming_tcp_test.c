/* tcp://: agents of one store, clients that come before it, and stores that are gone, silent or strange. */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/channel.h"
#include "naming/fields.h"
#include "support/naming_party.h"

static void setup(void)
{
    ferry_log_set_level(FERRY_LOG_OFF); /* lost connections are meant */
}

TestSuite(naming_tcp, .init = setup, .timeout = 120);

static void expect_text(const char *text, const char *part)
{
    cr_assert_not_null(strstr(text, part), "'%s' lacks '%s'", text, part);
}

static struct party *party_new(const char *url, bool serve)
{
    struct party *party = calloc(1, sizeof *party);
    cr_assert_not_null(party);
    cr_assert(party_open(party, url, serve, NULL), "%s", ferry_last_error()->text);
    return party;
}

static void party_free(struct party *party)
{
    party_close(party);
    free(party);
}

static char url[64];

/* A store on any port, whose URL is then in `url`. */
static struct party *store_new(void)
{
    struct party *store = party_new("tcp://127.0.0.1:0", true);
    uint16_t port = naming_served_port(store->naming);
    cr_assert_neq(port, 0);
    snprintf(url, sizeof url, "tcp://127.0.0.1:%u", port);
    return store;
}

/* A port that nobody listens on, in `url`. */
static uint16_t port_free(void)
{
    char host[INET6_ADDRSTRLEN];
    uint16_t port;
    int fd;
    cr_assert_eq(socket_listen("", 0, &fd, host, &port), FERRY_OK);
    close(fd);
    snprintf(url, sizeof url, "tcp://127.0.0.1:%u", port);
    return port;
}

/* ---- several parties at once ---- */

static struct party *all[8];
static size_t all_count;

struct wish {
    const struct party *party;
    unsigned published, answered;
    const char *members;
};

static bool wish_done(const void *context)
{
    const struct wish *wish = context;
    return wish->party->published >= wish->published && wish->party->answered >= wish->answered &&
           (wish->members == NULL || strcmp(wish->party->members, wish->members) == 0);
}

static void together(struct party *a, struct party *b, struct party *c)
{
    all[0] = a;
    all[1] = b;
    all[2] = c;
    all_count = c != NULL ? 3 : b != NULL ? 2 : 1;
}

static void await_published(const struct party *party, unsigned count)
{
    struct wish wish = {.party = party, .published = count};
    cr_assert(parties_serve(all, all_count, wish_done, &wish));
}

static void await_answers(const struct party *party, unsigned count)
{
    struct wish wish = {.party = party, .answered = count};
    cr_assert(parties_serve(all, all_count, wish_done, &wish));
}

static void await_members(const struct party *party, const char *members)
{
    struct wish wish = {.party = party, .members = members};
    cr_assert(parties_serve(all, all_count, wish_done, &wish), "'%s'", party->members);
}

Test(naming_tcp, publish_resolve_watch_withdraw)
{
    struct party *store = store_new();
    struct party *a = party_new(url, false);
    struct party *b = party_new(url, false);
    together(store, a, b);
    party_publish(store, "ps", "ps:1");
    await_published(store, 1);
    party_publish(a, "worker0", "w0:1");
    await_published(a, 1);
    cr_assert_eq(a->published_error.status, FERRY_OK);
    party_resolve(b, "ps", false);
    party_resolve(b, "worker0", true);
    await_answers(b, 2);
    cr_assert_str_eq(b->answers[0].address, "ps:1");
    cr_assert_str_eq(b->answers[1].address, "w0:1");

    party_resolve(b, "worker1", true);
    party_resolve(b, "worker1", true);
    party_publish(b, "worker1", "w1:1"); /* oneself's name is found like any other */
    await_answers(b, 4);
    cr_assert_str_eq(b->answers[2].address, "w1:1");

    naming_withdraw(a->naming);
    party_resolve(a, "worker0", false);
    await_answers(a, 1);
    cr_assert_eq(a->answers[0].error.status, FERRY_ERR_UNKNOWN_PEER);
    expect_text(a->answers[0].error.text, "did you mean 'worker1'?");
    party_publish(a, "worker2", "w2");
    await_published(a, 2);
    await_members(store, "+ps +worker0 +worker1 -worker0 +worker2");
    cr_assert(store->version_grew && a->version_grew && b->version_grew);
    cr_assert_not(store->was_inside || a->was_inside || b->was_inside);
    party_free(b);
    together(store, a, NULL);
    await_members(store, "+ps +worker0 +worker1 -worker0 +worker2 -worker1");
    party_free(a);
    party_free(store);
}

Test(naming_tcp, name_taken_names_the_holder)
{
    struct party *store = store_new();
    struct party *a = party_new(url, false);
    struct party *b = party_new(url, false);
    together(store, a, b);
    struct fields_writer address;
    fields_write(&address, 3);
    fields_write_text(&address, "host", "10.0.0.7");
    fields_write_number(&address, "port", 4711);
    fields_write_bytes(&address, "id", "\x01\x02", 2);
    cr_assert_eq(naming_publish(a->naming, "ps", address.buffer.data, address.buffer.size),
                 FERRY_OK);
    await_published(a, 1);
    /* The same address does not make it the same agent. */
    cr_assert_eq(naming_publish(b->naming, "ps", address.buffer.data, address.buffer.size),
                 FERRY_OK);
    fields_write_finish(&address);
    await_published(b, 1);
    cr_assert_eq(b->published_error.status, FERRY_ERR_NAME_TAKEN);
    expect_text(b->published_error.text, "'ps'");
    expect_text(b->published_error.text, "host=10.0.0.7 port=4711");
    party_free(a); /* its connection ends, and with it the name */
    together(store, b, NULL);
    await_members(store, "+ps -ps");
    party_publish(b, "ps", "b");
    await_published(b, 2);
    cr_assert_eq(b->published_error.status, FERRY_OK);
    party_free(b);
    party_free(store);
}

Test(naming_tcp, clients_may_come_before_the_store)
{
    port_free();
    struct party *a = party_new(url, false);
    struct party *b = party_new(url, false);
    party_publish(a, "early", "e:1");
    party_resolve(b, "early", true);
    party_serve_for(a, 120000000); /* a few dials fail */
    party_serve_for(b, 120000000);
    cr_assert_eq(a->published, 0);
    cr_assert_eq(b->answered, 0);
    expect_text(naming_trouble(a->naming), url);
    expect_text(naming_trouble(a->naming), "refused");
    struct party *store = party_new(url, true);
    together(store, a, b);
    await_answers(b, 1);
    cr_assert_str_eq(b->answers[0].address, "e:1");
    await_published(a, 1);
    cr_assert_str_empty(naming_trouble(a->naming));
    party_free(a);
    party_free(b);
    party_free(store);
}

Test(naming_tcp, without_a_store_only_waiting_resolves_wait)
{
    port_free();
    struct party *a = party_new(url, false);
    together(a, NULL, NULL);
    party_resolve(a, "ps", false);
    party_resolve(a, "ps2", true);
    await_answers(a, 1);
    cr_assert_eq(a->answers[0].error.status, FERRY_ERR_NAMING);
    expect_text(a->answers[0].error.text, url);
    party_resolve(a, "ps3", false); /* while it waits to dial again */
    await_answers(a, 2);
    cr_assert_str_eq(a->answers[1].name, "ps3");
    cr_assert_eq(a->answers[1].error.status, FERRY_ERR_NAMING);
    cr_assert_eq(a->published, 0);
    party_free(a);
}

Test(naming_tcp, a_lost_store_is_dialled_again_and_told_the_name)
{
    struct party *store = store_new();
    struct party *a = party_new(url, false);
    struct party *b = party_new(url, false);
    together(store, a, b);
    party_publish(a, "worker0", "w0");
    await_published(a, 1);
    party_resolve(b, "worker0", false);
    await_answers(b, 1);
    await_members(b, "+worker0");
    party_resolve(b, "later", true);
    party_serve_for(b, 1000000);
    party_close(store);
    together(a, b, NULL);
    struct party *again = party_new(url, true);
    together(again, a, b);
    party_publish(again, "later", "l");
    await_answers(b, 2);
    cr_assert_str_eq(b->answers[1].address, "l");
    party_resolve(b, "worker0", true);
    await_answers(b, 3);
    cr_assert_str_eq(b->answers[2].address, "w0");
    cr_assert_eq(a->published, 1, "the outcome of a publish comes once");
    cr_assert(b->version_grew);
    party_free(a);
    party_free(b);
    party_free(again);
    free(store);
}

Test(naming_tcp, a_second_store_of_the_port)
{
    struct party *store = store_new();
    struct party *second = calloc(1, sizeof *second);
    /* Another agent of this process that is told to serve joins the store that is there. */
    cr_assert(party_open(second, url, true, NULL));
    cr_assert_eq(naming_served_port(second->naming), 0);
    together(store, second, NULL);
    party_publish(second, "second", "x");
    await_published(second, 1);
    party_close(second);

    pid_t child = fork();
    if (child == 0) {
        bool refused = !party_open(second, url, true, NULL) &&
                       ferry_last_error()->status == FERRY_ERR_SYSTEM &&
                       strstr(ferry_last_error()->text, url) != NULL &&
                       strstr(ferry_last_error()->text, "in use") != NULL;
        _exit(refused ? 0 : 1);
    }
    int result = -1;
    waitpid(child, &result, 0);
    cr_assert_eq(result, 0);
    free(second);
    party_free(store);
}

Test(naming_tcp, an_address_that_is_not_ours_cannot_be_served)
{
    struct party *party = calloc(1, sizeof *party);
    struct config_values config = {.naming = "", .interface = ""};
    cr_assert_not(party_open(party, "tcp://203.0.113.7:0", true, &config));
    cr_assert_eq(ferry_last_error()->status, FERRY_ERR_SYSTEM);
    expect_text(ferry_last_error()->text, "203.0.113.7");
    cr_assert_not(party_open(party, "tcp://no-such-host.invalid:7000", true, &config));
    cr_assert_eq(ferry_last_error()->status, FERRY_ERR_CONFIG);
    expect_text(ferry_last_error()->text, "no-such-host.invalid");
    config.interface = "lo"; /* behind a translation: the interface is listened on instead */
    cr_assert(party_open(party, "tcp://203.0.113.7:0", true, &config), "%s",
              ferry_last_error()->text);
    cr_assert_neq(naming_served_port(party->naming), 0);
    party_free(party);
}

Test(naming_tcp, ipv6)
{
    struct party *store = calloc(1, sizeof *store);
    if (!party_open(store, "tcp://[::1]:0", true, NULL)) {
        free(store);
        cr_skip_test("no IPv6 here");
    }
    snprintf(url, sizeof url, "tcp://[::1]:%u/", naming_served_port(store->naming));
    struct party *a = party_new(url, false);
    together(store, a, NULL);
    party_publish(a, "six", "x");
    await_published(a, 1);
    party_free(a);
    party_free(store);
}

Test(naming_tcp, cancelled_resolves_have_no_event)
{
    struct party *store = store_new();
    struct party *a = party_new(url, false);
    struct party *b = party_new(url, false);
    together(store, a, b);
    party_publish(b, "b", "b");
    await_published(b, 1);
    party_resolve(a, "late", true);
    party_resolve(a, "b", true);
    await_answers(a, 1);
    naming_resolve_cancel(a->naming, "late");
    naming_withdraw(b->naming);
    party_publish(b, "late", "x");
    await_published(b, 2);
    party_resolve(a, "late", false);
    await_answers(a, 2);
    party_serve_for(a, 5000000);
    cr_assert_eq(a->answered, 2);
    party_free(a);
    party_free(b);
    party_free(store);
}

Test(naming_tcp, a_party_that_does_not_watch)
{
    struct party *store = store_new();
    struct party *a = calloc(1, sizeof *a);
    cr_assert(party_open_without_members(a, url, false));
    together(store, a, NULL);
    party_publish(a, "quiet", "q");
    await_published(a, 1);
    party_resolve(a, "quiet", false);
    await_answers(a, 1);
    cr_assert_str_empty(a->members);
    party_free(a);
    party_free(store);
}

/* ---- many processes ---- */

#define WORKERS 6

/* Publishes its name, finds everybody, and stays until the parent has seen all. */
static void worker_run(int number, int hold_fd)
{
    struct party *self = calloc(1, sizeof *self);
    char name[32];
    char byte;
    snprintf(name, sizeof name, "worker%d", number);
    if (self == NULL || !party_open(self, url, false, NULL) ||
        party_publish(self, name, name) != FERRY_OK) {
        _exit(1);
    }
    for (int i = 0; i < WORKERS; i++) {
        snprintf(name, sizeof name, "worker%d", i);
        party_resolve(self, name, true);
    }
    if (!party_await_answers(self, WORKERS)) {
        _exit(2);
    }
    for (int i = 0; i < WORKERS; i++) {
        if (strcmp(self->answers[i].address, self->answers[i].name) != 0) {
            _exit(3);
        }
    }
    ssize_t got = read(hold_fd, &byte, 1); /* until the parent closes its end */
    (void)got;
    _exit(0);
}

Test(naming_tcp, processes_find_each_other_and_a_killed_one_leaves)
{
    port_free();
    pid_t children[WORKERS];
    int hold[2];
    cr_assert_eq(pipe(hold), 0);
    for (int i = 0; i < WORKERS; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            close(hold[1]);
            worker_run(i, hold[0]);
        }
    }
    close(hold[0]);
    struct party *store = party_new(url, true);
    together(store, NULL, NULL);
    for (int i = 0; i < WORKERS; i++) {
        char name[32];
        snprintf(name, sizeof name, "worker%d", i);
        party_resolve(store, name, true);
    }
    await_answers(store, WORKERS);
    party_serve_for(store, 200000000); /* serves the children while they look each other up */
    store->members[0] = '\0';
    kill(children[3], SIGKILL);
    await_members(store, "-worker3");
    party_publish(store, "worker3", "the new one");
    await_published(store, 1);
    cr_assert_eq(store->published_error.status, FERRY_OK);
    close(hold[1]);
    for (int i = 0; i < WORKERS; i++) {
        int result = -1;
        waitpid(children[i], &result, 0);
        if (i == 3) {
            cr_assert(WIFSIGNALED(result));
        } else {
            cr_assert_eq(result, 0, "worker %d: %x", i, result);
        }
    }
    party_free(store);
}

Test(naming_tcp, a_name_does_not_outlive_its_process_in_a_forked_child)
{
    struct party *store = store_new();
    together(store, NULL, NULL);
    int hold[2];
    cr_assert_eq(pipe(hold), 0);
    pid_t child = fork();
    if (child == 0) {
        struct party *self = calloc(1, sizeof *self);
        if (self != NULL && party_open(self, url, false, NULL)) {
            party_publish(self, "parent", "x");
            party_await_published(self, 1);
        }
        if (fork() == 0) { /* lives on, with copies of every descriptor */
            char byte;
            close(hold[1]);
            ssize_t got = read(hold[0], &byte, 1);
            (void)got;
        }
        _exit(0);
    }
    await_members(store, "+parent -parent");
    close(hold[0]);
    close(hold[1]);
    waitpid(child, NULL, 0);
    party_free(store);
}

/* ---- servers that are no stores ---- */

/* Says words to every connection, at once, from a child until killed. */
static pid_t imposter_fork(int listen_fd, const void *words, size_t bytes)
{
    pid_t child = fork();
    if (child == 0) {
        for (;;) {
            struct pollfd ready = {.fd = listen_fd, .events = POLLIN};
            int fd;
            poll(&ready, 1, -1);
            if (socket_accept(listen_fd, &fd) == FERRY_OK) {
                ssize_t put = write(fd, words, bytes); /* and left open */
                (void)put;
            }
        }
    }
    return child;
}

static void imposter_run(const void *words, size_t bytes, ferry_status_t publish_status,
                         const char *part)
{
    char host[INET6_ADDRSTRLEN];
    uint16_t port;
    int fd;
    cr_assert_eq(socket_listen("", 0, &fd, host, &port), FERRY_OK);
    snprintf(url, sizeof url, "tcp://127.0.0.1:%u", port);
    pid_t child = imposter_fork(fd, words, bytes);
    struct party *a = party_new(url, false);
    together(a, NULL, NULL);
    party_publish(a, "a", "x");
    party_resolve(a, "ps", false);
    await_answers(a, 1);
    cr_assert_eq(a->answers[0].error.status, FERRY_ERR_NAMING);
    expect_text(a->answers[0].error.text, url);
    expect_text(a->answers[0].error.text, part);
    if (publish_status != FERRY_OK) {
        await_published(a, 1);
        cr_assert_eq(a->published_error.status, publish_status);
        expect_text(a->published_error.text, part);
        party_resolve(a, "ps", true); /* there is nothing to wait for any more */
        await_answers(a, 2);
        party_publish(a, "a", "x");
        await_published(a, 2);
    } else {
        cr_assert_eq(a->published, 0, "it may still become a store");
    }
    party_free(a);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    close(fd);
}

static size_t frame_of(struct fields_writer *writer, uint8_t frame[256])
{
    size_t bytes = writer->buffer.size;
    frame[0] = (uint8_t)bytes;
    frame[1] = frame[2] = frame[3] = 0;
    memcpy(frame + 4, writer->buffer.data, bytes);
    fields_write_finish(writer);
    return bytes + 4;
}

Test(naming_tcp, a_server_of_something_else)
{
    static const char http[] = "HTTP/1.1 400 Bad Request\r\n\r\n";
    imposter_run(http, sizeof http, FERRY_OK, "bound");
    static const uint8_t no_map[] = {1, 0, 0, 0, 0x05};
    imposter_run(no_map, sizeof no_map, FERRY_OK, "does not answer as a Ferry naming store");
    struct fields_writer writer;
    uint8_t frame[256];
    fields_write(&writer, 1); /* an answer before the hello */
    fields_write_text(&writer, "op", "published");
    imposter_run(frame, frame_of(&writer, frame), FERRY_OK, "does not answer");
}

Test(naming_tcp, a_server_that_is_silent)
{
    imposter_run("", 0, FERRY_OK, "does not answer as a Ferry naming store");
}

Test(naming_tcp, a_store_of_another_protocol_ends_the_hope)
{
    struct fields_writer writer;
    uint8_t frame[256];
    fields_write(&writer, 3);
    fields_write_text(&writer, "op", "error");
    fields_write_text(&writer, "text", "version 9 spoken here");
    fields_write_number(&writer, "later", 1);
    imposter_run(frame, frame_of(&writer, frame), FERRY_ERR_NAMING, "version 9 spoken here");
}

/* A good hello, and then everything that a store could say wrongly. */
Test(naming_tcp, a_store_gone_mad)
{
    struct fields_writer writer;
    srand(3);
    for (int round = 0; round < 24; round++) {
        uint8_t words[600];
        fields_write(&writer, 2);
        fields_write_text(&writer, "op", "hello");
        fields_write_number(&writer, "version", 1);
        size_t bytes = frame_of(&writer, words);
        static const char *const ops[] = {"published", "resolved", "present",
                                          "synced",    "member",   "hello"};
        fields_write(&writer, 4);
        fields_write_text(&writer, "op", ops[round % 6]);
        switch (round / 6) {
        case 0: /* fields missing */
            fields_write_number(&writer, "x", 1);
            fields_write_number(&writer, "y", 1);
            fields_write_number(&writer, "z", 1);
            break;
        case 1: /* of the wrong type */
            fields_write_text(&writer, "id", "1");
            fields_write_number(&writer, "name", 7);
            fields_write_text(&writer, "version", "");
            break;
        case 2: /* unknown ids */
            fields_write_number(&writer, "id", UINT64_MAX);
            fields_write_number(&writer, "status", UINT64_MAX);
            fields_write_bytes(&writer, "address", "x", 1);
            break;
        default: /* members that cannot be */
            fields_write_text(&writer, "name", "");
            fields_write_number(&writer, "stamp", 0);
            fields_write_number(&writer, "version", 0);
            break;
        }
        bytes += frame_of(&writer, words + bytes);

        char host[INET6_ADDRSTRLEN];
        uint16_t port;
        int fd;
        cr_assert_eq(socket_listen("", 0, &fd, host, &port), FERRY_OK);
        snprintf(url, sizeof url, "tcp://127.0.0.1:%u", port);
        pid_t child = imposter_fork(fd, words, bytes);
        struct party *a = party_new(url, false);
        party_publish(a, "a", "x");
        party_resolve(a, "ps", true);
        party_serve_for(a, 20000000);
        cr_assert_str_empty(a->members);
        cr_assert_eq(a->published, 0);
        party_free(a);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        close(fd);
    }
}
