#include "core/error.h"
#include "transports/ucx/ucx_internal.h"

ucs_memory_type_t ucx_memory_type(DLDevice device)
{
    switch ((int)device.device_type) {
    case kDLCPU:
    case kDLCUDAHost:
        return UCS_MEMORY_TYPE_HOST;
    case kDLCUDA:
        return UCS_MEMORY_TYPE_CUDA;
    case kDLCUDAManaged:
        return UCS_MEMORY_TYPE_CUDA_MANAGED;
    default:
        return UCS_MEMORY_TYPE_LAST;
    }
}

void ucx_memory_set(ucp_request_param_t *params, ucs_memory_type_t type, ucp_mem_h handle)
{
    params->op_attr_mask |= UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    params->memory_type = type;
    if (handle != NULL) {
        params->op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
        params->memh = handle;
    }
}

ferry_status_t ucx_register_memory(ferry_transport_t *transport, const ferry_memory_t *memory,
                                   void **handle_out)
{
    struct ucx *ucx = (struct ucx *)(void *)transport;
    ucs_memory_type_t type = ucx_memory_type(memory->device);
    if (type == UCS_MEMORY_TYPE_LAST) {
        return error_raise(FERRY_ERR_UNSUPPORTED,
                           "UCX cannot register memory of DLPack device type %d",
                           (int)memory->device.device_type);
    }
    ucp_mem_map_params_t params = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                      UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE,
        .address = memory->data,
        .length = memory->bytes,
        .memory_type = type,
    };
    ucp_mem_h handle;
    ucs_status_t status = ucp_mem_map(ucx->context, &params, &handle);
    if (status != UCS_OK) {
        return ucx_raise(status, "registering memory with UCX");
    }
    *handle_out = handle;
    return FERRY_OK;
}

void ucx_unregister_memory(ferry_transport_t *transport, void *handle)
{
    ucp_mem_unmap(((struct ucx *)(void *)transport)->context, handle);
}
