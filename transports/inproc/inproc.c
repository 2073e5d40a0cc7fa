/* The reference transport: agents of one process, by plain copies.
 *
 * One mutex guards what instances see of each other; nothing calls back under it. A message lies in
 * the receiving instance until its progress(). A segment that is sent lies there until a receive of
 * its number comes, or the other way round (inproc_segment.c). */
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

#define EARLY_MESSAGES_MAX 4096 /* kept for links that their owner has not made yet */

struct inproc_shared inproc_shared = {.mutex = PTHREAD_MUTEX_INITIALIZER,
                                      .copied = PTHREAD_COND_INITIALIZER};

void inproc_signal(struct inproc *inproc)
{
    atomic_store(&inproc->news, true);
    if (inproc->armed) {
        inproc->armed = false;
        uint64_t one = 1;
        ssize_t written = write(inproc->wait_fd, &one, sizeof(one));
        (void)written; /* a full counter is readable, too */
    }
}

/* ---- instances ---- */

/* In a forked child the parent's instances do not exist. */
static void shared_forget(void)
{
    pthread_mutex_init(&inproc_shared.mutex, NULL);
    pthread_cond_init(&inproc_shared.copied, NULL);
    inproc_shared.instances = NULL;
}

static void shared_prepare(void)
{
    pthread_atfork(NULL, NULL, shared_forget);
}

static ferry_status_t inproc_open(const ferry_transport_options_t *options,
                                  ferry_transport_t **transport_out)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, shared_prepare);
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
    inproc->messages_tail = &inproc->messages;
    inproc->completed_tail = &inproc->completed;
    inproc->message_bytes = options->message_bytes;
    pthread_mutex_lock(&inproc_shared.mutex);
    LL_PREPEND(inproc_shared.instances, inproc);
    pthread_mutex_unlock(&inproc_shared.mutex);
    *transport_out = &inproc->base;
    return FERRY_OK;
}

static void inproc_close(ferry_transport_t *transport)
{
    if (transport == NULL) {
        return;
    }
    struct inproc *inproc = inproc_of(transport), *other;
    pthread_mutex_lock(&inproc_shared.mutex);
    if (inproc_shared.instances != NULL) { /* none in a child that was forked since */
        LL_DELETE(inproc_shared.instances, inproc);
    }
    inproc_return_sends(inproc);
    LL_FOREACH(inproc_shared.instances, other)
    {
        for (struct inproc_link *link = other->links; link != NULL; link = link->hh.next) {
            if (link->peer == inproc) {
                link->peer = NULL;
                link->gone = true;
                inproc_signal(other);
            }
        }
    }
    pthread_mutex_unlock(&inproc_shared.mutex);
    while (inproc->messages != NULL) {
        struct message *message = inproc->messages;
        inproc->messages = message->next;
        free(message);
    }
    close(inproc->wait_fd);
    free(inproc);
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

/* With the mutex. */
static struct inproc *instance_find(const void *address)
{
    struct inproc *instance;
    LL_FOREACH(inproc_shared.instances, instance)
    {
        if (memcmp(&instance->address, address, sizeof(instance->address)) == 0) {
            return instance;
        }
    }
    return NULL;
}

/* With the mutex. */
static struct inproc_link *link_find(struct inproc *inproc, uint32_t session)
{
    struct inproc_link *link;
    HASH_FIND(hh, inproc->links, &session, sizeof(session), link);
    return link;
}

static ferry_status_t inproc_connect(ferry_transport_t *transport, const void *address,
                                     size_t bytes, uint32_t local_session, uint32_t remote_session,
                                     void *context, ferry_link_t **link_out)
{
    struct inproc *inproc = inproc_of(transport);
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
    link->inproc = inproc;
    link->local_session = local_session;
    link->remote_session = remote_session;
    pthread_mutex_lock(&inproc_shared.mutex);
    link->peer = instance_find(address);
    bool peer = link->peer != NULL, taken = link_find(inproc, local_session) != NULL;
    if (peer && !taken) {
        HASH_ADD(hh, inproc->links, local_session, sizeof(link->local_session), link);
        inproc_signal(inproc); /* early messages have a link now */
    }
    pthread_mutex_unlock(&inproc_shared.mutex);
    if (!peer || taken) {
        free(link);
        return taken
                   ? error_raise(FERRY_ERR_INVALID_ARGUMENT, "session %u is in use", local_session)
                   : error_raise(FERRY_ERR_UNREACHABLE, "that agent of this process is gone");
    }
    *link_out = &link->base;
    return FERRY_OK;
}

/* With the mutex: the link that faces this one, if it is there. */
static struct inproc_link *link_opposite(struct inproc_link *link)
{
    struct inproc_link *other =
        link->peer == NULL ? NULL : link_find(link->peer, link->remote_session);
    bool faces = other != NULL && other->peer == link->inproc &&
                 other->remote_session == link->local_session;
    return faces ? other : NULL;
}

/* With the mutex. */
static void messages_drop(struct inproc *inproc, uint32_t session)
{
    struct message **at = &inproc->messages;
    while (*at != NULL) {
        struct message *message = *at;
        if (message->session == session) {
            *at = message->next;
            free(message);
        } else {
            at = &message->next;
        }
    }
    inproc->messages_tail = at;
}

static void inproc_disconnect(ferry_link_t *base)
{
    struct inproc_link *link = link_of(base);
    pthread_mutex_lock(&inproc_shared.mutex);
    link->gone = true; /* also to what completions may try to post */
    ferry_operation_t *taken = link_take_operations(link);
    link_return_sends(link);
    messages_drop(link->inproc, link->local_session);
    HASH_DEL(link->inproc->links, link);
    struct inproc_link *other = link_opposite(link);
    if (other != NULL) {
        other->gone = true;
        inproc_signal(other->inproc);
    } else if (link->peer != NULL && link_find(link->peer, link->remote_session) == NULL) {
        messages_drop(link->peer, link->remote_session);
    }
    pthread_mutex_unlock(&inproc_shared.mutex);
    operations_finish(link->inproc, taken);
    free(link);
}

static void inproc_describe(const ferry_link_t *link, char *text, size_t capacity)
{
    (void)link;
    if (capacity > 0) {
        text[0] = '\0'; /* there is nothing to add to the name */
    }
}

/* ---- messages ---- */

static ferry_status_t inproc_send_message(ferry_link_t *base, const void *data, size_t bytes,
                                          ferry_operation_t *operation)
{
    (void)operation; /* the copy is made at once */
    struct inproc_link *link = link_of(base);
    if (bytes > link->inproc->message_bytes) {
        return error_raise(FERRY_ERR_LIMIT, "a control message of %zu bytes; %zu are allowed",
                           bytes, link->inproc->message_bytes);
    }
    struct message *message = malloc(sizeof(*message) + (bytes + 7) / 8 * 8);
    if (message == NULL) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory for a message of %zu bytes", bytes);
    }
    message->next = NULL;
    message->session = link->remote_session;
    message->bytes = bytes;
    memcpy(message->data, data, bytes);
    pthread_mutex_lock(&inproc_shared.mutex);
    struct inproc *peer = link->gone ? NULL : link->peer;
    bool early = peer != NULL && link_find(peer, link->remote_session) == NULL;
    bool full = early && peer->early >= EARLY_MESSAGES_MAX;
    if (peer != NULL && !full) {
        peer->early += early;
        *peer->messages_tail = message;
        peer->messages_tail = &message->next;
        inproc_signal(peer);
    }
    pthread_mutex_unlock(&inproc_shared.mutex);
    if (peer != NULL && !full) {
        return FERRY_OK;
    }
    free(message);
    return full ? error_raise(FERRY_ERR_LIMIT,
                              "%d messages wait for the other end to make its link already",
                              EARLY_MESSAGES_MAX)
                : error_raise(FERRY_ERR_PEER_LOST, "the other end is closed");
}

/* ---- progress ---- */

/* With the mutex: the messages that have a link, in order. Those that have none yet stay. */
static struct message *messages_take(struct inproc *inproc)
{
    struct message *taken = NULL, **taken_tail = &taken, **at = &inproc->messages;
    inproc->early = 0;
    while (*at != NULL) {
        struct message *message = *at;
        if (link_find(inproc, message->session) != NULL) {
            *at = message->next;
            message->next = NULL;
            *taken_tail = message;
            taken_tail = &message->next;
        } else {
            inproc->early++;
            at = &message->next;
        }
    }
    inproc->messages_tail = at;
    return taken;
}

/* Links change only under the agent's lock, which is held, so the hash may be read here without
 * the mutex. */
static unsigned messages_deliver(struct inproc *inproc, struct message *messages)
{
    unsigned count = 0;
    while (messages != NULL) {
        struct message *message = messages;
        struct inproc_link *link = link_find(inproc, message->session);
        messages = message->next;
        if (link != NULL) {
            inproc->events.message(inproc->events.context, &link->base, message->data,
                                   message->bytes);
        }
        free(message);
        count++;
    }
    return count;
}

static unsigned links_report(struct inproc *inproc)
{
    unsigned count = 0;
    for (struct inproc_link *link = inproc->links; link != NULL; link = link->hh.next) {
        pthread_mutex_lock(&inproc_shared.mutex);
        bool report = link->gone && !link->told;
        pthread_mutex_unlock(&inproc_shared.mutex);
        if (report) {
            link->told = true;
            inproc->events.link_down(inproc->events.context, &link->base, FERRY_ERR_PEER_LOST,
                                     "the other agent of this process closed the link");
            count++;
        }
    }
    return count;
}

static unsigned inproc_progress(ferry_transport_t *transport)
{
    struct inproc *inproc = inproc_of(transport);
    if (!atomic_load_explicit(&inproc->news, memory_order_acquire)) {
        return 0;
    }
    pthread_mutex_lock(&inproc_shared.mutex);
    atomic_store(&inproc->news, false);
    struct message *messages = messages_take(inproc);
    ferry_operation_t *completed = inproc->completed;
    inproc->completed = NULL;
    inproc->completed_tail = &inproc->completed;
    pthread_mutex_unlock(&inproc_shared.mutex);
    unsigned count = completed != NULL ? 1 : 0;
    operations_finish(inproc, completed);
    count += messages_deliver(inproc, messages);
    return count + links_report(inproc);
}

static ferry_status_t inproc_arm(ferry_transport_t *transport)
{
    struct inproc *inproc = inproc_of(transport);
    uint64_t count;
    pthread_mutex_lock(&inproc_shared.mutex);
    bool news = atomic_load(&inproc->news);
    if (!news) {
        ssize_t drained = read(inproc->wait_fd, &count, sizeof(count));
        (void)drained; /* nothing to drain is as good */
        inproc->armed = true;
    }
    pthread_mutex_unlock(&inproc_shared.mutex);
    return news ? FERRY_PENDING : FERRY_OK;
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
