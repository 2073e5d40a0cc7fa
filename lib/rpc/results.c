#include "rpc/results.h"

#include <stdlib.h>
#include <string.h>

static ferry_status_t results_reserve(struct ferry_future *future, size_t count)
{
    if (count <= future->buffer_capacity) {
        return FERRY_OK;
    }
    struct result_buffer *buffers = calloc(count, sizeof(*buffers));
    if (buffers == NULL) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory to describe %zu result buffers", count);
    }
    free(future->buffers);
    future->buffers = buffers;
    future->buffer_capacity = count;
    return FERRY_OK;
}

static ferry_status_t results_take_buffer(struct result_buffer *buffer,
                                          const ferry_tensor_t *source, size_t position)
{
    ferry_status_t status = tensor_check(source, "result buffer", position, NULL);
    const ferry_device_backend_t *backend;
    if (status == FERRY_OK) {
        status = device_check(tensor_device(source->view.device), &backend);
    }
    if (status == FERRY_OK && source->read_only) {
        char title[TENSOR_TITLE_BYTES];
        status = error_raise(FERRY_ERR_INVALID_ARGUMENT, "%s is read-only",
                             tensor_title(title, "result buffer", source->name, position));
    }
    if (status != FERRY_OK) {
        return status;
    }
    tensor_copy_view(&buffer->view, &source->view);
    buffer->view.view.device = tensor_device(source->view.device);
    buffer->stream = source->stream;
    buffer->used = false;
    snprintf(buffer->name, sizeof(buffer->name), "%s", source->name == NULL ? "" : source->name);
    return FERRY_OK;
}

ferry_status_t results_take_options(struct ferry_future *future,
                                    const ferry_call_options_t *options)
{
    future->buffer_count = 0;
    future->has_results_device = options->results_device != NULL;
    if (future->has_results_device) {
        const ferry_device_backend_t *backend;
        future->results_device = tensor_device(*options->results_device);
        ferry_status_t status = device_check(future->results_device, &backend);
        if (status != FERRY_OK) {
            return status;
        }
    }
    if (options->result_count > 0 && options->results == NULL) {
        return error_raise(FERRY_ERR_INVALID_ARGUMENT,
                           "the options' results are NULL but result_count is %zu",
                           options->result_count);
    }
    ferry_status_t status = results_reserve(future, options->result_count);
    for (size_t i = 0; status == FERRY_OK && i < options->result_count; i++) {
        status = results_take_buffer(&future->buffers[i], &options->results[i], i);
    }
    if (status == FERRY_OK) {
        future->buffer_count = options->result_count;
    }
    return status;
}

ferry_status_t results_check_peer_device(const struct link *link, const struct wire_tensor *tensor,
                                         size_t position)
{
    if (tensor->target.device_type == kDLCPU) {
        return FERRY_OK;
    }
    for (size_t i = 0; i < link->device_count; i++) {
        if (tensor_device_equal(link->devices[i], tensor->target)) {
            return FERRY_OK;
        }
    }
    char title[TENSOR_TITLE_BYTES], target[FERRY_DEVICE_TEXT_BYTES];
    char has[256] = "cpu";
    for (size_t i = 0; i < link->device_count && strlen(has) < sizeof(has) - 40; i++) {
        char text[FERRY_DEVICE_TEXT_BYTES];
        if (link->devices[i].device_type != kDLCPU) {
            snprintf(has + strlen(has), sizeof(has) - strlen(has), ", %s",
                     ferry_device_print(link->devices[i], text));
        }
    }
    return error_raise(FERRY_ERR_UNKNOWN_DEVICE,
                       "%s should arrive on %s, which %s does not have; it has %s",
                       tensor_title(title, "argument", tensor->name, position),
                       ferry_device_print(tensor->target, target), link->remote_name, has);
}

static bool routes_reach_host(const struct device_map_view *view)
{
    if (view->clause == NULL) {
        return false;
    }
    const struct device_map_routes *results = &view->clause->results;
    for (size_t i = 0; i < results->count; i++) {
        if (results->all[i].from.device_type != kDLCPU &&
            results->all[i].to.device_type == kDLCPU) {
            return true;
        }
    }
    return false;
}

bool results_may_reach_host(const struct ferry_future *future, const struct peer *peer)
{
    for (size_t i = 0; i < future->buffer_count; i++) {
        if (future->buffers[i].view.view.device.device_type == kDLCPU) {
            return true;
        }
    }
    if (future->has_results_device) {
        return future->results_device.device_type == kDLCPU;
    }
    if (future->call_map != NULL) {
        struct device_map_view call = device_map_view(future->call_map, peer->name, peer->self);
        if (routes_reach_host(&call)) {
            return true;
        }
    }
    return routes_reach_host(&peer->view);
}

static struct result_buffer *results_find_buffer(struct ferry_future *future, size_t index)
{
    const char *name = future->incoming.tensors[index].name;
    for (size_t i = 0; i < future->buffer_count && name[0] != '\0'; i++) {
        if (!future->buffers[i].used && strcmp(future->buffers[i].name, name) == 0) {
            return &future->buffers[i];
        }
    }
    if (index < future->buffer_count && future->buffers[index].name[0] == '\0') {
        return &future->buffers[index];
    }
    return NULL;
}

static void shape_print(const DLTensor *view, char *text, size_t capacity)
{
    size_t length = (size_t)snprintf(text, capacity, "[");
    for (int i = 0; i < view->ndim && length + 24 < capacity; i++) {
        length += (size_t)snprintf(text + length, capacity - length, "%s%lld", i == 0 ? "" : ", ",
                                   (long long)view->shape[i]);
    }
    snprintf(text + length, capacity - length, "]");
}

static ferry_status_t results_check_fit(const struct incoming_tensor *result, size_t index,
                                        const DLTensor *buffer)
{
    const DLTensor *view = &result->view.view;
    bool same = view->ndim == buffer->ndim && view->dtype.code == buffer->dtype.code &&
                view->dtype.bits == buffer->dtype.bits && view->dtype.lanes == buffer->dtype.lanes;
    for (int i = 0; same && i < view->ndim; i++) {
        same = view->shape[i] == buffer->shape[i];
    }
    if (same) {
        return FERRY_OK;
    }
    char title[TENSOR_TITLE_BYTES], got_type[FERRY_DTYPE_TEXT_BYTES],
        wanted_type[FERRY_DTYPE_TEXT_BYTES], got[192], wanted[192];
    shape_print(view, got, sizeof(got));
    shape_print(buffer, wanted, sizeof(wanted));
    return error_raise(
        FERRY_ERR_RESULT_MISMATCH, "%s is %s%s, its buffer is %s%s",
        tensor_title(title, "result", result->name[0] == '\0' ? NULL : result->name, index),
        ferry_dtype_print(view->dtype, got_type), got,
        ferry_dtype_print(buffer->dtype, wanted_type), wanted);
}

/* Without a buffer: results_device, then the rules, then cpu stays cpu. */
static ferry_status_t results_target(struct ferry_future *future, size_t index, DLDevice *target)
{
    const struct incoming_tensor *result = &future->incoming.tensors[index];
    if (future->has_results_device) {
        *target = future->results_device;
        return FERRY_OK;
    }
    const struct peer *peer = future->peer;
    return device_map_target(future->map->map, future->call_map, peer->name, peer->self,
                             result->source, FERRY_RESULTS,
                             result->name[0] == '\0' ? NULL : result->name, index, target, NULL);
}

static ferry_status_t results_place_one(struct ferry_future *future, size_t index)
{
    struct incoming *incoming = &future->incoming;
    struct result_buffer *buffer = results_find_buffer(future, index);
    if (buffer != NULL) {
        buffer->used = true;
        ferry_status_t status =
            results_check_fit(&incoming->tensors[index], index, &buffer->view.view);
        if (status == FERRY_OK) {
            incoming_place_buffer(incoming, index, &buffer->view.view, buffer->stream);
        }
        return status;
    }
    DLDevice target;
    ferry_status_t status = results_target(future, index, &target);
    const ferry_device_backend_t *backend;
    if (status == FERRY_OK) {
        status = device_check(target, &backend);
    }
    if (status == FERRY_OK) {
        status = incoming_place(incoming, index, target, NULL);
    }
    return status;
}

/* A buffer that no result came for is a mistake of one side or the other. */
static void results_check_unused(struct ferry_future *future)
{
    struct incoming *incoming = &future->incoming;
    for (size_t i = 0; i < future->buffer_count && incoming->status == FERRY_OK; i++) {
        if (!future->buffers[i].used) {
            char title[TENSOR_TITLE_BYTES];
            const char *name = future->buffers[i].name;
            error_raise(FERRY_ERR_RESULT_MISMATCH,
                        "no result came for %s; the reply has %llu tensors",
                        tensor_title(title, "result buffer", name[0] == '\0' ? NULL : name, i),
                        (unsigned long long)incoming->wire.tensor_count);
            incoming_note_failure(incoming);
        }
    }
}

void results_place(struct ferry_future *future)
{
    struct incoming *incoming = &future->incoming;
    for (uint64_t i = 0; i < incoming->wire.tensor_count; i++) {
        if (results_place_one(future, i) != FERRY_OK) {
            incoming_decline(incoming, i);
        }
    }
    results_check_unused(future);
}
