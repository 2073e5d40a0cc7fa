/* The ping-pong and the one-way flow of messages that the tests of UCX alone and those of Ferry's
 * transport contract share, so that the layer below is all that differs between ours and raw. */
#ifndef FERRY_PERF_FLOW_H
#define FERRY_PERF_FLOW_H

#include <ferry/transport.h>

#include "core/error.h"
#include "ferry_perf/perf.h"

/* Rounds of progress between two looks at whether the other end is still there. */
#define FLOW_LOOK_ROUNDS 65536

#define FLOW_ADDRESS_BYTES_MAX 8192

/* One end of a pair; a layer embeds it as the first member of its own struct. The counts are of
 * everything since it was opened. */
struct flow {
    struct perf_end *end; /* borrowed */
    struct perf_buffer buffers[2];
    ferry_memory_t outgoing, incoming; /* the buffers, as a layer takes them */
    ferry_memory_t token;              /* one byte of the host: ends a one-way flow */
    uint64_t sent, received;           /* completed */
    uint64_t sent_due, received_due;   /* of the loops that are over; a message may come early */
    uint64_t patterns;                 /* messages that were filled for validation */
    bool broken;
    struct error_record error; /* why, when broken */
    unsigned char token_byte;
};

/* What a layer does for a flow. Nothing blocks; a message of the token's size may follow or precede
 * the others. send and receive raise what goes wrong at once; what they have begun ends in
 * flow->sent or flow->received, or in flow_break(). */
struct flow_layer {
    ferry_status_t (*send)(struct flow *flow, const ferry_memory_t *memory);
    ferry_status_t (*receive)(struct flow *flow, const ferry_memory_t *memory);
    void (*progress)(struct flow *flow);
};

/* The loops over one layer: both ends call it for as many operations. answered: a ping-pong, not
 * messages one way. */
typedef ferry_status_t (*flow_loop_fn)(struct flow *flow, bool answered, uint64_t operations,
                                       struct perf_samples *samples);

void flow_init(struct flow *flow, struct perf_end *end);
void flow_finish(struct flow *flow);
/* Swaps addresses with the other end. FERRY_ERR_INCOMPATIBLE where it names itself differently. */
ferry_status_t flow_meet(struct flow *flow, const char *identity, const void *address, size_t bytes,
                         void *theirs, size_t capacity, size_t *bytes_out);
/* One round trip of the token: what connects at first use is connected then. */
ferry_status_t flow_greet(struct flow *flow, flow_loop_fn loop);
ferry_status_t flow_prepare(struct flow *flow, size_t bytes);
/* The loop; where the data is to be validated, for one operation at a time between fills and
 * comparisons. */
ferry_status_t flow_run(struct flow *flow, flow_loop_fn loop, bool answered, uint64_t operations,
                        struct perf_samples *samples);
/* From completions and events: the first reason why nothing more will come is kept. */
void flow_break(struct flow *flow, ferry_status_t status, const char *text);
/* FERRY_OK: the other end is there and nothing broke. */
ferry_status_t flow_look(struct flow *flow);

/* The loops below take a constant layer and are compiled into each layer's own file, so that its
 * functions are called directly, as in a program that was written for it. */
#define FLOW_LOOP static inline __attribute__((always_inline)) ferry_status_t

FLOW_LOOP flow_until(struct flow *flow, const struct flow_layer *layer, const uint64_t *count,
                     uint64_t wanted)
{
    for (unsigned rounds = 1; *count < wanted; rounds++) {
        layer->progress(flow);
        if (rounds % FLOW_LOOK_ROUNDS == 0) {
            ferry_status_t status = flow_look(flow);
            if (status != FERRY_OK) {
                return status;
            }
        }
    }
    return FERRY_OK;
}

/* The receive follows the send: it is posted while the message is under way. */
FLOW_LOOP flow_ping(struct flow *flow, const struct flow_layer *layer, uint64_t operations,
                    struct perf_samples *samples)
{
    int64_t start_ns = perf_now_ns(), last_ns = start_ns;
    for (uint64_t i = 0; i < operations; i++) {
        ferry_status_t status = layer->send(flow, &flow->outgoing);
        if (status == FERRY_OK) {
            status = layer->receive(flow, &flow->incoming);
        }
        if (status == FERRY_OK) {
            status = flow_until(flow, layer, &flow->received, ++flow->received_due);
        }
        if (status == FERRY_OK) {
            status = flow_until(flow, layer, &flow->sent, ++flow->sent_due);
        }
        if (status != FERRY_OK) {
            return status;
        }
        if (samples->count < samples->capacity) {
            int64_t now_ns = perf_now_ns();
            samples->ns[samples->count++] = (double)(now_ns - last_ns) / 2;
            last_ns = now_ns;
        }
    }
    samples->operations += operations;
    samples->elapsed_ns += (uint64_t)(perf_now_ns() - start_ns);
    return FERRY_OK;
}

FLOW_LOOP flow_pong(struct flow *flow, const struct flow_layer *layer, uint64_t operations)
{
    ferry_status_t status = operations == 0 ? FERRY_OK : layer->receive(flow, &flow->incoming);
    for (uint64_t i = 0; status == FERRY_OK && i < operations; i++) {
        status = flow_until(flow, layer, &flow->received, ++flow->received_due);
        if (status == FERRY_OK) {
            status = layer->send(flow, &flow->outgoing);
        }
        if (status == FERRY_OK && i + 1 < operations) {
            status = layer->receive(flow, &flow->incoming);
        }
        if (status == FERRY_OK) {
            status = flow_until(flow, layer, &flow->sent, ++flow->sent_due);
        }
    }
    return status;
}

/* Keeps a window of operations in flight: `post` of what is complete at `count`, which may run ahead
 * of the posts where messages come unasked. */
FLOW_LOOP flow_window(struct flow *flow, const struct flow_layer *layer, uint64_t operations,
                      const uint64_t *count, uint64_t *due, const ferry_memory_t *memory,
                      ferry_status_t (*post)(struct flow *flow, const ferry_memory_t *memory))
{
    const uint64_t first = *due, window = flow->end->options->window;
    *due += operations;
    ferry_status_t status = FERRY_OK;
    for (uint64_t posted = 0; status == FERRY_OK && posted < operations;) {
        while (status == FERRY_OK && posted < operations && posted < *count - first + window) {
            status = post(flow, memory);
            posted++;
        }
        if (status == FERRY_OK && posted < operations) {
            status = flow_until(flow, layer, count, first + posted - window + 1);
        }
    }
    return status == FERRY_OK ? flow_until(flow, layer, count, *due) : status;
}

/* Until the other end says that it has everything. */
FLOW_LOOP flow_pour(struct flow *flow, const struct flow_layer *layer, uint64_t operations,
                    struct perf_samples *samples)
{
    int64_t start_ns = perf_now_ns();
    ferry_status_t status = layer->receive(flow, &flow->token);
    if (status == FERRY_OK) {
        status = flow_window(flow, layer, operations, &flow->sent, &flow->sent_due, &flow->outgoing,
                             layer->send);
    }
    if (status == FERRY_OK) {
        status = flow_until(flow, layer, &flow->received, ++flow->received_due);
    }
    if (status == FERRY_OK) {
        samples->operations += operations;
        samples->elapsed_ns += (uint64_t)(perf_now_ns() - start_ns);
    }
    return status;
}

FLOW_LOOP flow_sink(struct flow *flow, const struct flow_layer *layer, uint64_t operations)
{
    ferry_status_t status = flow_window(flow, layer, operations, &flow->received,
                                        &flow->received_due, &flow->incoming, layer->receive);
    if (status == FERRY_OK) {
        status = layer->send(flow, &flow->token);
    }
    return status == FERRY_OK ? flow_until(flow, layer, &flow->sent, ++flow->sent_due) : status;
}

FLOW_LOOP flow_loop(struct flow *flow, const struct flow_layer *layer, bool answered,
                    uint64_t operations, struct perf_samples *samples)
{
    if (flow->end->client) {
        return answered ? flow_ping(flow, layer, operations, samples)
                        : flow_pour(flow, layer, operations, samples);
    }
    return answered ? flow_pong(flow, layer, operations) : flow_sink(flow, layer, operations);
}

#endif
