/* Tensor views: their size, their checks, their layout, and what comes from DLPack capsules. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ferry/error.h>

#include "rpc/tensor.h"

static const DLDataType F32 = {.code = kDLFloat, .bits = 32, .lanes = 1};
static const DLDataType INT4 = {.code = kDLInt, .bits = 4, .lanes = 1};

static DLTensor view_of(void *data, DLDataType dtype, int ndim, int64_t *shape, int64_t *strides)
{
    return (DLTensor){.data = data,
                      .device = {.device_type = kDLCPU, .device_id = 0},
                      .ndim = ndim,
                      .dtype = dtype,
                      .shape = shape,
                      .strides = strides};
}

static void expect_error(ferry_status_t status, ferry_status_t expected, const char *text)
{
    cr_assert_eq(status, expected, "status %d", (int)status);
    cr_assert(strstr(ferry_last_error()->text, text) != NULL, "'%s' lacks '%s'",
              ferry_last_error()->text, text);
}

static void expect_bytes(DLDataType dtype, int ndim, int64_t *shape, size_t expected)
{
    size_t bytes = 99;
    DLTensor view = view_of(NULL, dtype, ndim, shape, NULL);
    cr_assert_eq(ferry_tensor_bytes(&view, &bytes), FERRY_OK);
    cr_assert_eq(bytes, expected, "%zu bytes", bytes);
}

Test(tensor, bytes_count_elements)
{
    expect_bytes(F32, 0, NULL, 4);
    expect_bytes(F32, 2, (int64_t[]){3, 5}, 60);
    expect_bytes(F32, 3, (int64_t[]){3, 0, 5}, 0);
    expect_bytes((DLDataType){kDLFloat, 32, 4}, 1, (int64_t[]){3}, 48);
    expect_bytes(INT4, 1, (int64_t[]){5}, 3);
    expect_bytes(INT4, 2, (int64_t[]){3, 3}, 5);
    expect_bytes((DLDataType){42, 12, 1}, 1, (int64_t[]){2}, 3);
    expect_bytes((DLDataType){kDLUInt, 8, 1}, 1, (int64_t[]){INT64_MAX}, (size_t)INT64_MAX);
    expect_bytes(F32, 3, (int64_t[]){INT64_C(1) << 40, INT64_C(1) << 40, 0}, 0);
}

Test(tensor, bytes_refuses_what_has_no_size)
{
    size_t bytes = 99;
    DLTensor view = view_of(NULL, F32, 2, (int64_t[]){2, -1}, NULL);
    expect_error(ferry_tensor_bytes(&view, &bytes), FERRY_ERR_INVALID_ARGUMENT,
                 "the extent -1 in dimension 1");
    view = view_of(NULL, F32, 17, (int64_t[17]){0}, NULL);
    expect_error(ferry_tensor_bytes(&view, &bytes), FERRY_ERR_INVALID_ARGUMENT, "17 dimensions");
    view = view_of(NULL, F32, -1, NULL, NULL);
    expect_error(ferry_tensor_bytes(&view, &bytes), FERRY_ERR_INVALID_ARGUMENT, "-1 dimensions");
    view = view_of(NULL, F32, 1, NULL, NULL);
    expect_error(ferry_tensor_bytes(&view, &bytes), FERRY_ERR_INVALID_ARGUMENT, "no shape");
    view = view_of(NULL, F32, 2, (int64_t[]){INT64_C(1) << 31, INT64_C(1) << 31}, NULL);
    expect_error(ferry_tensor_bytes(&view, &bytes), FERRY_ERR_INVALID_ARGUMENT, "more than");
    view = view_of(NULL, (DLDataType){kDLFloat, 32, 0}, 0, NULL, NULL);
    expect_error(ferry_tensor_bytes(&view, &bytes), FERRY_ERR_INVALID_ARGUMENT, "0 lanes");
    expect_error(ferry_tensor_bytes(NULL, &bytes), FERRY_ERR_INVALID_ARGUMENT, "view is NULL");
    expect_error(ferry_tensor_bytes(&view, NULL), FERRY_ERR_INVALID_ARGUMENT, "bytes_out is NULL");
    cr_assert_eq(bytes, 99u, "an error wrote the output");
}

static void expect_dtype(uint8_t code, uint8_t bits, uint16_t lanes, const char *expected)
{
    char text[FERRY_DTYPE_TEXT_BYTES];
    cr_assert_str_eq(ferry_dtype_print((DLDataType){code, bits, lanes}, text), expected);
}

Test(tensor, dtypes_have_names)
{
    expect_dtype(kDLFloat, 32, 1, "float32");
    expect_dtype(kDLBfloat, 16, 1, "bfloat16");
    expect_dtype(kDLUInt, 8, 1, "uint8");
    expect_dtype(kDLInt, 4, 2, "int4x2");
    expect_dtype(kDLComplex, 64, 1, "complex64");
    expect_dtype(6, 8, 1, "bool");
    expect_dtype(6, 1, 1, "code6_bits1");
    expect_dtype(10, 8, 1, "float8_e4m3fn");
    expect_dtype(9, 8, 65535, "float8_e4m3b11fnuzx65535");
    expect_dtype(17, 4, 1, "float4_e2m1fn");
    expect_dtype(42, 12, 3, "code42_bits12x3");
    expect_dtype(255, 255, 65535, "code255_bits255x65535");
}

Test(tensor, check_names_the_tensor)
{
    float data[6];
    int64_t shape[] = {2, 3};
    ferry_tensor_t tensor = {.name = "gradient", .view = view_of(data, F32, 2, shape, NULL)};
    size_t bytes = 0;
    cr_assert_eq(tensor_check(&tensor, "argument", 0, &bytes), FERRY_OK);
    cr_assert_eq(bytes, sizeof data);

    tensor.view.data = NULL;
    expect_error(tensor_check(&tensor, "argument", 0, NULL), FERRY_ERR_INVALID_ARGUMENT,
                 "argument 'gradient' has elements and a NULL data pointer");
    shape[1] = 0;
    cr_assert_eq(tensor_check(&tensor, "argument", 0, &bytes), FERRY_OK);
    cr_assert_eq(bytes, 0u);
    shape[1] = -3;
    tensor.name = NULL;
    expect_error(tensor_check(&tensor, "result", 7, NULL), FERRY_ERR_INVALID_ARGUMENT,
                 "result tensors[7] has the extent -3");
}

Test(tensor, check_bounds_names_strides_streams_and_devices)
{
    float data[6];
    int64_t shape[] = {2, 3};
    int64_t strides[] = {INT64_MAX, 1};
    ferry_tensor_t tensor = {.name = "t", .view = view_of(data, F32, 2, shape, strides)};
    expect_error(tensor_check(&tensor, "argument", 0, NULL), FERRY_ERR_INVALID_ARGUMENT, "strides");
    strides[0] = INT64_MIN;
    expect_error(tensor_check(&tensor, "argument", 0, NULL), FERRY_ERR_INVALID_ARGUMENT, "strides");
    strides[0] = -3;
    cr_assert_eq(tensor_check(&tensor, "argument", 0, NULL), FERRY_OK);
    tensor.view.dtype = INT4;
    expect_error(tensor_check(&tensor, "argument", 0, NULL), FERRY_ERR_INVALID_ARGUMENT,
                 "sub-byte elements");
    strides[0] = 3;
    cr_assert_eq(tensor_check(&tensor, "argument", 0, NULL), FERRY_OK);

    tensor.stream = 2;
    expect_error(tensor_check(&tensor, "argument", 0, NULL), FERRY_ERR_INVALID_ARGUMENT,
                 "its stream must be 0");
    tensor.view.device.device_type = kDLCUDA;
    cr_assert_eq(tensor_check(&tensor, "argument", 0, NULL), FERRY_OK);
    tensor.view.device.device_id = -1;
    expect_error(tensor_check(&tensor, "argument", 0, NULL), FERRY_ERR_INVALID_ARGUMENT,
                 "negative index");
    tensor.view.device.device_id = 0;
    tensor.view.byte_offset = UINT64_MAX;
    expect_error(tensor_check(&tensor, "argument", 0, NULL), FERRY_ERR_INVALID_ARGUMENT,
                 "byte_offset");
    tensor.view.byte_offset = 0;

    char name[FERRY_SLOT_BYTES_MAX + 2];
    memset(name, 'n', sizeof name);
    name[FERRY_SLOT_BYTES_MAX + 1] = '\0';
    tensor.name = name;
    expect_error(tensor_check(&tensor, "argument", 3, NULL), FERRY_ERR_INVALID_ARGUMENT,
                 "argument tensors[3] has a slot name of too many bytes");
    name[FERRY_SLOT_BYTES_MAX] = '\0';
    cr_assert_eq(tensor_check(&tensor, "argument", 3, NULL), FERRY_OK);
    tensor.name = "";
    expect_error(tensor_check(&tensor, "argument", 3, NULL), FERRY_ERR_INVALID_ARGUMENT, "0 bytes");
}

Test(tensor, devices_are_normalised)
{
    DLDevice pinned = tensor_device((DLDevice){.device_type = kDLCUDAHost, .device_id = 3});
    cr_assert_eq(pinned.device_type, kDLCPU);
    cr_assert_eq(pinned.device_id, 0);
    DLDevice managed = tensor_device((DLDevice){.device_type = kDLCUDAManaged, .device_id = 3});
    cr_assert_eq(managed.device_type, kDLCUDA);
    cr_assert_eq(managed.device_id, 3);
}

/* The slow way: one element after another, straight from the definition of strides. */
static size_t gather_elements(const DLTensor *view, uint8_t *out)
{
    size_t unit = (size_t)view->dtype.bits * view->dtype.lanes / 8;
    int64_t index[FERRY_TENSOR_NDIM_MAX] = {0};
    for (size_t written = 0;; written += unit) {
        int64_t offset = 0;
        for (int i = 0; i < view->ndim; i++) {
            offset += index[i] * view->strides[i];
        }
        memcpy(out + written, (uint8_t *)tensor_data(view) + offset * (int64_t)unit, unit);
        int i = view->ndim - 1;
        while (i >= 0 && ++index[i] == view->shape[i]) {
            index[i--] = 0;
        }
        if (i < 0) {
            return written + unit;
        }
    }
}

static uint8_t *gather_blocks(const struct tensor_layout *layout, int dimension, uint8_t *from,
                              uint8_t *out)
{
    if (dimension == layout->ndim) {
        memcpy(out, from, layout->block_bytes);
        return out + layout->block_bytes;
    }
    for (int64_t i = 0; i < layout->extent[dimension]; i++) {
        out = gather_blocks(layout, dimension + 1, from + i * layout->stride_bytes[dimension], out);
    }
    return out;
}

static uint32_t random_next(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*state >> 33);
}

/* Random views into one buffer: permuted, sliced, reversed and broadcast dimensions. */
static void view_randomise(uint64_t *state, DLTensor *view, int64_t *shape, int64_t *strides)
{
    int64_t step = 1, offset = 0;
    view->ndim = (int)(random_next(state) % 5);
    int order[4] = {0, 1, 2, 3};
    for (int i = view->ndim - 1; i > 0; i--) {
        int j = (int)(random_next(state) % (uint32_t)(i + 1));
        int swap = order[i];
        order[i] = random_next(state) % 3 ? order[i] : order[j];
        order[j] = order[i] == order[j] ? swap : order[j];
    }
    for (int k = view->ndim - 1; k >= 0; k--) {
        int i = order[k];
        shape[i] = 1 + (int64_t)(random_next(state) % 4);
        uint32_t form = random_next(state) % 6;
        strides[i] = form == 0 ? 0 : form == 1 ? -step : form == 2 ? 2 * step : step;
        if (form == 1) {
            offset += step * (shape[i] - 1);
        }
        step *= form == 2 ? 2 * shape[i] : form == 0 ? 1 : shape[i];
    }
    view->byte_offset = (uint64_t)offset * 4;
}

Test(tensor, layout_walks_the_elements_in_c_order)
{
    static uint8_t data[1 << 16], slow[4096], fast[4096];
    uint64_t state = 7;
    for (size_t i = 0; i < sizeof data; i++) {
        data[i] = (uint8_t)random_next(&state);
    }
    int64_t shape[4], strides[4];
    DLTensor view = view_of(data, F32, 0, shape, strides);
    for (int round = 0; round < 20000; round++) {
        view_randomise(&state, &view, shape, strides);
        struct tensor_layout layout;
        tensor_layout_init(&layout, &view);
        size_t bytes = gather_elements(&view, slow);
        size_t visible;
        cr_assert_eq(ferry_tensor_bytes(&view, &visible), FERRY_OK);
        cr_assert_eq(visible, bytes);
        uint8_t *end = gather_blocks(&layout, 0, layout.data, fast);
        cr_assert_eq((size_t)(end - fast), bytes);
        cr_assert(memcmp(slow, fast, bytes) == 0, "round %d", round);
        for (int i = 0; i + 1 < layout.ndim; i++) {
            cr_assert(layout.stride_bytes[i] != layout.stride_bytes[i + 1] * layout.extent[i + 1],
                      "round %d: dimensions %d and %d are one", round, i, i + 1);
        }
        cr_assert_eq(tensor_is_contiguous(&view), layout.ndim == 0, "round %d", round);
    }
}

Test(tensor, layout_is_as_small_as_it_can_be)
{
    float data[64];
    struct tensor_layout layout;
    DLTensor view = view_of(data, F32, 3, (int64_t[]){2, 3, 4}, (int64_t[]){12, 4, 1});
    tensor_layout_init(&layout, &view);
    cr_assert_eq(layout.ndim, 0);
    cr_assert_eq(layout.block_bytes, 96u);

    view.strides = (int64_t[]){18, 6, 1};
    tensor_layout_init(&layout, &view);
    cr_assert_eq(layout.ndim, 1);
    cr_assert_eq(layout.extent[0], 6);
    cr_assert_eq(layout.stride_bytes[0], 24);
    cr_assert_eq(layout.block_bytes, 16u);

    view.strides = NULL;
    view.shape[1] = 0;
    view.data = NULL;
    tensor_layout_init(&layout, &view);
    cr_assert_eq(layout.ndim, 0);
    cr_assert_eq(layout.block_bytes, 0u);
}

Test(tensor, a_copied_view_stands_alone)
{
    float data[6];
    int64_t shape[] = {2, 3}, strides[] = {1, 2};
    DLTensor view = view_of(data, F32, 2, shape, strides);
    struct tensor_view copy;
    tensor_copy_view(&copy, &view);
    memset(shape, 0, sizeof shape);
    memset(strides, 0, sizeof strides);
    cr_assert_eq(copy.view.shape[1], 3);
    cr_assert_eq(copy.view.strides[1], 2);
    cr_assert_eq(copy.view.data, data);

    view.strides = NULL;
    tensor_copy_view(&copy, &view);
    cr_assert_null(copy.view.strides);
    view = view_of(data, F32, 0, NULL, NULL);
    tensor_copy_view(&copy, &view);
    cr_assert_eq(copy.view.ndim, 0);
}

static int deleted;

static void managed_delete(struct DLManagedTensor *managed)
{
    deleted++;
    free(managed);
}

Test(tensor, a_capsule_is_released_through_its_deleter)
{
    static float data[2];
    static int64_t shape[] = {2};
    struct DLManagedTensor *managed = calloc(1, sizeof *managed);
    managed->dl_tensor = view_of(data, F32, 1, shape, NULL);
    managed->deleter = managed_delete;
    ferry_tensor_t tensor;
    cr_assert_eq(ferry_tensor_from_dlpack("weights", managed, &tensor), FERRY_OK);
    cr_assert_str_eq(tensor.name, "weights");
    cr_assert_eq(tensor.view.data, data);
    cr_assert_eq(deleted, 0);
    tensor.release(tensor.context);
    cr_assert_eq(deleted, 1);

    struct DLManagedTensor bad = {.dl_tensor = view_of(data, F32, 20, shape, NULL),
                                  .deleter = managed_delete};
    expect_error(ferry_tensor_from_dlpack("weights", &bad, &tensor), FERRY_ERR_INVALID_ARGUMENT,
                 "'weights' has 20 dimensions");
    expect_error(ferry_tensor_from_dlpack("weights", NULL, &tensor), FERRY_ERR_INVALID_ARGUMENT,
                 "managed is NULL");
    cr_assert_eq(deleted, 1, "an error took the capsule");
    bad = (struct DLManagedTensor){.dl_tensor = view_of(data, F32, 1, shape, NULL)};
    cr_assert_eq(ferry_tensor_from_dlpack(NULL, &bad, &tensor), FERRY_OK);
    cr_assert_null(tensor.release, "no deleter is a borrowed tensor");
}

#if defined(DLPACK_MAJOR_VERSION) && DLPACK_MAJOR_VERSION >= 1
static void versioned_delete(struct DLManagedTensorVersioned *managed)
{
    (void)managed;
    deleted++;
}

Test(tensor, a_versioned_capsule_says_read_only)
{
    float data[2];
    int64_t shape[] = {2};
    struct DLManagedTensorVersioned managed = {
        .version = {.major = 1, .minor = 9},
        .deleter = versioned_delete,
        .flags = DLPACK_FLAG_BITMASK_READ_ONLY,
        .dl_tensor = view_of(data, F32, 1, shape, NULL),
    };
    ferry_tensor_t tensor;
    cr_assert_eq(ferry_tensor_from_dlpack_versioned("w", &managed, &tensor), FERRY_OK);
    cr_assert(tensor.read_only);
    tensor.release(tensor.context);
    cr_assert_eq(deleted, 1);

    managed.flags = DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED;
    cr_assert_eq(ferry_tensor_from_dlpack_versioned("w", &managed, &tensor), FERRY_OK);
    cr_assert_not(tensor.read_only);
    managed.dl_tensor.dtype = INT4;
    expect_error(ferry_tensor_from_dlpack_versioned("w", &managed, &tensor), FERRY_ERR_UNSUPPORTED,
                 "padded elements of 4 bits");
    managed.version.major = 2;
    expect_error(ferry_tensor_from_dlpack_versioned("w", &managed, &tensor), FERRY_ERR_UNSUPPORTED,
                 "DLPack 2.9");
    cr_assert_eq(deleted, 1, "an error took the capsule");
}
#endif
