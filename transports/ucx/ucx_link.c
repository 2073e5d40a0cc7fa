#include <stdio.h>
#include <stdlib.h>
#include <utlist.h>

#include "core/error.h"
#include "core/log.h"
#include "transports/ucx/ucx_internal.h"

static struct ucx_link *link_of(ferry_link_t *link)
{
    return (struct ucx_link *)(void *)link;
}

struct ucx_link *ucx_link_find(struct ucx *ucx, uint32_t session)
{
    struct ucx_link *link = ucx->recent;
    if (link == NULL || link->local_session != session) {
        HASH_FIND(hh, ucx->links, &session, sizeof(session), link);
        ucx->recent = link;
    }
    return link;
}

bool ucx_session_ended(const struct ucx *ucx, uint32_t session)
{
    for (size_t i = 0; i < UCX_ENDED_SESSIONS; i++) {
        if (ucx->ended[i] == session) {
            return true;
        }
    }
    return false;
}

void ucx_link_fail(struct ucx_link *link, ferry_status_t status, const char *text)
{
    if (link->failed || link->disconnected) {
        return;
    }
    link->failed = true;
    link->ucx->happened++;
    link->ucx->events.link_down(link->ucx->events.context, &link->base, status, text);
}

static void endpoint_failed(void *argument, ucp_ep_h endpoint, ucs_status_t status)
{
    (void)endpoint;
    ucx_link_fail(argument, ucx_status(status), ucs_status_string(status));
}

static ferry_status_t endpoint_create(struct ucx_link *link, const ucp_address_t *address)
{
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .address = address,
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = {.cb = endpoint_failed, .arg = link},
    };
    struct ucx_descriptors before;
    ucx_descriptors_note(&before);
    ucs_status_t status = ucp_ep_create(link->ucx->worker, &params, &link->endpoint);
    ucx_descriptors_mark_new(&before);
    return status == UCS_OK ? FERRY_OK : ucx_raise(status, "creating a UCX endpoint");
}

ferry_status_t ucx_connect(ferry_transport_t *transport, const void *address, size_t bytes,
                           uint32_t local_session, uint32_t remote_session, void *context,
                           ferry_link_t **link_out)
{
    struct ucx *ucx = (struct ucx *)(void *)transport;
    const ucp_address_t *proper = ucx_address_check(address, bytes);
    if (proper == NULL) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT,
                           "%zu bytes are no address of Ferry's UCX transport", bytes);
    }
    if (ucx_link_find(ucx, local_session) != NULL) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT, "session %u is in use", local_session);
    }
    struct ucx_link *link = calloc(1, sizeof(*link));
    if (link == NULL) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory for a link");
    }
    link->base.transport = transport;
    link->base.context = context;
    link->ucx = ucx;
    link->local_session = local_session;
    link->remote_session = remote_session;
    ferry_status_t status = endpoint_create(link, proper);
    if (status != FERRY_OK) {
        free(link);
        return status;
    }
    HASH_ADD(hh, ucx->links, local_session, sizeof(link->local_session), link);
    ucx->early_due = ucx->early != NULL;
    ucx_descriptors_expect(ucx);
    for (size_t i = 0; i < UCX_ENDED_SESSIONS; i++) {
        if (ucx->ended[i] == local_session) {
            ucx->ended[i] = -1; /* the number lives again */
        }
    }
    if (ucx->protocol->begin != NULL) {
        ucx->protocol->begin(link);
    }
    *link_out = &link->base;
    return FERRY_OK;
}

/* Force-closing is what ends operations that the peer has matched already. */
void ucx_disconnect(ferry_link_t *base)
{
    struct ucx_link *link = link_of(base);
    struct ucx *ucx = link->ucx;
    link->disconnected = true;
    HASH_DEL(ucx->links, link);
    ucx->recent = NULL;
    ucx->ended[ucx->ended_next++ % UCX_ENDED_SESSIONS] = link->local_session;
    ucx_early_drop(ucx, link->local_session);
    ucx->protocol->withdraw(link);
    ucp_request_param_t params = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
        .flags = UCP_EP_CLOSE_FLAG_FORCE,
    };
    ucs_status_ptr_t request = ucp_ep_close_nbx(link->endpoint, &params);
    if (UCS_PTR_IS_ERR(request)) {
        log_write(FERRY_LOG_WARN, "closing a UCX endpoint: %s",
                  ucs_status_string(UCS_PTR_STATUS(request)));
    } else {
        link->closing = request;
    }
    ucx->protocol->drain(ucx, link->local_session);
    LL_PREPEND(ucx->leaving, link);
    ucx_reap(ucx);
}

void ucx_reap(struct ucx *ucx)
{
    struct ucx_link *link, *next;
    LL_FOREACH_SAFE(ucx->leaving, link, next)
    {
        if (link->closing != NULL && ucp_request_check_status(link->closing) != UCS_INPROGRESS) {
            ucp_request_free(link->closing);
            link->closing = NULL;
        }
        if (link->closing == NULL && link->posted == 0 && !link->reader.posted) {
            ucx->protocol->drain(ucx, link->local_session);
            LL_DELETE(ucx->leaving, link);
            free(link);
        }
    }
}

/* UCX prints an endpoint's lanes as "# lane[0]: 5:sysv/memory.0 md[3] ..."; there is no query that
 * both builds have. */
void ucx_describe(const ferry_link_t *base, char *text, size_t capacity)
{
    const struct ucx_link *link = (const struct ucx_link *)(const void *)base;
    char *printed = NULL;
    size_t bytes = 0, used = 0;
    if (capacity == 0) {
        return;
    }
    text[0] = '\0';
    FILE *stream = open_memstream(&printed, &bytes);
    if (stream == NULL) {
        return;
    }
    ucp_ep_print_info(link->endpoint, stream);
    fclose(stream);
    char *rest;
    for (char *line = strtok_r(printed, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        char name[64];
        const char *lane = strstr(line, "lane[");
        const char *colon = lane == NULL ? NULL : strchr(lane, ':');
        const char *second = colon == NULL ? NULL : strchr(colon + 1, ':');
        if (second == NULL || sscanf(second + 1, "%63[^. ]", name) != 1 ||
            strstr(text, name) != NULL || used + strlen(name) + 3 > capacity) {
            continue;
        }
        used += (size_t)snprintf(text + used, capacity - used, "%s%s", used == 0 ? "" : ", ", name);
    }
    free(printed);
}
