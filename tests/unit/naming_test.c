/* The naming door: names, URLs, and inproc://. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/naming_party.h"

static void expect_text(const char *text, const char *part)
{
    cr_assert_not_null(strstr(text, part), "'%s' lacks '%s'", text, part);
}

static struct party *party_new(const char *url)
{
    struct party *party = calloc(1, sizeof *party);
    cr_assert_not_null(party);
    cr_assert(party_open(party, url, false, NULL), "%s", ferry_last_error()->text);
    return party;
}

static void party_free(struct party *party)
{
    party_close(party);
    free(party);
}

static bool both_published(const void *context)
{
    struct party *const *parties = context;
    return parties[0]->published > 0 && parties[1]->published > 0;
}

TestSuite(naming, .timeout = 60);

Test(naming, names)
{
    char longest[NAMING_NAME_BYTES_MAX + 2];
    memset(longest, 'n', sizeof longest);
    longest[NAMING_NAME_BYTES_MAX] = '\0';
    cr_assert_eq(naming_check_name("worker-0.gpu_1"), FERRY_OK);
    cr_assert_eq(naming_check_name("0"), FERRY_OK);
    cr_assert_eq(naming_check_name(longest), FERRY_OK);
    longest[NAMING_NAME_BYTES_MAX] = 'n';
    char too_long[NAMING_NAME_BYTES_MAX + 2];
    memcpy(too_long, longest, sizeof too_long);
    too_long[NAMING_NAME_BYTES_MAX + 1] = '\0';
    cr_assert_eq(naming_check_name(too_long), FERRY_ERR_INVALID_ARGUMENT);
    expect_text(ferry_last_error()->text, "128 characters");
    static const char *const bad[] = {"", "a b", "ps:0", "w/0", "\xc3\xa9", "a\n"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_assert_eq(naming_check_name(bad[i]), FERRY_ERR_INVALID_ARGUMENT, "%s", bad[i]);
        expect_text(ferry_last_error()->text, "[A-Za-z0-9_.-]");
    }
    cr_assert_eq(naming_check_name("ps:0"), FERRY_ERR_INVALID_ARGUMENT);
    expect_text(ferry_last_error()->text, "'ps:0'");
    expect_text(ferry_last_error()->text, "position 3");
    cr_assert_eq(naming_check_name(NULL), FERRY_ERR_INVALID_ARGUMENT);
}

Test(naming, urls_of_no_use_show_the_right_form)
{
    static const struct {
        const char *url, *part;
    } cases[] = {
        {"tpc://host:7000", "did you mean tcp://"},
        {"redis://host:7000", "tcp://host:port, file:///directory, env://"},
        {"host:7000", "tcp://host:port"},
        {"tcp:host:7000", "tcp://host:port"},
        {"tcp://host", "port is missing"},
        {"tcp://:7000", "host is missing"},
        {"tcp://host:", "port is missing"},
        {"tcp://host:seven", "no number"},
        {"tcp://host:7000/x", "no number"},
        {"tcp://host:70000", "over 65535"},
        {"tcp://host:0", "any"},
        {"tcp://fd00::1:7000", "brackets"},
        {"tcp://[fd00::1:7000", "']' is missing"},
        {"tcp://[fd00::1]7000", "port is missing"},
        {"file://relative/dir", "three slashes"},
        {"inproc://x", "nothing follows"},
        {"env://x", "nothing follows"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct party *party = calloc(1, sizeof *party);
        cr_assert_not(party_open(party, cases[i].url, false, NULL), "%s", cases[i].url);
        cr_assert_eq(ferry_last_error()->status, FERRY_ERR_CONFIG, "%s", cases[i].url);
        expect_text(ferry_last_error()->text, cases[i].part);
        free(party);
    }
}

Test(naming, the_configuration_names_the_service)
{
    struct config_values config = {.naming = "tpc://x", .interface = ""};
    struct party *party = calloc(1, sizeof *party);
    cr_assert_not(party_open(party, NULL, false, &config));
    expect_text(ferry_last_error()->text, "tpc://x");
    config.naming = "";
    cr_assert(party_open(party, "", false, &config));
    cr_assert_str_eq(naming_default_name(party->naming), "");
    cr_assert_eq(naming_group_size(party->naming), 0);
    cr_assert_eq(naming_served_port(party->naming), 0);
    cr_assert_eq(naming_check_member(party->naming, "worker99"), FERRY_OK);
    cr_assert_str_empty(naming_trouble(party->naming));
    party_free(party);
}

Test(naming, inproc_publish_resolve_withdraw)
{
    struct party *a = party_new("inproc://");
    struct party *b = party_new("inproc://");
    cr_assert_eq(party_publish(a, "ps", "address of ps"), FERRY_OK);
    cr_assert(party_await_published(a, 1));
    cr_assert_eq(a->published_error.status, FERRY_OK);

    cr_assert_eq(party_resolve(b, "ps", false), FERRY_OK);
    cr_assert_eq(party_resolve(b, "ps", true), FERRY_OK);
    cr_assert_eq(b->answered, 0, "events never come from inside a request");
    cr_assert(party_await_answers(b, 2));
    cr_assert_str_eq(b->answers[0].name, "ps");
    cr_assert_str_eq(b->answers[0].address, "address of ps");
    cr_assert_str_eq(b->answers[1].address, "address of ps");

    naming_withdraw(a->naming);
    naming_withdraw(a->naming);
    cr_assert_eq(party_resolve(b, "ps", false), FERRY_OK);
    cr_assert(party_await_answers(b, 3));
    cr_assert_eq(b->answers[2].error.status, FERRY_ERR_UNKNOWN_PEER);

    cr_assert_eq(party_publish(a, "ps2", "again"), FERRY_OK);
    cr_assert(party_await_published(a, 2));
    cr_assert(party_await_members(b, "+ps -ps +ps2") || party_await_members(b, "+ps2"), "%s",
              b->members);
    cr_assert(b->version_grew);
    cr_assert_not(a->was_inside || b->was_inside);
    party_free(a);
    party_free(b);
}

Test(naming, inproc_name_taken_names_the_holder)
{
    struct party *a = party_new("inproc://");
    struct party *b = party_new("inproc://");
    party_publish(a, "ps", "first:1");
    party_publish(b, "ps", "second:2");
    struct party *both[] = {a, b};
    cr_assert(parties_serve(both, 2, both_published, both));
    cr_assert_eq(a->published_error.status, FERRY_OK);
    cr_assert_eq(b->published_error.status, FERRY_ERR_NAME_TAKEN);
    expect_text(b->published_error.text, "'ps'");
    expect_text(b->published_error.text, "first:1");
    party_close(a); /* the name is free again */
    cr_assert_eq(party_publish(b, "ps", "second:2"), FERRY_OK);
    cr_assert(party_await_published(b, 2));
    cr_assert_eq(b->published_error.status, FERRY_OK);
    free(a);
    party_free(b);
}

Test(naming, inproc_unknown_names_the_nearest)
{
    struct party *a = party_new("inproc://");
    struct party *b = party_new("inproc://");
    party_publish(a, "parameter_server", "x");
    party_resolve(b, "parameter-server", false);
    party_resolve(b, "trainer", false);
    cr_assert(party_await_answers(b, 2));
    cr_assert_eq(b->answers[0].error.status, FERRY_ERR_UNKNOWN_PEER);
    expect_text(b->answers[0].error.text, "did you mean 'parameter_server'?");
    cr_assert_null(strstr(b->answers[1].error.text, "mean"));
    party_free(a);
    party_free(b);
}

Test(naming, waiting_resolves_end_when_the_name_comes_or_is_cancelled)
{
    struct party *a = party_new("inproc://");
    struct party *b = party_new("inproc://");
    party_resolve(b, "late", true);
    party_resolve(b, "late", true);
    party_resolve(b, "never", true);
    party_resolve(b, "gone", true);
    naming_resolve_cancel(b->naming, "gone");
    naming_resolve_cancel(b->naming, "not asked");
    party_serve_for(b, 1000000);
    cr_assert_eq(b->answered, 0);
    party_publish(a, "late", "here");
    cr_assert(party_await_answers(b, 2));
    cr_assert_str_eq(b->answers[0].address, "here");
    cr_assert_str_eq(b->answers[1].address, "here");

    /* An answer that was found but not handed out yet is cancelled too. */
    party_resolve(b, "late", false);
    naming_resolve_cancel(b->naming, "late");
    party_serve_for(b, 1000000);
    cr_assert_eq(b->answered, 2);
    party_free(b); /* "never" is forgotten without an event */
    party_free(a);
}

Test(naming, refused_requests)
{
    struct party *a = party_new("inproc://");
    static const char huge[NAMING_ADDRESS_BYTES_MAX + 1];
    cr_assert_eq(party_publish(a, "not a name", "x"), FERRY_ERR_INVALID_ARGUMENT);
    cr_assert_eq(party_resolve(a, "", false), FERRY_ERR_INVALID_ARGUMENT);
    cr_assert_eq(naming_publish(a->naming, "ps", huge, sizeof huge), FERRY_ERR_LIMIT);
    cr_assert_eq(naming_publish(a->naming, "ps", huge, sizeof huge - 1), FERRY_OK);
    cr_assert_eq(party_publish(a, "ps2", "x"), FERRY_ERR_STATE);
    expect_text(ferry_last_error()->text, "'ps'");
    ferry_status_t status = FERRY_OK;
    unsigned pending = 0;
    while ((status = naming_resolve(a->naming, "nobody", true)) == FERRY_OK) {
        cr_assert_lt(++pending, 10000);
    }
    cr_assert_eq(status, FERRY_ERR_LIMIT);
    party_free(a);
    naming_close(NULL);
}

Test(naming, close_inside_its_own_event)
{
    struct party *a = party_new("inproc://");
    party_publish(a, "self", "x");
    party_resolve(a, "self", false);
    party_resolve(a, "self", false);
    a->close_in_resolved = true;
    cr_assert(party_await_answers(a, 1));
    party_serve_for(a, 1000000);
    cr_assert_eq(a->answered, 1);
    party_free(a);
}

Test(naming, members_joined_before_are_told_too)
{
    struct party *a = party_new("inproc://");
    party_publish(a, "early", "x");
    struct party *b = party_new("inproc://");
    cr_assert(party_await_members(b, "+early"), "%s", b->members);
    party_free(a);
    cr_assert(party_await_members(b, "+early -early"), "%s", b->members);
    party_free(b);
}

Test(naming, a_forked_child_does_not_see_or_end_the_parents_names)
{
    struct party *a = party_new("inproc://");
    party_publish(a, "parent", "x");
    cr_assert(party_await_published(a, 1));
    pid_t child = fork();
    if (child == 0) {
        struct party *own = calloc(1, sizeof *own);
        if (own == NULL || !party_open(own, "inproc://", false, NULL) ||
            party_publish(own, "parent", "child's own") != FERRY_OK ||
            !party_await_published(own, 1)) {
            _exit(1);
        }
        ferry_status_t status = own->published_error.status;
        party_close(own);
        party_close(a);
        _exit(status == FERRY_OK ? 0 : 2);
    }
    int result = -1;
    waitpid(child, &result, 0);
    cr_assert_eq(result, 0);
    struct party *b = party_new("inproc://");
    party_resolve(b, "parent", false);
    cr_assert(party_await_answers(b, 1));
    cr_assert_str_eq(b->answers[0].address, "x");
    party_free(b);
    party_free(a);
}

/* The other thread's agent learns of a name through its own poller, which sleeps meanwhile. */
static void *wait_for_late(void *context)
{
    struct party *party = context;
    return party_await_answers(party, 1) ? party : NULL;
}

Test(naming, inproc_wakes_an_agent_of_another_thread)
{
    struct party *a = party_new("inproc://");
    struct party *b = party_new("inproc://");
    pthread_t thread;
    void *result = NULL;
    party_resolve(b, "late", true);
    cr_assert_eq(pthread_create(&thread, NULL, wait_for_late, b), 0);
    party_publish(a, "late", "woken");
    pthread_join(thread, &result);
    cr_assert_not_null(result);
    cr_assert_str_eq(b->answers[0].address, "woken");
    party_free(a);
    party_free(b);
}
