/* Channels within the process: frames in order, the end of one told behind what it had sent, and no descriptor of their own. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/local_channel.h"

#define PATIENCE_NS 10000000000
#define BACKLOG 1000

/* One owner: its poller, its port and the channels that came in. */
struct owner {
    struct poller *poller;
    struct local_port *port;
    uint8_t id[LOCAL_PORT_ID_BYTES];
    struct end *accepting; /* for the next channel; NULL: it is refused */
    unsigned accepted, refused;
};

/* One end of a channel, and what it saw. */
struct end {
    struct local_channel *channel;
    unsigned frames, closed, frames_at_close;
    uint32_t next; /* the number that the next frame must bear */
    size_t frame_bytes;
    struct error_record error;
    bool destroy_in_frame, destroy_in_closed, echo;
};

static struct owner left, right;

static void end_destroy(struct end *end)
{
    local_channel_destroy(end->channel);
    end->channel = NULL;
}

static void on_frame(void *context, const void *data, size_t bytes)
{
    struct end *end = context;
    end->frames++;
    end->frame_bytes = bytes;
    if (bytes >= sizeof end->next) {
        cr_assert_eq(memcmp(data, &end->next, sizeof end->next), 0, "frame %u", end->next);
        end->next++;
    }
    if (end->echo) {
        cr_assert_eq(local_channel_send(end->channel, data, bytes), FERRY_OK);
    }
    if (end->destroy_in_frame) {
        end_destroy(end);
    }
}

static void on_closed(void *context, const struct error_record *error)
{
    struct end *end = context;
    end->closed++;
    end->frames_at_close = end->frames;
    end->error = *error;
    if (end->destroy_in_closed) {
        end_destroy(end);
    }
}

static struct channel_events events_of(struct end *end)
{
    return (struct channel_events){.context = end, .frame = on_frame, .closed = on_closed};
}

static void on_accept(void *context, struct local_channel *channel)
{
    struct owner *owner = context;
    if (owner->accepting == NULL) {
        owner->refused++;
        local_channel_destroy(channel);
        return;
    }
    struct channel_events events = events_of(owner->accepting);
    owner->accepting->channel = channel;
    owner->accepting = NULL;
    owner->accepted++;
    local_channel_take(channel, &events);
}

static void owner_open(struct owner *owner, uint8_t number)
{
    struct local_port_events events = {.context = owner, .accept = on_accept};
    memset(owner, 0, sizeof *owner);
    owner->id[0] = number;
    cr_assert_eq(poller_create(clock_monotonic(), &owner->poller), FERRY_OK);
    cr_assert_eq(local_port_open(owner->poller, owner->id, &events, &owner->port), FERRY_OK);
}

static void owner_close(struct owner *owner)
{
    local_port_close(owner->port);
    poller_destroy(owner->poller);
}

static void setup(void)
{
    owner_open(&left, 1);
    owner_open(&right, 2);
}

static void teardown(void)
{
    owner_close(&left);
    owner_close(&right);
}

TestSuite(local_channel, .init = setup, .fini = teardown, .timeout = 60);

/* Serves one owner until *counter reaches wanted. */
static void run_until(struct owner *owner, const unsigned *counter, unsigned wanted)
{
    int64_t deadline = clock_monotonic_ns() + PATIENCE_NS;
    while (*counter < wanted && clock_monotonic_ns() < deadline) {
        poller_wait(owner->poller, 50000000);
        poller_dispatch(owner->poller);
    }
    cr_assert_geq(*counter, wanted, "%u of %u", *counter, wanted);
}

static void dial(struct end *end, struct end *other)
{
    struct channel_events events = events_of(end);
    right.accepting = other;
    cr_assert_eq(local_channel_dial(left.port, right.id, &events, &end->channel), FERRY_OK);
}

static void send_number(struct end *end, uint32_t number)
{
    cr_assert_eq(local_channel_send(end->channel, &number, sizeof number), FERRY_OK);
}

Test(local_channel, frames_arrive_in_order_also_those_sent_before_it_was_accepted)
{
    struct end here = {.frames = 0}, there = {.echo = true};
    dial(&here, &there);
    for (uint32_t i = 0; i < BACKLOG; i++) {
        send_number(&here, i);
    }
    run_until(&right, &there.frames, BACKLOG);
    run_until(&left, &here.frames, BACKLOG);
    cr_assert_eq(right.accepted, 1);
    end_destroy(&here);
    end_destroy(&there);
}

Test(local_channel, one_poller_may_serve_both_ends)
{
    struct end here = {.frames = 0}, there = {.echo = true};
    struct channel_events events = events_of(&here);
    left.accepting = &there;
    cr_assert_eq(local_channel_dial(left.port, left.id, &events, &here.channel), FERRY_OK);
    send_number(&here, 0);
    run_until(&left, &here.frames, 1);
    end_destroy(&here);
    end_destroy(&there);
}

Test(local_channel, an_end_that_leaves_is_told_of_behind_what_it_sent)
{
    struct end here = {.frames = 0}, there = {.destroy_in_closed = true};
    dial(&here, &there);
    send_number(&here, 0);
    send_number(&here, 1);
    end_destroy(&here);
    run_until(&right, &there.closed, 1);
    cr_assert_eq(there.frames_at_close, 2);
    cr_assert_eq(there.error.status, FERRY_ERR_PEER_LOST);
    poller_dispatch(right.poller);
    cr_assert_eq(there.closed, 1);
}

Test(local_channel, what_is_sent_to_an_end_that_left_is_lost_without_an_error)
{
    struct end here = {.frames = 0}, there = {.destroy_in_frame = true};
    dial(&here, &there);
    send_number(&here, 0);
    send_number(&here, 1);
    run_until(&right, &there.frames, 1);
    send_number(&here, 2);
    poller_dispatch(right.poller);
    cr_assert_eq(there.frames, 1);
    run_until(&left, &here.closed, 1);
    end_destroy(&here);
}

Test(local_channel, a_refused_one_is_closed_at_the_other_end)
{
    struct end here = {.frames = 0};
    dial(&here, NULL);
    send_number(&here, 0);
    run_until(&right, &right.refused, 1);
    run_until(&left, &here.closed, 1);
    end_destroy(&here);
}

Test(local_channel, one_that_was_given_up_before_it_was_accepted_closes)
{
    struct end here = {.frames = 0}, there = {.frames = 0};
    dial(&here, &there);
    end_destroy(&here);
    run_until(&right, &there.closed, 1);
    end_destroy(&there);
}

Test(local_channel, a_port_that_closes_ends_what_it_has_not_accepted)
{
    struct end here = {.frames = 0};
    struct owner third;
    owner_open(&third, 3);
    struct channel_events events = events_of(&here);
    cr_assert_eq(local_channel_dial(left.port, third.id, &events, &here.channel), FERRY_OK);
    send_number(&here, 0);
    owner_close(&third);
    run_until(&left, &here.closed, 1);
    end_destroy(&here);
    cr_assert_eq(local_channel_dial(left.port, third.id, &events, &here.channel),
                 FERRY_ERR_UNREACHABLE);
}

Test(local_channel, bounds_hold)
{
    struct end here = {.frames = 0}, there = {.frames = 0};
    dial(&here, &there);
    void *large = calloc(1, CHANNEL_FRAME_BYTES_MAX + 1);
    cr_assert_eq(local_channel_send(here.channel, large, CHANNEL_FRAME_BYTES_MAX + 1),
                 FERRY_ERR_LIMIT);
    unsigned taken = 0;
    while (taken < 1000 &&
           local_channel_send(here.channel, large, CHANNEL_FRAME_BYTES_MAX) == FERRY_OK) {
        taken++;
    }
    cr_assert_eq(taken, CHANNEL_QUEUE_BYTES_MAX / CHANNEL_FRAME_BYTES_MAX);
    cr_assert_eq(ferry_last_error()->status, FERRY_ERR_LIMIT);
    there.destroy_in_frame = true;
    run_until(&right, &there.frames, 1);
    cr_assert_eq(there.frame_bytes, CHANNEL_FRAME_BYTES_MAX);
    free(large);
    end_destroy(&here);
}

/* Sends from a thread of its own. */
static void *send_backlog(void *context)
{
    struct end *end = context;
    for (uint32_t i = 0; i < BACKLOG; i++) {
        send_number(end, i);
    }
    return NULL;
}

Test(local_channel, the_ends_may_live_in_different_threads)
{
    struct end here = {.frames = 0}, there = {.frames = 0};
    pthread_t thread;
    dial(&here, &there);
    cr_assert_eq(pthread_create(&thread, NULL, send_backlog, &here), 0);
    run_until(&right, &there.frames, BACKLOG);
    pthread_join(thread, NULL);
    end_destroy(&here);
    run_until(&right, &there.closed, 1);
    end_destroy(&there);
}
