/* Device memory through staging slots: their bound, who gets them, streams, and memory that is given
 * back only when its streams have passed. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "device/registry.h"
#include "support/transfer_bench.h"

#define CHUNK 64
#define STEPS 50 /* what has not happened after these does not happen by itself */

static void sim_on(void)
{
    setenv("FERRY_SIM_DEVICES", "2", 1);
}

TestSuite(transfer_staging, .init = sim_on);

/* Staging memory in use, seen through the pool: all else is taken before `base`. */
static size_t most_used, base_used;

static size_t pool_used(const struct bench *bench)
{
    size_t used, kept;
    memory_pool_usage(bench->pool, &used, &kept);
    return used;
}

static void watch_used(struct bench *bench)
{
    size_t used = pool_used(bench) - base_used;
    most_used = used > most_used ? used : most_used;
}

/* Every step takes longer than staging memory may stand still. */
static void watch_clock(struct bench *bench)
{
    bench->now_ns += INT64_C(1000000000);
}

Test(transfer_staging, stays_within_the_bound_and_serves_all)
{
    enum { COUNT = 12 };
    static const int64_t bounds[] = {1, CHUNK, 3 * CHUNK, 5 * CHUNK + 1};
    for (size_t b = 0; b < sizeof bounds / sizeof bounds[0]; b++) {
        struct bench bench;
        struct bench_tensor from[COUNT], to[COUNT];
        struct bench_end ends[COUNT][2];
        bench_init(&bench, &(struct bench_setup){.chunk_bytes = CHUNK,
                                                 .chunk_window = 4,
                                                 .staging_bytes = bounds[b]});
        for (int i = 0; i < COUNT; i++) {
            bool sends = i % 2 == 0;
            bench_bytes_init(&from[i], &bench, sends ? BENCH_SIM(0) : BENCH_CPU,
                             700 + 3 * (size_t)i);
            bench_bytes_init(&to[i], &bench, sends ? BENCH_CPU : BENCH_SIM(1), 700 + 3 * (size_t)i);
            bench_tensor_fill(&from[i], (unsigned)i);
        }
        base_used = pool_used(&bench);
        most_used = 0;
        bench.watch = watch_used;
        for (int i = 0; i < COUNT; i++) {
            bench_move(&bench, &from[i], 0, &to[i], 0, ends[i]);
        }
        cr_assert(bench_run(&bench), "stands still with %lld bytes", (long long)bounds[b]);
        size_t one_engine = bounds[b] < CHUNK ? CHUNK : (size_t)bounds[b];
        cr_assert_leq(most_used, 2 * one_engine, "%zu in use", most_used);
        cr_assert_geq(most_used, CHUNK);
        for (int i = 0; i < COUNT; i++) {
            cr_assert_eq(ends[i][0].status, FERRY_OK);
            cr_assert_eq(ends[i][1].status, FERRY_OK);
            cr_assert(bench_tensors_equal(&from[i], &to[i]));
            bench_tensor_finish(&from[i]);
            bench_tensor_finish(&to[i]);
        }
        bench_finish(&bench);
    }
}

Test(transfer_staging, keeps_to_the_window)
{
    struct bench bench;
    struct bench_tensor from, to;
    struct bench_end ends[2];
    bench_init(&bench, &(struct bench_setup){.chunk_bytes = CHUNK, .chunk_window = 3});
    bench_bytes_init(&from, &bench, BENCH_SIM(0), 20 * CHUNK);
    bench_bytes_init(&to, &bench, BENCH_SIM(1), 20 * CHUNK);
    base_used = pool_used(&bench);
    most_used = 0;
    bench.watch = watch_used;
    bench.fake->hold = true;
    bench_move(&bench, &from, 0, &to, 0, ends);
    cr_assert_eq(transfer_path_of(ends[0].transfer), TRANSFER_STAGED);
    while (bench.fake->ends[0].in_flight[FAKE_SEND] < 3) {
        bench_step(&bench); /* copies to the host come first */
    }
    bench_steps(&bench, STEPS);
    cr_assert_eq(bench.fake->ends[0].in_flight[FAKE_SEND], 3);
    cr_assert_eq(bench.fake->ends[1].in_flight[FAKE_RECEIVE], 3);
    cr_assert_eq(most_used, 6 * CHUNK);
    bench.fake->hold = false;
    cr_assert(bench_run(&bench));
    cr_assert_eq(most_used, 6 * CHUNK);
    bench_tensor_finish(&from);
    bench_tensor_finish(&to);
    bench_finish(&bench);
}

Test(transfer_staging, takes_turns_when_slots_are_few)
{
    struct bench bench;
    struct bench_tensor large, large_to, small, small_to;
    struct bench_end large_ends[2], small_ends[2];
    bench_init(&bench, &(struct bench_setup){
                           .chunk_bytes = CHUNK, .chunk_window = 4, .staging_bytes = CHUNK});
    bench_bytes_init(&large, &bench, BENCH_SIM(0), 1000 * CHUNK);
    bench_bytes_init(&large_to, &bench, BENCH_CPU, 1000 * CHUNK);
    bench_bytes_init(&small, &bench, BENCH_SIM(0), 5 * CHUNK);
    bench_bytes_init(&small_to, &bench, BENCH_CPU, 5 * CHUNK);
    bench_move(&bench, &large, 0, &large_to, 0, large_ends);
    bench_move(&bench, &small, 0, &small_to, 0, small_ends);
    while (small_ends[0].done == 0) {
        bench_step(&bench);
        cr_assert_eq(large_ends[0].done, 0, "the large one went first");
    }
    cr_assert_leq(bench.fake->ends[0].posted[FAKE_SEND], 20);
    cr_assert(bench_run(&bench));
    bench_tensor_finish(&large);
    bench_tensor_finish(&large_to);
    bench_tensor_finish(&small);
    bench_tensor_finish(&small_to);
    bench_finish(&bench);
}

/* A small one that would still fit does not overtake a large one, which might wait for ever then. */
Test(transfer_staging, serves_in_order)
{
    struct bench bench;
    struct bench_tensor from[3], to[3];
    struct bench_end ends[3][2];
    static const size_t sizes[] = {CHUNK, CHUNK, CHUNK / 4};
    bench_init(&bench, &(struct bench_setup){.chunk_bytes = CHUNK, .staging_bytes = 2 * CHUNK - 1});
    bench.fake->hold = true;
    for (int i = 0; i < 3; i++) {
        bench_bytes_init(&from[i], &bench, BENCH_SIM(0), sizes[i]);
        bench_bytes_init(&to[i], &bench, BENCH_CPU, sizes[i]);
        bench_move(&bench, &from[i], 0, &to[i], 0, ends[i]);
    }
    while (bench.fake->ends[0].in_flight[FAKE_SEND] == 0) {
        bench_step(&bench);
    }
    bench_steps(&bench, STEPS);
    cr_assert_eq(bench.fake->ends[0].in_flight[FAKE_SEND], 1);
    bench.fake->hold = false;
    cr_assert(bench_run(&bench));
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(ends[i][0].status, FERRY_OK);
        bench_tensor_finish(&from[i]);
        bench_tensor_finish(&to[i]);
    }
    bench_finish(&bench);
}

/* One slot at each side, and each side's slot is held by the transfer whose partner waits for the
 * other's: without a way out this stands still for ever. */
Test(transfer_staging, gets_out_of_a_deadlock)
{
    struct bench bench;
    struct bench_tensor one, one_to, two, two_to;
    struct bench_end ends[4];
    bench_init(&bench, &(struct bench_setup){.chunk_bytes = CHUNK, .staging_bytes = CHUNK});
    bench_bytes_init(&one, &bench, BENCH_SIM(0), 3 * CHUNK);
    bench_bytes_init(&two, &bench, BENCH_SIM(0), 3 * CHUNK);
    bench_bytes_init(&one_to, &bench, BENCH_SIM(1), 3 * CHUNK);
    bench_bytes_init(&two_to, &bench, BENCH_SIM(1), 3 * CHUNK);
    bench_tensor_fill(&one, 1);
    bench_tensor_fill(&two, 2);
    bench.fake->hold = true;
    bench_start(&bench, 0, &one, 0, 100, CHUNK, &ends[0]);
    bench_start(&bench, 1, &two_to, 0, 200, CHUNK, &ends[3]);
    while (bench.fake->ends[0].in_flight[FAKE_SEND] == 0) {
        bench_step(&bench);
    }
    bench_start(&bench, 0, &two, 0, 200, CHUNK, &ends[2]);
    bench_start(&bench, 1, &one_to, 0, 100, CHUNK, &ends[1]);
    bench.fake->hold = false;
    bench_steps(&bench, STEPS);
    cr_assert_eq(ends[0].done + ends[1].done + ends[2].done + ends[3].done, 0);
    cr_assert(transfer_engine_polls(bench.engines[0]), "nothing else would wake it");
    bench.watch = watch_clock;
    cr_assert(bench_run(&bench));
    cr_assert(bench_tensors_equal(&one, &one_to));
    cr_assert(bench_tensors_equal(&two, &two_to));
    bench_tensor_finish(&one);
    bench_tensor_finish(&one_to);
    bench_tensor_finish(&two);
    bench_tensor_finish(&two_to);
    bench_finish(&bench);
}

/* What a tensor holds once its stream has passed is what arrives. */
static void expect_late_bytes(const struct bench_setup *setup, size_t bytes)
{
    struct bench bench;
    struct bench_tensor from, to, late, other, other_to;
    struct bench_stream stream;
    struct bench_end ends[2], other_ends[2];
    bench_init(&bench, setup);
    bench_bytes_init(&from, &bench, BENCH_SIM(0), bytes);
    bench_bytes_init(&late, &bench, BENCH_SIM(0), bytes);
    bench_bytes_init(&to, &bench, BENCH_CPU, bytes);
    bench_bytes_init(&other, &bench, BENCH_SIM(0), bytes);
    bench_bytes_init(&other_to, &bench, BENCH_CPU, bytes);
    bench_tensor_fill(&from, 1);
    bench_tensor_fill(&late, 2);
    bench_tensor_fill(&other, 3);
    bench_stream_init(&stream, &bench, BENCH_SIM(0));
    const ferry_device_backend_t *sim = device_backend(kDLExtDev);
    cr_assert_eq(sim->copy(0, stream.stream, FERRY_COPY_ON_DEVICE, from.block.data, late.block.data,
                           late.block.bytes),
                 FERRY_OK);
    bench_move(&bench, &from, stream.stream, &to, 0, ends);
    bench_move(&bench, &other, 0, &other_to, 0, other_ends);
    cr_assert(transfer_engine_polls(bench.engines[0]));
    while (other_ends[1].done == 0) {
        bench_step(&bench); /* one that waits for its stream is in nobody's way */
    }
    bench_steps(&bench, STEPS);
    cr_assert_eq(ends[0].done + ends[1].done, 0);
    bench_stream_release(&stream);
    cr_assert(bench_run(&bench));
    cr_assert_eq(ends[1].status, FERRY_OK);
    cr_assert(bench_tensors_equal(&late, &to));
    cr_assert(!transfer_engine_polls(bench.engines[0]));
    bench_stream_finish(&stream, &bench);
    bench_tensor_finish(&from);
    bench_tensor_finish(&late);
    bench_tensor_finish(&to);
    bench_tensor_finish(&other);
    bench_tensor_finish(&other_to);
    bench_finish(&bench);
}

Test(transfer_staging, sends_after_the_users_stream)
{
    expect_late_bytes(&(struct bench_setup){.chunk_bytes = CHUNK}, 5 * CHUNK);
    expect_late_bytes(&(struct bench_setup){.chunk_bytes = CHUNK,
                                            .direct_min_bytes = 1,
                                            .capabilities = FERRY_TRANSPORT_SIM},
                      5 * CHUNK);
}

/* A result buffer is written after what its stream had queued: here something that clears it. */
Test(transfer_staging, receives_after_the_users_stream)
{
    for (int direct = 0; direct < 2; direct++) {
        struct bench bench;
        struct bench_tensor from, to, zeros;
        struct bench_stream stream;
        struct bench_end ends[2];
        bench_init(&bench, &(struct bench_setup){.chunk_bytes = CHUNK,
                                                 .direct_min_bytes = 1,
                                                 .capabilities = direct ? FERRY_TRANSPORT_SIM : 0});
        bench_bytes_init(&from, &bench, BENCH_CPU, 5 * CHUNK);
        bench_bytes_init(&to, &bench, BENCH_SIM(1), 5 * CHUNK);
        bench_bytes_init(&zeros, &bench, BENCH_SIM(1), 5 * CHUNK);
        bench_tensor_fill(&from, 1);
        bench_stream_init(&stream, &bench, BENCH_SIM(1));
        const ferry_device_backend_t *sim = device_backend(kDLExtDev);
        cr_assert_eq(sim->copy(1, stream.stream, FERRY_COPY_ON_DEVICE, to.block.data,
                               zeros.block.data, zeros.block.bytes),
                     FERRY_OK);
        bench_move(&bench, &from, 0, &to, stream.stream, ends);
        bench_steps(&bench, STEPS);
        cr_assert_eq(ends[1].done, 0);
        bench_stream_release(&stream);
        cr_assert(bench_run(&bench));
        cr_assert_eq(ends[1].status, FERRY_OK);
        cr_assert(bench_tensors_equal(&from, &to));
        bench_stream_finish(&stream, &bench);
        bench_tensor_finish(&from);
        bench_tensor_finish(&to);
        bench_tensor_finish(&zeros);
        bench_finish(&bench);
    }
}

Test(transfer_staging, gives_memory_back_after_its_streams)
{
    struct bench bench;
    struct bench_stream one, two;
    bench_init(&bench, &(struct bench_setup){.chunk_bytes = CHUNK});
    bench_stream_init(&one, &bench, BENCH_SIM(0));
    bench_stream_init(&two, &bench, BENCH_SIM(0));
    size_t before = pool_used(&bench);
    struct memory_block block, at_once;
    cr_assert_eq(memory_pool_take(bench.pool, BENCH_SIM(0), false, 4096, &block), FERRY_OK);
    cr_assert_eq(memory_pool_take(bench.pool, BENCH_SIM(0), false, 4096, &at_once), FERRY_OK);
    size_t with_both = pool_used(&bench);
    transfer_give_after(bench.engines[0], &at_once, (uintptr_t[]){0, 0}, 2);
    cr_assert_lt(pool_used(&bench), with_both, "no stream, no wait");
    size_t held = pool_used(&bench);
    transfer_give_after(bench.engines[0], &block, (uintptr_t[]){one.stream, 0, two.stream}, 3);
    cr_assert(transfer_engine_polls(bench.engines[0]));
    bench_stream_release(&two);
    bench_steps(&bench, STEPS);
    cr_assert_eq(pool_used(&bench), held);
    struct memory_block other;
    cr_assert_eq(memory_pool_take(bench.pool, BENCH_SIM(0), false, 4096, &other), FERRY_OK);
    cr_assert_neq(other.data, block.data, "handed out while a stream still uses it");
    memory_pool_give(bench.pool, &other);
    bench_stream_release(&one);
    while (transfer_engine_polls(bench.engines[0])) {
        bench_step(&bench);
    }
    cr_assert_eq(pool_used(&bench), before);
    bench_stream_finish(&one, &bench);
    bench_stream_finish(&two, &bench);
    bench_finish(&bench);
}

Test(transfer_staging, gives_waiting_memory_back_when_the_engine_ends)
{
    struct bench bench;
    struct bench_stream stream;
    bench_init(&bench, &(struct bench_setup){.chunk_bytes = CHUNK});
    bench_stream_init(&stream, &bench, BENCH_SIM(0));
    struct memory_block block;
    cr_assert_eq(memory_pool_take(bench.pool, BENCH_SIM(0), false, 4096, &block), FERRY_OK);
    transfer_give_after(bench.engines[0], &block, &stream.stream, 1);
    bench_stream_finish(&stream, &bench); /* the stream is gone, the event is not */
    bench_finish(&bench);                 /* aborts when a block is missing */
}
