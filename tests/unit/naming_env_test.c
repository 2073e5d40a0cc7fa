/* env://: the group that torchrun describes. */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ferry/log.h>

#include "core/channel.h"
#include "support/naming_party.h"

static struct config_values config = {.naming = "env://", .interface = ""};
static int master_fd = -1;
static uint16_t master_port;

/* Sets what torchrun sets. MASTER_PORT is taken, as torchrun itself takes it; the next one is free. */
static void launch(int world_size)
{
    char text[16];
    ferry_log_set_level(FERRY_LOG_OFF);
    for (int tries = 0; tries < 100; tries++) {
        char host[INET6_ADDRSTRLEN];
        uint16_t next;
        int fd;
        cr_assert_eq(socket_listen("", 0, &master_fd, host, &master_port), FERRY_OK);
        if (master_port < 65535 &&
            socket_listen("", (uint16_t)(master_port + 1), &fd, host, &next) == FERRY_OK) {
            close(fd);
            break;
        }
        close(master_fd);
        master_fd = -1;
    }
    cr_assert_geq(master_fd, 0);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    snprintf(text, sizeof text, "%u", master_port);
    setenv("MASTER_PORT", text, 1);
    snprintf(text, sizeof text, "%d", world_size);
    setenv("WORLD_SIZE", text, 1);
    setenv("RANK", "0", 1);
    config.port = 0;
}

static void land(void)
{
    if (master_fd >= 0) {
        close(master_fd);
    }
}

TestSuite(naming_env, .fini = land, .timeout = 60);

static void expect_text(const char *text, const char *part)
{
    cr_assert_not_null(strstr(text, part), "'%s' lacks '%s'", text, part);
}

static struct party *party_new(int rank)
{
    char text[16];
    struct party *party = calloc(1, sizeof *party);
    snprintf(text, sizeof text, "%d", rank);
    setenv("RANK", text, 1);
    cr_assert(party_open(party, NULL, false, &config), "%s", ferry_last_error()->text);
    return party;
}

static void party_free(struct party *party)
{
    party_close(party);
    free(party);
}

struct wish {
    const struct party *party;
    unsigned published, answered;
};

static bool wish_done(const void *context)
{
    const struct wish *wish = context;
    return wish->party->published >= wish->published && wish->party->answered >= wish->answered;
}

static void serve_until(struct party *a, struct party *b, const struct wish *wish)
{
    struct party *both[] = {a, b};
    cr_assert(parties_serve(both, 2, wish_done, wish));
}

Test(naming_env, ranks_are_workers_and_rank_0_serves_beside_the_launcher)
{
    launch(2);
    struct party *one = party_new(1); /* earlier than the store */
    struct party *zero = party_new(0);
    cr_assert_str_eq(naming_default_name(zero->naming), "worker0");
    cr_assert_str_eq(naming_default_name(one->naming), "worker1");
    cr_assert_eq(naming_group_size(one->naming), 2);
    cr_assert_eq(naming_served_port(zero->naming), master_port + 1);
    cr_assert_eq(naming_served_port(one->naming), 0);
    party_publish(zero, naming_default_name(zero->naming), "w0");
    party_resolve(one, "worker0", true);
    serve_until(zero, one, &(struct wish){.party = one, .answered = 1});
    cr_assert_str_eq(one->answers[0].address, "w0");
    party_free(one);
    party_free(zero);
}

Test(naming_env, ferry_port_moves_the_store)
{
    char host[INET6_ADDRSTRLEN];
    uint16_t port;
    int fd;
    launch(1);
    cr_assert_eq(socket_listen("", 0, &fd, host, &port), FERRY_OK);
    config.port = port;
    struct party *party = calloc(1, sizeof *party);
    cr_assert_not(party_open(party, NULL, false, &config));
    cr_assert_eq(ferry_last_error()->status, FERRY_ERR_SYSTEM);
    expect_text(ferry_last_error()->text, "FERRY_PORT");
    expect_text(ferry_last_error()->text, "in use");
    close(fd);
    cr_assert(party_open(party, NULL, false, &config), "%s", ferry_last_error()->text);
    cr_assert_eq(naming_served_port(party->naming), port);
    party_free(party);
}

Test(naming_env, errors_name_the_variable_and_its_value)
{
    static const struct {
        const char *name, *value, *part;
    } cases[] = {
        {"MASTER_ADDR", NULL, "MASTER_ADDR is not set"},
        {"MASTER_PORT", NULL, "MASTER_PORT is not set"},
        {"MASTER_PORT", "", "MASTER_PORT is not set"},
        {"RANK", NULL, "RANK is not set"},
        {"WORLD_SIZE", NULL, "WORLD_SIZE is not set"},
        {"MASTER_PORT", "x1", "MASTER_PORT=x1"},
        {"MASTER_PORT", "0", "MASTER_PORT=0"},
        {"MASTER_PORT", "65536", "MASTER_PORT=65536"},
        {"MASTER_PORT", "65535", "FERRY_PORT"},
        {"WORLD_SIZE", "0", "WORLD_SIZE=0"},
        {"WORLD_SIZE", "-2", "WORLD_SIZE=-2"},
        {"WORLD_SIZE", "99999999999999999999", "WORLD_SIZE=9999"},
        {"RANK", "2", "RANK=2: want a whole number from 0 to 1"},
        {"RANK", "-1", "RANK=-1"},
        {"RANK", "0x1", "RANK=0x1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct party *party = calloc(1, sizeof *party);
        launch(2);
        if (cases[i].value != NULL) {
            setenv(cases[i].name, cases[i].value, 1);
        } else {
            unsetenv(cases[i].name);
        }
        cr_assert_not(party_open(party, NULL, false, &config), "%s", cases[i].part);
        cr_assert_eq(ferry_last_error()->status, FERRY_ERR_CONFIG);
        expect_text(ferry_last_error()->text, cases[i].part);
        free(party);
        land();
        master_fd = -1;
    }
}

Test(naming_env, workers_outside_the_group_cannot_come)
{
    launch(2);
    struct party *zero = party_new(0);
    party_resolve(zero, "worker2", true); /* would wait for ever */
    cr_assert(party_await_answers(zero, 1));
    cr_assert_eq(zero->answers[0].error.status, FERRY_ERR_UNKNOWN_PEER);
    expect_text(zero->answers[0].error.text, "'worker2'");
    expect_text(zero->answers[0].error.text, "WORLD_SIZE");
    expect_text(zero->answers[0].error.text, "did you mean 'worker1'?");
    cr_assert_eq(zero->was_inside, false);
    cr_assert_eq(naming_check_member(zero->naming, "worker1"), FERRY_OK);
    cr_assert_eq(naming_check_member(zero->naming, "ps"), FERRY_OK, "somebody may still be it");
    cr_assert_eq(naming_check_member(zero->naming, "worker17"), FERRY_ERR_UNKNOWN_PEER);
    party_free(zero);
}

Test(naming_env, when_all_are_there_no_other_name_can_come)
{
    launch(2);
    struct party *zero = party_new(0);
    struct party *one = party_new(1);
    party_resolve(one, "trainer", true);
    party_resolve(one, "parameter_sever", true);
    party_publish(zero, "parameter_server", "ps");
    serve_until(zero, one, &(struct wish){.party = zero, .published = 1});
    party_resolve(one, "parameter_server", true);
    serve_until(zero, one, &(struct wish){.party = one, .answered = 1});
    cr_assert_str_eq(one->answers[0].address, "ps");
    party_publish(one, "worker1", "w1");
    serve_until(zero, one, &(struct wish){.party = one, .answered = 3});
    cr_assert_str_eq(one->answers[1].name, "trainer");
    cr_assert_eq(one->answers[1].error.status, FERRY_ERR_UNKNOWN_PEER);
    cr_assert_null(strstr(one->answers[1].error.text, "mean"));
    cr_assert_str_eq(one->answers[2].name, "parameter_sever");
    expect_text(one->answers[2].error.text, "did you mean 'parameter_server'?");
    cr_assert_eq(naming_check_member(one->naming, "worker0"), FERRY_ERR_UNKNOWN_PEER);
    cr_assert_eq(naming_check_member(one->naming, "parameter_server"), FERRY_OK);
    /* One that leaves may come back under another name. */
    naming_withdraw(zero->naming);
    party_resolve(zero, "parameter_server", false);
    serve_until(zero, one, &(struct wish){.party = zero, .answered = 1});
    party_publish(zero, "worker0", "w0");
    serve_until(zero, one, &(struct wish){.party = zero, .published = 2});
    party_resolve(one, "worker0", true);
    serve_until(zero, one, &(struct wish){.party = one, .answered = 4});
    cr_assert_str_eq(one->answers[3].address, "w0");
    party_free(one);
    party_free(zero);
}

/* As torchrun starts them: one process a rank, in any order. */
Test(naming_env, processes)
{
    enum { WORLD = 5 };
    int hold[2];
    pid_t children[WORLD];
    launch(WORLD);
    cr_assert_eq(pipe(hold), 0);
    for (int i = 0; i < WORLD; i++) {
        int rank = WORLD - 1 - i; /* the store comes last */
        children[i] = fork();
        if (children[i] == 0) {
            char text[32];
            struct party *self = calloc(1, sizeof *self);
            close(hold[0]);
            snprintf(text, sizeof text, "%d", rank);
            setenv("RANK", text, 1);
            if (self == NULL || !party_open(self, "env://", false, &config)) {
                _exit(1);
            }
            party_publish(self, naming_default_name(self->naming), text);
            for (int k = 0; k < WORLD; k++) {
                snprintf(text, sizeof text, "worker%d", k);
                party_resolve(self, text, true);
            }
            if (!party_await_answers(self, WORLD)) {
                _exit(2);
            }
            for (int k = 0; k < WORLD; k++) {
                if (atoi(self->answers[k].address) != atoi(self->answers[k].name + 6)) {
                    _exit(3);
                }
            }
            if (write(hold[1], "x", 1) != 1) {
                _exit(4);
            }
            if (rank == 0) { /* the store serves until everybody has found everybody */
                close(hold[1]);
                party_await_members(self, "+never");
            }
            _exit(0);
        }
    }
    close(hold[1]);
    for (int i = 0; i < WORLD; i++) {
        char byte;
        cr_assert_eq(read(hold[0], &byte, 1), 1);
    }
    close(hold[0]);
    kill(children[WORLD - 1], SIGKILL);
    for (int i = 0; i < WORLD; i++) {
        int result = -1;
        waitpid(children[i], &result, 0);
        cr_assert(i == WORLD - 1 || result == 0, "child %d: %x", i, result);
    }
}
