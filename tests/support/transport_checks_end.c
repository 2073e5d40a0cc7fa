/* Links that end: by this end, by the other, amid transfers, and again. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "support/transport_checks.h"

/* Memory that no access survives once it was given back. */
static unsigned char *pages(size_t bytes)
{
    void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    TEST_CHECK(data != MAP_FAILED);
    return data;
}

void check_posted_receives_end(struct ends *ends)
{
    static const size_t sizes[] = {0, 8, 5000, 1 << 20};
    enum { COUNT = sizeof(sizes) / sizeof(*sizes) };
    struct post receives[COUNT], declines[COUNT];
    unsigned char *memory[COUNT];
    for (uint32_t i = 0; i < COUNT; i++) {
        memory[i] = pages(sizes[i] + 1);
        post_to(&receives[i], &ends->end[0], POST_RECEIVE, i, memory[i], sizes[i]);
        post_to(&declines[i], &ends->end[0], POST_DECLINE, 100 + i, NULL, sizes[i]);
        TEST_CHECK(receives[i].pending && declines[i].pending);
    }
    TEST_CHECK(end_pending(&ends->end[0]) == 2 * COUNT);
    end_disconnect(&ends->end[0]);
    for (uint32_t i = 0; i < COUNT; i++) {
        ends_wait_post(ends, &receives[i]);
        ends_wait_post(ends, &declines[i]);
        TEST_CHECK(receives[i].status == FERRY_ERR_CANCELLED && receives[i].bytes == 0);
        TEST_CHECK(declines[i].status == FERRY_ERR_CANCELLED);
        munmap(memory[i], sizes[i] + 1);
    }
    TEST_CHECK(end_pending(&ends->end[0]) == 0);
}

/* One end leaves after `steps`, while a large segment is somewhere under way. */
static void end_amid_segment(struct ends *ends, int leaver, int steps)
{
    size_t bytes = 16 << 20;
    struct post send, receive;
    unsigned char *from = filled(bytes, 9), *to = pages(bytes);
    ends_connect(ends);
    if (strncmp(ends->end[0].ops->identity(ends->end[0].instance), "ucx 1.13", 8) == 0) {
        ends_settle(ends); /* it crashes where tcp connections are closed that are being made */
    }
    post_to(&receive, &ends->end[1], POST_RECEIVE, 1, to, bytes);
    post_to(&send, &ends->end[0], POST_SEND, 1, from, bytes);
    for (int i = 0; i < steps; i++) {
        ends_step(ends);
    }
    end_disconnect(&ends->end[leaver]);
    struct post *left = leaver == 0 ? &send : &receive, *other = leaver == 0 ? &receive : &send;
    ends_wait_post(ends, left);
    if (leaver == 0) {
        free(from); /* nothing reads it any more */
    } else {
        memset(to, 0x5a, bytes); /* nothing writes to it any more */
    }
    for (int i = 0; i < 500; i++) {
        ends_step(ends);
    }
    end_disconnect(&ends->end[!leaver]);
    ends_wait_post(ends, other);
    ends_settle(ends);
    TEST_CHECK(receive.status == FERRY_OK || receive.bytes == 0);
    TEST_CHECK(leaver == 0 || is_all(to, bytes, 0x5a));
    if (leaver != 0) {
        free(from);
    }
    munmap(to, bytes);
}

void check_matched_segments_end(struct ends *ends)
{
    for (int steps = 0; steps < 12; steps++) {
        end_amid_segment(ends, 0, steps);
        end_amid_segment(ends, 1, steps);
    }
}

/* The old session leaves messages and segments behind; the new one uses the same numbers. */
void check_sessions_start_afresh(struct ends *ends)
{
    for (int round = 0; round < 5; round++) {
        struct post left[4], message, send, receive;
        size_t bytes = 2 << 20;
        unsigned char *old = filled(bytes, 1), *new = filled(bytes, 2), *to = calloc(1, bytes);
        uint64_t stale = 1, fresh = 2;
        post_to(&left[0], &ends->end[0], POST_MESSAGE, 0, &stale, sizeof(stale));
        post_to(&left[1], &ends->end[0], POST_SEND, 1, old, 8);
        post_to(&left[2], &ends->end[0], POST_SEND, 2, old, 5000);
        post_to(&left[3], &ends->end[0], POST_SEND, 3, old, bytes);
        if (round % 2 == 0) {
            ends_step(ends);
        }
        end_disconnect(&ends->end[round % 2]);
        end_disconnect(&ends->end[!(round % 2)]);
        end_forget_messages(&ends->end[1]);
        ends_connect(ends);
        for (uint32_t i = 1; i < 4; i++) {
            size_t part = i == 1 ? 8 : i == 2 ? 5000 : bytes;
            post_to(&receive, &ends->end[1], POST_RECEIVE, i, to, part);
            post_to(&send, &ends->end[0], POST_SEND, i, new, part);
            ends_wait_post(ends, &receive);
            ends_wait_post(ends, &send);
            TEST_CHECK(receive.status == FERRY_OK && is_filled(to, part, 2));
        }
        post_to(&message, &ends->end[0], POST_MESSAGE, 0, &fresh, sizeof(fresh));
        ends_wait_messages(ends, 1, 1);
        ends_wait_post(ends, &message);
        TEST_CHECK(memcmp(ends->end[1].messages[0].data, &fresh, sizeof(fresh)) == 0);
        for (int i = 0; i < 4; i++) {
            ends_wait_post(ends, &left[i]);
        }
        free(to);
        free(new);
        free(old);
    }
}

/* The other instance closes with everything under way: this end hears of it by an event, by a refused post, or when it
 * disconnects; nothing stays pending. */
void check_peer_goes(struct ends *ends)
{
    struct end *end = &ends->end[0];
    struct post receive, send, message;
    size_t bytes = 8 << 20;
    unsigned char *from = filled(bytes, 1), *to = pages(bytes);
    uint64_t number = 1;
    post_to(&receive, end, POST_RECEIVE, 1, to, bytes);
    post_to(&send, end, POST_SEND, 1, from, bytes);
    end_disconnect(&ends->end[1]);
    ends->deadline_ns = 0;
    while (end_pending(&ends->end[1]) > 0) {
        ends_step(ends);
    }
    end_close(&ends->end[1]);
    for (int i = 0; i < 100; i++) {
        end_step(end);
    }
    post_to(&message, end, POST_MESSAGE, 0, &number, sizeof(number));
    end_disconnect(end);
    ends_wait_post(ends, &receive);
    ends_wait_post(ends, &send);
    ends_wait_post(ends, &message);
    TEST_CHECK(receive.status != FERRY_OK && receive.bytes == 0);
    TEST_CHECK(end_pending(end) == 0);
    munmap(to, bytes);
    free(from);
}

void check_unreceived_is_dropped(struct ends *ends)
{
    struct post posts[60];
    unsigned char *data = filled(1 << 20, 1);
    for (uint32_t i = 0; i < 60; i++) {
        post_to(&posts[i], &ends->end[0], POST_SEND, i, data, i % 3 == 0 ? 8 : i * 17000);
    }
    for (int i = 0; i < 200; i++) {
        ends_step(ends);
    }
    end_disconnect(&ends->end[1]);
    end_disconnect(&ends->end[0]);
    for (uint32_t i = 0; i < 60; i++) {
        ends_wait_post(ends, &posts[i]);
    }
    free(data);
}

void check_links_come_and_go(struct ends *ends)
{
    for (int round = 0; round < 100; round++) {
        struct post post, receive;
        uint64_t number = (uint64_t)round, target = 0;
        ends_connect(ends);
        post_to(&receive, &ends->end[0], POST_RECEIVE, 1, &target, sizeof(target));
        post_to(&post, &ends->end[1], POST_SEND, 1, &number, sizeof(number));
        ends_wait_post(ends, &receive);
        ends_wait_post(ends, &post);
        TEST_CHECK(target == number);
        end_disconnect(&ends->end[round % 2]);
        end_disconnect(&ends->end[!(round % 2)]);
    }
}
