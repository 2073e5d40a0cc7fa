/* Transfers that go well: every size, shape and pair of devices over a transport whose moments the
 * test chooses, with the bounds on what is in flight. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "support/transfer_bench.h"

#define CHUNK 64
#define WINDOW 3

static DLDevice device_of(int number)
{
    return number == 0 ? BENCH_CPU : BENCH_SIM(number - 1);
}

static void sim_on(void)
{
    setenv("FERRY_SIM_DEVICES", "2", 1);
}

TestSuite(transfer, .init = sim_on);

/* Every step takes longer than staging memory may stand still. */
static void clock_advance(struct bench *bench)
{
    bench->now_ns += INT64_C(1000000000);
}

static void expect_fine(const struct bench_end *end, const char *what)
{
    cr_assert_eq(end->done, 1, "%s: done %d times", what, end->done);
    cr_assert_eq(end->status, FERRY_OK, "%s: %s", what, end->text);
}

/* Moves random bytes and compares; the rest of both blocks must be as it was. */
static void expect_moved(struct bench *bench, struct bench_tensor *from, struct bench_tensor *to)
{
    static unsigned seed;
    struct bench_end ends[2];
    bench_tensor_fill(from, ++seed);
    bench_tensor_fill(to, ++seed);
    unsigned char *packed = malloc(bench_tensor_bytes(from) + 1);
    unsigned char *source = malloc(from->block.bytes), *target = malloc(to->block.bytes);
    unsigned char *after = malloc(to->block.bytes);
    bench_tensor_read(from, source);
    bench_tensor_read(to, target);
    bench_gather(from, source, packed);
    bench_scatter(to, target, packed);
    bench_move(bench, from, 0, to, 0, ends);
    cr_assert(bench_run(bench), "stands still");
    expect_fine(&ends[0], "send");
    expect_fine(&ends[1], "receive");
    bench_tensor_read(to, after);
    cr_assert_eq(memcmp(after, target, to->block.bytes), 0, "other bytes than expected");
    free(packed);
    free(source);
    free(target);
    free(after);
}

Test(transfer, moves_every_size_between_all_devices)
{
    static const size_t sizes[] = {0,         1,         CHUNK - 1,     CHUNK,
                                   CHUNK + 1, 2 * CHUNK, 9 * CHUNK + 5, 40 * CHUNK};
    for (int way = 0; way < 18; way++) {
        struct bench bench;
        bench_init(&bench, &(struct bench_setup){.chunk_bytes = CHUNK, .chunk_window = WINDOW});
        bench.fake->reversed = way >= 9;
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            struct bench_tensor from, to;
            bench_bytes_init(&from, &bench, device_of(way % 3), sizes[i]);
            bench_bytes_init(&to, &bench, device_of(way / 3 % 3), sizes[i]);
            expect_moved(&bench, &from, &to);
            bench_tensor_finish(&from);
            bench_tensor_finish(&to);
        }
        cr_assert_leq(bench.fake->ends[0].most_in_flight[FAKE_SEND], WINDOW);
        cr_assert_leq(bench.fake->ends[1].most_in_flight[FAKE_RECEIVE], WINDOW);
        bench_finish(&bench);
    }
}

Test(transfer, fills_the_window_and_no_more)
{
    struct bench bench;
    struct bench_tensor from, to;
    struct bench_end ends[2];
    bench_init(&bench, &(struct bench_setup){.chunk_bytes = CHUNK, .chunk_window = WINDOW});
    bench.fake->hold = true;
    bench_bytes_init(&from, &bench, BENCH_CPU, 20 * CHUNK);
    bench_bytes_init(&to, &bench, BENCH_CPU, 20 * CHUNK);
    bench_move(&bench, &from, 0, &to, 0, ends);
    bench_steps(&bench, 5);
    cr_assert_eq(bench.fake->ends[0].in_flight[FAKE_SEND], WINDOW);
    cr_assert_eq(bench.fake->ends[1].in_flight[FAKE_RECEIVE], WINDOW);
    cr_assert_eq(ends[0].done + ends[1].done, 0);
    bench.fake->hold = false;
    cr_assert(bench_run(&bench));
    cr_assert_eq(bench.fake->ends[0].posted[FAKE_SEND], 20);
    expect_fine(&ends[1], "receive");
    bench_tensor_finish(&from);
    bench_tensor_finish(&to);
    bench_finish(&bench);
}

Test(transfer, ends_within_its_start_without_a_done)
{
    struct bench bench;
    struct bench_tensor from, to;
    struct bench_end ends[2];
    bench_init(&bench, &(struct bench_setup){.chunk_bytes = CHUNK, .chunk_window = WINDOW});
    bench.fake->at_once = true;
    bench_bytes_init(&from, &bench, BENCH_CPU, CHUNK);
    bench_bytes_init(&to, &bench, BENCH_CPU, CHUNK);
    bench_tensor_fill(&from, 1);
    cr_assert_eq(bench_start(&bench, 0, &from, 0, 7, CHUNK, &ends[0]), FERRY_PENDING);
    cr_assert_eq(transfer_path_of(ends[0].transfer), TRANSFER_HOST);
    cr_assert_eq(bench_start(&bench, 1, &to, 0, 7, CHUNK, &ends[1]), FERRY_OK);
    cr_assert(bench_tensors_equal(&from, &to));
    cr_assert(bench_run(&bench));
    expect_fine(&ends[0], "send");
    expect_fine(&ends[1], "receive"); /* and not once more */
    bench_tensor_finish(&from);
    bench_tensor_finish(&to);
    bench_finish(&bench);
}

Test(transfer, moves_strided_views)
{
    static const struct {
        int ndim;
        int64_t shape[4], strides[4];
        bool readable_only; /* elements that share memory */
    } views[] = {
        {2, {12, 10}, {10, 1}, false},       /* C order in so many words */
        {2, {12, 10}, {17, 1}, false},       /* rows with gaps */
        {2, {12, 10}, {1, 12}, false},       /* a transpose */
        {1, {100}, {-1}, false},             /* backwards */
        {3, {5, 4, 7}, {60, -14, 2}, false}, /* mixed signs */
        {2, {30, 9}, {0, 1}, true},          /* a broadcast row */
        {2, {9, 30}, {1, 0}, true},          /* a broadcast column */
        {4, {3, 1, 5, 4}, {50, 99, 9, -2}, false},
        {1, {1}, {33}, false},
    };
    for (size_t v = 0; v < sizeof views / sizeof views[0]; v++) {
        for (int way = 0; way < 16; way++) {
            struct bench bench;
            struct bench_tensor from, to;
            bool strided_target = (way & 1) != 0 && !views[v].readable_only;
            bench_init(&bench, &(struct bench_setup){.chunk_bytes = CHUNK, .chunk_window = WINDOW});
            bench.fake->reversed = (way & 2) != 0;
            bench_tensor_init(&from, &bench, device_of((way >> 2) & 1), 24, views[v].ndim,
                              views[v].shape, views[v].strides);
            bench_tensor_init(&to, &bench, device_of((way >> 3) & 1), 24, views[v].ndim,
                              views[v].shape, strided_target ? views[v].strides : NULL);
            expect_moved(&bench, &from, &to);
            bench_tensor_finish(&from);
            bench_tensor_finish(&to);
            bench_finish(&bench);
        }
    }
}

/* A random view whose elements are apart from each other: permuted dimensions, gaps and signs. */
static void random_strides(int ndim, const int64_t *shape, int64_t *strides)
{
    int order[6];
    int64_t step = 1 + rand() % 2;
    for (int i = 0; i < ndim; i++) {
        int other = rand() % (i + 1);
        order[i] = order[other];
        order[other] = i;
    }
    for (int i = 0; i < ndim; i++) {
        strides[order[i]] = rand() % 2 == 0 ? step : -step;
        step = step * (shape[order[i]] == 0 ? 1 : shape[order[i]]) + rand() % 3;
    }
}

Test(transfer, moves_random_views)
{
    static const uint8_t bits[] = {8, 16, 24, 32, 64, 128};
    srand(20261201);
    for (int round = 0; round < 400; round++) {
        struct bench bench;
        struct bench_tensor tensors[2];
        int64_t shape[6], strides[6];
        int ndim = rand() % 6;
        uint8_t element = bits[rand() % 6];
        bench_init(&bench,
                   &(struct bench_setup){.chunk_bytes = 16 + rand() % 100,
                                         .chunk_window = 1 + rand() % 4,
                                         .staging_bytes = 1 + rand() % 400,
                                         .capabilities = rand() % 2 == 0 ? FERRY_TRANSPORT_SIM : 0,
                                         .direct_min_bytes = rand() % 300});
        bench.fake->reversed = rand() % 2 == 0;
        bench.fake->at_once = rand() % 2 == 0;
        for (int i = 0; i < ndim; i++) {
            shape[i] = rand() % 30 == 0 ? 0 : 1 + rand() % 6;
        }
        for (int end = 0; end < 2; end++) {
            random_strides(ndim, shape, strides);
            bench_tensor_init(&tensors[end], &bench, device_of(rand() % 3), element, ndim, shape,
                              rand() % 4 == 0 ? NULL : strides);
        }
        expect_moved(&bench, &tensors[0], &tensors[1]);
        bench_tensor_finish(&tensors[0]);
        bench_tensor_finish(&tensors[1]);
        bench_finish(&bench);
    }
}

Test(transfer, goes_direct_where_the_transport_takes_the_device)
{
    for (int strided = 0; strided < 2; strided++) {
        struct bench bench;
        struct bench_tensor from, to, small, small_to;
        int64_t strides[] = {-33, 1};
        bench_init(&bench, &(struct bench_setup){.capabilities = FERRY_TRANSPORT_SIM,
                                                 .direct_min_bytes = 200});
        bench_tensor_init(&from, &bench, BENCH_SIM(0), 8, 2, (int64_t[]){10, 30},
                          strided ? strides : NULL);
        bench_tensor_init(&to, &bench, BENCH_SIM(1), 8, 2, (int64_t[]){10, 30},
                          strided ? strides : NULL);
        expect_moved(&bench, &from, &to);
        cr_assert_eq(bench.fake->direct, 2, "one operation for each end");
        bench_bytes_init(&small, &bench, BENCH_SIM(0), 199);
        bench_bytes_init(&small_to, &bench, BENCH_SIM(1), 199);
        expect_moved(&bench, &small, &small_to);
        cr_assert_eq(bench.fake->direct, 2, "below FERRY_DIRECT_MIN");
        bench_tensor_finish(&from);
        bench_tensor_finish(&to);
        bench_tensor_finish(&small);
        bench_tensor_finish(&small_to);
        bench_finish(&bench);
    }
}

Test(transfer, stages_what_comes_from_host_memory)
{
    struct bench bench;
    struct bench_tensor from, to;
    struct bench_end ends[2];
    bench_init(&bench, &(struct bench_setup){.capabilities = FERRY_TRANSPORT_SIM,
                                             .chunk_bytes = CHUNK,
                                             .direct_min_bytes = 1});
    bench_bytes_init(&from, &bench, BENCH_CPU, 5 * CHUNK + 1);
    bench_bytes_init(&to, &bench, BENCH_SIM(0), 5 * CHUNK + 1);
    bench_tensor_fill(&from, 6);
    bench_move(&bench, &from, 0, &to, 0, ends);
    cr_assert_eq(transfer_path_of(ends[1].transfer), TRANSFER_STAGED);
    cr_assert(bench_run(&bench));
    cr_assert_eq(bench.fake->direct, 0);
    cr_assert(bench_tensors_equal(&from, &to));
    bench_tensor_finish(&from);
    bench_tensor_finish(&to);
    bench_finish(&bench);
}

Test(transfer, takes_one_huge_operation_into_host_memory)
{
    struct bench bench;
    struct bench_tensor from, to;
    struct bench_end ends[2];
    int64_t shape[] = {30, 10}, strides[] = {1, 30};
    bench_init(&bench,
               &(struct bench_setup){.capabilities = FERRY_TRANSPORT_SIM, .direct_min_bytes = 1});
    bench_tensor_init(&from, &bench, BENCH_SIM(0), 8, 2, shape, NULL);
    bench_tensor_init(&to, &bench, BENCH_CPU, 8, 2, shape, strides);
    bench_tensor_fill(&from, 5);
    bench_move(&bench, &from, 0, &to, 0, ends);
    cr_assert_eq(transfer_path_of(ends[0].transfer), TRANSFER_DIRECT);
    cr_assert_eq(transfer_path_of(ends[1].transfer), TRANSFER_PACKED);
    cr_assert(bench_run(&bench));
    cr_assert_eq(bench.fake->ends[0].posted[FAKE_SEND], 1);
    cr_assert(bench_tensors_equal(&from, &to));
    bench_tensor_finish(&from);
    bench_tensor_finish(&to);
    bench_finish(&bench);
}

Test(transfer, unpacks_bytes_that_are_here)
{
    unsigned char data[600];
    for (size_t i = 0; i < sizeof data; i++) {
        data[i] = (unsigned char)(i * 7);
    }
    for (int device = 0; device < 2; device++) {
        struct bench bench;
        struct bench_tensor from, to;
        int64_t shape[] = {20, 10}, strides[] = {1, 20};
        bench_init(&bench, &(struct bench_setup){.chunk_bytes = CHUNK});
        bench_tensor_init(&from, &bench, BENCH_CPU, 24, 2, shape, NULL);
        memcpy((char *)from.block.data + from.view.view.byte_offset, data, sizeof data);
        bench_tensor_init(&to, &bench, device_of(device), 24, 2, shape, strides);
        struct transfer_spec spec = {.view = &to.view.view};
        ferry_status_t status = transfer_unpack(bench.engines[1], data, &spec, NULL);
        cr_assert_eq(status, device == 0 ? FERRY_OK : FERRY_PENDING);
        cr_assert(bench_run(&bench));
        cr_assert(bench_tensors_equal(&from, &to));
        bench_tensor_finish(&from);
        bench_tensor_finish(&to);
        bench_finish(&bench);
    }
}

struct chain {
    struct bench *bench;
    struct bench_tensor from, to;
    int rounds, sent, received;
};

static void chain_sent(void *context, ferry_status_t status)
{
    struct chain *chain = context;
    cr_assert_eq(status, FERRY_OK);
    chain->sent++;
}

static void chain_received(void *context, ferry_status_t status);

static void chain_start(struct chain *chain)
{
    struct bench *bench = chain->bench;
    struct transfer_spec spec = {.link = bench->links[0],
                                 .first_segment = 10 * (uint32_t)chain->rounds--,
                                 .operation_bytes = CHUNK,
                                 .view = &chain->from.view.view,
                                 .done = chain_sent,
                                 .context = chain};
    cr_assert_eq(transfer_send(bench->engines[0], &spec, NULL), FERRY_PENDING);
    spec.link = bench->links[1];
    spec.view = &chain->to.view.view;
    spec.done = chain_received;
    cr_assert_eq(transfer_receive(bench->engines[1], &spec, NULL), FERRY_PENDING);
}

static void chain_received(void *context, ferry_status_t status)
{
    struct chain *chain = context;
    cr_assert_eq(status, FERRY_OK);
    chain->received++;
    if (chain->rounds > 0) {
        chain_start(chain);
    }
}

Test(transfer, starts_others_from_done)
{
    for (int device = 0; device < 2; device++) {
        struct bench bench;
        bench_init(&bench, &(struct bench_setup){.chunk_bytes = CHUNK, .staging_bytes = CHUNK});
        struct chain chain = {.bench = &bench, .rounds = 20};
        bench_bytes_init(&chain.from, &bench, device_of(device), 5 * CHUNK);
        bench_bytes_init(&chain.to, &bench, device_of(device), 5 * CHUNK);
        bench.watch = clock_advance;
        chain_start(&chain);
        cr_assert(bench_run(&bench));
        cr_assert_eq(chain.sent, 20);
        cr_assert_eq(chain.received, 20);
        bench_tensor_finish(&chain.from);
        bench_tensor_finish(&chain.to);
        bench_finish(&bench);
    }
}
