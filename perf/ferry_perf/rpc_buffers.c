/* What the calls of a test carry. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "ferry_perf/pattern.h"
#include "ferry_perf/rpc.h"

static DLDevice my_device(const struct rpc *rpc)
{
    return rpc->end->options->memory[rpc->end->client ? 0 : 1];
}

/* The bytes in equal parts, the last with what is over. */
static void tensors_set(struct rpc *rpc, ferry_tensor_t *tensors, int64_t *extents, size_t count,
                        const struct perf_buffer *buffer)
{
    size_t part = buffer->bytes / count;
    for (size_t i = 0; i < count; i++) {
        extents[i] = (int64_t)(i + 1 < count ? part : buffer->bytes - i * part);
        tensors[i] = (ferry_tensor_t){
            .name = rpc->names[i],
            .view = {.data = (char *)buffer->data + i * part,
                     .device = buffer->device,
                     .ndim = 1,
                     .dtype = {.code = kDLUInt, .bits = 8, .lanes = 1},
                     .shape = extents + i},
        };
    }
}

/* Not zeros: they can be quicker than what a program sends. */
static ferry_status_t buffer_fill(struct perf_buffer *buffer)
{
    void *data = malloc(buffer->bytes);
    if (data == NULL) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory for %zu bytes", buffer->bytes);
    }
    pattern_fill(data, buffer->bytes, 1);
    ferry_status_t status = perf_buffer_write(buffer, data, buffer->bytes);
    free(data);
    return status;
}

ferry_status_t rpc_buffers_create(struct rpc *rpc, size_t bytes)
{
    rpc->call = ferry_call_options();
    rpc->message = (ferry_message_t){.tensor_count = 0};
    rpc->path_known = false;
    rpc->path[0] = '\0';
    if (bytes == 0) {
        return FERRY_OK;
    }
    size_t count = rpc->end->options->tensors < bytes ? rpc->end->options->tensors : bytes;
    rpc->tensors = calloc(2 * count, sizeof(rpc->tensors[0]));
    rpc->extents = calloc(2 * count, sizeof(rpc->extents[0]));
    rpc->names = calloc(count, sizeof(rpc->names[0]));
    if (rpc->tensors == NULL || rpc->extents == NULL || rpc->names == NULL) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory for %zu tensors", count);
    }
    for (size_t i = 0; i < count; i++) {
        snprintf(rpc->names[i], sizeof(rpc->names[i]), "x%zu", i);
    }
    ferry_status_t status = perf_buffer_create(my_device(rpc), bytes, &rpc->arguments);
    if (status == FERRY_OK) {
        status = buffer_fill(&rpc->arguments);
    }
    if (status != FERRY_OK) {
        return status;
    }
    tensors_set(rpc, rpc->tensors, rpc->extents, count, &rpc->arguments);
    rpc->message = (ferry_message_t){.tensors = rpc->tensors, .tensor_count = count};
    if (rpc->kind == RPC_ECHO) {
        status = perf_buffer_create(my_device(rpc), bytes, &rpc->results);
        if (status == FERRY_OK) {
            tensors_set(rpc, rpc->tensors + count, rpc->extents + count, count, &rpc->results);
            rpc->call.results = rpc->tensors + count;
            rpc->call.result_count = count;
        }
    }
    return status;
}

void rpc_buffers_free(struct rpc *rpc)
{
    perf_buffer_destroy(&rpc->arguments);
    perf_buffer_destroy(&rpc->results);
    free(rpc->tensors);
    free(rpc->extents);
    free(rpc->names);
    rpc->tensors = NULL;
    rpc->extents = NULL;
    rpc->names = NULL;
    rpc->message = (ferry_message_t){.tensor_count = 0};
}
