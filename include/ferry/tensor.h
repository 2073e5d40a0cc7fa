/* A tensor as calls carry it: a DLPack view, a slot name, its stream, and who owns it. */
#ifndef FERRY_TENSOR_H
#define FERRY_TENSOR_H

#include <stdbool.h>

#include <ferry/device.h>

struct DLManagedTensor;
struct DLManagedTensorVersioned;

#ifdef __cplusplus
extern "C" {
#endif

/* A slot name is 1-127 bytes of text without NUL; NULL means unnamed (matched by position). */
#define FERRY_SLOT_BYTES_MAX 127
/* Dimensions a tensor may have. */
#define FERRY_TENSOR_NDIM_MAX 16

/* Plain data on the user's stack; Ferry copies it, shape and strides included, when it takes it.
 * The memory that view.data names is another matter: it is borrowed until the call's future
 * completes (argument), or has a release callback that runs exactly once when Ferry lets go, or, in
 * a reply, belongs to the request, or is marked to be copied.
 *
 * view: any dtype (unknown codes travel by bits and lanes), ndim 0-16, any byte_offset; NULL
 * strides mean C order. Strides count elements and may be 0 or negative; only the visible elements
 * travel, in C order. Elements whose bits are no multiple of 8 travel only in C order, packed. data
 * may be NULL when there are no elements.
 *
 * stream, in DLPack's values: 0 ready now, 1 legacy default, 2 per-thread default, else a stream of
 * the tensor's device (cudaStream_t). An argument or a reply's tensor is read after what that
 * stream had queued; a result buffer is written after it. Always 0 on cpu. */
typedef struct {
    const char *name;
    DLTensor view;
    uintptr_t stream;
    void (*release)(void *context); /* any thread, never under a lock; NULL: borrowed */
    void *context;
    bool copy;      /* replies only: read before ferry_request_reply() returns (cpu), or by a device
                     * copy that it queues */
    bool read_only; /* refused as a result buffer; no hindrance for an argument */
} ferry_tensor_t;

/* Bytes that the visible elements take in C order; sub-byte elements are rounded up at the end.
 * FERRY_ERR_INVALID_ARGUMENT: NULL, a negative extent, ndim outside 0-16, a NULL shape, a dtype of
 * 0 bits or 0 lanes, or a size over INT64_MAX. */
FERRY_API ferry_status_t ferry_tensor_bytes(const DLTensor *view, size_t *bytes_out);

/* "float32", "bfloat16", "uint8", "complex64", "bool", "float32x4", "code42_bits4x2" ... into
 * buffer, always NUL-terminated; returns buffer. */
#define FERRY_DTYPE_TEXT_BYTES 32
FERRY_API const char *ferry_dtype_print(DLDataType dtype, char buffer[FERRY_DTYPE_TEXT_BYTES]);

/* Takes ownership of a DLPack capsule's tensor: the result's release calls its deleter (one without
 * a deleter stays borrowed). name is borrowed. The stream is 0, ready now: set the producer's where
 * work is still queued. On error nothing was taken, so the deleter is still the caller's to run.
 * FERRY_ERR_INVALID_ARGUMENT: NULL, or a view that ferry_tensor_bytes() refuses.
 * FERRY_ERR_UNSUPPORTED: a versioned tensor of another major version than 1 (nothing but its
 * version was read), or one whose sub-byte elements are padded. */
FERRY_API ferry_status_t ferry_tensor_from_dlpack(const char *name, struct DLManagedTensor *managed,
                                                  ferry_tensor_t *tensor_out);
FERRY_API ferry_status_t ferry_tensor_from_dlpack_versioned(
    const char *name, struct DLManagedTensorVersioned *managed, ferry_tensor_t *tensor_out);

#ifdef __cplusplus
}
#endif

#endif
