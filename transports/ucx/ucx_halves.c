#define HASH_NONFATAL_OOM 1

#include <stdlib.h>

#include <utlist.h>

#include "core/error.h"
#include "transports/ucx/ucx_internal.h"

/* The number of no session: the entry that is always there, for uthash frees its table with the
 * last entry and would have to make it anew for each segment. */
#define NO_SESSION UINT64_MAX

#define SENT (UINT64_C(1) << 32)

static struct ucx_half_key key_of(struct ucx_segment segment, bool sent)
{
    return (struct ucx_half_key){.session = segment.session,
                                 .number = segment.number | (sent ? SENT : 0)};
}

bool ucx_half_sent(const struct ucx_half *half)
{
    return (half->key.number & SENT) != 0;
}

static ferry_status_t half_add(struct ucx *ucx, struct ucx_half_key key, struct ucx_half **half_out)
{
    struct ucx_half *half = ucx->spare;
    if (half != NULL) {
        DL_DELETE(ucx->spare, half);
    } else {
        half = malloc(sizeof(*half));
    }
    if (half != NULL) {
        memset(half, 0, sizeof(*half));
        half->key = key;
        HASH_ADD(hh, ucx->halves, key, sizeof(half->key), half);
        if (half->hh.tbl != NULL) {
            *half_out = half;
            return FERRY_OK;
        }
        free(half);
    }
    return error_raise(FERRY_ERR_NO_MEMORY, "no memory to match segments with their receives");
}

ferry_status_t ucx_half_add(struct ucx *ucx, struct ucx_segment segment, bool sent,
                            struct ucx_half **half_out)
{
    return half_add(ucx, key_of(segment, sent), half_out);
}

struct ucx_half *ucx_half_find(struct ucx *ucx, struct ucx_segment segment, bool sent)
{
    struct ucx_half_key key = key_of(segment, sent);
    struct ucx_half *half;
    HASH_FIND(hh, ucx->halves, &key, sizeof(key), half);
    return half;
}

void ucx_half_remove(struct ucx *ucx, struct ucx_half *half)
{
    HASH_DEL(ucx->halves, half);
}

void ucx_half_free(struct ucx *ucx, struct ucx_half *half)
{
    DL_PREPEND(ucx->spare, half);
}

struct ucx_half *ucx_half_next(struct ucx *ucx, uint32_t session, struct ucx_half *half)
{
    half = half == NULL ? ucx->halves : half->hh.next;
    while (half != NULL && half->key.session != session) {
        half = half->hh.next;
    }
    return half;
}

ferry_status_t ucx_halves_open(struct ucx *ucx)
{
    struct ucx_half *always;
    return half_add(ucx, (struct ucx_half_key){.session = NO_SESSION}, &always);
}

void ucx_halves_close(struct ucx *ucx)
{
    struct ucx_half *half, *next;
    HASH_ITER(hh, ucx->halves, half, next)
    {
        HASH_DEL(ucx->halves, half);
        free(half);
    }
    DL_FOREACH_SAFE(ucx->spare, half, next)
    {
        free(half);
    }
    ucx->spare = NULL;
}
