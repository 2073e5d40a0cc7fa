/* Transfers over the real transports: every pair of devices, declined and cancelled receives, and links
 * that go away amid a transfer. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include <ferry/error.h>

#include "core/error.h"
#include "support/transfer_bench.h"
#include "support/wire.h"

#define CHUNK (64 << 10)

static struct {
    const ferry_transport_ops_t *ops;
    ferry_transport_t *instances[2];
    int links_down;
} wire;

static void sim_on(void)
{
    setenv("FERRY_SIM_DEVICES", "2", 1);
}

TestSuite(transfer_contract, .init = sim_on);

static void on_message(void *context, ferry_link_t *link, const void *data, size_t bytes)
{
    (void)context;
    (void)link;
    (void)data;
    (void)bytes;
}

static void on_link_down(void *context, ferry_link_t *link, ferry_status_t status, const char *text)
{
    (void)context;
    (void)link;
    (void)status;
    (void)text;
    wire.links_down++;
}

static unsigned wire_progress(struct bench *bench)
{
    (void)bench;
    return wire.ops->progress(wire.instances[0]) + wire.ops->progress(wire.instances[1]);
}

static void wire_init(struct bench *bench, const char *name)
{
    struct wire found = wire_find(name);
    wire.ops = found.ops;
    cr_assert_not_null(wire.ops);
    ferry_transport_options_t options = {
        .struct_bytes = sizeof options,
        .events = {.message = on_message, .link_down = on_link_down},
        .interface = "",
        .protocol = found.protocol,
        .message_bytes = 8192,
    };
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(wire.ops->open(&options, &wire.instances[i]), FERRY_OK, "%s",
                     ferry_last_error()->text);
    }
    struct bench_setup setup = {.chunk_bytes = CHUNK,
                                .chunk_window = 4,
                                .staging_bytes = 6 * CHUNK,
                                .capabilities = wire.ops->capabilities(wire.instances[0])};
    bench_init_engines(bench, &setup);
    bench->progress = wire_progress;
    for (uint32_t i = 0; i < 2; i++) {
        const void *address;
        size_t bytes;
        wire.ops->address(wire.instances[1 - i], &address, &bytes);
        cr_assert_eq(wire.ops->connect(wire.instances[i], address, bytes, 70 + i, 71 - i, NULL,
                                       &bench->links[i]),
                     FERRY_OK, "%s", ferry_last_error()->text);
    }
}

/* As an agent does it. */
static void wire_disconnect(struct bench *bench, int end)
{
    if (bench->links[end] != NULL) {
        error_raise(FERRY_ERR_PEER_LOST, "the test dropped the link");
        transfer_link_lost(bench->engines[end], bench->links[end], FERRY_ERR_PEER_LOST);
        wire.ops->disconnect(bench->links[end]);
        bench->links[end] = NULL;
    }
}

static void wire_finish(struct bench *bench)
{
    wire_disconnect(bench, 0);
    wire_disconnect(bench, 1);
    while (wire.ops->pending(wire.instances[0]) + wire.ops->pending(wire.instances[1]) > 0) {
        bench_step(bench);
    }
    cr_assert(bench_run(bench));
    wire.ops->close(wire.instances[0]);
    wire.ops->close(wire.instances[1]);
    bench_finish(bench);
}

static DLDevice device_of(int number)
{
    return number == 0 ? BENCH_CPU : BENCH_SIM(number - 1);
}

static void expect_moved(struct bench *bench, struct bench_tensor *from, struct bench_tensor *to)
{
    static unsigned seed;
    struct bench_end ends[2];
    bench_tensor_fill(from, ++seed);
    bench_move(bench, from, 0, to, 0, ends);
    cr_assert(bench_run(bench), "stands still");
    for (int end = 0; end < 2; end++) {
        cr_assert_eq(ends[end].done, 1);
        cr_assert_eq(ends[end].status, FERRY_OK, "%s", ends[end].text);
    }
    cr_assert(bench_tensors_equal(from, to));
    bench_tensor_finish(from);
    bench_tensor_finish(to);
}

static void move_everything(const char *name)
{
    static const int64_t sizes[] = {1, 300, CHUNK - 1, CHUNK, CHUNK + 1, 9 * CHUNK + 7};
    int64_t shape[] = {300, 2, 500}, reversed[] = {-1100, 550, -1}, transposed[] = {1, 150000, 300};
    struct bench bench;
    struct bench_tensor from, to;
    wire_init(&bench, name);
    for (int way = 0; way < 9; way++) {
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            bench_bytes_init(&from, &bench, device_of(way % 3), (size_t)sizes[i]);
            bench_bytes_init(&to, &bench, device_of(way / 3), (size_t)sizes[i]);
            expect_moved(&bench, &from, &to);
        }
        bench_tensor_init(&from, &bench, device_of(way % 3), 16, 3, shape, reversed);
        bench_tensor_init(&to, &bench, device_of(way / 3), 16, 3, shape, transposed);
        expect_moved(&bench, &from, &to);
    }
    wire_finish(&bench);
}

Test(transfer_contract, inproc_moves_everything)
{
    move_everything("inproc");
}

Test(transfer_contract, ucx_tag_moves_everything)
{
    move_everything("ucx:tag");
}

Test(transfer_contract, ucx_am_moves_everything)
{
    move_everything("ucx:am");
}

Test(transfer_contract, ucx_stream_moves_everything)
{
    move_everything("ucx:stream");
}

static void free_senders(const char *name)
{
    struct bench bench;
    struct bench_tensor from, to;
    struct bench_end ends[2];
    wire_init(&bench, name);
    for (int device = 0; device < 2; device++) {
        uint32_t segment = 1000 * (uint32_t)(device + 1);
        bench_bytes_init(&from, &bench, device_of(device), 20 * CHUNK);
        bench_bytes_init(&to, &bench, device_of(device), 20 * CHUNK);
        bench_start(&bench, 0, &from, 0, segment, CHUNK, &ends[0]);
        cr_assert_eq(transfer_decline(bench.engines[1], bench.links[1], segment, 20 * CHUNK, CHUNK),
                     FERRY_OK);
        cr_assert(bench_run(&bench), "a declined send stands still");
        cr_assert_eq(ends[0].done, 1);

        segment += 100;
        bench_start(&bench, 1, &to, 0, segment, CHUNK, &ends[1]);
        transfer_cancel(ends[1].transfer);
        bench_start(&bench, 0, &from, 0, segment, CHUNK, &ends[0]);
        cr_assert(bench_run(&bench), "the send to a cancelled receive stands still");
        cr_assert_eq(ends[0].done, 1);
        cr_assert_eq(ends[1].status, FERRY_ERR_CANCELLED);
        bench_tensor_finish(&from);
        bench_tensor_finish(&to);
    }
    wire_finish(&bench);
}

Test(transfer_contract, inproc_frees_the_sender_of_what_nobody_takes)
{
    free_senders("inproc");
}

Test(transfer_contract, ucx_tag_frees_the_sender_of_what_nobody_takes)
{
    free_senders("ucx:tag");
}

Test(transfer_contract, ucx_am_frees_the_sender_of_what_nobody_takes)
{
    free_senders("ucx:am");
}

Test(transfer_contract, ucx_stream_frees_the_sender_of_what_nobody_takes)
{
    free_senders("ucx:stream");
}

/* What is left of a block is poisoned once it is given back, so a late write shows. */
static void lose_links(const char *name)
{
    for (int steps = 0; steps < 12; steps++) {
        struct bench bench;
        struct bench_tensor from, to;
        struct bench_end ends[2];
        wire_init(&bench, name);
        bench_bytes_init(&from, &bench, device_of(steps & 1), 40 * CHUNK);
        bench_bytes_init(&to, &bench, device_of((steps >> 1) & 1), 40 * CHUNK);
        bench_move(&bench, &from, 0, &to, 0, ends);
        bench_steps(&bench, steps);
        wire_disconnect(&bench, steps % 2);
        wire_disconnect(&bench, 1 - steps % 2);
        cr_assert(bench_run(&bench), "a transfer over a lost link stands still");
        cr_assert_eq(ends[0].done, 1);
        cr_assert_eq(ends[1].done, 1);
        bench_tensor_finish(&from);
        bench_tensor_finish(&to);
        bench_steps(&bench, 50);
        wire_finish(&bench);
    }
}

Test(transfer_contract, inproc_loses_links)
{
    lose_links("inproc");
}

Test(transfer_contract, ucx_tag_loses_links)
{
    lose_links("ucx:tag");
}

Test(transfer_contract, ucx_am_loses_links)
{
    lose_links("ucx:am");
}

Test(transfer_contract, ucx_stream_loses_links)
{
    lose_links("ucx:stream");
}
