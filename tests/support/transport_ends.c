#include "support/transport_ends.h"

#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "core/clock.h"

/* ---- memory ---- */

unsigned char *filled(size_t bytes, uint32_t seed)
{
    unsigned char *data = malloc(bytes == 0 ? 1 : bytes);
    TEST_CHECK(data != NULL);
    for (size_t i = 0; i < bytes; i++) {
        data[i] = (unsigned char)((i * 31 + i / 251 + seed) & 0xff);
    }
    return data;
}

bool is_filled(const void *data, size_t bytes, uint32_t seed)
{
    const unsigned char *at = data;
    for (size_t i = 0; i < bytes; i++) {
        if (at[i] != (unsigned char)((i * 31 + i / 251 + seed) & 0xff)) {
            return false;
        }
    }
    return true;
}

bool is_all(const void *data, size_t bytes, unsigned char value)
{
    const unsigned char *at = data;
    for (size_t i = 0; i < bytes; i++) {
        if (at[i] != value) {
            return false;
        }
    }
    return true;
}

/* ---- events ---- */

static void echo_done(ferry_operation_t *operation, ferry_status_t status, size_t bytes)
{
    (void)status;
    (void)bytes;
    free(operation->context);
    free(operation);
}

/* From inside an event, as an agent answers from one. */
static void echo(ferry_link_t *link, const void *data, size_t bytes)
{
    ferry_operation_t *operation = calloc(1, sizeof(*operation));
    operation->complete = echo_done;
    operation->context = malloc(bytes + 1);
    memcpy(operation->context, data, bytes);
    ferry_status_t status =
        link->transport->ops->send_message(link, operation->context, bytes, operation);
    if (status != FERRY_PENDING) {
        echo_done(operation, status, bytes);
    }
}

static void on_message(void *context, ferry_link_t *link, const void *data, size_t bytes)
{
    struct end *end = context;
    TEST_CHECK(!end->in_slot && link != NULL && link->context == end);
    if (end->message_count == end->message_capacity) {
        end->message_capacity = end->message_capacity * 2 + 64;
        end->messages = realloc(end->messages, end->message_capacity * sizeof(struct ends_message));
        TEST_CHECK(end->messages != NULL);
    }
    struct ends_message *message = &end->messages[end->message_count++];
    *message = (struct ends_message){.link = link, .bytes = bytes, .data = malloc(bytes + 1)};
    if (bytes > 0) {
        memcpy(message->data, data, bytes);
    }
    if (end->echo) {
        echo(link, data, bytes);
    }
}

static void on_link_down(void *context, ferry_link_t *link, ferry_status_t status, const char *text)
{
    struct end *end = context;
    TEST_CHECK(link != NULL && link->context == end && text != NULL && text[0] != '\0');
    TEST_CHECK(status != FERRY_OK && status != FERRY_PENDING);
    end->downs++;
    end->down_status = status;
}

/* ---- one end ---- */

static void end_enter(struct end *end)
{
    pthread_mutex_lock(&end->mutex);
    TEST_CHECK(!end->in_slot);
    end->in_slot = true;
}

static void end_leave(struct end *end)
{
    end->in_slot = false;
    pthread_mutex_unlock(&end->mutex);
    if (end->driven) {
        uint64_t one = 1;
        TEST_CHECK(write(end->kick, &one, sizeof(one)) == sizeof(one));
    }
}

/* As an agent's engine: progress while there is work, else arm and sleep. */
static void *end_main(void *argument)
{
    struct end *end = argument;
    pthread_mutex_lock(&end->mutex);
    while (!end->stop) {
        bool sleep = false;
        if (end->ops->progress(end->instance) == 0) {
            sleep = end->ops->arm(end->instance) == FERRY_OK;
        }
        pthread_mutex_unlock(&end->mutex);
        if (sleep) {
            struct pollfd fds[2] = {{.fd = end->kick, .events = POLLIN},
                                    {.fd = end->ops->wait_fd(end->instance), .events = POLLIN}};
            uint64_t kicks;
            poll(fds, 2, -1);
            ssize_t drained = read(end->kick, &kicks, sizeof(kicks));
            (void)drained;
        } else {
            sched_yield();
        }
        pthread_mutex_lock(&end->mutex);
        end->slept += sleep;
    }
    pthread_mutex_unlock(&end->mutex);
    return NULL;
}

void end_open(struct end *end, const struct wire *wire, bool threaded)
{
    *end = (struct end){.ops = wire->ops, .driven = threaded};
    ferry_transport_options_t options = {
        .struct_bytes = sizeof(options),
        .events = {.context = end, .message = on_message, .link_down = on_link_down},
        .interface = "",
        .protocol = wire->protocol,
        .message_bytes = ENDS_MESSAGE_BYTES,
    };
    pthread_mutex_init(&end->mutex, NULL);
    TEST_CHECK(wire->ops->open(&options, &end->instance) == FERRY_OK);
    TEST_CHECK(end->instance != NULL && end->instance->ops != NULL);
    end->kick = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    TEST_CHECK(end->kick >= 0);
    if (threaded) {
        TEST_CHECK(pthread_create(&end->thread, NULL, end_main, end) == 0);
    }
}

void end_step(struct end *end)
{
    if (end->driven) {
        sched_yield();
        return;
    }
    if (end->instance != NULL) {
        pthread_mutex_lock(&end->mutex);
        end->ops->progress(end->instance);
        pthread_mutex_unlock(&end->mutex);
    }
}

size_t end_pending(struct end *end)
{
    pthread_mutex_lock(&end->mutex);
    size_t pending = end->ops->pending(end->instance);
    pthread_mutex_unlock(&end->mutex);
    return pending;
}

size_t end_message_count(struct end *end)
{
    pthread_mutex_lock(&end->mutex);
    size_t count = end->message_count;
    pthread_mutex_unlock(&end->mutex);
    return count;
}

void end_forget_messages(struct end *end)
{
    pthread_mutex_lock(&end->mutex);
    for (size_t i = 0; i < end->message_count; i++) {
        free(end->messages[i].data);
    }
    end->message_count = 0;
    pthread_mutex_unlock(&end->mutex);
}

void end_close(struct end *end)
{
    if (end->instance == NULL) {
        return;
    }
    TEST_CHECK(end->link == NULL);
    int64_t deadline = clock_monotonic_ns() + TEST_SECONDS(60);
    while (end_pending(end) > 0) {
        end_step(end);
        TEST_CHECK(clock_monotonic_ns() < deadline);
    }
    if (end->driven) {
        end_enter(end);
        end->stop = true;
        end_leave(end);
        pthread_join(end->thread, NULL);
    }
    end->ops->close(end->instance);
    end->instance = NULL;
    end_forget_messages(end);
    free(end->messages);
    end->messages = NULL;
    close(end->kick);
    pthread_mutex_destroy(&end->mutex);
}

void end_connect(struct end *end, const void *address, size_t bytes, uint32_t local_session,
                 uint32_t remote_session)
{
    end_enter(end);
    end->downs = 0;
    TEST_CHECK(end->ops->connect(end->instance, address, bytes, local_session, remote_session, end,
                                 &end->link) == FERRY_OK);
    TEST_CHECK(end->link->transport == end->instance && end->link->context == end);
    end_leave(end);
}

/* Operations may complete inside disconnect(), so it does not count as a posting slot. */
void end_disconnect(struct end *end)
{
    if (end->link == NULL) {
        return;
    }
    pthread_mutex_lock(&end->mutex);
    end->ops->disconnect(end->link);
    end->link = NULL;
    end->in_slot = true;
    end_leave(end);
}

/* ---- both ends ---- */

void ends_open(struct ends *ends, const struct wire *wire, bool threaded)
{
    *ends = (struct ends){.next_session = 0x7fff1000};
    end_open(&ends->end[0], wire, threaded);
    end_open(&ends->end[1], wire, threaded);
}

void ends_connect(struct ends *ends)
{
    uint32_t sessions[2] = {ends->next_session + 1, ends->next_session + 2};
    ends->next_session += 2;
    for (int i = 0; i < 2; i++) {
        const void *address;
        size_t bytes;
        struct end *other = &ends->end[!i];
        other->ops->address(other->instance, &address, &bytes);
        end_connect(&ends->end[i], address, bytes, sessions[i], sessions[!i]);
    }
}

void ends_connected(struct ends *ends, const struct wire *wire, bool threaded)
{
    ends_open(ends, wire, threaded);
    ends_connect(ends);
}

void ends_close(struct ends *ends)
{
    end_disconnect(&ends->end[0]);
    end_disconnect(&ends->end[1]);
    for (int i = 0; i < 2; i++) {
        while (ends->end[i].instance != NULL && end_pending(&ends->end[i]) > 0) {
            ends_step(ends);
        }
    }
    end_close(&ends->end[0]);
    end_close(&ends->end[1]);
}

void ends_step(struct ends *ends)
{
    int64_t now = clock_monotonic_ns();
    if (ends->deadline_ns == 0) {
        ends->deadline_ns = now + TEST_SECONDS(60);
    }
    TEST_CHECK(now < ends->deadline_ns);
    end_step(&ends->end[0]);
    end_step(&ends->end[1]);
}

void ends_wait_post(struct ends *ends, const struct post *post)
{
    ends->deadline_ns = 0;
    while (!post_done(post)) {
        ends_step(ends);
    }
}

void ends_wait_messages(struct ends *ends, int end, size_t count)
{
    ends->deadline_ns = 0;
    while (end_message_count(&ends->end[end]) < count) {
        ends_step(ends);
    }
}

void ends_settle(struct ends *ends)
{
    ends->deadline_ns = 0;
    for (int i = 0; i < 2; i++) {
        while (ends->end[i].instance != NULL && end_pending(&ends->end[i]) > 0) {
            ends_step(ends);
        }
    }
    for (int i = 0; i < 2 && ends->end[0].link != NULL && ends->end[1].link != NULL; i++) {
        struct post post;
        uint64_t nothing = 0;
        size_t before = end_message_count(&ends->end[!i]);
        post_to(&post, &ends->end[i], POST_MESSAGE, 0, &nothing, sizeof(nothing));
        ends_wait_post(ends, &post);
        ends_wait_messages(ends, !i, before + 1);
    }
    for (int i = 0; i < 2000; i++) {
        ends_step(ends);
    }
}

/* ---- posts ---- */

static void post_complete(ferry_operation_t *operation, ferry_status_t status, size_t bytes)
{
    struct post *post = operation->context;
    TEST_CHECK(&post->operation == operation);
    TEST_CHECK(post->pending && !post->end->in_slot && status != FERRY_PENDING);
    post->status = status;
    post->bytes = bytes;
    TEST_CHECK(atomic_fetch_add(&post->done, 1) == 0);
}

void post_memory(struct post *post, struct end *end, enum post_kind kind, uint32_t segment,
                 const ferry_memory_t *memory)
{
    *post = (struct post){.operation = {.complete = post_complete, .context = post}, .end = end};
    memset(post->operation.reserved, 0xa5, sizeof(post->operation.reserved));
    const ferry_transport_ops_t *ops = end->ops;
    ferry_status_t status = FERRY_PENDING;
    end_enter(end);
    switch (kind) {
    case POST_MESSAGE:
        status = ops->send_message(end->link, memory->data, memory->bytes, &post->operation);
        break;
    case POST_SEND:
        status = ops->send(end->link, segment, memory, &post->operation);
        break;
    case POST_RECEIVE:
        status = ops->receive(end->link, segment, memory, &post->operation);
        break;
    case POST_DECLINE:
        status = ops->decline(end->link, segment, memory->bytes, &post->operation);
        break;
    }
    post->pending = status == FERRY_PENDING;
    if (!post->pending) {
        post->status = status;
        post->bytes = status == FERRY_OK ? memory->bytes : 0;
        atomic_store(&post->done, 1);
    }
    end_leave(end);
}

void post_to(struct post *post, struct end *end, enum post_kind kind, uint32_t segment,
             const void *data, size_t bytes)
{
    ferry_memory_t memory = {
        .data = (void *)(uintptr_t)data, .bytes = bytes, .device = {.device_type = kDLCPU}};
    post_memory(post, end, kind, segment, &memory);
}

bool post_done(const struct post *post)
{
    return atomic_load(&post->done) != 0;
}
