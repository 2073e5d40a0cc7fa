#include "ferry_perf/flow.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ferry_perf/pattern.h"

#define IDENTITY_BYTES (FERRY_TRANSPORT_IDENTITY_BYTES_MAX + 1)

void flow_init(struct flow *flow, struct perf_end *end)
{
    *flow = (struct flow){.end = end};
    flow->token = (ferry_memory_t){
        .data = &flow->token_byte,
        .bytes = sizeof(flow->token_byte),
        .device = {.device_type = kDLCPU},
    };
    flow->outgoing = flow->token;
    flow->incoming = flow->token;
}

void flow_finish(struct flow *flow)
{
    perf_buffer_destroy(&flow->buffers[0]);
    perf_buffer_destroy(&flow->buffers[1]);
}

/* An identity of fixed size, then the address. */
ferry_status_t flow_meet(struct flow *flow, const char *identity, const void *address, size_t bytes,
                         void *theirs, size_t capacity, size_t *bytes_out)
{
    char mine[IDENTITY_BYTES + FLOW_ADDRESS_BYTES_MAX] = "";
    char other[IDENTITY_BYTES + FLOW_ADDRESS_BYTES_MAX];
    size_t other_bytes;
    if (bytes > FLOW_ADDRESS_BYTES_MAX) {
        return error_raise(FERRY_ERR_LIMIT, "an address of %zu bytes; %d are allowed", bytes,
                           FLOW_ADDRESS_BYTES_MAX);
    }
    snprintf(mine, IDENTITY_BYTES, "%s", identity);
    memcpy(mine + IDENTITY_BYTES, address, bytes);
    ferry_status_t status = perf_exchange(flow->end->control, mine, IDENTITY_BYTES + bytes, other,
                                          sizeof(other), &other_bytes);
    if (status != FERRY_OK) {
        return status;
    }
    if (other_bytes < IDENTITY_BYTES || memchr(other, '\0', IDENTITY_BYTES) == NULL ||
        other_bytes - IDENTITY_BYTES > capacity) {
        return error_raise(FERRY_ERR_PROTOCOL, "the other end sent %zu bytes that are no address",
                           other_bytes);
    }
    if (strcmp(mine, other) != 0) {
        return error_raise(FERRY_ERR_INCOMPATIBLE, "this end has %s, the other one %s", mine,
                           other);
    }
    *bytes_out = other_bytes - IDENTITY_BYTES;
    memcpy(theirs, other + IDENTITY_BYTES, *bytes_out);
    return FERRY_OK;
}

ferry_status_t flow_greet(struct flow *flow, flow_loop_fn loop)
{
    struct perf_samples nowhere = {.capacity = 0};
    return loop(flow, true, 1, &nowhere);
}

ferry_status_t flow_prepare(struct flow *flow, size_t bytes)
{
    DLDevice device = flow->end->options->memory[flow->end->client ? 0 : 1];
    ferry_memory_t *memory[2] = {&flow->outgoing, &flow->incoming};
    for (int i = 0; i < 2; i++) {
        perf_buffer_destroy(&flow->buffers[i]);
        flow->buffers[i] = (struct perf_buffer){.data = NULL};
        ferry_status_t status = perf_buffer_create(device, bytes, &flow->buffers[i]);
        if (status != FERRY_OK) {
            return status;
        }
        *memory[i] = (ferry_memory_t){
            .data = flow->buffers[i].data,
            .bytes = bytes,
            .device = device,
        };
    }
    return FERRY_OK;
}

void flow_break(struct flow *flow, ferry_status_t status, const char *text)
{
    if (!flow->broken) {
        flow->broken = true;
        error_record_set(&flow->error, status, FERRY_NOT_RUN, "%s", text);
    }
}

/* What the other end says of its own failure tells more than how the layer saw it. */
ferry_status_t flow_look(struct flow *flow)
{
    ferry_status_t status = FERRY_OK;
    if (perf_control_lost(flow->end->control)) {
        status = perf_barrier(flow->end->control);
    }
    if (status == FERRY_OK && flow->broken) {
        status = error_raise_record(&flow->error);
    }
    return status;
}

/* ---- validation ---- */

static ferry_status_t flow_fill(struct flow *flow, uint64_t seed)
{
    size_t bytes = flow->buffers[0].bytes;
    unsigned char *data = malloc(bytes == 0 ? 1 : bytes);
    if (data == NULL) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory for %zu bytes to validate", bytes);
    }
    pattern_fill(data, bytes, seed);
    ferry_status_t status = perf_buffer_write(&flow->buffers[0], data, bytes);
    free(data);
    return status;
}

static ferry_status_t flow_compare(struct flow *flow, uint64_t seed)
{
    size_t bytes = flow->buffers[1].bytes;
    unsigned char *data = malloc(bytes == 0 ? 1 : bytes);
    if (data == NULL) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory for %zu bytes to validate", bytes);
    }
    ferry_status_t status = perf_buffer_read(&flow->buffers[1], data, bytes);
    if (status == FERRY_OK) {
        status = pattern_check(data, bytes, seed);
    }
    free(data);
    return status;
}

static ferry_status_t flow_run_validated(struct flow *flow, flow_loop_fn loop, bool answered,
                                         uint64_t operations, struct perf_samples *samples)
{
    bool client = flow->end->client;
    ferry_status_t status = FERRY_OK;
    for (uint64_t i = 0; status == FERRY_OK && i < operations; i++) {
        /* The client's messages have odd seeds, the server's even ones. */
        uint64_t seed = 2 * ++flow->patterns;
        status = flow_fill(flow, seed + client);
        if (status == FERRY_OK) {
            status = perf_barrier(flow->end->control);
        }
        if (status == FERRY_OK) {
            status = loop(flow, answered, 1, samples);
        }
        if (status == FERRY_OK && (answered || !client)) {
            status = flow_compare(flow, seed + !client);
        }
    }
    return status;
}

ferry_status_t flow_run(struct flow *flow, flow_loop_fn loop, bool answered, uint64_t operations,
                        struct perf_samples *samples)
{
    return flow->end->options->validate
               ? flow_run_validated(flow, loop, answered, operations, samples)
               : loop(flow, answered, operations, samples);
}
