/* Every transport through the same cases: UCX with each of its protocols, over what it chooses by
 * itself and over tcp, and the example of one from outside. */
#include <criterion/criterion.h>

#include "package/unix_transport.c"
#include "support/transport_contract.h"

/*
 * UCX 1.13's tcp transport uses a connection that it has freed (uct_tcp_iface_handle_events) or
 * aborts (ucp_request.c:684): in 10 of 225 runs of this case on a busy machine; 1.22 in none of
 * 135.
 */
static void skip_what_crashes(const char *promise)
{
    const char *version = getenv("TEST_UCX_VERSION");
    if (version != NULL && strncmp(version, "1.13", 4) == 0 &&
        strcmp(promise, "disconnects_amid_segments") == 0) {
        cr_skip_test("UCX 1.13 may crash when a busy tcp link is closed");
    }
}

#define UCX_PROTOCOL(protocol, promise)                                                            \
    Test(transport_contract, ucx_##protocol##_##promise)                                           \
    {                                                                                              \
        contract_##promise("ucx:" #protocol, "");                                                  \
    }                                                                                              \
    Test(transport_contract, ucx_##protocol##_over_tcp_##promise)                                  \
    {                                                                                              \
        skip_what_crashes(#promise);                                                               \
        contract_##promise("ucx:" #protocol, "tcp,self");                                          \
    }

#define EVERY_TRANSPORT(promise)                                                                   \
    Test(transport_contract, inproc_##promise)                                                     \
    {                                                                                              \
        contract_##promise("inproc", "");                                                          \
    }                                                                                              \
    UCX_PROTOCOL(tag, promise)                                                                     \
    UCX_PROTOCOL(stream, promise)                                                                  \
    UCX_PROTOCOL(am, promise)                                                                      \
    Test(transport_contract, outside_##promise)                                                    \
    {                                                                                              \
        cr_assert_eq(ferry_transport_register(&unix_transport_ops), FERRY_OK);                     \
        contract_##promise("unix", "");                                                            \
    }

EVERY_TRANSPORT(describes_itself)
EVERY_TRANSPORT(opens_again_and_again)
EVERY_TRANSPORT(carries_messages)
EVERY_TRANSPORT(keeps_early_messages)
EVERY_TRANSPORT(carries_segments)
EVERY_TRANSPORT(carries_many_at_once)
EVERY_TRANSPORT(takes_registered_memory)
EVERY_TRANSPORT(declines)
EVERY_TRANSPORT(refuses_other_sizes)
EVERY_TRANSPORT(refuses_other_memory)
EVERY_TRANSPORT(refuses_bad_connects)
EVERY_TRANSPORT(links_to_itself)
EVERY_TRANSPORT(keeps_links_apart)
EVERY_TRANSPORT(sleeps_and_wakes)
EVERY_TRANSPORT(disconnects_idle_receives)
EVERY_TRANSPORT(disconnects_from_a_stopped_sender)
EVERY_TRANSPORT(disconnects_amid_segments)
EVERY_TRANSPORT(starts_sessions_afresh)
EVERY_TRANSPORT(outlives_the_other_instance)
EVERY_TRANSPORT(runs_in_two_threads)
