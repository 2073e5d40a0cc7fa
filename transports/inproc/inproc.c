/* The reference transport: agents of one process, by plain copies.
 *
 * A message lies in the receiving instance until its progress() (inproc_message.c). A segment that
 * is sent lies there until a receive of its number comes, or the other way round
 * (inproc_segment.c).
 *
 * Locks. An instance has a mutex, which guards what others put into it and take out: messages and
 * waiting halves. A call takes the receiving instance's alone, so that agents that have nothing to
 * do with each other never meet. The process's mutex guards who is there and who is linked to whom;
 * only open, close, connect and disconnect take it, for moments. A link's opposite, and whether it
 * is gone, change under the process's mutex and both instances' at once, so that either instance's
 * is enough to read them.
 *
 * Order: the agent's lock (the caller's), the process's mutex, instances' mutexes by address;
 * completions go through an atomic list, so that a mutex of the posting instance's is not needed.
 * Nothing calls back under any of them.
 *
 * Life. An instance's memory lives while links lead to it. What signals an instance holds something
 * that keeps it open: its own mutex and a link of another's that is not gone, or the mutex that the
 * end of one of its links must take. */
#include "transports/inproc/inproc.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>
#include <utlist.h>

#include "core/error.h"
#include "transports/inproc/inproc_internal.h"

static struct {
    pthread_mutex_t mutex;
    struct inproc *instances; /* hash by address; borrowed */
} process = {.mutex = PTHREAD_MUTEX_INITIALIZER};

void inproc_signal(struct inproc *inproc)
{
    atomic_store(&inproc->news, true);
    if (atomic_load(&inproc->armed) && atomic_exchange(&inproc->armed, false)) {
        uint64_t one = 1;
        ssize_t written = write(inproc->wait_fd, &one, sizeof(one));
        (void)written; /* a full counter is readable, too */
    }
}

/* ---- instances ---- */

/* With the process's mutex. */
static struct inproc *instance_find(const void *address)
{
    struct inproc *inproc;
    HASH_FIND(hh, process.instances, address, sizeof(struct inproc_address), inproc);
    return inproc;
}

static void fork_prepare(void)
{
    pthread_mutex_lock(&process.mutex);
}

static void fork_parent(void)
{
    pthread_mutex_unlock(&process.mutex);
}

/* In a forked child the parent's instances do not exist for others. What a program does with its
 * copies must not wait for a thread that the child does not have. */
static void fork_child(void)
{
    for (struct inproc *inproc = process.instances; inproc != NULL; inproc = inproc->hh.next) {
        pthread_mutex_init(&inproc->mutex, NULL);
        pthread_cond_init(&inproc->copied, NULL);
    }
    process.instances = NULL;
    pthread_mutex_init(&process.mutex, NULL);
}

static void fork_watch(void)
{
    pthread_atfork(fork_prepare, fork_parent, fork_child);
}

static ferry_status_t inproc_open(const ferry_transport_options_t *options,
                                  ferry_transport_t **transport_out)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fork_watch);
    struct inproc *inproc = calloc(1, sizeof(*inproc));
    if (inproc == NULL) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory for the inproc transport");
    }
    inproc->wait_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (inproc->wait_fd < 0 ||
        getrandom(&inproc->address, sizeof(inproc->address), 0) != sizeof(inproc->address)) {
        ferry_status_t status = error_raise_errno(errno, "opening the inproc transport");
        if (inproc->wait_fd >= 0) {
            close(inproc->wait_fd);
        }
        free(inproc);
        return status;
    }
    inproc->base.ops = &inproc_ops;
    inproc->events = options->events;
    inproc->message_bytes = options->message_bytes;
    atomic_init(&inproc->references, 1);
    pthread_mutex_init(&inproc->mutex, NULL);
    pthread_cond_init(&inproc->copied, NULL);
    messages_init(inproc);
    pthread_mutex_lock(&process.mutex);
    HASH_ADD(hh, process.instances, address, sizeof(inproc->address), inproc);
    pthread_mutex_unlock(&process.mutex);
    *transport_out = &inproc->base;
    return FERRY_OK;
}

static void inproc_release(struct inproc *inproc)
{
    if (atomic_fetch_sub(&inproc->references, 1) == 1) {
        pthread_cond_destroy(&inproc->copied);
        pthread_mutex_destroy(&inproc->mutex);
        free(inproc);
    }
}

/* With the process's mutex, so that nobody holds one of two and waits for the other; the order
 * spares those who check it the thought. */
static void both_lock(struct inproc *one, struct inproc *other)
{
    struct inproc *first = one < other ? one : other, *second = one < other ? other : one;
    pthread_mutex_lock(&first->mutex);
    if (second != first) {
        pthread_mutex_lock(&second->mutex);
    }
}

static void both_unlock(struct inproc *one, struct inproc *other)
{
    pthread_mutex_unlock(&one->mutex);
    if (other != one) {
        pthread_mutex_unlock(&other->mutex);
    }
}

/* With the process's mutex and both ends': the other end, or all of its instance, has left. */
static void link_lose(struct inproc_link *link)
{
    link->opposite = NULL;
    if (!link->gone) {
        link->gone = true;
        DL_APPEND2(link->inproc->lost, link, lost_prev, lost_next);
        inproc_signal(link->inproc);
    }
}

static void inproc_close(ferry_transport_t *transport)
{
    if (transport == NULL) {
        return;
    }
    struct inproc *inproc = inproc_of(transport);
    pthread_mutex_lock(&process.mutex);
    if (instance_find(&inproc->address) != NULL) { /* not in a child that was forked since */
        HASH_DEL(process.instances, inproc);
    }
    while (inproc->facing != NULL) {
        struct inproc_link *link = inproc->facing;
        both_lock(inproc, link->inproc);
        link_lose(link);
        both_unlock(inproc, link->inproc);
        DL_DELETE2(inproc->facing, link, facing_prev, facing_next);
        link->facing_prev = NULL;
    }
    pthread_mutex_unlock(&process.mutex);
    inproc_return_sends(inproc);
    messages_free(inproc);
    close(inproc->wait_fd);
    inproc_release(inproc);
}

static uint32_t inproc_capabilities(const ferry_transport_t *transport)
{
    (void)transport;
    return FERRY_TRANSPORT_HOST | FERRY_TRANSPORT_ORDERED | FERRY_TRANSPORT_ZERO_COPY |
           FERRY_TRANSPORT_DETECTS | FERRY_TRANSPORT_SAFE_ABORT | FERRY_TRANSPORT_LOCAL;
}

static const char *inproc_identity(const ferry_transport_t *transport)
{
    (void)transport;
    return "inproc";
}

static void inproc_address(const ferry_transport_t *transport, const void **address_out,
                           size_t *bytes_out)
{
    *address_out = &inproc_of(transport)->address;
    *bytes_out = sizeof(struct inproc_address);
}

/* ---- links ---- */

static struct inproc_link *link_find(struct inproc *inproc, uint32_t session)
{
    struct inproc_link *link;
    HASH_FIND(hh, inproc->links, &session, sizeof(session), link);
    return link;
}

/* With the process's mutex: the end at the peer that faces this one, if it is there. */
static struct inproc_link *link_find_opposite(const struct inproc_link *link)
{
    struct inproc_link *other = link_find(link->peer, link->remote_session);
    bool faces = other != NULL && other->peer == link->inproc && !other->gone &&
                 other->remote_session == link->local_session;
    return faces ? other : NULL;
}

/* With the process's mutex: FERRY_ERR_UNREACHABLE, FERRY_ERR_INVALID_ARGUMENT, not raised. */
static ferry_status_t link_join(struct inproc_link *link, const void *address)
{
    struct inproc *inproc = link->inproc, *peer = instance_find(address);
    if (peer == NULL) {
        return FERRY_ERR_UNREACHABLE;
    }
    if (link_find(inproc, link->local_session) != NULL) {
        return FERRY_ERR_INVALID_ARGUMENT;
    }
    link->peer = peer;
    atomic_fetch_add(&peer->references, 1);
    DL_APPEND2(peer->facing, link, facing_prev, facing_next);
    both_lock(inproc, peer);
    HASH_ADD(hh, inproc->links, local_session, sizeof(link->local_session), link);
    struct inproc_link *other = link_find_opposite(link); /* perhaps itself */
    link->opposite = other;
    if (other != NULL) {
        other->opposite = link;
    }
    messages_meet(inproc, link);
    both_unlock(inproc, peer);
    return FERRY_OK;
}

static ferry_status_t inproc_connect(ferry_transport_t *transport, const void *address,
                                     size_t bytes, uint32_t local_session, uint32_t remote_session,
                                     void *context, ferry_link_t **link_out)
{
    if (bytes != sizeof(struct inproc_address)) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT, "an inproc address has %zu bytes, not %zu",
                           sizeof(struct inproc_address), bytes);
    }
    struct inproc_link *link = calloc(1, sizeof(*link));
    if (link == NULL) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory for a link");
    }
    link->base.transport = transport;
    link->base.context = context;
    link->inproc = inproc_of(transport);
    link->local_session = local_session;
    link->remote_session = remote_session;
    pthread_mutex_lock(&process.mutex);
    ferry_status_t status = link_join(link, address);
    pthread_mutex_unlock(&process.mutex);
    if (status != FERRY_OK) {
        free(link);
        return status == FERRY_ERR_UNREACHABLE
                   ? error_raise(status, "that agent of this process is gone")
                   : error_raise(status, "session %u is in use", local_session);
    }
    *link_out = &link->base;
    return FERRY_OK;
}

/* With the process's mutex: from here on nobody posts anything to this end or from it. */
static void link_part(struct inproc_link *link)
{
    struct inproc *inproc = link->inproc, *peer = link->peer;
    both_lock(inproc, peer);
    if (link->opposite != NULL) {
        link_lose(link->opposite);
    } else {
        messages_drop(&peer->early, NULL, link->remote_session);
    }
    if (link->lost_prev != NULL) {
        DL_DELETE2(inproc->lost, link, lost_prev, lost_next);
    }
    link->opposite = NULL;
    link->gone = true; /* also to what completions may try to post */
    messages_drop(&inproc->messages, link, link->local_session);
    HASH_DEL(inproc->links, link);
    both_unlock(inproc, peer);
    if (link->facing_prev != NULL) {
        DL_DELETE2(peer->facing, link, facing_prev, facing_next);
    }
}

static void inproc_disconnect(ferry_link_t *base)
{
    struct inproc_link *link = link_of(base);
    struct inproc *inproc = link->inproc;
    pthread_mutex_lock(&process.mutex);
    link_part(link);
    pthread_mutex_unlock(&process.mutex);
    link_return_sends(link);
    operations_finish(inproc, link_take_operations(link));
    inproc_release(link->peer);
    free(link);
}

static void inproc_describe(const ferry_link_t *link, char *text, size_t capacity)
{
    (void)link;
    if (capacity > 0) {
        text[0] = '\0'; /* there is nothing to add to the name */
    }
}

/* ---- progress ---- */

/* With the mutex. */
static struct inproc_link *lost_take(struct inproc *inproc)
{
    struct inproc_link *lost = inproc->lost;
    inproc->lost = NULL;
    for (struct inproc_link *link = lost; link != NULL; link = link->lost_next) {
        link->lost_prev = NULL;
    }
    return lost;
}

static unsigned links_report(struct inproc *inproc, struct inproc_link *lost)
{
    unsigned count = 0;
    while (lost != NULL) {
        struct inproc_link *link = lost;
        lost = link->lost_next;
        inproc->events.link_down(inproc->events.context, &link->base, FERRY_ERR_PEER_LOST,
                                 "the other agent of this process closed the link");
        count++;
    }
    return count;
}

/* What a link's end posted before it left is handed out before the news of its end. */
static unsigned inproc_progress(ferry_transport_t *transport)
{
    struct inproc *inproc = inproc_of(transport);
    if (!atomic_load_explicit(&inproc->news, memory_order_acquire)) {
        return 0;
    }
    atomic_store(&inproc->news, false);
    pthread_mutex_lock(&inproc->mutex);
    struct message *messages = messages_take(inproc);
    struct inproc_link *lost = lost_take(inproc);
    pthread_mutex_unlock(&inproc->mutex);
    ferry_operation_t *completed = completed_take(inproc);
    unsigned count = completed != NULL ? 1 : 0;
    operations_finish(inproc, completed);
    count += messages_deliver(inproc, messages);
    return count + links_report(inproc, lost);
}

static ferry_status_t inproc_arm(ferry_transport_t *transport)
{
    struct inproc *inproc = inproc_of(transport);
    uint64_t count;
    if (!atomic_load(&inproc->news)) {
        ssize_t drained = read(inproc->wait_fd, &count, sizeof(count));
        (void)drained; /* nothing to drain is as good */
        atomic_store(&inproc->armed, true);
    }
    return atomic_load(&inproc->news) ? FERRY_PENDING : FERRY_OK;
}

static int inproc_wait_fd(const ferry_transport_t *transport)
{
    return inproc_of(transport)->wait_fd;
}

static size_t inproc_pending(const ferry_transport_t *transport)
{
    return inproc_of(transport)->posted;
}

const ferry_transport_ops_t inproc_ops = {
    .struct_bytes = sizeof(ferry_transport_ops_t),
    .abi = FERRY_TRANSPORT_ABI,
    .name = "inproc",
    .open = inproc_open,
    .close = inproc_close,
    .capabilities = inproc_capabilities,
    .identity = inproc_identity,
    .address = inproc_address,
    .connect = inproc_connect,
    .disconnect = inproc_disconnect,
    .send_message = inproc_send_message,
    .send = inproc_send,
    .receive = inproc_receive,
    .decline = inproc_decline,
    .progress = inproc_progress,
    .arm = inproc_arm,
    .wait_fd = inproc_wait_fd,
    .pending = inproc_pending,
    .describe = inproc_describe,
};
