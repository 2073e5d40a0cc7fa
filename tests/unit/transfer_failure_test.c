/* Transfers that do not go well: failed operations, cancelled and declined receives, lost links, and
 * what is refused at the start. The memory is the caller's after `done`, whatever happened. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include <ferry/error.h>
#include <ferry/sim.h>

#include "core/error.h"
#include "rpc/transfer_internal.h"
#include "support/transfer_bench.h"

#define CHUNK 64
#define COUNT 7 /* operations of the tensors here */
#define BYTES (COUNT * CHUNK - 5)
#define STEPS 50

static void sim_on(void)
{
    setenv("FERRY_SIM_DEVICES", "2", 1);
}

TestSuite(transfer_failure, .init = sim_on);

struct pair {
    struct bench bench;
    struct bench_tensor from, to;
    struct bench_end ends[2];
};

enum shape { HOST, PACKED, STAGED, STAGED_STRIDED, SHAPES };

static void tensor_make(struct bench_tensor *tensor, struct bench *bench, enum shape shape)
{
    DLDevice device = shape >= STAGED ? BENCH_SIM(0) : BENCH_CPU;
    int64_t extent = BYTES, stride = shape == PACKED || shape == STAGED_STRIDED ? -2 : 1;
    bench_tensor_init(tensor, bench, device, 8, 1, &extent, &stride);
}

static void pair_init(struct pair *pair, enum shape from, enum shape to)
{
    bench_init(&pair->bench, &(struct bench_setup){.chunk_bytes = CHUNK});
    tensor_make(&pair->from, &pair->bench, from);
    tensor_make(&pair->to, &pair->bench, to);
    bench_tensor_fill(&pair->from, 1);
}

static void pair_start(struct pair *pair)
{
    bench_move(&pair->bench, &pair->from, 0, &pair->to, 0, pair->ends);
}

/* After `done` nothing may touch the memory: it is filled anew and must stay so. */
static void pair_finish(struct pair *pair)
{
    struct bench_tensor *tensors[2] = {&pair->from, &pair->to};
    unsigned char *bytes[2];
    cr_assert_eq(pair->ends[0].done, 1, "send: done %d times", pair->ends[0].done);
    cr_assert_eq(pair->ends[1].done, 1, "receive: done %d times", pair->ends[1].done);
    for (int i = 0; i < 2; i++) {
        bench_tensor_fill(tensors[i], 99);
        bytes[i] = malloc(tensors[i]->block.bytes);
        bench_tensor_read(tensors[i], bytes[i]);
    }
    bench_steps(&pair->bench, STEPS);
    for (int i = 0; i < 2; i++) {
        unsigned char *now = malloc(tensors[i]->block.bytes);
        bench_tensor_read(tensors[i], now);
        cr_assert_eq(memcmp(now, bytes[i], tensors[i]->block.bytes), 0, "touched after done");
        free(now);
        free(bytes[i]);
        bench_tensor_finish(tensors[i]);
    }
    cr_assert_eq(pair->bench.fake->misused, 0, "a link was used after disconnect");
    bench_finish(&pair->bench);
}

static void end_lose(struct pair *pair, int end)
{
    error_raise(FERRY_ERR_PEER_LOST, "ps has left");
    transfer_link_lost(pair->bench.engines[end], pair->bench.links[end], FERRY_ERR_PEER_LOST);
    fake_disconnect(pair->bench.fake, end);
}

Test(transfer_failure, a_failed_post_of_a_receive_declines_the_rest)
{
    for (int shape = 0; shape < SHAPES; shape++) {
        for (size_t nth = 1; nth <= COUNT; nth++) {
            struct pair pair;
            pair_init(&pair, HOST, (enum shape)shape);
            pair.bench.fake->fail_post.end = 1;
            pair.bench.fake->fail_post.kind = FAKE_RECEIVE;
            pair.bench.fake->fail_post.nth = nth;
            pair.bench.fake->fail_post.status = FERRY_ERR_UNSUPPORTED;
            pair_start(&pair);
            if (nth == 1) {
                /* Refused at the start, so the segment is still the caller's to decline. */
                cr_assert_eq(pair.ends[1].done, 1);
                cr_assert_eq(transfer_decline(pair.bench.engines[1], pair.bench.links[1],
                                              UINT32_MAX - 3, BYTES, CHUNK),
                             FERRY_OK);
            }
            cr_assert(bench_run(&pair.bench), "the sender waits for ever");
            cr_assert_eq(pair.ends[1].status, FERRY_ERR_UNSUPPORTED);
            cr_assert_eq(pair.ends[0].status, FERRY_OK);
            pair_finish(&pair);
        }
    }
}

Test(transfer_failure, a_failed_operation_ends_the_transfer)
{
    for (int shape = 0; shape < SHAPES; shape++) {
        for (size_t nth = 1; nth <= COUNT; nth++) {
            for (int end = 0; end < 2; end++) {
                struct pair pair;
                pair_init(&pair, end == 0 ? (enum shape)shape : HOST,
                          end == 0 ? HOST : (enum shape)shape);
                pair.bench.fake->fail_completion.end = end;
                pair.bench.fake->fail_completion.kind = end == 0 ? FAKE_SEND : FAKE_RECEIVE;
                pair.bench.fake->fail_completion.nth = nth;
                pair.bench.fake->fail_completion.status = FERRY_ERR_TRANSPORT;
                pair_start(&pair);
                cr_assert(bench_run_end(&pair.bench, end));
                cr_assert_eq(pair.ends[end].status, FERRY_ERR_TRANSPORT);
                cr_assert(strstr(pair.ends[end].text, "of 7") != NULL, "%s", pair.ends[end].text);
                fake_drop(pair.bench.fake);
                end_lose(&pair, 0);
                end_lose(&pair, 1);
                cr_assert(bench_run(&pair.bench));
                pair_finish(&pair);
            }
        }
    }
}

Test(transfer_failure, an_operation_of_another_size_is_a_protocol_error)
{
    struct pair pair;
    pair_init(&pair, HOST, HOST);
    bench_start(&pair.bench, 0, &pair.from, 0, 1, CHUNK - 1, &pair.ends[0]);
    bench_start(&pair.bench, 1, &pair.to, 0, 1, CHUNK, &pair.ends[1]);
    cr_assert(bench_run_end(&pair.bench, 1));
    cr_assert_eq(pair.ends[1].status, FERRY_ERR_PROTOCOL);
    end_lose(&pair, 0);
    end_lose(&pair, 1);
    cr_assert(bench_run(&pair.bench));
    pair_finish(&pair);
}

Test(transfer_failure, a_cancelled_receive_declines_what_is_not_posted)
{
    for (int shape = 0; shape < SHAPES; shape++) {
        for (int moved = 0; moved < COUNT; moved++) {
            struct pair pair;
            pair_init(&pair, HOST, (enum shape)shape);
            pair.bench.fake->budget = moved;
            pair_start(&pair);
            bench_steps(&pair.bench, STEPS);
            cr_assert_eq(pair.ends[1].done, 0);
            transfer_cancel(pair.ends[1].transfer);
            transfer_cancel(pair.ends[0].transfer); /* a send goes on */
            cr_assert_eq(pair.ends[1].done, 0, "never from within");
            pair.bench.fake->budget = -1;
            cr_assert(bench_run(&pair.bench));
            cr_assert_eq(pair.ends[1].status, FERRY_ERR_CANCELLED);
            cr_assert_eq(pair.ends[0].status, FERRY_OK, "%s", pair.ends[0].text);
            pair_finish(&pair);
        }
    }
}

Test(transfer_failure, a_receive_is_cancelled_while_it_waits_for_its_stream)
{
    struct pair pair;
    struct bench_stream stream;
    pair_init(&pair, HOST, STAGED);
    bench_stream_init(&stream, &pair.bench, BENCH_SIM(0));
    bench_move(&pair.bench, &pair.from, 0, &pair.to, stream.stream, pair.ends);
    bench_steps(&pair.bench, STEPS);
    transfer_cancel(pair.ends[1].transfer);
    cr_assert(bench_run(&pair.bench), "the stream still stands, nothing waits for it");
    cr_assert_eq(pair.ends[1].status, FERRY_ERR_CANCELLED);
    cr_assert_eq(pair.ends[0].status, FERRY_OK);
    cr_assert_eq(pair.bench.fake->ends[1].posted[FAKE_DECLINE], COUNT);
    bench_stream_finish(&stream, &pair.bench);
    pair_finish(&pair);
}

Test(transfer_failure, a_declined_segment_frees_its_sender)
{
    for (int shape = 0; shape < SHAPES; shape++) {
        struct pair pair;
        pair_init(&pair, (enum shape)shape, HOST);
        bench_start(&pair.bench, 0, &pair.from, 0, 5, CHUNK, &pair.ends[0]);
        pair.ends[1] = (struct bench_end){.done = 1};
        cr_assert_eq(transfer_decline(pair.bench.engines[1], pair.bench.links[1], 5, BYTES, CHUNK),
                     FERRY_OK);
        cr_assert(bench_run(&pair.bench));
        cr_assert_eq(pair.ends[0].status, FERRY_OK);
        cr_assert_eq(pair.bench.fake->ends[1].posted[FAKE_DECLINE], COUNT);
        cr_assert_leq(pair.bench.fake->ends[1].most_in_flight[FAKE_DECLINE], 3);
        pair_finish(&pair);
    }
}

/* The link goes at every moment; both ends end, and the link is not touched again. */
Test(transfer_failure, a_lost_link_ends_everything)
{
    for (int way = 0; way < SHAPES * SHAPES; way++) {
        for (int moved = 0; moved < COUNT; moved++) {
            struct pair pair;
            pair_init(&pair, (enum shape)(way % SHAPES), (enum shape)(way / SHAPES));
            pair.bench.fake->budget = moved;
            pair_start(&pair);
            bench_steps(&pair.bench, moved * 3); /* sometimes amid a copy, sometimes not */
            fake_drop(pair.bench.fake);
            end_lose(&pair, 1);
            end_lose(&pair, 0);
            cr_assert(bench_run(&pair.bench));
            for (int end = 0; end < 2; end++) {
                cr_assert_eq(pair.ends[end].status, FERRY_ERR_PEER_LOST);
                cr_assert_str_eq(pair.ends[end].text, "ps has left");
            }
            pair_finish(&pair);
        }
    }
}

Test(transfer_failure, a_link_is_lost_while_nothing_is_posted)
{
    struct pair pair, other;
    struct bench_stream stream;
    pair_init(&pair, STAGED, STAGED);
    bench_stream_init(&stream, &pair.bench, BENCH_SIM(0));
    bench_move(&pair.bench, &pair.from, stream.stream, &pair.to, stream.stream, pair.ends);
    /* And one that waits for a slot: a single one is there, and it is taken. */
    bench_init(&other.bench, &(struct bench_setup){.chunk_bytes = CHUNK, .staging_bytes = 1});
    tensor_make(&other.from, &other.bench, STAGED);
    tensor_make(&other.to, &other.bench, STAGED);
    other.bench.fake->hold = true;
    bench_start(&other.bench, 1, &other.from, 0, 1, CHUNK, &other.ends[0]);
    bench_start(&other.bench, 1, &other.to, 0, 100, CHUNK, &other.ends[1]);
    for (int end = 0; end < 2; end++) {
        end_lose(&pair, end);
        end_lose(&other, end);
    }
    cr_assert(transfer_engine_polls(pair.bench.engines[0]), "an end is to be reported");
    cr_assert(bench_run(&pair.bench));
    cr_assert(bench_run(&other.bench));
    cr_assert_eq(pair.ends[0].status, FERRY_ERR_PEER_LOST);
    cr_assert_eq(pair.ends[1].status, FERRY_ERR_PEER_LOST);
    cr_assert_eq(other.ends[1].status, FERRY_ERR_PEER_LOST);
    cr_assert_eq(pair.bench.fake->ends[0].posted[FAKE_SEND], 0);
    bench_stream_finish(&stream, &pair.bench);
    pair_finish(&pair);
    pair_finish(&other);
}

/* A transport that disconnects without a word to the engine: what was posted ends the transfer. */
Test(transfer_failure, a_disconnect_alone_stops_what_is_posted)
{
    struct pair pair;
    pair_init(&pair, PACKED, HOST);
    pair.bench.fake->budget = 2;
    pair_start(&pair);
    bench_steps(&pair.bench, STEPS);
    fake_disconnect(pair.bench.fake, 0);
    fake_disconnect(pair.bench.fake, 1);
    cr_assert(bench_run(&pair.bench));
    cr_assert_eq(pair.ends[0].status, FERRY_ERR_CANCELLED);
    cr_assert_eq(pair.ends[1].status, FERRY_ERR_CANCELLED);
    pair_finish(&pair);
}

Test(transfer_failure, a_failed_users_stream_fails_what_waits_for_it)
{
    for (int end = 0; end < 2; end++) {
        struct pair pair;
        struct bench_stream stream;
        pair_init(&pair, end == 0 ? STAGED : HOST, end == 0 ? HOST : STAGED);
        bench_stream_init(&stream, &pair.bench, BENCH_SIM(0));
        cr_assert_eq(ferry_sim_fail(BENCH_SIM(0), stream.stream, "kernel 7 went astray"), FERRY_OK);
        bench_move(&pair.bench, &pair.from, end == 0 ? stream.stream : 0, &pair.to,
                   end == 1 ? stream.stream : 0, pair.ends);
        bench_stream_release(&stream);
        cr_assert(bench_run_end(&pair.bench, end));
        cr_assert_eq(pair.ends[end].status, FERRY_ERR_DEVICE);
        cr_assert(strstr(pair.ends[end].text, "astray") != NULL, "%s", pair.ends[end].text);
        end_lose(&pair, 0);
        end_lose(&pair, 1);
        cr_assert(bench_run(&pair.bench));
        cr_assert_eq(pair.ends[1 - end].status, end == 0 ? FERRY_ERR_PEER_LOST : FERRY_OK);
        bench_stream_finish(&stream, &pair.bench);
        pair_finish(&pair);
    }
}

/* The engine's own stream fails amid the copies of a transfer. */
Test(transfer_failure, a_failed_copy_ends_the_transfer)
{
    for (int end = 0; end < 2; end++) {
        for (int strided = 0; strided < 2; strided++) {
            struct pair pair;
            enum shape shape = strided ? STAGED_STRIDED : STAGED;
            pair_init(&pair, end == 0 ? shape : HOST, end == 0 ? HOST : shape);
            struct transfer_engine *engine = pair.bench.engines[end];
            struct bench_end warm_up[2];
            struct bench_tensor one;
            /* An engine makes its stream at the first use. */
            bench_bytes_init(&one, &pair.bench, BENCH_SIM(0), 1);
            bench_start(&pair.bench, end, &one, 0, 1000, 1, &warm_up[0]);
            bench_start(&pair.bench, 1 - end, &one, 0, 1000, 1, &warm_up[1]);
            cr_assert(bench_run(&pair.bench));
            pair.bench.fake->budget = 2;
            pair_start(&pair);
            cr_assert_eq(
                ferry_sim_fail(BENCH_SIM(0), engine->devices->streams[end], "copy engine 0 broke"),
                FERRY_OK);
            pair.bench.fake->budget = -1;
            cr_assert(bench_run_end(&pair.bench, end));
            cr_assert_eq(pair.ends[end].status, FERRY_ERR_DEVICE, "%s", pair.ends[end].text);
            cr_assert(strstr(pair.ends[end].text, "broke") != NULL, "%s", pair.ends[end].text);
            end_lose(&pair, 0);
            end_lose(&pair, 1);
            cr_assert(bench_run(&pair.bench));
            bench_tensor_finish(&one);
            pair_finish(&pair);
        }
    }
}

static ferry_status_t try_start(struct bench *bench, int end, DLDevice claimed,
                                uint64_t operation_bytes)
{
    static unsigned char data[BYTES];
    int64_t extent = BYTES;
    struct bench_tensor tensor = {.bench = bench};
    struct bench_end result;
    DLTensor view = {.data = data,
                     .device = claimed,
                     .ndim = 1,
                     .dtype = {.code = kDLUInt, .bits = 8, .lanes = 1},
                     .shape = &extent};
    tensor_copy_view(&tensor.view, &view);
    ferry_status_t status = bench_start(bench, end, &tensor, 0, 1, operation_bytes, &result);
    cr_assert_eq(transfer_engine_active(bench->engines[end]), 0);
    return status;
}

Test(transfer_failure, what_cannot_start_is_refused)
{
    struct bench bench;
    bench_init(&bench, &(struct bench_setup){.chunk_bytes = CHUNK, .paths = "^own_ipc,^staged"});
    cr_assert_eq(try_start(&bench, 0, BENCH_SIM(0), CHUNK), FERRY_ERR_UNSUPPORTED);
    cr_assert(strstr(ferry_last_error()->text, "FERRY_PATHS") != NULL, "%s",
              ferry_last_error()->text);
    cr_assert(strstr(ferry_last_error()->text, "sim:0") != NULL);
    cr_assert_eq(try_start(&bench, 1, BENCH_SIM(7), CHUNK), FERRY_ERR_UNKNOWN_DEVICE);
    bench_finish(&bench);

    bench_init(&bench, &(struct bench_setup){.chunk_bytes = CHUNK});
    cr_assert_eq(try_start(&bench, 1, BENCH_SIM(1), CHUNK + 1), FERRY_ERR_PROTOCOL);
    cr_assert(strstr(ferry_last_error()->text, "65 bytes to sim:1, at most 64") != NULL, "%s",
              ferry_last_error()->text);
    fake_drop(bench.fake);
    cr_assert_eq(try_start(&bench, 0, BENCH_CPU, CHUNK), FERRY_ERR_PEER_LOST);
    cr_assert_eq(try_start(&bench, 1, BENCH_CPU, CHUNK), FERRY_ERR_PEER_LOST);
    cr_assert_eq(transfer_decline(bench.engines[1], bench.links[1], 1, BYTES, CHUNK),
                 FERRY_ERR_PEER_LOST);
    bench_finish(&bench);
}
