#include <ferry/request.h>

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "rpc/engine.h"
#include "rpc/link.h"
#include "rpc/message.h"
#include "rpc/serve.h"

const ferry_message_t *ferry_request_message(const ferry_request_t *request)
{
    return &request->incoming.message;
}

const char *ferry_request_method(const ferry_request_t *request)
{
    return request->method_name;
}

const char *ferry_request_caller(const ferry_request_t *request)
{
    return request->link->remote_name;
}

int64_t ferry_request_remaining_ns(const ferry_request_t *request)
{
    if (request->deadline_ns == FERRY_FOREVER) {
        return FERRY_FOREVER;
    }
    int64_t left = request->deadline_ns - agent_now_ns(request->agent);
    return left > 0 ? left : 0;
}

bool ferry_request_cancelled(const ferry_request_t *request)
{
    return atomic_load(&request->cancelled);
}

ferry_status_t ferry_request_tensor(const ferry_request_t *request, const char *slot,
                                    DLDataType dtype, const ferry_tensor_t **tensor_out)
{
    if (request == NULL || slot == NULL || tensor_out == NULL) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT,
                           "request, slot and tensor_out must not be NULL");
    }
    return message_tensor(&request->incoming.message, slot, dtype, tensor_out);
}

/* A block that lives as long as the request; with the lock. */
static struct request_allocation *request_allocate(struct ferry_request *request, DLDevice device,
                                                   size_t bytes)
{
    struct request_allocation *allocation = calloc(1, sizeof(*allocation));
    if (allocation == NULL) {
        error_raise(FERRY_ERR_NO_MEMORY, "no memory for a tensor's description");
        return NULL;
    }
    if (memory_pool_take(request->agent->memory, device, false, bytes, &allocation->block) !=
        FERRY_OK) {
        free(allocation);
        return NULL;
    }
    allocation->next = request->allocations;
    request->allocations = allocation;
    return allocation;
}

ferry_status_t ferry_request_allocate(ferry_request_t *request, const char *name, DLDevice device,
                                      DLDataType dtype, int32_t ndim, const int64_t *shape,
                                      ferry_tensor_t *tensor_out)
{
    if (request == NULL || tensor_out == NULL) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT, "request and tensor_out must not be NULL");
    }
    if (name != NULL && (name[0] == '\0' || strlen(name) > FERRY_SLOT_BYTES_MAX)) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT,
                           "the slot name '%.40s' has %zu bytes; 1 to %d are allowed", name,
                           strlen(name), FERRY_SLOT_BYTES_MAX);
    }
    DLTensor view = {.device = tensor_device(device),
                     .ndim = ndim,
                     .dtype = dtype,
                     .shape = (int64_t *)(uintptr_t)shape};
    size_t bytes;
    const ferry_device_backend_t *backend;
    ferry_status_t status = ferry_tensor_bytes(&view, &bytes);
    if (status == FERRY_OK) {
        status = device_check(view.device, &backend);
    }
    if (status != FERRY_OK) {
        return status;
    }
    engine_lock(request->agent);
    struct request_allocation *allocation = request_allocate(request, view.device, bytes);
    engine_unlock(request->agent);
    if (allocation == NULL) {
        return ferry_last_error()->status;
    }
    if (ndim > 0) {
        memcpy(allocation->shape, shape, (size_t)ndim * sizeof(int64_t));
    }
    snprintf(allocation->name, sizeof(allocation->name), "%s", name == NULL ? "" : name);
    view.data = allocation->block.data;
    view.shape = allocation->shape;
    *tensor_out = (ferry_tensor_t){.name = name == NULL ? NULL : allocation->name, .view = view};
    return FERRY_OK;
}

/* ---- answering ---- */

static bool block_holds(const struct memory_block *block, const void *data)
{
    uintptr_t from = (uintptr_t)block->data, at = (uintptr_t)data;
    size_t bytes = block->capacity > block->bytes ? block->capacity : block->bytes;
    return block->data != NULL && at >= from && at - from < bytes;
}

/* Does the request keep this memory alive until the reply is sent? */
static bool request_owns(const struct ferry_request *request, const void *data)
{
    if (block_holds(&request->incoming.joint, data)) {
        return true;
    }
    for (uint64_t i = 0; i < request->incoming.wire.tensor_count; i++) {
        if (block_holds(&request->incoming.tensors[i].block, data)) {
            return true;
        }
    }
    for (const struct request_allocation *allocation = request->allocations; allocation != NULL;
         allocation = allocation->next) {
        if (block_holds(&allocation->block, data)) {
            return true;
        }
    }
    return false;
}

/* A tensor marked `copy`: its visible elements into memory of the request. On a device the copy is queued on the tensor's own stream. */
static ferry_status_t request_copy_tensor(struct ferry_request *request,
                                          struct outgoing_tensor *tensor, size_t bytes)
{
    DLTensor *view = &tensor->view.view;
    const ferry_device_backend_t *backend;
    ferry_status_t status = device_check(view->device, &backend);
    if (status != FERRY_OK) {
        return status;
    }
    struct request_allocation *copy = request_allocate(request, view->device, bytes);
    if (copy == NULL) {
        return ferry_last_error()->status;
    }
    uintptr_t stream = tensor->stream;
    if (!backend->host_readable && stream == 0) {
        stream = 2; /* ready now: any stream will do for the copy; the thread's own default one */
    }
    status = backend->gather(view->device.device_id, stream, copy->block.data, view);
    if (status != FERRY_OK) {
        return status;
    }
    tensor->stream = stream;
    view->data = copy->block.data;
    view->byte_offset = 0;
    view->strides = NULL;
    return FERRY_OK;
}

static ferry_status_t request_keep_tensors(struct ferry_request *request,
                                           const ferry_message_t *message)
{
    struct outgoing *outgoing = &request->outgoing;
    for (uint64_t i = 0; i < outgoing->message.tensor_count; i++) {
        struct outgoing_tensor *tensor = &outgoing->tensors[i];
        if (outgoing->wire[i].bytes == 0 || tensor->release != NULL ||
            request_owns(request, tensor_data(&tensor->view.view))) {
            continue;
        }
        if (!message->tensors[i].copy) {
            char title[TENSOR_TITLE_BYTES];
            return error_raise(FERRY_ERR_INVALID_ARGUMENT,
                               "%s is read after the handler returned, but nothing keeps it alive: "
                               "give it a release, mark it copy, or use ferry_request_allocate()",
                               tensor_title(title, "result", message->tensors[i].name, i));
        }
        ferry_status_t status = request_copy_tensor(request, tensor, outgoing->wire[i].bytes);
        if (status != FERRY_OK) {
            return status;
        }
        if (outgoing->wire[i].inline_data != NULL) {
            outgoing->wire[i].inline_data = tensor_data(&tensor->view.view);
        }
    }
    return FERRY_OK;
}

static ferry_status_t request_reply(struct ferry_request *request, const ferry_message_t *message)
{
    if (request->answered) {
        return error_raise(FERRY_ERR_STATE, "%s: the request has been answered already",
                           request->method_name);
    }
    ferry_status_t status = outgoing_fill(&request->outgoing, message, "result");
    if (status == FERRY_OK) {
        status = request_keep_tensors(request, message);
    }
    if (status == FERRY_OK) {
        request->outgoing.copy_body = true;
        status = serve_post_reply(request);
    }
    if (status != FERRY_OK) {
        request->outgoing.message.tensor_count = 0; /* nothing was taken */
    }
    return status;
}

ferry_status_t ferry_request_reply(ferry_request_t *request, const ferry_message_t *message)
{
    if (request == NULL) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT, "the request is NULL");
    }
    engine_lock(request->agent);
    ferry_status_t status = request_reply(request, message);
    engine_unlock(request->agent);
    return status;
}

ferry_status_t ferry_request_fail(ferry_request_t *request, int32_t code, const char *format, ...)
{
    if (request == NULL || format == NULL) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT, "request and format must not be NULL");
    }
    char text[ERROR_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    ferry_status_t status = FERRY_OK;
    engine_lock(request->agent);
    if (request->answered) {
        status = error_raise(FERRY_ERR_STATE, "%s: the request has been answered already",
                             request->method_name);
    } else {
        serve_fail(request, FERRY_ERR_APPLICATION, FERRY_RAN, code, text);
    }
    engine_unlock(request->agent);
    return status;
}

ferry_status_t ferry_request_use_stream(ferry_request_t *request, DLDevice device, uintptr_t stream)
{
    if (request == NULL) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT, "the request is NULL");
    }
    const ferry_device_backend_t *backend;
    device = tensor_device(device);
    ferry_status_t status = device_check(device, &backend);
    if (status != FERRY_OK) {
        return status;
    }
    if (backend->host_readable) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT, "cpu has no streams");
    }
    engine_lock(request->agent);
    if (request->stream_count == AGENT_STREAMS_MAX) {
        status = error_raise(FERRY_ERR_LIMIT, "a request may name %d streams", AGENT_STREAMS_MAX);
    } else {
        request->stream_devices[request->stream_count] = device;
        request->streams[request->stream_count++] = stream;
    }
    engine_unlock(request->agent);
    return status;
}

void ferry_request_release(ferry_request_t *request)
{
    if (request == NULL) {
        return;
    }
    struct ferry_agent *agent = request->agent;
    engine_lock(agent);
    if (!request->answered) {
        serve_fail(request, FERRY_ERR_UNANSWERED, FERRY_RAN, 0,
                   "the request was released without an answer");
    }
    request_unref(request);
    bool last = agent_is_unused(agent);
    engine_unlock(agent);
    if (last) {
        agent_free(agent);
    }
}
