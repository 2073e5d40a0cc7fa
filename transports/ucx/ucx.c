/* The UCX transport's ops: one context and one worker an instance, the same endpoints for every
 * protocol. */
#include "transports/ucx/ucx.h"

#include <stdlib.h>
#include <unistd.h>

#include "core/error.h"
#include "transports/ucx/ucx_internal.h"

#define SWEEP_ROUNDS 64    /* of progress, after which a busy engine asks for the time */
#define CLOSE_ROUNDS 10000 /* of progress for what a peer could still end */

/* UCX's threads and connections do not survive fork(): in a child of a process that used UCX it is
 * unusable. */
static pid_t first_user;

static struct ucx *ucx_of(ferry_transport_t *transport)
{
    return (struct ucx *)(void *)transport;
}

static const struct ucx *ucx_of_const(const ferry_transport_t *transport)
{
    return (const struct ucx *)(const void *)transport;
}

static ferry_status_t ucx_check_fork(void)
{
    pid_t expected = 0, self = getpid();
    if (__atomic_compare_exchange_n(&first_user, &expected, self, false, __ATOMIC_SEQ_CST,
                                    __ATOMIC_SEQ_CST) ||
        expected == self) {
        return FERRY_OK;
    }
    return error_raise(FERRY_ERR_FORKED,
                       "UCX was used in process %d before it forked this one (%d): fork first, "
                       "exec, or use FERRY_TRANSPORT=inproc",
                       (int)expected, (int)self);
}

static const struct ucx_protocol *const protocols[] = {&ucx_tag, &ucx_stream, &ucx_am};

#define PROTOCOL_COUNT (sizeof(protocols) / sizeof(protocols[0]))

/* NULL: there is none of that name. */
static const struct ucx_protocol *protocol_find(const char *name)
{
    if (name == NULL || name[0] == '\0') {
        return protocols[0];
    }
    for (size_t i = 0; i < PROTOCOL_COUNT; i++) {
        if (strcmp(protocols[i]->name, name) == 0) {
            return protocols[i];
        }
    }
    return NULL;
}

static ferry_status_t ucx_open(const ferry_transport_options_t *options,
                               ferry_transport_t **transport_out)
{
    const struct ucx_protocol *protocol = protocol_find(options->protocol);
    if (protocol == NULL) {
        return error_raise(FERRY_ERR_CONFIG,
                           "UCX protocol '%s' is not known; there are tag, stream and am",
                           options->protocol);
    }
    ferry_status_t status = ucx_check_fork();
    if (status != FERRY_OK) {
        return status;
    }
    struct ucx *ucx = calloc(1, sizeof(*ucx));
    if (ucx == NULL) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory for the UCX transport");
    }
    ucx->base.ops = &ucx_ops;
    ucx->protocol = protocol;
    ucx->events = options->events;
    ucx->message_bytes = options->message_bytes;
    memset(ucx->ended, -1, sizeof(ucx->ended));
    if (ucx->message_bytes > UCX_MESSAGE_BYTES_MAX) {
        status = error_raise(FERRY_ERR_CONFIG,
                             "control messages of %zu bytes are too large for UCX's eager ones; "
                             "FERRY_EAGER may be %d at most",
                             ucx->message_bytes, UCX_MESSAGE_BYTES_MAX);
    }
    ucx_tame();
    if (status == FERRY_OK) {
        status = ucx_context_open(ucx, options);
    }
    if (status == FERRY_OK) {
        status = ucx_message_listen(ucx);
    }
    if (status == FERRY_OK) {
        status = protocol->open(ucx);
    }
    if (status != FERRY_OK) {
        ucx_context_close(ucx);
        protocol->close(ucx);
        free(ucx);
        return status;
    }
    *transport_out = &ucx->base;
    return FERRY_OK;
}

static void ucx_close(ferry_transport_t *transport)
{
    if (transport == NULL) {
        return;
    }
    struct ucx *ucx = ucx_of(transport);
    ucx->protocol->drain_all(ucx);
    for (int i = 0; i < CLOSE_ROUNDS && (ucx->leaving != NULL || ucx->leftovers > 0); i++) {
        ucp_worker_progress(ucx->worker);
        ucx_reap(ucx);
    }
    ucx->protocol->drain_all(ucx);
    ucx_early_drop_all(ucx);
    ucx_context_close(ucx);
    ucx->protocol->close(ucx);
    while (ucx->leaving != NULL) {
        struct ucx_link *link = ucx->leaving;
        ucx->leaving = link->next;
        free(link);
    }
    free(ucx);
}

static uint32_t ucx_capabilities(const ferry_transport_t *transport)
{
    return ucx_of_const(transport)->capabilities;
}

static const char *ucx_identity(const ferry_transport_t *transport)
{
    return ucx_of_const(transport)->identity;
}

static void ucx_address(const ferry_transport_t *transport, const void **address_out,
                        size_t *bytes_out)
{
    const struct ucx *ucx = ucx_of_const(transport);
    *address_out = ucx->address;
    *bytes_out = ucx->address_bytes;
}

static unsigned ucx_progress(ferry_transport_t *transport)
{
    struct ucx *ucx = ucx_of(transport);
    ucx->happened = 0;
    if (ucx->early_due) {
        ucx_early_deliver(ucx);
    }
    if (ucx->sweep_gap_ns != 0 && ++ucx->sweep_rounds % SWEEP_ROUNDS == 0) {
        ucx_descriptors_sweep(ucx);
    }
    unsigned moved = ucp_worker_progress(ucx->worker);
    if (ucx->leaving != NULL) {
        ucx_reap(ucx);
    }
    return moved + ucx->happened;
}

static ferry_status_t ucx_arm(ferry_transport_t *transport)
{
    struct ucx *ucx = ucx_of(transport);
    if (ucx->sweep_gap_ns != 0) {
        ucx_descriptors_sweep(ucx);
    }
    return !ucx->early_due && ucp_worker_arm(ucx->worker) == UCS_OK ? FERRY_OK : FERRY_PENDING;
}

static int ucx_wait_fd(const ferry_transport_t *transport)
{
    return ucx_of_const(transport)->wait_fd;
}

static size_t ucx_pending(const ferry_transport_t *transport)
{
    return ucx_of_const(transport)->posted;
}

const ferry_transport_ops_t ucx_ops = {
    .struct_bytes = sizeof(ferry_transport_ops_t),
    .abi = FERRY_TRANSPORT_ABI,
    .name = "ucx",
    .open = ucx_open,
    .close = ucx_close,
    .capabilities = ucx_capabilities,
    .identity = ucx_identity,
    .address = ucx_address,
    .connect = ucx_connect,
    .disconnect = ucx_disconnect,
    .send_message = ucx_send_message,
    .send = ucx_send,
    .receive = ucx_receive,
    .decline = ucx_decline,
    .progress = ucx_progress,
    .arm = ucx_arm,
    .wait_fd = ucx_wait_fd,
    .pending = ucx_pending,
    .register_memory = ucx_register_memory,
    .unregister_memory = ucx_unregister_memory,
    .describe = ucx_describe,
};
