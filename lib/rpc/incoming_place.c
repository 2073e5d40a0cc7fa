/* Where what a message brings lies: taking the memory and giving it back. */
#include "core/log.h"
#include "rpc/incoming.h"
#include "rpc/link.h"

ferry_status_t incoming_take_joint(struct incoming *incoming)
{
    if (incoming->joint.data != NULL) {
        return FERRY_OK;
    }
    DLDevice cpu = {.device_type = kDLCPU, .device_id = 0};
    return memory_pool_take(incoming->agent->memory, cpu, false, incoming->wire.joint_bytes,
                            &incoming->joint);
}

/* The tensor becomes a view of the joint segment's memory. */
static ferry_status_t place_in_joint(struct incoming *incoming, struct incoming_tensor *tensor)
{
    ferry_status_t status = incoming_take_joint(incoming);
    if (status == FERRY_OK) {
        tensor->view.view.data = (char *)incoming->joint.data + tensor->joint_offset;
        tensor->view.view.device = incoming->joint.device;
        tensor->in_joint = true;
        incoming->joint_views++;
    }
    return status;
}

ferry_status_t incoming_place(struct incoming *incoming, size_t index, DLDevice device,
                              const ferry_allocator_t *allocator)
{
    struct incoming_tensor *tensor = &incoming->tensors[index];
    struct memory_block block = {.device = device, .bytes = tensor->bytes};
    ferry_status_t status;
    if (tensor->joint && allocator == NULL && device.device_type == kDLCPU) {
        return place_in_joint(incoming, tensor);
    }
    if (allocator == NULL) {
        status = memory_pool_take(incoming->agent->memory, device, false, tensor->bytes, &block);
    } else {
        status = allocator->allocate(allocator->context, device, tensor->bytes, &block.data);
        if (status != FERRY_OK) {
            char text[FERRY_DEVICE_TEXT_BYTES];
            error_raise(status, "the method's allocator gave no %llu bytes on %s (%s)",
                        (unsigned long long)tensor->bytes, ferry_device_print(device, text),
                        ferry_status_name(status));
        }
    }
    if (status != FERRY_OK) {
        return status;
    }
    tensor->block = block;
    if (allocator != NULL) {
        tensor->allocator = *allocator;
    }
    tensor->view.view.data = block.data;
    tensor->view.view.device = device;
    return FERRY_OK;
}

void incoming_place_buffer(struct incoming *incoming, size_t index, const DLTensor *view,
                           uintptr_t stream)
{
    struct incoming_tensor *tensor = &incoming->tensors[index];
    tensor_copy_view(&tensor->view, view);
    tensor->view.view.device = tensor_device(view->device);
    tensor->stream = stream;
}

/* With the transfer engine gone (a result outlived its agent's shutdown) there is nobody to poll: wait. */
void incoming_give(struct ferry_agent *agent, const struct memory_block *block,
                   const uintptr_t *streams, size_t count)
{
    if (agent->transfers != NULL) {
        transfer_give_after(agent->transfers, block, streams, count);
        return;
    }
    const ferry_device_backend_t *backend = device_backend(block->device.device_type);
    for (size_t i = 0; i < count; i++) {
        if (backend->stream_synchronize(block->device.device_id, streams[i]) != FERRY_OK) {
            log_write(FERRY_LOG_WARN, "%s: a stream that used a result: %s", agent->name,
                      ferry_last_error()->text);
        }
    }
    memory_pool_give(agent->memory, block);
}

/* Host memory, which no stream uses. */
static void give_bytes(struct incoming *incoming, struct memory_block *block)
{
    if (block->data != NULL) {
        memory_pool_give(incoming->agent->memory, block);
        block->data = NULL;
    }
}

void incoming_give_unseen_joint(struct incoming *incoming)
{
    if (incoming->joint_views == 0) {
        give_bytes(incoming, &incoming->joint);
    }
}

void incoming_release(struct incoming *incoming, const DLDevice *devices, const uintptr_t *streams,
                      size_t stream_count)
{
    for (uint64_t i = 0; i < incoming->wire.tensor_count; i++) {
        struct incoming_tensor *tensor = &incoming->tensors[i];
        if (tensor->block.data == NULL || tensor->allocator.deallocate != NULL) {
            continue;
        }
        uintptr_t mine[AGENT_STREAMS_MAX];
        size_t count = 0;
        for (size_t s = 0; s < stream_count; s++) {
            if (tensor_device_equal(devices[s], tensor->block.device)) {
                mine[count++] = streams[s];
            }
        }
        incoming_give(incoming->agent, &tensor->block, mine, count);
        tensor->block.data = NULL;
    }
    give_bytes(incoming, &incoming->body);
    give_bytes(incoming, &incoming->joint);
}

bool incoming_has_deallocators(const struct incoming *incoming)
{
    for (uint64_t i = 0; i < incoming->wire.tensor_count; i++) {
        const struct incoming_tensor *tensor = &incoming->tensors[i];
        if (tensor->block.data != NULL && tensor->allocator.deallocate != NULL) {
            return true;
        }
    }
    return false;
}

void incoming_run_deallocators(struct incoming *incoming)
{
    for (uint64_t i = 0; i < incoming->wire.tensor_count; i++) {
        struct incoming_tensor *tensor = &incoming->tensors[i];
        if (tensor->block.data != NULL && tensor->allocator.deallocate != NULL) {
            tensor->allocator.deallocate(tensor->allocator.context, tensor->block.device,
                                         tensor->block.data);
            tensor->block.data = NULL;
        }
    }
}
