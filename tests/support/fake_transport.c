#include "support/fake_transport.h"

#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "device/registry.h"

struct fake_post {
    struct fake_post *prev, *next;
    int end;
    enum fake_kind kind;
    uint32_t segment;
    ferry_memory_t memory;
    ferry_operation_t *operation;
    ferry_status_t fail; /* what its completion will say */
    bool finished;       /* moved already, only complete() is owed */
};

static void must(bool holds)
{
    if (!holds) {
        abort();
    }
}

static struct fake_end *end_of(ferry_link_t *link)
{
    return (struct fake_end *)link;
}

static int end_index(const struct fake_end *end)
{
    return (int)(end - end->fake->ends);
}

/* Between any memory and the host, at once. */
static void memory_copy(const ferry_memory_t *memory, void *host, bool to_memory)
{
    const ferry_device_backend_t *backend = device_backend(memory->device.device_type);
    must(backend != NULL);
    if (backend->host_readable) {
        memcpy(to_memory ? memory->data : host, to_memory ? host : memory->data, memory->bytes);
        return;
    }
    int32_t index = memory->device.device_id;
    uintptr_t stream;
    ferry_status_t status = backend->stream_create(index, &stream);
    must(status == FERRY_OK);
    status = backend->copy(index, stream, to_memory ? FERRY_COPY_FROM_HOST : FERRY_COPY_TO_HOST,
                           to_memory ? memory->data : host, to_memory ? host : memory->data,
                           memory->bytes);
    must(status == FERRY_OK);
    status = backend->stream_synchronize(index, stream);
    must(status == FERRY_OK);
    backend->stream_destroy(index, stream);
}

static bool posts_match(const struct fake_post *one, const struct fake_post *other)
{
    return !one->finished && !other->finished && one->end != other->end &&
           one->segment == other->segment && (one->kind == FAKE_SEND) != (other->kind == FAKE_SEND);
}

static struct fake_post *post_partner(struct fake_transport *fake, const struct fake_post *post)
{
    struct fake_post *other;
    DL_FOREACH(fake->posts, other)
    {
        if (posts_match(post, other)) {
            return other;
        }
    }
    return NULL;
}

/* Moves the bytes of a pair; returns what the receiver's operation says. */
static ferry_status_t pair_move(const struct fake_post *send, const struct fake_post *receive)
{
    if (send->memory.bytes != receive->memory.bytes) {
        return FERRY_ERR_PROTOCOL;
    }
    if (receive->kind == FAKE_RECEIVE && send->fail == FERRY_OK && receive->fail == FERRY_OK) {
        char *host = malloc(send->memory.bytes);
        must(host != NULL);
        memory_copy(&send->memory, host, false);
        memory_copy(&receive->memory, host, true);
        free(host);
    }
    return receive->fail;
}

static void post_forget(struct fake_transport *fake, struct fake_post *post)
{
    fake->ends[post->end].in_flight[post->kind]--;
    DL_DELETE(fake->posts, post);
}

static void post_complete(struct fake_post *post, ferry_status_t status)
{
    post->operation->complete(post->operation, status, status == FERRY_OK ? post->memory.bytes : 0);
    free(post);
}

static void pair_finish(struct fake_transport *fake, struct fake_post *one, struct fake_post *other)
{
    struct fake_post *send = one->kind == FAKE_SEND ? one : other;
    struct fake_post *receive = one->kind == FAKE_SEND ? other : one;
    ferry_status_t received = pair_move(send, receive);
    ferry_status_t sent = send->fail;
    post_forget(fake, one);
    post_forget(fake, other);
    post_complete(one, one == send ? sent : received);
    post_complete(other, other == send ? sent : received);
}

/* The newest post ends within its slot; complete() of its partner is owed. */
static ferry_status_t post_finish(struct fake_transport *fake, struct fake_post *post,
                                  struct fake_post *partner)
{
    struct fake_post *send = post->kind == FAKE_SEND ? post : partner;
    ferry_status_t received = pair_move(send, post == send ? partner : post);
    ferry_status_t sent = send->fail;
    partner->fail = partner == send ? sent : received;
    partner->finished = true;
    ferry_status_t status = post == send ? sent : received;
    post_forget(fake, post);
    free(post);
    return status;
}

static unsigned finished_complete(struct fake_transport *fake)
{
    unsigned happened = 0;
    struct fake_post *post = fake->posts;
    while (post != NULL) {
        struct fake_post *next = post->next;
        if (post->finished) {
            post_forget(fake, post);
            post_complete(post, post->fail);
            next = fake->posts; /* what completed may have changed the list */
            happened++;
        }
        post = next;
    }
    return happened;
}

unsigned fake_progress(struct fake_transport *fake)
{
    unsigned happened = fake->hold ? 0 : finished_complete(fake);
    while (!fake->hold && fake->budget != 0) {
        struct fake_post *post, *found = NULL;
        DL_FOREACH(fake->posts, post)
        {
            if (post_partner(fake, post) != NULL) {
                found = post;
                if (!fake->reversed) {
                    break;
                }
            }
        }
        if (found == NULL) {
            break;
        }
        if (fake->budget > 0) {
            fake->budget--;
        }
        pair_finish(fake, found, post_partner(fake, found));
        happened++;
    }
    return happened;
}

static ferry_status_t fake_post(ferry_link_t *link, enum fake_kind kind, uint32_t segment,
                                const ferry_memory_t *memory, ferry_operation_t *operation)
{
    struct fake_end *end = end_of(link);
    struct fake_transport *fake = end->fake;
    fake->misused += end->gone;
    if (end->down || end->gone) {
        return FERRY_ERR_PEER_LOST;
    }
    size_t nth = ++end->posted[kind];
    if (fake->fail_post.nth == nth && fake->fail_post.kind == kind &&
        fake->fail_post.end == end_index(end)) {
        return fake->fail_post.status;
    }
    struct fake_post *post = calloc(1, sizeof *post);
    must(post != NULL);
    post->end = end_index(end);
    post->kind = kind;
    post->segment = segment;
    post->memory = *memory;
    post->operation = operation;
    if (fake->fail_completion.nth == nth && fake->fail_completion.kind == kind &&
        fake->fail_completion.end == post->end) {
        post->fail = fake->fail_completion.status;
    }
    fake->direct += memory->device.device_type != kDLCPU;
    if (++end->in_flight[kind] > end->most_in_flight[kind]) {
        end->most_in_flight[kind] = end->in_flight[kind];
    }
    DL_APPEND(fake->posts, post);
    struct fake_post *partner = fake->at_once ? post_partner(fake, post) : NULL;
    return partner == NULL ? FERRY_PENDING : post_finish(fake, post, partner);
}

static ferry_status_t fake_send(ferry_link_t *link, uint32_t segment, const ferry_memory_t *memory,
                                ferry_operation_t *operation)
{
    return fake_post(link, FAKE_SEND, segment, memory, operation);
}

static ferry_status_t fake_receive(ferry_link_t *link, uint32_t segment,
                                   const ferry_memory_t *memory, ferry_operation_t *operation)
{
    return fake_post(link, FAKE_RECEIVE, segment, memory, operation);
}

static ferry_status_t fake_decline(ferry_link_t *link, uint32_t segment, size_t bytes,
                                   ferry_operation_t *operation)
{
    ferry_memory_t memory = {.bytes = bytes, .device = {.device_type = kDLCPU, .device_id = 0}};
    return fake_post(link, FAKE_DECLINE, segment, &memory, operation);
}

void fake_drop(struct fake_transport *fake)
{
    fake->ends[0].down = true;
    fake->ends[1].down = true;
}

void fake_disconnect(struct fake_transport *fake, int end)
{
    struct fake_post *post, *next;
    fake->ends[end].down = true;
    for (post = fake->posts; post != NULL; post = next) {
        next = post->next;
        if (post->end == end) {
            post_forget(fake, post);
            post_complete(post, post->finished ? post->fail : FERRY_ERR_CANCELLED);
            next = fake->posts; /* what completed may have changed the list */
        }
    }
    fake->ends[end].gone = true;
}

static uint32_t fake_capabilities(const ferry_transport_t *transport)
{
    return ((const struct fake_transport *)transport)->capabilities;
}

static const ferry_transport_ops_t fake_ops = {
    .struct_bytes = sizeof fake_ops,
    .abi = FERRY_TRANSPORT_ABI,
    .name = "fake",
    .capabilities = fake_capabilities,
    .send = fake_send,
    .receive = fake_receive,
    .decline = fake_decline,
};

struct fake_transport *fake_create(uint32_t capabilities)
{
    struct fake_transport *fake = calloc(1, sizeof *fake);
    must(fake != NULL);
    fake->base.ops = &fake_ops;
    fake->capabilities = capabilities | FERRY_TRANSPORT_HOST;
    fake->budget = -1;
    for (int i = 0; i < 2; i++) {
        fake->ends[i].fake = fake;
        fake->ends[i].link.transport = &fake->base;
    }
    return fake;
}

void fake_destroy(struct fake_transport *fake)
{
    if (fake != NULL) {
        must(fake->posts == NULL);
        free(fake);
    }
}

ferry_link_t *fake_link(struct fake_transport *fake, int end)
{
    return &fake->ends[end].link;
}
