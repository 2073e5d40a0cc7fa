/* Control messages of the inproc transport: the sender copies one into the receiving instance, where
 * it lies until that one's progress(). What comes for a link that its owner has not made yet lies
 * in
 * a queue of its own meanwhile. */
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "transports/inproc/inproc_internal.h"

#define EARLY_MESSAGES_MAX 4096

static void queue_init(struct message_queue *queue)
{
    queue->head = NULL;
    queue->tail = &queue->head;
    queue->count = 0;
}

static void queue_add(struct message_queue *queue, struct message *message)
{
    message->next = NULL;
    *queue->tail = message;
    queue->tail = &message->next;
    queue->count++;
}

static struct message *queue_remove(struct message_queue *queue, struct message **at)
{
    struct message *message = *at;
    *at = message->next;
    if (queue->tail == &message->next) {
        queue->tail = at;
    }
    queue->count--;
    return message;
}

void messages_init(struct inproc *inproc)
{
    queue_init(&inproc->messages);
    queue_init(&inproc->early);
}

ferry_status_t inproc_send_message(ferry_link_t *base, const void *data, size_t bytes,
                                   ferry_operation_t *operation)
{
    (void)operation; /* the copy is made at once */
    struct inproc_link *link = link_of(base);
    struct inproc *peer = link->peer;
    if (bytes > link->inproc->message_bytes) {
        return error_raise(FERRY_ERR_LIMIT, "a control message of %zu bytes; %zu are allowed",
                           bytes, link->inproc->message_bytes);
    }
    struct message *message = malloc(sizeof(*message) + (bytes + 7) / 8 * 8);
    if (message == NULL) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory for a message of %zu bytes", bytes);
    }
    message->session = link->remote_session;
    message->bytes = (uint32_t)bytes;
    memcpy(message->data, data, bytes);
    pthread_mutex_lock(&peer->mutex);
    bool gone = link->gone;
    bool full = !gone && link->opposite == NULL && peer->early.count >= EARLY_MESSAGES_MAX;
    if (!gone && !full) {
        message->link = link->opposite;
        queue_add(message->link == NULL ? &peer->early : &peer->messages, message);
        if (message->link != NULL) {
            inproc_signal(peer);
        }
    }
    pthread_mutex_unlock(&peer->mutex);
    if (!gone && !full) {
        return FERRY_OK;
    }
    free(message);
    return full ? error_raise(FERRY_ERR_LIMIT,
                              "%d messages wait for the other end to make its link already",
                              EARLY_MESSAGES_MAX)
                : error_raise(FERRY_ERR_PEER_LOST, "the other end is closed");
}

void messages_meet(struct inproc *inproc, struct inproc_link *link)
{
    struct message **at = &inproc->early.head;
    while (*at != NULL) {
        if ((*at)->session == link->local_session) {
            struct message *message = queue_remove(&inproc->early, at);
            message->link = link;
            queue_add(&inproc->messages, message);
            inproc_signal(inproc);
        } else {
            at = &(*at)->next;
        }
    }
}

void messages_drop(struct message_queue *queue, const struct inproc_link *link, uint32_t session)
{
    struct message **at = &queue->head;
    while (*at != NULL) {
        if ((*at)->link == link && (*at)->session == session) {
            free(queue_remove(queue, at));
        } else {
            at = &(*at)->next;
        }
    }
}

struct message *messages_take(struct inproc *inproc)
{
    struct message *messages = inproc->messages.head;
    queue_init(&inproc->messages);
    return messages;
}

unsigned messages_deliver(struct inproc *inproc, struct message *messages)
{
    unsigned count = 0;
    while (messages != NULL) {
        struct message *message = messages;
        messages = message->next;
        inproc->events.message(inproc->events.context, &message->link->base, message->data,
                               message->bytes);
        free(message);
        count++;
    }
    return count;
}

static void queue_free(struct message_queue *queue)
{
    while (queue->head != NULL) {
        free(queue_remove(queue, &queue->head));
    }
}

void messages_free(struct inproc *inproc)
{
    queue_free(&inproc->messages);
    queue_free(&inproc->early);
}
