/* The reference transport: agents of one process, by plain copies.
 *
 * One mutex guards what instances see of each other. A send lies in the receiving instance until a
 * receive of its number comes, or the
 * other way round; whoever has both copies, outside the mutex, while both operations are marked as
 * busy: a disconnect waits for
 * that. Nothing calls back under the mutex. */
#include "transports/inproc/inproc.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <uthash.h>
#include <utlist.h>

#include "core/error.h"

#define BUCKETS 256
#define EARLY_MESSAGES_MAX 256 /* kept for links that their owner has not made yet */

/* A posted operation's state, in ferry_operation_t.reserved. */
struct parcel {
    ferry_operation_t *next;
    struct inproc_link *link; /* who posted it */
    void *data;               /* NULL: a declined receive */
    size_t bytes;
    uint32_t session, segment; /* as the receiver names them */
    int32_t status;            /* once completed */
    int32_t busy;              /* being copied */
};

struct message {
    struct message *next;
    uint32_t session;
    size_t bytes;
    uint64_t data[]; /* aligned to 8 */
};

struct inproc_link {
    ferry_link_t base;     /* first */
    struct inproc *inproc; /* borrowed */
    struct inproc *peer;   /* borrowed; NULL once it is closed */
    uint32_t local_session, remote_session;
    bool gone, told; /* the other end left; the event was given */
    UT_hash_handle hh;
};

struct inproc {
    ferry_transport_t base; /* first */
    ferry_transport_events_t events;
    uint64_t id;
    int wait_fd;
    atomic_bool news; /* something for progress() */
    bool armed;
    size_t posted;
    struct inproc_link *links; /* hash by local_session */
    struct message *messages, **messages_tail;
    size_t early; /* of these, with no link yet */
    ferry_operation_t *completed, **completed_tail;
    ferry_operation_t *sends[BUCKETS],
        *receives[BUCKETS]; /* waiting for the other half, by segment */
    struct inproc *next;
};

static struct {
    pthread_mutex_t mutex;
    pthread_cond_t copied;
    struct inproc *instances;
    uint64_t last_id;
} shared = {.mutex = PTHREAD_MUTEX_INITIALIZER, .copied = PTHREAD_COND_INITIALIZER};

static struct parcel *parcel_of(ferry_operation_t *operation)
{
    _Static_assert(sizeof(struct parcel) <= sizeof(operation->reserved), "it lies in place");
    return (struct parcel *)(void *)operation->reserved;
}

static struct inproc *inproc_of(const ferry_transport_t *transport)
{
    return (struct inproc *)(uintptr_t)(const void *)transport;
}

static struct inproc_link *link_of(ferry_link_t *link)
{
    return (struct inproc_link *)(void *)link;
}

/* With the mutex: there is something for the instance's next progress(). */
static void inproc_signal(struct inproc *inproc)
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
    pthread_mutex_init(&shared.mutex, NULL);
    pthread_cond_init(&shared.copied, NULL);
    shared.instances = NULL;
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
    if (inproc->wait_fd < 0) {
        ferry_status_t status = error_raise_errno(errno, "the inproc transport's descriptor");
        free(inproc);
        return status;
    }
    inproc->base.ops = &inproc_ops;
    inproc->events = options->events;
    inproc->messages_tail = &inproc->messages;
    inproc->completed_tail = &inproc->completed;
    pthread_mutex_lock(&shared.mutex);
    inproc->id = ++shared.last_id;
    LL_PREPEND(shared.instances, inproc);
    pthread_mutex_unlock(&shared.mutex);
    *transport_out = &inproc->base;
    return FERRY_OK;
}

static void inproc_close(ferry_transport_t *transport)
{
    if (transport == NULL) {
        return;
    }
    struct inproc *inproc = inproc_of(transport), *other;
    pthread_mutex_lock(&shared.mutex);
    LL_DELETE(shared.instances, inproc);
    LL_FOREACH(shared.instances, other)
    {
        for (struct inproc_link *link = other->links; link != NULL; link = link->hh.next) {
            if (link->peer == inproc) {
                link->peer = NULL;
                link->gone = true;
                inproc_signal(other);
            }
        }
    }
    pthread_mutex_unlock(&shared.mutex);
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
    *address_out = &inproc_of(transport)->id;
    *bytes_out = sizeof(uint64_t);
}

/* ---- links ---- */

static ferry_status_t inproc_connect(ferry_transport_t *transport, const void *address,
                                     size_t bytes, uint32_t local_session, uint32_t remote_session,
                                     void *context, ferry_link_t **link_out)
{
    struct inproc *inproc = inproc_of(transport), *peer = NULL;
    struct inproc_link *present, *link = calloc(1, sizeof(*link));
    uint64_t id;
    if (link == NULL) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory for a link");
    }
    if (bytes != sizeof(id)) {
        free(link);
        return error_raise(FERRY_ERR_INVALID_ARGUMENT, "an inproc address has %zu bytes, not %zu",
                           sizeof(id), bytes);
    }
    memcpy(&id, address, sizeof(id));
    link->base.transport = transport;
    link->base.context = context;
    link->inproc = inproc;
    link->local_session = local_session;
    link->remote_session = remote_session;
    pthread_mutex_lock(&shared.mutex);
    LL_SEARCH_SCALAR(shared.instances, peer, id, id);
    HASH_FIND(hh, inproc->links, &local_session, sizeof(local_session), present);
    link->peer = peer;
    if (peer != NULL && present == NULL) {
        HASH_ADD(hh, inproc->links, local_session, sizeof(link->local_session), link);
        inproc_signal(inproc); /* early messages have a link now */
    }
    pthread_mutex_unlock(&shared.mutex);
    if (peer == NULL || present != NULL) {
        free(link);
        return peer == NULL
                   ? error_raise(FERRY_ERR_UNREACHABLE, "that agent of this process is gone")
                   : error_raise(FERRY_ERR_INVALID_ARGUMENT, "session %u is in use", local_session);
    }
    *link_out = &link->base;
    return FERRY_OK;
}

/* With the mutex: takes the link's own operations out of one list; those being copied stay and are counted. */
static size_t list_withdraw(ferry_operation_t **list, const struct inproc_link *link,
                            ferry_operation_t **taken)
{
    size_t busy = 0;
    while (*list != NULL) {
        ferry_operation_t *operation = *list;
        struct parcel *parcel = parcel_of(operation);
        if (parcel->link != link) {
            list = &parcel->next;
        } else if (parcel->busy) {
            busy++;
            list = &parcel->next;
        } else {
            *list = parcel->next;
            parcel->status = FERRY_ERR_CANCELLED;
            parcel->next = *taken;
            *taken = operation;
        }
    }
    return busy;
}

/* With the mutex. */
static size_t link_withdraw(struct inproc_link *link, ferry_operation_t **taken)
{
    size_t busy = 0;
    for (size_t i = 0; i < BUCKETS; i++) {
        busy += list_withdraw(&link->inproc->receives[i], link, taken);
        if (link->peer != NULL) {
            busy += list_withdraw(&link->peer->sends[i], link, taken);
        }
    }
    return busy;
}

/* With the mutex: what the other half has finished already. */
static void link_collect(struct inproc_link *link, ferry_operation_t **taken)
{
    ferry_operation_t **list = &link->inproc->completed;
    while (*list != NULL) {
        ferry_operation_t *operation = *list;
        struct parcel *parcel = parcel_of(operation);
        if (parcel->link == link) {
            *list = parcel->next;
            parcel->next = *taken;
            *taken = operation;
        } else {
            list = &parcel->next;
        }
    }
    link->inproc->completed_tail = list;
}

static void operations_finish(struct inproc *inproc, ferry_operation_t *operations)
{
    while (operations != NULL) {
        ferry_operation_t *operation = operations;
        struct parcel parcel = *parcel_of(operation);
        operations = parcel.next;
        inproc->posted--;
        if (parcel.status == FERRY_ERR_PROTOCOL) {
            error_raise(FERRY_ERR_PROTOCOL, "the peer sent another number of bytes than %zu",
                        parcel.bytes);
        } else if (parcel.status != FERRY_OK) {
            error_raise((ferry_status_t)parcel.status, "the link was closed");
        }
        operation->complete(operation, (ferry_status_t)parcel.status,
                            parcel.status == FERRY_OK ? parcel.bytes : 0);
    }
}

static void inproc_disconnect(ferry_link_t *base)
{
    struct inproc_link *link = link_of(base), *other = NULL;
    ferry_operation_t *taken = NULL;
    pthread_mutex_lock(&shared.mutex);
    while (link_withdraw(link, &taken) > 0) {
        pthread_cond_wait(&shared.copied, &shared.mutex);
    }
    link_collect(link, &taken);
    HASH_DEL(link->inproc->links, link);
    if (link->peer != NULL) {
        HASH_FIND(hh, link->peer->links, &link->remote_session, sizeof(link->remote_session),
                  other);
    }
    if (other != NULL) {
        other->gone = true;
        inproc_signal(other->inproc);
    }
    pthread_mutex_unlock(&shared.mutex);
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
    struct message *message = malloc(sizeof(*message) + (bytes + 7) / 8 * 8);
    if (message == NULL) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory for a message of %zu bytes", bytes);
    }
    message->next = NULL;
    message->session = link->remote_session;
    message->bytes = bytes;
    memcpy(message->data, data, bytes);
    pthread_mutex_lock(&shared.mutex);
    struct inproc *peer = link->gone ? NULL : link->peer;
    if (peer != NULL) {
        *peer->messages_tail = message;
        peer->messages_tail = &message->next;
        inproc_signal(peer);
    }
    pthread_mutex_unlock(&shared.mutex);
    if (peer == NULL) {
        free(message);
        return error_raise(FERRY_ERR_PEER_LOST, "the other end is closed");
    }
    return FERRY_OK;
}

/* ---- segments ---- */

static void parcel_fill(ferry_operation_t *operation, struct inproc_link *link, uint32_t session,
                        uint32_t segment, void *data, size_t bytes)
{
    *parcel_of(operation) = (struct parcel){
        .link = link, .data = data, .bytes = bytes, .session = session, .segment = segment};
}

/* With the mutex: the waiting half of that number, left in its list but marked busy. */
static ferry_operation_t *list_claim(ferry_operation_t *list, uint32_t session, uint32_t segment)
{
    for (; list != NULL; list = parcel_of(list)->next) {
        struct parcel *parcel = parcel_of(list);
        if (parcel->session == session && parcel->segment == segment && !parcel->busy) {
            parcel->busy = 1;
            return list;
        }
    }
    return NULL;
}

static void list_remove(ferry_operation_t **list, ferry_operation_t *operation)
{
    while (*list != operation) {
        list = &parcel_of(*list)->next;
    }
    *list = parcel_of(operation)->next;
}

/* With the mutex, let go during the copy. Completes the waiting half at its owner's next progress(); returns the status of the coming one. */
static ferry_status_t parcels_join(ferry_operation_t **list, ferry_operation_t *waiting,
                                   const struct parcel *send, const struct parcel *receive,
                                   bool waiting_receives)
{
    struct parcel *parcel = parcel_of(waiting);
    bool declined = receive->data == NULL && receive->bytes > 0;
    bool fits = declined || send->bytes == receive->bytes;
    if (fits && !declined && send->bytes > 0) {
        pthread_mutex_unlock(&shared.mutex);
        memcpy(receive->data, send->data, send->bytes);
        pthread_mutex_lock(&shared.mutex);
    }
    list_remove(list, waiting);
    parcel->busy = 0;
    /* The size is the receiver's affair: a send that was taken is done. */
    ferry_status_t received = fits ? FERRY_OK : FERRY_ERR_PROTOCOL;
    parcel->status = waiting_receives ? (int32_t)received : FERRY_OK;
    parcel->next = NULL;
    struct inproc *owner = parcel->link->inproc;
    *owner->completed_tail = waiting;
    owner->completed_tail = &parcel->next;
    inproc_signal(owner);
    pthread_cond_broadcast(&shared.copied);
    return waiting_receives ? FERRY_OK : received;
}

static ferry_status_t check_host(const ferry_memory_t *memory)
{
    if (memory->device.device_type == kDLCPU || memory->device.device_type == kDLCUDAHost) {
        return FERRY_OK;
    }
    return error_raise(FERRY_ERR_UNSUPPORTED,
                       "inproc moves host memory only, not DLPack device type %d",
                       (int)memory->device.device_type);
}

static void list_add(ferry_operation_t **list, ferry_operation_t *operation, struct inproc *owner)
{
    parcel_of(operation)->next = *list;
    *list = operation;
    owner->posted++;
}

static ferry_status_t inproc_send(ferry_link_t *base, uint32_t segment,
                                  const ferry_memory_t *memory, ferry_operation_t *operation)
{
    struct inproc_link *link = link_of(base);
    ferry_status_t status = check_host(memory);
    if (status != FERRY_OK) {
        return status;
    }
    parcel_fill(operation, link, link->remote_session, segment, memory->data, memory->bytes);
    pthread_mutex_lock(&shared.mutex);
    struct inproc *peer = link->gone ? NULL : link->peer;
    if (peer == NULL) {
        status = FERRY_ERR_PEER_LOST;
    } else {
        ferry_operation_t **list = &peer->receives[segment % BUCKETS];
        ferry_operation_t *waiting = list_claim(*list, link->remote_session, segment);
        if (waiting != NULL) {
            status = parcels_join(list, waiting, parcel_of(operation), parcel_of(waiting), true);
        } else {
            list_add(&peer->sends[segment % BUCKETS], operation, link->inproc);
            status = FERRY_PENDING;
        }
    }
    pthread_mutex_unlock(&shared.mutex);
    return status == FERRY_ERR_PEER_LOST ? error_raise(status, "the other end is closed") : status;
}

static ferry_status_t receive_into(struct inproc_link *link, uint32_t segment, void *data,
                                   size_t bytes, ferry_operation_t *operation)
{
    struct inproc *inproc = link->inproc;
    parcel_fill(operation, link, link->local_session, segment, data, bytes);
    pthread_mutex_lock(&shared.mutex);
    ferry_operation_t **list = &inproc->sends[segment % BUCKETS];
    ferry_operation_t *waiting = list_claim(*list, link->local_session, segment);
    ferry_status_t status = FERRY_PENDING;
    if (waiting != NULL) {
        status = parcels_join(list, waiting, parcel_of(waiting), parcel_of(operation), false);
    } else {
        list_add(&inproc->receives[segment % BUCKETS], operation, inproc);
    }
    pthread_mutex_unlock(&shared.mutex);
    return status == FERRY_ERR_PROTOCOL
               ? error_raise(status, "the peer sent another number of bytes than %zu", bytes)
               : status;
}

static ferry_status_t inproc_receive(ferry_link_t *base, uint32_t segment,
                                     const ferry_memory_t *memory, ferry_operation_t *operation)
{
    ferry_status_t status = check_host(memory);
    return status != FERRY_OK
               ? status
               : receive_into(link_of(base), segment, memory->data, memory->bytes, operation);
}

static ferry_status_t inproc_decline(ferry_link_t *base, uint32_t segment, size_t bytes,
                                     ferry_operation_t *operation)
{
    return receive_into(link_of(base), segment, NULL, bytes, operation);
}

/* ---- progress ---- */

/* With the mutex: the messages that have a link, in order. Those that have none yet stay, the oldest are dropped beyond a bound. */
static struct message *messages_take(struct inproc *inproc)
{
    struct message *taken = NULL, **taken_tail = &taken, **at = &inproc->messages;
    size_t early = 0;
    while (*at != NULL) {
        struct message *message = *at;
        struct inproc_link *link;
        HASH_FIND(hh, inproc->links, &message->session, sizeof(message->session), link);
        if (link != NULL) {
            *at = message->next;
            message->next = NULL;
            *taken_tail = message;
            taken_tail = &message->next;
        } else {
            early++;
            at = &message->next;
        }
    }
    inproc->messages_tail = at;
    for (; early > EARLY_MESSAGES_MAX; early--) {
        struct message *oldest = inproc->messages;
        inproc->messages = oldest->next;
        free(oldest);
    }
    if (inproc->messages == NULL) {
        inproc->messages_tail = &inproc->messages;
    }
    return taken;
}

/* Links change only under the agent's lock, which is held, so the hash may be read here without the mutex. */
static unsigned messages_deliver(struct inproc *inproc, struct message *messages)
{
    unsigned count = 0;
    while (messages != NULL) {
        struct message *message = messages;
        struct inproc_link *link;
        messages = message->next;
        HASH_FIND(hh, inproc->links, &message->session, sizeof(message->session), link);
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
        pthread_mutex_lock(&shared.mutex);
        bool report = link->gone && !link->told;
        pthread_mutex_unlock(&shared.mutex);
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
    pthread_mutex_lock(&shared.mutex);
    atomic_store(&inproc->news, false);
    struct message *messages = messages_take(inproc);
    ferry_operation_t *completed = inproc->completed;
    inproc->completed = NULL;
    inproc->completed_tail = &inproc->completed;
    pthread_mutex_unlock(&shared.mutex);
    unsigned count = completed != NULL ? 1 : 0;
    operations_finish(inproc, completed);
    count += messages_deliver(inproc, messages);
    return count + links_report(inproc);
}

static ferry_status_t inproc_arm(ferry_transport_t *transport)
{
    struct inproc *inproc = inproc_of(transport);
    uint64_t count;
    pthread_mutex_lock(&shared.mutex);
    bool news = atomic_load(&inproc->news);
    if (!news) {
        ssize_t drained = read(inproc->wait_fd, &count, sizeof(count));
        (void)drained; /* nothing to drain is as good */
        inproc->armed = true;
    }
    pthread_mutex_unlock(&shared.mutex);
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
