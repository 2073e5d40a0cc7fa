/* Whether what a call carries arrives as it was sent. */
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "core/error.h"
#include "ferry_perf/pattern.h"
#include "ferry_perf/rpc.h"

/* The body of a call to "check". */
struct check {
    uint64_t seed;
    uint64_t bytes;
    uint64_t echo; /* the tensors are wanted back */
};

static const DLDevice HOST = {kDLCPU, 0};

/* All tensors, one behind the other, against the pattern of the seed. */
static ferry_status_t tensors_check(const ferry_message_t *message, const struct check *check)
{
    ferry_status_t status = FERRY_OK;
    size_t done = 0;
    if (check->bytes == 0) {
        return FERRY_OK;
    }
    char *data = calloc(1, check->bytes);
    if (data == NULL) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory for %zu bytes", (size_t)check->bytes);
    }
    for (size_t i = 0; status == FERRY_OK && i < message->tensor_count; i++) {
        const DLTensor *view = &message->tensors[i].view;
        size_t bytes = (size_t)view->shape[0];
        if (done + bytes > check->bytes) {
            status = error_raise(FERRY_ERR_PROTOCOL, "more bytes came than were sent");
        } else {
            status = ferry_device_copy(HOST, data + done, view->device,
                                       (char *)view->data + view->byte_offset, bytes);
            done += bytes;
        }
    }
    if (status == FERRY_OK) {
        status = pattern_check(data, check->bytes, check->seed);
    }
    free(data);
    return status;
}

ferry_status_t rpc_answer_check(ferry_request_t *request, void *context)
{
    const ferry_message_t *message = ferry_request_message(request);
    struct check check;
    (void)context;
    if (message->body_bytes != sizeof check) {
        return error_raise(FERRY_ERR_PROTOCOL, "a body of %zu bytes, not %zu", message->body_bytes,
                           sizeof check);
    }
    memcpy(&check, message->body, sizeof check);
    ferry_status_t status = tensors_check(message, &check);
    if (status != FERRY_OK) {
        return status;
    }
    ferry_message_t reply = {.tensors = message->tensors, .tensor_count = message->tensor_count};
    return ferry_request_reply(request, check.echo ? &reply : NULL);
}

/* One call with data that nobody has seen before. */
static ferry_status_t check_once(struct rpc *rpc, void *data)
{
    struct check check = {.bytes = rpc->arguments.bytes, .echo = rpc->kind == RPC_ECHO};
    ferry_message_t message = rpc->message;
    ferry_future_t *future = NULL;
    const ferry_message_t *reply = NULL;
    if (getrandom(&check.seed, sizeof check.seed, 0) != sizeof check.seed) {
        return error_raise(FERRY_ERR_SYSTEM, "no random bytes");
    }
    pattern_fill(data, check.bytes, check.seed);
    ferry_status_t status = perf_buffer_write(&rpc->arguments, data, check.bytes);
    message.body = &check;
    message.body_bytes = sizeof check;
    if (status == FERRY_OK) {
        status = ferry_call(rpc->agent, rpc->peer, "check", &message, &rpc->call, &future);
    }
    if (status == FERRY_OK) {
        status = ferry_future_wait(future, FERRY_FOREVER, &reply);
    }
    if (status == FERRY_OK && check.echo) {
        status = tensors_check(reply, &check);
    }
    ferry_future_release(future);
    return status;
}

ferry_status_t rpc_validate(struct rpc *rpc, uint64_t operations, struct perf_samples *samples)
{
    void *data = malloc(rpc->arguments.bytes + 1);
    ferry_status_t status =
        data == NULL ? error_raise(FERRY_ERR_NO_MEMORY, "no memory to validate with") : FERRY_OK;
    for (uint64_t i = 0; status == FERRY_OK && i < operations; i++) {
        status = check_once(rpc, data);
    }
    free(data);
    if (status == FERRY_OK && samples != NULL) {
        samples->operations += operations;
    }
    return status;
}
