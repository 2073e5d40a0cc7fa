#include "support/transport_checks.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

#define GUARD 64 /* bytes behind a buffer that must stay as they are */

static void check_instance(struct ends *ends)
{
    struct end *end = &ends->end[0];
    const void *address;
    size_t bytes = 0;
    uint32_t capabilities = end->ops->capabilities(end->instance);
    TEST_CHECK(end->ops->abi == FERRY_TRANSPORT_ABI && end->ops->name[0] != '\0');
    TEST_CHECK((capabilities & FERRY_TRANSPORT_HOST) != 0);
    TEST_CHECK(capabilities == end->ops->capabilities(ends->end[1].instance));
    TEST_CHECK(strstr(end->ops->identity(end->instance), end->ops->name) != NULL);
    TEST_CHECK(
        strcmp(end->ops->identity(end->instance), end->ops->identity(ends->end[1].instance)) == 0);
    end->ops->address(end->instance, &address, &bytes);
    TEST_CHECK(address != NULL && bytes > 0 && bytes <= FERRY_TRANSPORT_ADDRESS_BYTES_MAX);
    TEST_CHECK(end->ops->wait_fd(end->instance) >= 0);
    TEST_CHECK(end_pending(end) == 0);
    end->ops->close(NULL);
}

static void check_description(struct ends *ends)
{
    char text[256], cut[8];
    memset(cut, 'x', sizeof(cut));
    struct end *end = &ends->end[0];
    pthread_mutex_lock(&end->mutex);
    end->ops->describe(end->link, text, sizeof(text));
    end->ops->describe(end->link, cut, 5);
    end->ops->describe(end->link, cut, 0);
    pthread_mutex_unlock(&end->mutex);
    TEST_CHECK(strlen(text) > 0 || strcmp(end->ops->name, "ucx") != 0);
    TEST_CHECK(memchr(cut, '\0', 5) != NULL && cut[5] == 'x');
}

static void message_round_trip(struct ends *ends, int from, size_t bytes)
{
    struct post post;
    struct end *to = &ends->end[!from];
    unsigned char *data = filled(bytes, (uint32_t)bytes);
    size_t before = end_message_count(to);
    post_to(&post, &ends->end[from], POST_MESSAGE, 0, data, bytes);
    ends_wait_messages(ends, !from, before + 1);
    ends_wait_post(ends, &post);
    TEST_CHECK(post.status == FERRY_OK);
    pthread_mutex_lock(&to->mutex);
    const struct ends_message *message = &to->messages[before];
    TEST_CHECK(message->link == to->link && message->bytes == bytes);
    TEST_CHECK(is_filled(message->data, bytes, (uint32_t)bytes));
    pthread_mutex_unlock(&to->mutex);
    free(data);
}

static void check_messages(struct ends *ends)
{
    static const size_t sizes[] = {0,   1,   7,    8,    9,    63,   64,   65,
                                   127, 512, 1023, 2048, 4095, 4097, 8000, ENDS_MESSAGE_BYTES};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        message_round_trip(ends, 0, sizes[i]);
        message_round_trip(ends, 1, sizes[i]);
    }
    struct post post;
    unsigned char *large = filled(ENDS_MESSAGE_BYTES + 8, 1);
    post_to(&post, &ends->end[0], POST_MESSAGE, 0, large, ENDS_MESSAGE_BYTES + 1);
    TEST_CHECK(post_done(&post) && post.status == FERRY_ERR_LIMIT);
    free(large);
}

#define MANY 1000

static void check_many_messages(struct ends *ends)
{
    struct post *posts = calloc(MANY, sizeof(*posts));
    uint32_t(*data)[512] = calloc(MANY, sizeof(*data));
    bool *seen = calloc(MANY, sizeof(*seen));
    for (uint32_t i = 0; i < MANY; i++) {
        data[i][0] = i;
        post_to(&posts[i], &ends->end[0], POST_MESSAGE, 0, data[i], 8 + i % 7 * 300);
    }
    ends_wait_messages(ends, 1, MANY);
    for (uint32_t i = 0; i < MANY; i++) {
        ends_wait_post(ends, &posts[i]);
        TEST_CHECK(posts[i].status == FERRY_OK);
    }
    ends_settle(ends);
    struct end *to = &ends->end[1];
    bool ordered = (to->ops->capabilities(to->instance) & FERRY_TRANSPORT_ORDERED) != 0;
    TEST_CHECK(end_message_count(to) == MANY + 1); /* one of settling */
    for (uint32_t i = 0; i < MANY; i++) {
        uint32_t number;
        memcpy(&number, to->messages[i].data, sizeof(number));
        TEST_CHECK(number < MANY && !seen[number] && (!ordered || number == i));
        TEST_CHECK(to->messages[i].bytes == 8 + number % 7 * 300);
        seen[number] = true;
    }
    free(seen);
    free(data);
    free(posts);
}

static void check_echo(struct ends *ends)
{
    ends->end[1].echo = true;
    for (size_t i = 0; i < 100; i++) {
        struct post post;
        uint64_t number = i;
        post_to(&post, &ends->end[0], POST_MESSAGE, 0, &number, sizeof(number));
        ends_wait_messages(ends, 0, i + 1);
        ends_wait_post(ends, &post);
        TEST_CHECK(memcmp(ends->end[0].messages[i].data, &number, sizeof(number)) == 0);
    }
}

/* Whoever makes its end of the link first may send at once. */
static void check_early(struct ends *ends)
{
    struct post posts[300], segment, receive;
    uint64_t numbers[300];
    const void *address[2];
    size_t bytes[2];
    unsigned char *data = filled(100000, 3), *target = calloc(1, 100000);
    for (int i = 0; i < 2; i++) {
        ends->end[i].ops->address(ends->end[i].instance, &address[i], &bytes[i]);
    }
    end_connect(&ends->end[0], address[1], bytes[1], 11, 12);
    for (size_t i = 0; i < 300; i++) {
        numbers[i] = i;
        post_to(&posts[i], &ends->end[0], POST_MESSAGE, 0, &numbers[i], sizeof(numbers[i]));
    }
    post_to(&segment, &ends->end[0], POST_SEND, 5, data, 100000);
    for (size_t i = 0; i < 2000; i++) {
        ends_step(ends);
    }
    TEST_CHECK(end_message_count(&ends->end[1]) == 0);
    end_connect(&ends->end[1], address[0], bytes[0], 12, 11);
    post_to(&receive, &ends->end[1], POST_RECEIVE, 5, target, 100000);
    ends_wait_messages(ends, 1, 300);
    for (size_t i = 0; i < 300; i++) {
        ends_wait_post(ends, &posts[i]);
        TEST_CHECK(posts[i].status == FERRY_OK && ends->end[1].messages[i].bytes == 8);
    }
    ends_wait_post(ends, &receive);
    ends_wait_post(ends, &segment);
    TEST_CHECK(receive.status == FERRY_OK && is_filled(target, 100000, 3));
    free(target);
    free(data);
}

static void segment_once(struct ends *ends, uint32_t number, size_t bytes, bool receive_first)
{
    struct post send, receive;
    unsigned char *from = filled(bytes, number), *to = malloc(bytes + GUARD);
    memset(to, 0xee, bytes + GUARD);
    if (receive_first) {
        post_to(&receive, &ends->end[1], POST_RECEIVE, number, to, bytes);
        ends_step(ends);
        post_to(&send, &ends->end[0], POST_SEND, number, from, bytes);
    } else {
        post_to(&send, &ends->end[0], POST_SEND, number, from, bytes);
        for (int i = 0; i < 50; i++) {
            ends_step(ends);
        }
        post_to(&receive, &ends->end[1], POST_RECEIVE, number, to, bytes);
    }
    ends_wait_post(ends, &receive);
    ends_wait_post(ends, &send);
    TEST_CHECK(send.status == FERRY_OK && receive.status == FERRY_OK);
    TEST_CHECK(send.bytes == bytes && receive.bytes == bytes);
    TEST_CHECK(is_filled(to, bytes, number) && is_all(to + bytes, GUARD, 0xee));
    free(to);
    free(from);
}

static void check_segments(struct ends *ends)
{
    static const size_t sizes[] = {0, 1, 8, 4 << 10, 64 << 10, 1 << 20, (1 << 20) + 3, 64 << 20};
    uint32_t number = UINT32_MAX - 5; /* numbers wrap */
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        segment_once(ends, number++, sizes[i], false);
        segment_once(ends, number++, sizes[i], true);
    }
}

static size_t many_bytes(uint32_t i)
{
    return i % 50 == 0 ? 200000 : i * 13 % 9000;
}

static void check_many_segments(struct ends *ends)
{
    struct post *sends = calloc(MANY, sizeof(*sends)), *receives = calloc(MANY, sizeof(*receives));
    unsigned char **from = calloc(MANY, sizeof(*from)), **to = calloc(MANY, sizeof(*to));
    for (uint32_t i = 0; i < MANY; i++) {
        from[i] = filled(many_bytes(i), i);
        to[i] = malloc(many_bytes(i) + 1);
        if (i % 2 == 0) {
            post_to(&receives[i], &ends->end[1], POST_RECEIVE, i, to[i], many_bytes(i));
        }
        post_to(&sends[i], &ends->end[0], POST_SEND, i, from[i], many_bytes(i));
    }
    for (uint32_t i = MANY; i-- > 0;) {
        if (i % 2 != 0) {
            post_to(&receives[i], &ends->end[1], POST_RECEIVE, i, to[i], many_bytes(i));
        }
    }
    for (uint32_t i = 0; i < MANY; i++) {
        ends_wait_post(ends, &receives[i]);
        ends_wait_post(ends, &sends[i]);
        TEST_CHECK(sends[i].status == FERRY_OK && receives[i].status == FERRY_OK);
        TEST_CHECK(receives[i].bytes == many_bytes(i) && is_filled(to[i], many_bytes(i), i));
        free(from[i]);
        free(to[i]);
    }
    TEST_CHECK(end_pending(&ends->end[0]) == 0 && end_pending(&ends->end[1]) == 0);
    free(from);
    free(to);
    free(sends);
    free(receives);
}

static void check_declined(struct ends *ends)
{
    static const size_t sizes[] = {0, 8, 5000, 64 << 10, 8 << 20};
    uint32_t number = 70;
    for (size_t i = 0; i < 2 * sizeof(sizes) / sizeof(*sizes); i++) {
        struct post send, decline;
        size_t bytes = sizes[i / 2];
        unsigned char *data = filled(bytes, number);
        if (i % 2 == 0) {
            post_to(&decline, &ends->end[1], POST_DECLINE, number, NULL, bytes);
        }
        post_to(&send, &ends->end[0], POST_SEND, number, data, bytes);
        if (i % 2 != 0) {
            ends_step(ends);
            post_to(&decline, &ends->end[1], POST_DECLINE, number, NULL, bytes);
        }
        ends_wait_post(ends, &decline);
        ends_wait_post(ends, &send);
        TEST_CHECK(send.status == FERRY_OK && decline.status == FERRY_OK);
        free(data);
        segment_once(ends, ++number, 300, true);
        number++;
    }
}

static void wrong_size(struct ends *ends, uint32_t number, size_t sent, size_t wanted,
                       bool receive_first)
{
    struct post send, receive;
    unsigned char *from = filled(sent, number), *to = malloc(wanted + GUARD);
    memset(to, 0xee, wanted + GUARD);
    if (receive_first) {
        post_to(&receive, &ends->end[1], POST_RECEIVE, number, to, wanted);
    }
    post_to(&send, &ends->end[0], POST_SEND, number, from, sent);
    if (!receive_first) {
        ends_step(ends);
        post_to(&receive, &ends->end[1], POST_RECEIVE, number, to, wanted);
    }
    ends_wait_post(ends, &receive);
    ends_wait_post(ends, &send);
    TEST_CHECK(receive.status == FERRY_ERR_PROTOCOL && receive.bytes == 0);
    TEST_CHECK(is_all(to + wanted, GUARD, 0xee));
    free(to);
    free(from);
    segment_once(ends, number + 1, 300, false);
}

static void check_wrong_sizes(struct ends *ends)
{
    static const size_t sizes[][2] = {{8, 16},
                                      {16, 8},
                                      {0, 8},
                                      {8, 0},
                                      {5000, 6000},
                                      {6000, 5000},
                                      {8, 1 << 20},
                                      {1 << 20, 8},
                                      {1 << 20, 2 << 20},
                                      {2 << 20, 1 << 20}};
    uint32_t number = 100;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        wrong_size(ends, number, sizes[i][0], sizes[i][1], false);
        wrong_size(ends, number + 2, sizes[i][0], sizes[i][1], true);
        number += 4;
    }
}

static void check_other_memory(struct ends *ends)
{
    uint64_t data = 0;
    struct post post, receive;
    ferry_memory_t memory = {
        .data = &data, .bytes = sizeof(data), .device = {.device_type = kDLMetal}};
    post_memory(&post, &ends->end[0], POST_SEND, 1, &memory);
    TEST_CHECK(post.status == FERRY_ERR_UNSUPPORTED);
    post_memory(&post, &ends->end[0], POST_RECEIVE, 1, &memory);
    TEST_CHECK(post.status == FERRY_ERR_UNSUPPORTED);
    TEST_CHECK(end_pending(&ends->end[0]) == 0);
    memory.device.device_type = kDLCUDAHost;
    uint64_t target = 1;
    post_memory(&post, &ends->end[0], POST_SEND, 1, &memory);
    memory.data = &target;
    post_memory(&receive, &ends->end[1], POST_RECEIVE, 1, &memory);
    ends_wait_post(ends, &post);
    ends_wait_post(ends, &receive);
    TEST_CHECK(receive.status == FERRY_OK && target == 0); /* pinned memory is host memory */
}

static void refuse_connect(struct end *end, const void *address, size_t bytes,
                           uint32_t local_session)
{
    ferry_link_t *untouched = (ferry_link_t *)(void *)end, *link = untouched;
    pthread_mutex_lock(&end->mutex);
    ferry_status_t status =
        end->ops->connect(end->instance, address, bytes, local_session, 999, end, &link);
    pthread_mutex_unlock(&end->mutex);
    TEST_CHECK(status == FERRY_ERR_INVALID_ARGUMENT || status == FERRY_ERR_UNREACHABLE ||
               status == FERRY_ERR_TRANSPORT);
    TEST_CHECK(link == untouched);
}

static void check_bad_connects(struct ends *ends)
{
    struct end *end = &ends->end[0];
    const void *address;
    size_t bytes;
    unsigned char copy[FERRY_TRANSPORT_ADDRESS_BYTES_MAX + 64] = {0};
    ends->end[1].ops->address(ends->end[1].instance, &address, &bytes);
    memcpy(copy, address, bytes);
    refuse_connect(end, copy, bytes, ends->next_session - 1); /* in use */
    for (size_t cut = 0; cut < bytes; cut++) {
        unsigned char *exact = malloc(cut + 1); /* so that reading on is noticed */
        memcpy(exact, copy, cut);
        refuse_connect(end, exact, cut, 5000);
        free(exact);
    }
    refuse_connect(end, copy, bytes + 1, 5000);
    refuse_connect(end, copy, sizeof(copy), 5000);
    srand(1);
    for (int i = 0; i < 200; i++) {
        size_t place = (size_t)rand() % bytes;
        memcpy(copy, address, bytes);
        copy[place] = (unsigned char)(copy[place] ^ (1 << rand() % 8));
        refuse_connect(end, copy, bytes, 5000);
        for (size_t k = 0; k < bytes; k++) {
            copy[k] = (unsigned char)rand();
        }
        refuse_connect(end, copy, bytes, 5000);
    }
    message_round_trip(ends, 0, 100);
}

static void check_registered_memory(struct ends *ends)
{
    struct end *end = ends->end;
    size_t bytes = 4 << 20;
    unsigned char *data[2] = {filled(bytes, 1), calloc(1, bytes)};
    ferry_memory_t memory[2];
    bool worth = (end->ops->capabilities(end->instance) & FERRY_TRANSPORT_REGISTERS) != 0;
    for (int i = 0; i < 2; i++) {
        memory[i] =
            (ferry_memory_t){.data = data[i], .bytes = bytes, .device = {.device_type = kDLCPU}};
        pthread_mutex_lock(&end[i].mutex);
        ferry_status_t status =
            end[i].ops->register_memory(end[i].instance, &memory[i], &memory[i].handle);
        pthread_mutex_unlock(&end[i].mutex);
        TEST_CHECK(status == (worth ? FERRY_OK : FERRY_ERR_UNSUPPORTED));
        TEST_CHECK(worth == (memory[i].handle != NULL));
    }
    struct post send, receive;
    for (size_t part = 1; part <= bytes; part *= 4) {
        ferry_memory_t from = memory[0], to = memory[1];
        from.bytes = to.bytes = part;
        memset(data[1], 0, bytes);
        post_memory(&receive, &end[1], POST_RECEIVE, (uint32_t)part, &to);
        post_memory(&send, &end[0], POST_SEND, (uint32_t)part, &from);
        ends_wait_post(ends, &receive);
        ends_wait_post(ends, &send);
        TEST_CHECK(receive.status == FERRY_OK && is_filled(data[1], part, 1));
        TEST_CHECK(part == bytes || is_all(data[1] + part, 1, 0));
    }
    for (int i = 0; i < 2; i++) {
        pthread_mutex_lock(&end[i].mutex);
        if (memory[i].handle != NULL) {
            end[i].ops->unregister_memory(end[i].instance, memory[i].handle);
        }
        pthread_mutex_unlock(&end[i].mutex);
        free(data[i]);
    }
}

/* Progresses the other end until this one has nothing to do, then sleeps until a message comes. */
static void sleep_until_message(struct ends *ends, int sleeper)
{
    struct end *end = &ends->end[sleeper];
    struct post post;
    uint64_t number = 7;
    ends->deadline_ns = 0;
    while (end->ops->arm(end->instance) != FERRY_OK) {
        ends_step(ends);
    }
    struct pollfd fd = {.fd = end->ops->wait_fd(end->instance), .events = POLLIN};
    size_t before = end_message_count(end);
    post_to(&post, &ends->end[!sleeper], POST_MESSAGE, 0, &number, sizeof(number));
    while (end_message_count(end) == before) {
        while (poll(&fd, 1, 1) == 0) {
            end_step(&ends->end[!sleeper]); /* but not the sleeper */
        }
        end_step(end);
        if (end_message_count(end) == before && end->ops->arm(end->instance) != FERRY_OK) {
            ends_step(ends);
        }
    }
    ends_wait_post(ends, &post);
}

static void check_sleep(struct ends *ends)
{
    if (ends->end[0].driven) {
        return; /* the threads sleep by themselves */
    }
    for (int i = 0; i < 50; i++) {
        sleep_until_message(ends, i % 2);
    }
}

static void check_self(struct ends *ends)
{
    struct end *end = &ends->end[0];
    const void *address;
    size_t bytes;
    ferry_link_t *links[2];
    struct post post;
    uint64_t number = 44;
    end->ops->address(end->instance, &address, &bytes);
    end_connect(end, address, bytes, 21, 22);
    links[0] = end->link;
    end_connect(end, address, bytes, 22, 21);
    links[1] = end->link;
    for (int i = 0; i < 2; i++) {
        end->link = links[i];
        post_to(&post, end, POST_MESSAGE, 0, &number, sizeof(number));
        ends_wait_messages(ends, 0, (size_t)i + 1);
        ends_wait_post(ends, &post);
        TEST_CHECK(end->messages[i].link == links[!i]);
    }
    unsigned char *from = filled(300000, 2), *to = calloc(1, 300000);
    struct post send, receive;
    end->link = links[0];
    post_to(&send, end, POST_SEND, 1, from, 300000);
    end->link = links[1];
    post_to(&receive, end, POST_RECEIVE, 1, to, 300000);
    ends_wait_post(ends, &receive);
    ends_wait_post(ends, &send);
    TEST_CHECK(receive.status == FERRY_OK && is_filled(to, 300000, 2));
    free(from);
    free(to);
    end_disconnect(end);
    end->link = links[0];
    end_disconnect(end);
}

static const struct check {
    const char *name;
    void (*run)(struct ends *ends);
    bool linked; /* begins with a link */
} checks[] = {
    {"an instance describes itself", check_instance, false},
    {"a link describes itself", check_description, true},
    {"messages of all sizes arrive", check_messages, true},
    {"a thousand messages arrive once each", check_many_messages, true},
    {"events may post", check_echo, true},
    {"what is sent early arrives", check_early, false},
    {"segments of all sizes arrive", check_segments, true},
    {"a thousand segments find their memory", check_many_segments, true},
    {"declined segments are dropped", check_declined, true},
    {"segments of another size are refused", check_wrong_sizes, true},
    {"memory of other kinds is refused", check_other_memory, true},
    {"bad connects are refused", check_bad_connects, true},
    {"registered memory works", check_registered_memory, true},
    {"who sleeps is woken", check_sleep, true},
    {"an instance may talk to itself", check_self, false},
    {"posted receives end with their link", check_posted_receives_end, true},
    {"matched segments end with their link", check_matched_segments_end, false},
    {"a new session knows nothing of the old", check_sessions_start_afresh, true},
    {"a peer that goes is noticed", check_peer_goes, true},
    {"what nobody received is dropped", check_unreceived_is_dropped, true},
    {"links come and go", check_links_come_and_go, false},
};

size_t transport_check_count(void)
{
    return sizeof(checks) / sizeof(*checks);
}

const char *transport_check_name(size_t check)
{
    return checks[check].name;
}

void transport_check_run(size_t check, const struct wire *wire, bool threaded)
{
    struct ends ends;
    ends_open(&ends, wire, threaded);
    if (checks[check].linked) {
        ends_connect(&ends);
    }
    checks[check].run(&ends);
    ends_close(&ends);
}
