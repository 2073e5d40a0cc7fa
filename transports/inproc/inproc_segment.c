/* Segments of the inproc transport: two posted operations that find each other, and one copy. The
 * first waits in the receiving instance. Whoever posts the second copies, outside that one's mutex;
 * the first is marked as busy meanwhile, and a disconnect of its link waits for that. */
#include <string.h>

#include "core/error.h"
#include "transports/inproc/inproc_internal.h"

static struct parcel *parcel_of(ferry_operation_t *operation)
{
    _Static_assert(sizeof(struct parcel) <= sizeof(operation->reserved), "it lies in place");
    return (struct parcel *)(void *)operation->reserved;
}

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

/* Gives a waiting operation, out of its list, to its owner's next progress(). With the mutex of the
 * list's instance, which the end of the operation's link takes as well: the owner is still open. */
static void operation_hand_over(ferry_operation_t *operation, ferry_status_t status)
{
    struct parcel *parcel = parcel_of(operation);
    struct inproc *owner = parcel->link->inproc;
    parcel->status = (int32_t)status;
    parcel->busy = 0;
    parcel->next = atomic_load(&owner->completed);
    while (!atomic_compare_exchange_weak(&owner->completed, &parcel->next, operation)) {
    }
    inproc_signal(owner);
}

ferry_operation_t *completed_take(struct inproc *inproc)
{
    ferry_operation_t *backwards = NULL, *completed = NULL;
    if (atomic_load_explicit(&inproc->completed, memory_order_relaxed) != NULL) {
        backwards = atomic_exchange(&inproc->completed, NULL);
    }
    while (backwards != NULL) {
        ferry_operation_t *operation = backwards;
        backwards = parcel_of(operation)->next;
        parcel_of(operation)->next = completed;
        completed = operation;
    }
    return completed;
}

/* With the instance's mutex, let go during the copy. Completes the waiting half; returns the status
 * of the coming one. The size is the receiver's affair: a send that was taken is done. */
static ferry_status_t parcels_join(struct inproc *inproc, ferry_operation_t **list,
                                   ferry_operation_t *waiting, const struct parcel *send,
                                   const struct parcel *receive)
{
    bool waiting_receives = parcel_of(waiting) == receive;
    bool declined = receive->data == NULL && receive->bytes > 0;
    bool fits = declined || send->bytes == receive->bytes;
    if (fits && !declined && send->bytes > 0) {
        pthread_mutex_unlock(&inproc->mutex);
        memcpy(receive->data, send->data, send->bytes);
        pthread_mutex_lock(&inproc->mutex);
    }
    ferry_status_t received = fits ? FERRY_OK : FERRY_ERR_PROTOCOL;
    list_remove(list, waiting);
    operation_hand_over(waiting, waiting_receives ? received : FERRY_OK);
    pthread_cond_broadcast(&inproc->copied);
    return waiting_receives ? FERRY_OK : received;
}

void link_return_sends(struct inproc_link *link)
{
    struct inproc *inproc = link->inproc;
    pthread_mutex_lock(&inproc->mutex);
    for (size_t i = 0; i < BUCKETS; i++) {
        ferry_operation_t **list = &inproc->sends[i];
        while (*list != NULL) {
            ferry_operation_t *operation = *list;
            if (parcel_of(operation)->session == link->local_session) {
                *list = parcel_of(operation)->next;
                operation_hand_over(operation, FERRY_ERR_PEER_LOST);
            } else {
                list = &parcel_of(operation)->next;
            }
        }
    }
    pthread_mutex_unlock(&inproc->mutex);
}

void inproc_return_sends(struct inproc *inproc)
{
    pthread_mutex_lock(&inproc->mutex);
    for (size_t i = 0; i < BUCKETS; i++) {
        while (inproc->sends[i] != NULL) {
            ferry_operation_t *operation = inproc->sends[i];
            inproc->sends[i] = parcel_of(operation)->next;
            operation_hand_over(operation, FERRY_ERR_PEER_LOST);
        }
    }
    pthread_mutex_unlock(&inproc->mutex);
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

ferry_status_t inproc_send(ferry_link_t *base, uint32_t segment, const ferry_memory_t *memory,
                           ferry_operation_t *operation)
{
    struct inproc_link *link = link_of(base);
    ferry_status_t status = check_host(memory);
    if (status != FERRY_OK) {
        return status;
    }
    parcel_fill(operation, link, link->remote_session, segment, memory->data, memory->bytes);
    struct inproc *peer = link->peer;
    pthread_mutex_lock(&peer->mutex);
    if (link->gone) {
        status = FERRY_ERR_PEER_LOST;
    } else {
        ferry_operation_t **list = &peer->receives[segment % BUCKETS];
        ferry_operation_t *waiting = list_claim(*list, link->remote_session, segment);
        if (waiting != NULL) {
            status = parcels_join(peer, list, waiting, parcel_of(operation), parcel_of(waiting));
        } else {
            list_add(&peer->sends[segment % BUCKETS], operation, link->inproc);
            status = FERRY_PENDING;
        }
    }
    pthread_mutex_unlock(&peer->mutex);
    return status == FERRY_ERR_PEER_LOST ? error_raise(status, "the other end is closed") : status;
}

static ferry_status_t receive_into(struct inproc_link *link, uint32_t segment, void *data,
                                   size_t bytes, ferry_operation_t *operation)
{
    struct inproc *inproc = link->inproc;
    parcel_fill(operation, link, link->local_session, segment, data, bytes);
    pthread_mutex_lock(&inproc->mutex);
    ferry_operation_t **list = &inproc->sends[segment % BUCKETS];
    ferry_operation_t *waiting =
        link->gone ? NULL : list_claim(*list, link->local_session, segment);
    ferry_status_t status = FERRY_PENDING;
    if (link->gone) {
        status = FERRY_ERR_PEER_LOST; /* what the other end had sent went with it */
    } else if (waiting != NULL) {
        status = parcels_join(inproc, list, waiting, parcel_of(waiting), parcel_of(operation));
    } else {
        list_add(&inproc->receives[segment % BUCKETS], operation, inproc);
    }
    pthread_mutex_unlock(&inproc->mutex);
    if (status == FERRY_ERR_PROTOCOL) {
        return error_raise(status, "the peer sent another number of bytes than %zu", bytes);
    }
    return status == FERRY_ERR_PEER_LOST ? error_raise(status, "the other end is closed") : status;
}

ferry_status_t inproc_receive(ferry_link_t *base, uint32_t segment, const ferry_memory_t *memory,
                              ferry_operation_t *operation)
{
    ferry_status_t status = check_host(memory);
    return status != FERRY_OK
               ? status
               : receive_into(link_of(base), segment, memory->data, memory->bytes, operation);
}

ferry_status_t inproc_decline(ferry_link_t *base, uint32_t segment, size_t bytes,
                              ferry_operation_t *operation)
{
    return receive_into(link_of(base), segment, NULL, bytes, operation);
}

/* With the list's instance's mutex: takes the link's own operations out of one list; those being
 * copied stay and are counted. */
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

/* From the lists of one instance, waiting for those that are being copied. */
static void lists_withdraw(struct inproc *inproc, ferry_operation_t *lists[BUCKETS],
                           const struct inproc_link *link, ferry_operation_t **taken)
{
    pthread_mutex_lock(&inproc->mutex);
    for (size_t i = 0; i < BUCKETS;) {
        if (list_withdraw(&lists[i], link, taken) > 0) {
            pthread_cond_wait(&inproc->copied, &inproc->mutex);
        } else {
            i++;
        }
    }
    pthread_mutex_unlock(&inproc->mutex);
}

ferry_operation_t *link_take_operations(struct inproc_link *link)
{
    ferry_operation_t *taken = NULL;
    lists_withdraw(link->inproc, link->inproc->receives, link, &taken);
    lists_withdraw(link->peer, link->peer->sends, link, &taken);
    /* What the other half has finished already; the rest stays for progress(). */
    ferry_operation_t *completed = completed_take(link->inproc);
    while (completed != NULL) {
        ferry_operation_t *operation = completed;
        struct parcel *parcel = parcel_of(operation);
        completed = parcel->next;
        if (parcel->link == link) {
            parcel->next = taken;
            taken = operation;
        } else {
            operation_hand_over(operation, (ferry_status_t)parcel->status);
        }
    }
    return taken;
}

void operations_finish(struct inproc *inproc, ferry_operation_t *operations)
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
