/* The table of peers: names are found, and only those, however many there are and however alike. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rpc/peer.h"

#define MANY 5000

static struct peer_table table;

static struct peer *peer_of(const char *name)
{
    struct peer *peer = calloc(1, sizeof *peer + strlen(name) + 1);
    cr_assert_not_null(peer);
    memcpy(peer->name, name, strlen(name) + 1);
    return peer;
}

static struct peer *add(const char *name)
{
    struct peer *peer = peer_of(name);
    cr_assert_null(peer_table_find(&table, name));
    cr_assert_eq(peer_table_add(&table, peer), FERRY_OK);
    cr_assert_eq(peer_table_find(&table, name), peer);
    return peer;
}

static void setup(void)
{
    table = (struct peer_table){.seed = 42};
}

static void teardown(void)
{
    struct peer *peer;
    for (size_t at = 0; (peer = peer_table_next(&table, &at)) != NULL;) {
        free(peer);
    }
    peer_table_finish(&table);
    cr_assert_null(peer_table_find(&table, "worker1"));
}

TestSuite(peer_table, .init = setup, .fini = teardown);

Test(peer_table, an_empty_one_finds_nothing)
{
    size_t at = 0;
    cr_assert_null(peer_table_find(&table, "worker1"));
    cr_assert_null(peer_table_next(&table, &at));
}

Test(peer_table, names_of_every_length_are_told_apart)
{
    char name[NAMING_NAME_BYTES_MAX + 1];
    memset(name, 'a', sizeof name);
    for (size_t bytes = sizeof name - 1; bytes > 0; bytes--) {
        name[bytes] = '\0';
        add(name);
    }
    add("aaaaaaab"); /* differs in the last byte of a word, and of the rest behind one */
    add("aaaaaaaab");
}

Test(peer_table, many_are_found_and_each_is_listed_once)
{
    static struct peer *peers[MANY];
    static bool seen[MANY];
    char name[32];
    for (size_t i = 0; i < MANY; i++) {
        snprintf(name, sizeof name, "worker%zu", i);
        peers[i] = add(name);
        peers[i]->epoch = i;
    }
    for (size_t i = 0; i < MANY; i++) {
        snprintf(name, sizeof name, "worker%zu", i);
        cr_assert_eq(peer_table_find(&table, name), peers[i]);
        snprintf(name, sizeof name, "worker-%zu", i);
        cr_assert_null(peer_table_find(&table, name));
    }
    struct peer *peer;
    size_t count = 0;
    for (size_t at = 0; (peer = peer_table_next(&table, &at)) != NULL; count++) {
        cr_assert_not(seen[peer->epoch]);
        seen[peer->epoch] = true;
    }
    cr_assert_eq(count, MANY);
}
