// Packs strided views of any shape, and the reverse, in units as wide as everything is aligned to.
#include "device/cuda/cuda_module.h"

namespace
{

constexpr int THREADS = 256;
constexpr uint64_t BLOCKS_MAX =
    4096; // more only queue up: each thread goes on in steps of the grid

struct pack_parameters {
    char *data;
    char *packed;
    uint64_t units;       // of all blocks together
    uint64_t block_units; // of one contiguous block
    int32_t ndim;
    bool gather;
    int64_t extent[FERRY_LAYOUT_NDIM_MAX];
    int64_t stride_bytes[FERRY_LAYOUT_NDIM_MAX];
};

template <typename Unit, typename Index> __global__ void pack_kernel(const pack_parameters pack)
{
    Index step = static_cast<Index>(gridDim.x) * blockDim.x;
    for (Index unit = static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x;
         unit < static_cast<Index>(pack.units); unit += step) {
        Index block_units = static_cast<Index>(pack.block_units);
        Index rest = unit / block_units;
        int64_t offset = static_cast<int64_t>(unit - rest * block_units) * sizeof(Unit);
        for (int i = pack.ndim - 1; i >= 0; i--) {
            Index extent = static_cast<Index>(pack.extent[i]);
            Index outer = rest / extent;
            offset += static_cast<int64_t>(rest - outer * extent) * pack.stride_bytes[i];
            rest = outer;
        }
        Unit *strided = reinterpret_cast<Unit *>(pack.data + offset);
        Unit *dense = reinterpret_cast<Unit *>(pack.packed) + unit;
        if (pack.gather) {
            *dense = *strided;
        } else {
            *strided = *dense;
        }
    }
}

// The widest power of two up to 16 that divides all sizes, distances and addresses.
unsigned unit_bytes(const ferry_layout_t *layout, const void *packed)
{
    uint64_t all = 16 | layout->block_bytes | reinterpret_cast<uintptr_t>(layout->data) |
                   reinterpret_cast<uintptr_t>(packed);
    for (int i = 0; i < layout->ndim; i++) {
        all |= static_cast<uint64_t>(layout->stride_bytes[i]);
    }
    return static_cast<unsigned>(all & (~all + 1));
}

template <typename Unit> const void *kernel_of(bool narrow)
{
    return narrow ? reinterpret_cast<const void *>(pack_kernel<Unit, uint32_t>)
                  : reinterpret_cast<const void *>(pack_kernel<Unit, uint64_t>);
}

const void *kernel_for(unsigned unit, bool narrow)
{
    switch (unit) {
    case 16:
        return kernel_of<uint4>(narrow);
    case 8:
        return kernel_of<uint64_t>(narrow);
    case 4:
        return kernel_of<uint32_t>(narrow);
    case 2:
        return kernel_of<uint16_t>(narrow);
    default:
        return kernel_of<uint8_t>(narrow);
    }
}

} // namespace

extern "C" void cuda_pack_load(void)
{
    for (unsigned unit = 1; unit <= 16; unit *= 2) {
        for (int narrow = 0; narrow < 2; narrow++) {
            cudaFuncAttributes attributes;
            if (cudaFuncGetAttributes(&attributes, kernel_for(unit, narrow != 0)) != cudaSuccess) {
                cudaGetLastError(); // the launch will say so
            }
        }
    }
}

extern "C" cudaError_t cuda_pack(const ferry_layout_t *layout, void *packed, bool gather,
                                 cudaStream_t stream)
{
    unsigned unit = unit_bytes(layout, packed);
    pack_parameters pack = {};
    pack.data = static_cast<char *>(layout->data);
    pack.packed = static_cast<char *>(packed);
    pack.units = layout->bytes / unit;
    pack.block_units = layout->block_bytes / unit;
    pack.ndim = layout->ndim;
    pack.gather = gather;
    for (int i = 0; i < layout->ndim; i++) {
        pack.extent[i] = layout->extent[i];
        pack.stride_bytes[i] = layout->stride_bytes[i];
    }
    // The last step of the loop may pass the end by one grid, which must not wrap.
    bool narrow = pack.units + BLOCKS_MAX * THREADS <= UINT32_MAX;
    uint64_t blocks = (pack.units + THREADS - 1) / THREADS;
    void *arguments[] = {&pack};
    return cudaLaunchKernel(kernel_for(unit, narrow),
                            dim3(static_cast<unsigned>(blocks < BLOCKS_MAX ? blocks : BLOCKS_MAX)),
                            dim3(THREADS), arguments, 0, stream);
}
