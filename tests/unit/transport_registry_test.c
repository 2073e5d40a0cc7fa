#include <criterion/criterion.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ferry/error.h>

#include "rpc/transport_registry.h"

static ferry_transport_t instance;
static const ferry_transport_ops_t *opened_as; /* what an instance led to before it was given out */

static ferry_status_t outside_open(const ferry_transport_options_t *options,
                                   ferry_transport_t **transport_out)
{
    (void)options;
    instance.ops = opened_as;
    *transport_out = &instance;
    return FERRY_OK;
}

static ferry_status_t outside_open_fails(const ferry_transport_options_t *options,
                                         ferry_transport_t **transport_out)
{
    (void)options;
    (void)transport_out;
    return FERRY_ERR_TRANSPORT;
}

static void outside_close(ferry_transport_t *transport)
{
    (void)transport;
}

/* The slots that every transport has to have, of another one, and those below of its own. */
static ferry_transport_ops_t outside(const char *name)
{
    ferry_transport_ops_t ops = *transport_find("inproc");
    ops.name = name;
    ops.open = outside_open;
    ops.close = outside_close;
    ops.arm = NULL;
    ops.pending = NULL;
    ops.describe = NULL;
    ops.register_memory = NULL;
    ops.unregister_memory = NULL;
    return ops;
}

Test(transport_registry, finds_by_name)
{
    cr_assert_str_eq(transport_find("inproc")->name, "inproc");
    cr_assert_str_eq(transport_find("ucx")->name, "ucx");
    cr_assert_eq(transport_find("ucx"), transport_find("ucx"));
    cr_assert_eq(transport_find("UCX"), transport_find("ucx"));
    cr_assert_null(transport_find("tcp"));
    cr_assert_null(transport_find(""));
}

Test(transport_registry, leaves_no_slot_empty)
{
    static const char *const names[] = {"inproc", "ucx", "outside"};
    ferry_transport_ops_t ops = outside("outside");
    cr_assert_eq(ferry_transport_register(&ops), FERRY_OK);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *found = (const char *)transport_find(names[i]);
        size_t first = offsetof(ferry_transport_ops_t, open);
        for (size_t at = first; at < sizeof(ferry_transport_ops_t); at += sizeof(void *)) {
            static const char empty[sizeof(void *)];
            cr_assert(memcmp(found + at, empty, sizeof empty) != 0, "%s: slot at byte %zu",
                      names[i], at);
        }
    }
}

Test(transport_registry, fills_slots_by_what_is_true_without_them)
{
    ferry_transport_ops_t ops = outside("outside");
    ferry_transport_t *transport;
    void *handle = &instance;
    char text[4] = "...";
    opened_as = &ops;
    cr_assert_eq(ferry_transport_register(&ops), FERRY_OK);
    const ferry_transport_ops_t *found = transport_find("outside");
    cr_assert_neq(found, &ops);
    cr_assert_eq(transport_open(found, NULL, &transport), FERRY_OK);
    cr_assert_eq(transport->ops, found, "an instance leads to the table with the gaps");
    ferry_memory_t memory = {.bytes = 1};
    ferry_link_t link = {.transport = transport};
    cr_assert_eq(transport->ops->register_memory(transport, &memory, &handle),
                 FERRY_ERR_UNSUPPORTED);
    cr_assert_eq(handle, &instance, "an output was written in spite of the error");
    cr_assert_not_null(strstr(ferry_last_error()->text, "outside"));
    transport->ops->unregister_memory(transport, NULL);
    cr_assert_eq(transport->ops->pending(transport), 0);
    cr_assert_eq(transport->ops->arm(transport), FERRY_PENDING);
    transport->ops->describe(&link, text, sizeof text);
    cr_assert_str_empty(text);
    transport->ops->describe(&link, NULL, 0);
}

Test(transport_registry, passes_on_a_failed_open)
{
    ferry_transport_ops_t ops = outside("outside");
    ferry_transport_t *transport = NULL;
    ops.open = outside_open_fails;
    cr_assert_eq(ferry_transport_register(&ops), FERRY_OK);
    cr_assert_eq(transport_open(transport_find("outside"), NULL, &transport), FERRY_ERR_TRANSPORT);
    cr_assert_null(transport);
}

static void expect_refused(const ferry_transport_ops_t *ops, ferry_status_t status)
{
    cr_assert_eq(ferry_transport_register(ops), status);
}

Test(transport_registry, refuses_incomplete_tables)
{
    ferry_transport_ops_t ops = outside("another");
    expect_refused(NULL, FERRY_ERR_INVALID_ARGUMENT);
    ops.abi = FERRY_TRANSPORT_ABI + 1;
    expect_refused(&ops, FERRY_ERR_INVALID_ARGUMENT);
    ops = outside("another");
    ops.struct_bytes = sizeof ops - 1;
    expect_refused(&ops, FERRY_ERR_INVALID_ARGUMENT);
    const char *const bad_names[] = {NULL, "", "auto", "a-name-of-thirty-two-characters-"};
    for (size_t i = 0; i < sizeof bad_names / sizeof *bad_names; i++) {
        ops = outside(bad_names[i]);
        expect_refused(&ops, FERRY_ERR_INVALID_ARGUMENT);
    }
    ops = outside("another");
    ops.decline = NULL;
    expect_refused(&ops, FERRY_ERR_INVALID_ARGUMENT);
    ops = outside("another");
    ops.wait_fd = NULL;
    expect_refused(&ops, FERRY_ERR_INVALID_ARGUMENT);
    cr_assert_null(transport_find("another"));
}

Test(transport_registry, refuses_taken_names_and_too_many)
{
    static char names[64][16];
    ferry_transport_ops_t ops = outside("ucx");
    expect_refused(&ops, FERRY_ERR_NAME_TAKEN);
    cr_assert_not_null(strstr(ferry_last_error()->text, "'ucx'"));
    ferry_status_t status = FERRY_OK;
    size_t count = 0;
    while (status == FERRY_OK) {
        cr_assert_lt(count, sizeof names / sizeof names[0]);
        snprintf(names[count], sizeof names[count], "outside%zu", count);
        ops = outside(names[count]);
        status = ferry_transport_register(&ops);
        count += status == FERRY_OK;
    }
    cr_assert_eq(status, FERRY_ERR_LIMIT);
    cr_assert_gt(count, 0);
    for (size_t i = 0; i < count; i++) {
        cr_assert_str_eq(transport_find(names[i])->name, names[i]);
    }
    ops = outside("outside0");
    expect_refused(&ops, FERRY_ERR_NAME_TAKEN);
}
