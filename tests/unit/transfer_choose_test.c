/* Which path a segment takes, in operations of which size, and what the peer is told. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "support/transfer_bench.h"

#define MIB (INT64_C(1) << 20)
#define CUDA ((DLDevice){.device_type = kDLCUDA, .device_id = 1})
#define PINNED ((DLDevice){.device_type = kDLCUDAHost, .device_id = 0})

static void sim_on(void)
{
    setenv("FERRY_SIM_DEVICES", "2", 1);
}

TestSuite(transfer_choose, .init = sim_on);

static const struct bench_setup setup = {.chunk_bytes = 2 * MIB, .direct_min_bytes = 4 * MIB};

static void bench_with_paths(struct bench *bench, const char *paths)
{
    struct bench_setup with = setup;
    with.paths = paths;
    bench_init(bench, &with);
}

static void expect_choice(const char *paths, uint32_t capabilities, DLDevice device, int64_t bytes,
                          int64_t operation_bytes, enum transfer_path expected, const char *words)
{
    struct bench bench;
    char reason[128] = "";
    bench_with_paths(&bench, paths);
    enum transfer_path path =
        transfer_choose(bench.engines[0], capabilities, device, (uint64_t)bytes,
                        (uint64_t)operation_bytes, reason, sizeof reason);
    cr_assert_eq(path, expected, "path %d: %s", (int)path, reason);
    cr_assert(strstr(reason, words) != NULL, "'%s' lacks '%s'", reason, words);
    cr_assert_eq(transfer_choose(bench.engines[0], capabilities, device, (uint64_t)bytes,
                                 (uint64_t)operation_bytes, NULL, 0),
                 expected);
    bench_finish(&bench);
}

Test(transfer_choose, names_the_path_and_why)
{
    uint32_t knows = FERRY_TRANSPORT_CUDA;
    expect_choice("", knows, CUDA, 0, 0, TRANSFER_NONE, "no bytes");
    expect_choice("", 0, BENCH_CPU, 8 * MIB, 0, TRANSFER_HOST, "host memory");
    expect_choice("", 0, PINNED, 8 * MIB, 0, TRANSFER_HOST, "host memory");
    expect_choice("", knows, CUDA, 8 * MIB, 0, TRANSFER_DIRECT,
                  "the transport takes cuda memory; 8 MiB >= FERRY_DIRECT_MIN");
    expect_choice("", knows, CUDA, 4 * MIB - 1, 0, TRANSFER_STAGED, "4194303 B < FERRY_DIRECT_MIN");
    expect_choice("", knows, CUDA, 3 * MIB, 3 * MIB, TRANSFER_DIRECT, "exceed FERRY_CHUNK");
    expect_choice("", FERRY_TRANSPORT_SIM, CUDA, 8 * MIB, 0, TRANSFER_STAGED,
                  "takes host memory only");
    expect_choice("", knows, BENCH_SIM(0), 8 * MIB, 0, TRANSFER_STAGED, "takes host memory only");
    expect_choice("^own_ipc, ^direct", knows, CUDA, 8 * MIB, 0, TRANSFER_STAGED,
                  "FERRY_PATHS excludes direct");
    expect_choice("^staged", knows, CUDA, 1, 0, TRANSFER_DIRECT, "FERRY_PATHS excludes staged");
    expect_choice("^staged", 0, CUDA, 1, 0, TRANSFER_NONE, "FERRY_PATHS excludes staged");
    expect_choice("^direct,^staged", knows, CUDA, 1, 0, TRANSFER_NONE, "excludes direct and");
    expect_choice("^directly,direct", knows, CUDA, 8 * MIB, 0, TRANSFER_DIRECT, "cuda");
}

static void expect_operations(const char *paths, uint32_t capabilities, DLDevice device,
                              uint64_t bytes, uint64_t peer, uint64_t expected)
{
    struct bench bench;
    bench_with_paths(&bench, paths);
    uint64_t got = transfer_operation_bytes(bench.engines[0], capabilities, device, bytes, peer);
    cr_assert_eq(got, expected, "%llu", (unsigned long long)got);
    bench_finish(&bench);
}

Test(transfer_choose, sizes_operations)
{
    const uint64_t mib = MIB, large = 5ull << 30;
    uint32_t knows = FERRY_TRANSPORT_CUDA;
    expect_operations("", knows, CUDA, large, 0, large);
    expect_operations("", knows, CUDA, large, 16 * mib, 16 * mib);
    expect_operations("", knows, CUDA, mib, 0, mib);
    expect_operations("", 0, CUDA, large, 0, 2 * mib);
    expect_operations("^direct", knows, CUDA, large, 0, 2 * mib);
    expect_operations("", knows, BENCH_CPU, large, 0, 2 * mib);
    expect_operations("", knows, BENCH_CPU, large, 65536, 65536);
    expect_operations("", knows, BENCH_CPU, 1, 65536, 1);
}

Test(transfer_choose, counts_operations)
{
    cr_assert_eq(transfer_operation_count(0, 64), 0);
    cr_assert_eq(transfer_operation_count(1, 64), 1);
    cr_assert_eq(transfer_operation_count(64, 64), 1);
    cr_assert_eq(transfer_operation_count(65, 64), 2);
    cr_assert_eq(transfer_operation_count(UINT64_MAX, 1), UINT64_MAX);
}

Test(transfer_choose, tells_peers_what_fits_every_device)
{
    struct bench bench;
    bench_with_paths(&bench, "");
    cr_assert_eq(transfer_receive_bound(bench.engines[0], FERRY_TRANSPORT_HOST), 2 * MIB);
    bench_finish(&bench);
    bench_with_paths(&bench, "^direct");
    cr_assert_eq(
        transfer_receive_bound(bench.engines[0], FERRY_TRANSPORT_SIM | FERRY_TRANSPORT_CUDA),
        2 * MIB);
    bench_finish(&bench);
}

Test(transfer_choose, takes_any_size_where_all_goes_direct)
{
    struct bench bench;
    bench_with_paths(&bench, "");
    cr_assert_eq(
        transfer_receive_bound(bench.engines[0], FERRY_TRANSPORT_SIM | FERRY_TRANSPORT_CUDA), 0);
    bench_finish(&bench);
}
