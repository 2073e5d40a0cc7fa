/* Control messages: what is written is read again, what is malformed is refused, what does not fit
 * spills, and the format is what it was. */
#include <criterion/criterion.h>

#include <ferry/error.h>

#include "fuzz/wire_random.h"
#include "rpc/wire_format.h"

static const struct wire_limits LIMITS = {
    .eager_bytes = 1024, .inline_bytes = 512, .max_tensors = 4, .max_message_bytes = 1u << 20};
static const DLDevice CPU = {.device_type = kDLCPU, .device_id = 0};
static const DLDevice CUDA1 = {.device_type = kDLCUDA, .device_id = 1};
static const DLDataType U8 = {.code = kDLUInt, .bits = 8, .lanes = 1};
static uint8_t payload[8192];

static void expect_error(ferry_status_t status, ferry_status_t expected, const char *text)
{
    cr_assert_eq(status, expected, "status %d: %s", (int)status, ferry_last_error()->text);
    cr_assert(strstr(ferry_last_error()->text, text) != NULL, "'%s' lacks '%s'",
              ferry_last_error()->text, text);
}

static struct wire_message call_of(const char *method)
{
    return (struct wire_message){.kind = WIRE_CALL,
                                 .call_id = 7,
                                 .method = method,
                                 .method_bytes = strlen(method),
                                 .timeout_ns = FERRY_FOREVER};
}

/* bytes of uint8 on the CPU, a candidate for riding inside. */
static struct wire_tensor tensor_of(int64_t bytes)
{
    struct wire_tensor tensor = {.dtype = U8,
                                 .ndim = 1,
                                 .shape_storage = {bytes},
                                 .source = CPU,
                                 .target = CPU,
                                 .bytes = (uint64_t)bytes,
                                 .operation_bytes = (uint64_t)bytes,
                                 .sender_path = TRANSFER_HOST,
                                 .inline_data = payload};
    return tensor;
}

/* A message of this test file, encoded into exact allocations; made from `message` and up to 4 tensors. */
struct sample {
    struct wire_message message;
    struct wire_tensor tensors[4];
    struct random_bytes encoded;
};

static void sample_encode(struct sample *sample, const struct wire_limits *limits)
{
    for (int i = 0; i < 4; i++) {
        sample->tensors[i].shape = sample->tensors[i].shape_storage;
    }
    struct random_bytes *encoded = &sample->encoded;
    cr_assert_eq(wire_plan(&sample->message, sample->tensors, limits, &encoded->bytes,
                           &encoded->table_bytes),
                 FERRY_OK, "%s", ferry_last_error()->text);
    encoded->data = malloc(encoded->bytes);
    encoded->table = encoded->table_bytes == 0 ? NULL : malloc(encoded->table_bytes);
    wire_encode(&sample->message, sample->tensors, encoded->data, encoded->table);
}

static ferry_status_t sample_decode(const struct sample *sample, const struct wire_limits *limits)
{
    struct wire_message message = {.tensor_count = 0};
    struct wire_tensor tensors[4];
    return random_decode(&sample->encoded, limits, &message, tensors);
}

static struct sample sample_of_call(void)
{
    struct sample sample = {.message = call_of("double")};
    sample.message.metadata = "trace";
    sample.message.metadata_bytes = 5;
    sample.message.body = "body";
    sample.message.body_bytes = 4;
    sample.message.tensor_count = 3;
    sample.tensors[0] = tensor_of(10);
    sample.tensors[0].name = "gradient";
    sample.tensors[0].name_bytes = 8;
    sample.tensors[1] = tensor_of(4000);
    sample.tensors[1].target = CUDA1;
    sample.tensors[1].operation_bytes = 1024;
    sample.tensors[2] = tensor_of(0);
    sample_encode(&sample, &LIMITS);
    return sample;
}

static bool texts_equal(const char *left, size_t left_bytes, const char *right, size_t right_bytes)
{
    return left_bytes == right_bytes && (left_bytes == 0 || memcmp(left, right, left_bytes) == 0);
}

static void expect_tensor(const struct wire_tensor *sent, const struct wire_tensor *got)
{
    cr_assert(texts_equal(sent->name, sent->name_bytes, got->name, got->name_bytes));
    cr_assert_eq((got->name == NULL), (got->name_bytes == 0));
    cr_assert_eq(sent->dtype.code, got->dtype.code);
    cr_assert_eq(sent->dtype.bits, got->dtype.bits);
    cr_assert_eq(sent->dtype.lanes, got->dtype.lanes);
    cr_assert_eq(sent->ndim, got->ndim);
    cr_assert_eq(got->shape, got->shape_storage);
    cr_assert_eq(memcmp(sent->shape, got->shape, sizeof(int64_t) * (size_t)sent->ndim), 0);
    cr_assert_eq(memcmp(&sent->source, &got->source, sizeof(DLDevice)), 0);
    cr_assert_eq(memcmp(&sent->target, &got->target, sizeof(DLDevice)), 0);
    cr_assert_eq(sent->bytes, got->bytes);
    cr_assert_eq(sent->operation_bytes, got->operation_bytes);
    cr_assert_eq(sent->sender_path, got->sender_path);
    cr_assert_eq(sent->joint, got->joint);
    cr_assert_eq(sent->joint ? sent->joint_offset : 0, got->joint_offset);
    cr_assert_eq((sent->inline_data != NULL), (got->inline_data != NULL));
    if (sent->inline_data != NULL) {
        cr_assert_eq(memcmp(sent->inline_data, got->inline_data, sent->bytes), 0);
    }
}

static void expect_message(const struct wire_message *sent, const struct wire_message *got)
{
    bool is_call = sent->kind == WIRE_CALL;
    cr_assert_eq(sent->kind, got->kind);
    cr_assert_eq(sent->flags, got->flags);
    cr_assert_eq(sent->call_id, got->call_id);
    cr_assert_eq(sent->first_segment, got->first_segment);
    cr_assert(texts_equal(sent->method, sent->method_bytes, got->method, got->method_bytes));
    cr_assert_eq(sent->timeout_ns, got->timeout_ns);
    cr_assert(texts_equal(sent->metadata, is_call ? sent->metadata_bytes : 0, got->metadata,
                          got->metadata_bytes));
    cr_assert_eq(sent->results_direct, got->results_direct);
    cr_assert_eq(sent->status, got->status);
    cr_assert_eq(sent->effect, got->effect);
    cr_assert_eq(sent->code, got->code);
    cr_assert(texts_equal(sent->error_text, sent->error_text_bytes, got->error_text,
                          got->error_text_bytes));
    cr_assert(texts_equal(sent->error_origin, sent->error_origin_bytes, got->error_origin,
                          got->error_origin_bytes));
    cr_assert_eq(sent->queue_ns, got->queue_ns);
    cr_assert_eq(sent->handler_ns, got->handler_ns);
    cr_assert_eq(sent->receive_ns, got->receive_ns);
    cr_assert(texts_equal((const char *)sent->argument_paths, sent->argument_count,
                          (const char *)got->argument_paths, got->argument_count));
    cr_assert_eq(sent->body_bytes, got->body_bytes);
    cr_assert_eq(sent->body_operation_bytes, got->body_operation_bytes);
    cr_assert_eq(sent->joint_bytes, got->joint_bytes);
    cr_assert_eq(sent->joint_operation_bytes, got->joint_operation_bytes);
    cr_assert_eq(sent->tensor_count, got->tensor_count);
    if (sent->body_bytes > 0 && !(sent->flags & WIRE_BODY_SEGMENT)) {
        cr_assert_eq(memcmp(sent->body, got->body, sent->body_bytes), 0);
    }
}

Test(wire, random_messages_are_read_as_they_were_written)
{
    static struct random_message made;
    static struct wire_tensor tensors[RANDOM_TENSORS_MAX];
    unsigned taken = 0, tables = 0, bodies = 0, inside = 0, joint = 0, errors = 0;
    for (uint64_t seed = 1; seed <= 6000; seed++) {
        struct random_source random = {.state = seed * 0x9e3779b97f4a7c15ULL};
        struct random_bytes encoded;
        random_fill(&random, &made);
        if (!random_encode(&made, &encoded)) {
            cr_assert_eq(ferry_last_error()->status, FERRY_ERR_LIMIT, "seed %lu", seed);
            continue;
        }
        cr_assert_leq(encoded.bytes, made.limits.eager_bytes, "seed %lu", seed);
        struct wire_message message;
        cr_assert_eq(random_decode(&encoded, &made.limits, &message, tensors), FERRY_OK,
                     "seed %lu: %s", seed, ferry_last_error()->text);
        const char *problem = random_check(&encoded, &made.limits, &message, tensors);
        cr_assert_eq(problem, NULL, "seed %lu: %s", seed, problem);
        expect_message(&made.message, &message);
        for (uint64_t i = 0; i < message.tensor_count; i++) {
            expect_tensor(&made.tensors[i], &tensors[i]);
            inside += tensors[i].inline_data != NULL;
            joint += tensors[i].joint;
        }
        taken++;
        tables += (message.flags & WIRE_TABLE_SEGMENT) != 0;
        bodies += (message.flags & WIRE_BODY_SEGMENT) != 0;
        errors += message.kind == WIRE_REPLY && message.status != FERRY_OK;
        random_free(&encoded);
    }
    cr_assert(taken > 2000 && tables > 500 && bodies > 300 && inside > 500 && joint > 500 &&
                  errors > 500,
              "%u taken, %u tables, %u bodies, %u inside, %u joint, %u errors", taken, tables,
              bodies, inside, joint, errors);
}

/* Cuts one area at every byte and makes it one byte longer. */
static void expect_only_whole(const struct random_message *made, const struct random_bytes *encoded,
                              bool table, struct wire_tensor *tensors)
{
    size_t whole = table ? encoded->table_bytes : encoded->bytes;
    for (size_t bytes = 0; bytes <= whole + 1; bytes++) {
        struct random_bytes cut = *encoded;
        uint8_t *copy = malloc(bytes == 0 ? 1 : bytes);
        memcpy(copy, table ? encoded->table : encoded->data, bytes < whole ? bytes : whole);
        if (bytes > whole) {
            copy[whole] = 0;
        }
        *(table ? &cut.table : &cut.data) = copy;
        *(table ? &cut.table_bytes : &cut.bytes) = bytes;
        struct wire_message message = {.tensor_count = 0};
        ferry_status_t status = random_decode(&cut, &made->limits, &message, tensors);
        cr_assert_eq(status, bytes == whole ? FERRY_OK : FERRY_ERR_PROTOCOL, "%zu of %zu bytes",
                     bytes, whole);
        free(copy);
    }
}

Test(wire, a_message_cut_anywhere_is_refused)
{
    static struct random_message made;
    static struct wire_tensor tensors[RANDOM_TENSORS_MAX];
    for (uint64_t seed = 1, taken = 0; taken < 60; seed++) {
        struct random_source random = {.state = seed * 0x9e3779b97f4a7c15ULL};
        struct random_bytes encoded;
        random_fill(&random, &made);
        if (random_encode(&made, &encoded)) {
            expect_only_whole(&made, &encoded, false, tensors);
            if (encoded.table != NULL && encoded.table_bytes < 4096) {
                expect_only_whole(&made, &encoded, true, tensors);
            }
            random_free(&encoded);
            taken++;
        }
    }
}

Test(wire, header_and_variable_part_check_the_tables_size)
{
    struct sample sample = sample_of_call();
    sample.message.metadata = payload;
    sample.message.metadata_bytes = 1000;
    random_free(&sample.encoded);
    sample_encode(&sample, &LIMITS);
    cr_assert(sample.message.flags & WIRE_TABLE_SEGMENT);
    struct random_bytes *encoded = &sample.encoded;
    struct wire_message message;
    struct wire_decoder decoder;
    size_t table_bytes;
    cr_assert_eq(wire_decode_header(encoded->data, encoded->bytes, &LIMITS, &message, &table_bytes),
                 FERRY_OK);
    cr_assert_eq(table_bytes, encoded->table_bytes);
    expect_error(wire_decode_variable(encoded->data, encoded->bytes, encoded->table,
                                      table_bytes - 1, &LIMITS, &message, &decoder),
                 FERRY_ERR_PROTOCOL, "table");
    expect_error(
        wire_decode_variable(encoded->data, encoded->bytes, NULL, 0, &LIMITS, &message, &decoder),
        FERRY_ERR_PROTOCOL, "table");
    random_free(encoded);
}

Test(wire, the_format_does_not_change_unnoticed)
{
    static const char GOLDEN[] =
        "46525259020100010700000000000000" /* FRRY, version, call, results direct, id */
        "221100007b0000000400000000000000" /* first segment, 123 variable bytes, 4 of body */
        "02000000060005000094357700000000" /* 2 tensors, method 6, metadata 5, 2 s */
        "00000000000000000000000000000000"
        "646f75626c657472616365" /* "double" "trace" */
        "0802010002200200010000000000000002000000010000002000000000000000"
        "0000000000000000" /* float32x2, cpu:0 -> cuda:1, 32 bytes, inside */
        "020000000000000002000000000000006772616469656e74" /* 2 x 2 "gradient" */
        "0001000301080100020000000100000001000000000000000010000000000000"
        "0004000000000000" /* uint8, cuda:1 -> cpu:0, 4096 bytes, 1024 an operation, staged */
        "0010000000000000"
        "0000000000626f647900000000" /* gap, "body", gap */
        "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
    for (int i = 0; i < 32; i++) {
        payload[i] = (uint8_t)i;
    }
    struct sample sample = {.message = call_of("double")};
    sample.message.first_segment = 0x1122;
    sample.message.timeout_ns = 2000000000;
    sample.message.metadata = "trace";
    sample.message.metadata_bytes = 5;
    sample.message.results_direct = true;
    sample.message.body = "body";
    sample.message.body_bytes = 4;
    sample.message.tensor_count = 2;
    sample.tensors[0] = tensor_of(32);
    sample.tensors[0].name = "gradient";
    sample.tensors[0].name_bytes = 8;
    sample.tensors[0].dtype = (DLDataType){.code = kDLFloat, .bits = 32, .lanes = 2};
    sample.tensors[0].ndim = 2;
    sample.tensors[0].shape_storage[0] = sample.tensors[0].shape_storage[1] = 2;
    sample.tensors[0].target = CUDA1;
    sample.tensors[1] = tensor_of(4096);
    sample.tensors[1].source = CUDA1;
    sample.tensors[1].operation_bytes = 1024;
    sample.tensors[1].sender_path = TRANSFER_STAGED;
    sample_encode(&sample, &LIMITS);
    char text[2 * 512 + 1] = "";
    cr_assert_leq(sample.encoded.bytes, 512);
    for (size_t i = 0; i < sample.encoded.bytes; i++) {
        snprintf(text + 2 * i, 3, "%02x", sample.encoded.data[i]);
    }
    cr_assert_str_eq(text, GOLDEN);
    random_free(&sample.encoded);
}

Test(wire, an_empty_call_is_a_header_and_a_name)
{
    struct sample sample = {.message = call_of("echo")};
    sample_encode(&sample, &LIMITS);
    cr_assert_eq(sample.encoded.bytes, 64 + 4);
    random_free(&sample.encoded);
    struct sample reply = {.message = {.kind = WIRE_REPLY}};
    sample_encode(&reply, &LIMITS);
    cr_assert_eq(reply.encoded.bytes, 64);
    random_free(&reply.encoded);
}

Test(wire, a_body_rides_inside_up_to_the_last_byte)
{
    struct sample sample = {.message = call_of("12345678")};
    sample.message.body = payload;
    sample.message.body_bytes = 1024 - 64 - 8;
    sample.message.body_operation_bytes = 100;
    sample_encode(&sample, &LIMITS);
    cr_assert_eq(sample.encoded.bytes, 1024);
    cr_assert_eq(sample.message.flags, 0);
    cr_assert_eq(sample.message.body_operation_bytes, 0);
    random_free(&sample.encoded);

    sample.message.body_bytes++;
    sample.message.body_operation_bytes = 100;
    sample_encode(&sample, &LIMITS);
    cr_assert_eq(sample.message.flags, WIRE_BODY_SEGMENT);
    cr_assert_eq(sample.message.body_operation_bytes, 100);
    cr_assert_eq(sample.encoded.bytes, 64 + 8 + 8);
    cr_assert_eq(sample_decode(&sample, &LIMITS), FERRY_OK);
    random_free(&sample.encoded);
}

Test(wire, a_table_rides_inside_up_to_the_last_byte)
{
    struct sample sample = {.message = call_of("12345678")};
    sample.message.metadata = payload;
    sample.message.metadata_bytes = 1024 - 64 - 8 - 48;
    sample.message.tensor_count = 1;
    sample.tensors[0] = tensor_of(600);
    sample_encode(&sample, &LIMITS);
    cr_assert_eq(sample.encoded.bytes, 1024);
    cr_assert_eq(sample.message.flags, 0);
    random_free(&sample.encoded);

    sample.message.metadata_bytes++;
    sample_encode(&sample, &LIMITS);
    cr_assert_eq(sample.message.flags, WIRE_TABLE_SEGMENT);
    cr_assert_eq(sample.encoded.bytes, 64);
    cr_assert_eq(sample.encoded.table_bytes, 1024 - 64 + 1);
    cr_assert_eq(sample_decode(&sample, &LIMITS), FERRY_OK);
    random_free(&sample.encoded);
}

Test(wire, small_tensors_ride_inside_in_table_order_after_the_body)
{
    struct sample sample = {.message = call_of("12345678")};
    sample.message.body = payload;
    sample.message.body_bytes = 200;
    sample.message.tensor_count = 4;
    sample.tensors[0] = tensor_of(513); /* over inline_bytes */
    sample.tensors[1] = tensor_of(400);
    sample.tensors[2] = tensor_of(400); /* 64 + 8 + 4 * 48 + 200 + 400 = 864, so no room */
    sample.tensors[2].operation_bytes = 0;
    sample.tensors[3] = tensor_of(160); /* to the last byte */
    sample_encode(&sample, &LIMITS);
    cr_assert_eq(sample.tensors[0].inline_data, NULL);
    cr_assert_eq(sample.tensors[0].operation_bytes, 513);
    cr_assert_eq(sample.tensors[1].inline_data, payload);
    cr_assert_eq(sample.tensors[1].operation_bytes, 0);
    cr_assert_eq(sample.tensors[1].sender_path, TRANSFER_NONE);
    cr_assert_eq(sample.tensors[2].inline_data, NULL);
    cr_assert_eq(sample.tensors[2].operation_bytes, 400, "none said: one of the whole");
    cr_assert_eq(sample.tensors[3].inline_data, payload);
    cr_assert_eq(sample.encoded.bytes, 1024);
    cr_assert_eq(sample_decode(&sample, &LIMITS), FERRY_OK);
    random_free(&sample.encoded);
}

/* Three of four share a joint segment of 65 + 63 + 1 + 63 + 4000 bytes. */
static struct sample sample_of_joint(void)
{
    struct sample sample = {.message = call_of("12345678")};
    sample.message.joint_operation_bytes = 1000;
    sample.message.tensor_count = 4;
    for (int i = 0; i < 4; i++) {
        static const int64_t sizes[] = {65, 1, 600, 4000};
        sample.tensors[i] = tensor_of(sizes[i]);
        sample.tensors[i].inline_data = NULL;
        sample.tensors[i].joint = true;
    }
    sample.tensors[2].joint = false;
    sample_encode(&sample, &LIMITS);
    return sample;
}

Test(wire, small_tensors_share_a_joint_segment_in_table_order)
{
    struct sample sample = sample_of_joint();
    struct wire_message message;
    struct wire_tensor tensors[4];
    static const uint64_t offsets[] = {0, 128, 0, 192};
    cr_assert_eq(sample.message.joint_bytes, 192 + 4000);
    cr_assert_eq(random_decode(&sample.encoded, &LIMITS, &message, tensors), FERRY_OK);
    expect_message(&sample.message, &message);
    for (int i = 0; i < 4; i++) {
        sample.tensors[i].shape = sample.tensors[i].shape_storage; /* it was made elsewhere */
        expect_tensor(&sample.tensors[i], &tensors[i]);
        cr_assert_eq(tensors[i].joint, i != 2);
        cr_assert_eq(tensors[i].joint_offset, offsets[i]);
        cr_assert_eq(tensors[i].operation_bytes, i == 2 ? 600 : 0);
    }
    random_free(&sample.encoded);
}

Test(wire, a_tensor_that_would_be_alone_in_the_joint_segment_is_a_segment_itself)
{
    struct sample sample = {.message = call_of("m")};
    sample.message.joint_operation_bytes = 1000;
    sample.message.tensor_count = 3;
    for (int i = 0; i < 3; i++) {
        sample.tensors[i] = tensor_of(i == 2 ? 0 : 400);
        sample.tensors[i].joint = true;
    }
    sample.tensors[1].inline_data = NULL;
    sample_encode(&sample, &LIMITS);
    cr_assert_not_null(sample.tensors[0].inline_data);
    cr_assert_eq(sample.tensors[1].operation_bytes, 400);
    cr_assert_eq(sample.message.joint_bytes, 0);
    for (int i = 0; i < 3; i++) {
        cr_assert(!sample.tensors[i].joint);
    }
    cr_assert_eq(sample_decode(&sample, &LIMITS), FERRY_OK);
    random_free(&sample.encoded);
}

Test(wire, a_joint_segment_that_makes_no_sense_is_refused)
{
    size_t entry = 64 + 8, last = entry + 3 * 48;
    static const struct {
        size_t at;
        uint64_t value;
        const char *text;
    } cases[] = {
        {0, 0, "joint"},         /* no operations */
        {0, 4193, "joint"},      /* another size than the next one's */
        {3, 999, "joint"},       /* than the first one's */
        {4, 4193, "operations"}, /* all say more than the segment has */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sample sample = sample_of_joint();
        for (size_t t = 0; t < 4; t++) {
            if (t != 2 && (cases[i].at == t || cases[i].at == 4)) {
                wire_put_u64(sample.encoded.data + entry + t * 48 + WIRE_TENSOR_OPERATION,
                             cases[i].value);
            }
        }
        expect_error(sample_decode(&sample, &LIMITS), FERRY_ERR_PROTOCOL, cases[i].text);
        random_free(&sample.encoded);
    }
    struct wire_limits limits = LIMITS;
    limits.max_message_bytes = UINT64_MAX;
    struct sample sample = sample_of_joint();
    wire_put_u64(sample.encoded.data + last + WIRE_TENSOR_SOURCE, kDLCUDA);
    expect_error(sample_decode(&sample, &limits), FERRY_ERR_PROTOCOL, "joint");
    wire_put_u64(sample.encoded.data + last + WIRE_TENSOR_SOURCE, kDLCPU);
    for (size_t t = 0; t < 4; t += t == 1 ? 2 : 1) { /* 2^24 operations and more */
        wire_put_u64(sample.encoded.data + entry + t * 48 + WIRE_TENSOR_OPERATION, 1);
    }
    wire_put_u64(sample.encoded.data + last + WIRE_TENSOR_BYTES, 1u << 24);
    wire_put_u64(sample.encoded.data + last + WIRE_TENSOR_ENTRY_BYTES, 1u << 24);
    expect_error(sample_decode(&sample, &limits), FERRY_ERR_PROTOCOL, "operations");
    for (size_t t = 0; t < 4; t++) { /* three of 2^63 - 1 bytes leave the number range */
        wire_put_u64(sample.encoded.data + entry + t * 48 + WIRE_TENSOR_BYTES, INT64_MAX);
        wire_put_u64(sample.encoded.data + entry + t * 48 + WIRE_TENSOR_ENTRY_BYTES, INT64_MAX);
        sample.encoded.data[entry + t * 48 + WIRE_TENSOR_FLAGS] = WIRE_TENSOR_JOINT;
        wire_put_u64(sample.encoded.data + entry + t * 48 + WIRE_TENSOR_OPERATION, 1ull << 60);
    }
    expect_error(sample_decode(&sample, &limits), FERRY_ERR_PROTOCOL, "");
    random_free(&sample.encoded);
}

static void expect_limit(struct sample *sample, const struct wire_limits *limits, const char *text)
{
    size_t bytes = 4711, table_bytes = 4712;
    for (int i = 0; i < 4; i++) {
        sample->tensors[i].shape = sample->tensors[i].shape_storage;
    }
    expect_error(wire_plan(&sample->message, sample->tensors, limits, &bytes, &table_bytes),
                 FERRY_ERR_LIMIT, text);
    cr_assert(bytes == 4711 && table_bytes == 4712);
}

Test(wire, the_plan_keeps_to_the_limits)
{
    struct sample sample = {.message = call_of("m")};
    sample.message.tensor_count = 5;
    expect_limit(&sample, &LIMITS, "FERRY_MAX_TENSORS");
    sample.message.tensor_count = 2;
    sample.tensors[0] = tensor_of(1 << 19);
    sample.tensors[1] = tensor_of((1 << 19) + 1);
    expect_limit(&sample, &LIMITS, "FERRY_MAX_MESSAGE");
    sample.tensors[1] = tensor_of(1 << 19);
    sample_encode(&sample, &LIMITS);
    random_free(&sample.encoded);
    sample.message.body_bytes = 1;
    expect_limit(&sample, &LIMITS, "FERRY_MAX_MESSAGE");
    sample.message.body_bytes = UINT64_MAX;
    expect_limit(&sample, &LIMITS, "FERRY_MAX_MESSAGE");
    sample.message.body_bytes = 1;
    sample.tensors[0].bytes = UINT64_MAX; /* the sum wraps */
    expect_limit(&sample, &LIMITS, "FERRY_MAX_MESSAGE");
    sample.message.body_bytes = 0;
    sample.message.tensor_count = 1;
    sample.tensors[0] = tensor_of(1);
    sample.tensors[0].name_bytes = 128;
    expect_limit(&sample, &LIMITS, "128");
    sample.message.tensor_count = 0;
    sample.message.method_bytes = 128;
    expect_limit(&sample, &LIMITS, "method");
    sample.message.method_bytes = 0;
    expect_limit(&sample, &LIMITS, "method");
    sample.message.method_bytes = 1;
    sample.message.metadata_bytes = WIRE_METADATA_BYTES_MAX + 1;
    expect_limit(&sample, &LIMITS, "metadata");
    struct sample reply = {.message = {.kind = WIRE_REPLY, .argument_count = 5}};
    expect_limit(&reply, &LIMITS, "FERRY_MAX_TENSORS");
}

Test(wire, operations_are_bounded_on_both_sides)
{
    struct wire_limits limits = LIMITS;
    limits.max_message_bytes = UINT64_MAX;
    struct sample sample = {.message = call_of("m")};
    sample.message.tensor_count = 1;
    sample.tensors[0] = tensor_of((1 << 24) - 1);
    sample.tensors[0].operation_bytes = 1;
    sample_encode(&sample, &limits);
    cr_assert_eq(sample_decode(&sample, &limits), FERRY_OK);
    uint8_t *entry = sample.encoded.data + 64 + 1;
    wire_put_u64(entry + WIRE_TENSOR_ENTRY_BYTES, 1 << 24);
    wire_put_u64(entry + WIRE_TENSOR_BYTES, 1 << 24);
    expect_error(sample_decode(&sample, &limits), FERRY_ERR_PROTOCOL, "operations");
    wire_put_u64(entry + WIRE_TENSOR_OPERATION, 0);
    expect_error(sample_decode(&sample, &limits), FERRY_ERR_PROTOCOL, "operations");
    wire_put_u64(entry + WIRE_TENSOR_OPERATION, (1 << 24) + 1);
    expect_error(sample_decode(&sample, &limits), FERRY_ERR_PROTOCOL, "operations");
    random_free(&sample.encoded);

    sample.message.body_bytes = 1 << 20;
    sample.message.body_operation_bytes = 1 << 20;
    sample.message.flags = 0;
    expect_limit(&sample, &limits, "FERRY_CHUNK");
}

Test(wire, an_error_reply_always_fits)
{
    static char text[4000];
    static const uint8_t paths[3000] = {TRANSFER_HOST};
    struct wire_limits limits = LIMITS;
    limits.max_tensors = 4096;
    for (size_t i = 0; i < sizeof text; i += 4) {
        memcpy(text + i, "\xe2\x82\xac ", 4); /* the euro sign has three bytes */
    }
    struct sample sample = {.message = {.kind = WIRE_REPLY,
                                        .status = FERRY_ERR_APPLICATION,
                                        .effect = FERRY_RAN,
                                        .code = -5,
                                        .error_text = text,
                                        .error_text_bytes = sizeof text,
                                        .error_origin = "worker1",
                                        .error_origin_bytes = 7,
                                        .argument_paths = paths,
                                        .argument_count = sizeof paths}};
    sample_encode(&sample, &limits);
    cr_assert_eq(sample.encoded.table, NULL);
    cr_assert_leq(sample.encoded.bytes, 1024);
    cr_assert_geq(sample.encoded.bytes, 1020);
    cr_assert_eq(sample.message.argument_count, 0);
    struct wire_message message;
    cr_assert_eq(random_decode(&sample.encoded, &limits, &message, NULL), FERRY_OK);
    cr_assert_eq(message.status, FERRY_ERR_APPLICATION);
    cr_assert_eq(message.effect, FERRY_RAN);
    cr_assert_eq(message.code, -5);
    cr_assert(message.error_text_bytes > 800 && message.error_text_bytes % 4 != 1 &&
                  message.error_text_bytes % 4 != 2,
              "cut at byte %zu, within a character", message.error_text_bytes);
    cr_assert(texts_equal(message.error_origin, message.error_origin_bytes, "worker1", 7));
    random_free(&sample.encoded);
}

/* A reply of FERRY_ERR_APPLICATION whose error is that msgpack. */
static ferry_status_t decode_error(const char *map, size_t bytes, struct wire_message *message)
{
    struct random_bytes encoded = {.data = calloc(1, 64 + bytes), .bytes = 64 + bytes};
    wire_put_u32(encoded.data + WIRE_AT_MAGIC, WIRE_MAGIC);
    encoded.data[WIRE_AT_VERSION] = WIRE_VERSION;
    encoded.data[WIRE_AT_KIND] = WIRE_REPLY;
    wire_put_u32(encoded.data + WIRE_AT_VARIABLE_BYTES, (uint32_t)bytes);
    wire_put_u16(encoded.data + WIRE_AT_TEXT_BYTES, (uint16_t)bytes);
    wire_put_u16(encoded.data + WIRE_AT_STATUS, FERRY_ERR_APPLICATION);
    memcpy(encoded.data + 64, map, bytes);
    ferry_status_t status = random_decode(&encoded, &LIMITS, message, NULL);
    random_free(&encoded);
    return status;
}

#define DECODE_ERROR(map, message) decode_error(map, sizeof(map) - 1, message)

Test(wire, an_errors_map_may_grow)
{
    struct wire_message message;
    cr_assert_eq(DECODE_ERROR("\x83\xa4text\xa2no\xa4tree\x93\x01\xc0\x80\xcc\x07\xc3", &message),
                 FERRY_OK, "%s", ferry_last_error()->text);
    cr_assert_eq(message.error_text_bytes, 2);
    cr_assert_eq(message.error_origin_bytes, 0);
    cr_assert_eq(message.code, 0);
    cr_assert_eq(message.effect, FERRY_MAY_HAVE_RUN, "nobody said");
    cr_assert_eq(DECODE_ERROR("\x82\xa6"
                              "effect\xcd\x10\x00\xa4"
                              "code\xd3\xff\xff\xff\xff\xff\xff\xff\xfb",
                              &message),
                 FERRY_OK);
    cr_assert_eq(message.effect, FERRY_MAY_HAVE_RUN, "an effect of a later version");
    cr_assert_eq(message.code, -5);
}

Test(wire, a_broken_error_map_is_refused)
{
    struct wire_message message;
    expect_error(DECODE_ERROR("\x90", &message), FERRY_ERR_PROTOCOL, "no msgpack map");
    expect_error(DECODE_ERROR("\x81\xa4text\x01", &message), FERRY_ERR_PROTOCOL, "\"text\"");
    expect_error(DECODE_ERROR("\x81\xa4text\xa2\0z", &message), FERRY_ERR_PROTOCOL, "NUL");
    expect_error(DECODE_ERROR("\x81\xa4text\xdb\xff\xff\xff\xff", &message), FERRY_ERR_PROTOCOL,
                 "more than its bytes");
    expect_error(DECODE_ERROR("\x81\xa4text\xdd\x7f\xff\xff\xff", &message), FERRY_ERR_PROTOCOL,
                 "more than its bytes");
    expect_error(DECODE_ERROR("\x81\xa4"
                              "code\xce\x80\x00\x00\x00",
                              &message),
                 FERRY_ERR_PROTOCOL, "\"code\"");
}

/* Sets one field of a valid call and expects its refusal. */
static void expect_refusal(size_t at, size_t bytes, uint64_t value, const char *text)
{
    struct sample sample = sample_of_call();
    for (size_t i = 0; i < bytes; i++) {
        sample.encoded.data[at + i] = (uint8_t)(value >> 8 * i);
    }
    expect_error(sample_decode(&sample, &LIMITS), FERRY_ERR_PROTOCOL, text);
    random_free(&sample.encoded);
}

Test(wire, every_field_of_a_calls_header_is_checked)
{
    struct sample sample = sample_of_call();
    cr_assert_eq(sample_decode(&sample, &LIMITS), FERRY_OK);
    random_free(&sample.encoded);
    expect_refusal(WIRE_AT_MAGIC, 4, 0, "begins with");
    expect_refusal(WIRE_AT_VERSION, 1, 1, "version 1");
    expect_refusal(WIRE_AT_VERSION, 1, 3, "version 3");
    expect_refusal(WIRE_AT_KIND, 1, 0, "kind 0");
    expect_refusal(WIRE_AT_KIND, 1, 7, "kind 7");
    expect_refusal(WIRE_AT_KIND, 1, WIRE_CANCEL, "bare header");
    expect_refusal(WIRE_AT_FLAGS, 2, WIRE_ONE_WAY, "flags 0x1");
    expect_refusal(WIRE_AT_FLAGS, 2, WIRE_STREAMED, "flags 0x2");
    expect_refusal(WIRE_AT_FLAGS, 2, WIRE_BIT_PATHS, "flags 0x200");
    expect_refusal(WIRE_AT_FLAGS, 2, 0x8000, "flags 0x8000");
    expect_refusal(WIRE_AT_VARIABLE_BYTES, 4, UINT32_MAX, "claims");
    expect_refusal(WIRE_AT_VARIABLE_BYTES, 4, 0, "claims");
    expect_refusal(WIRE_AT_BODY_BYTES, 8, UINT64_MAX, "body");
    expect_refusal(WIRE_AT_BODY_BYTES, 8, 1u << 20, "body");
    expect_refusal(WIRE_AT_BODY_BYTES, 8, 0, "");
    expect_refusal(WIRE_AT_TENSOR_COUNT, 4, 5, "5 tensors");
    expect_refusal(WIRE_AT_TENSOR_COUNT, 4, UINT32_MAX, "tensors");
    expect_refusal(WIRE_AT_TENSOR_COUNT, 4, 2, "");
    expect_refusal(WIRE_AT_TEXT_BYTES, 2, 0, "name has 0 bytes");
    expect_refusal(WIRE_AT_TEXT_BYTES, 2, 128, "name has 128 bytes");
    expect_refusal(WIRE_AT_METADATA_BYTES, 2, 1025, "metadata");
    expect_refusal(WIRE_AT_TIMEOUT, 8, UINT64_MAX, "timeout");
    expect_refusal(WIRE_AT_RESERVED, 1, 1, "reserved");
    expect_refusal(WIRE_AT_RESERVED + 15, 1, 1, "reserved");
    expect_refusal(64, 1, 0, "NUL");
}

Test(wire, every_field_of_a_tensors_entry_is_checked)
{
    size_t entry = 64 + 6 + 5; /* behind header, "double" and "trace" */
    size_t second = entry + 40 + 8 + 8;
    size_t third = second + 40 + 8;
    expect_refusal(entry + WIRE_TENSOR_NAME_BYTES, 1, 128, "entry");
    expect_refusal(entry + WIRE_TENSOR_NAME_BYTES, 1, 9, "");
    expect_refusal(entry + WIRE_TENSOR_NDIM, 1, 17, "entry");
    expect_refusal(entry + WIRE_TENSOR_NDIM, 1, 255, "entry");
    expect_refusal(entry + WIRE_TENSOR_FLAGS, 1, 3, "entry");
    expect_refusal(entry + WIRE_TENSOR_FLAGS, 1, WIRE_TENSOR_JOINT, "joint");
    expect_refusal(entry + WIRE_TENSOR_FLAGS, 1, 0, "operations of 0");
    expect_refusal(entry + WIRE_TENSOR_PATH, 1, TRANSFER_PACKED + 1, "entry");
    expect_refusal(entry + WIRE_TENSOR_DTYPE_BITS, 1, 0, "0 bits");
    expect_refusal(entry + WIRE_TENSOR_DTYPE_BITS, 1, 16, "claims 10 bytes");
    expect_refusal(entry + WIRE_TENSOR_DTYPE_LANES, 2, 0, "0 lanes");
    expect_refusal(entry + WIRE_TENSOR_SOURCE, 4, 0, "entry");
    expect_refusal(entry + WIRE_TENSOR_SOURCE + 4, 4, UINT32_MAX, "entry");
    expect_refusal(entry + WIRE_TENSOR_TARGET, 4, UINT32_MAX, "entry");
    expect_refusal(entry + WIRE_TENSOR_TARGET + 4, 4, 0x80000000u, "entry");
    expect_refusal(entry + WIRE_TENSOR_BYTES, 8, 11, "claims 11 bytes");
    expect_refusal(entry + WIRE_TENSOR_OPERATION, 8, 1, "no segment");
    expect_refusal(entry + 40, 8, UINT64_MAX, "extent -1");
    expect_refusal(entry + 40, 8, INT64_MAX, "claims 10 bytes");
    expect_refusal(entry + 40 + 8 + 3, 1, 0, "entry"); /* "gra\0ient" */
    expect_refusal(second + WIRE_TENSOR_FLAGS, 1, 1, "");
    expect_refusal(second + WIRE_TENSOR_FLAGS, 1, WIRE_TENSOR_JOINT, "joint"); /* for cuda:1 */
    expect_refusal(second + WIRE_TENSOR_OPERATION, 8, 0, "operations of 0");
    expect_refusal(second + WIRE_TENSOR_OPERATION, 8, 4001, "operations of 4001");
    expect_refusal(third + WIRE_TENSOR_NDIM, 1, 16, "entry"); /* more than the table has left */
    expect_refusal(third + WIRE_TENSOR_FLAGS, 1, 1, "does not fit");
    expect_refusal(third + WIRE_TENSOR_FLAGS, 1, WIRE_TENSOR_JOINT, "joint"); /* no bytes */
    expect_refusal(third + WIRE_TENSOR_OPERATION, 8, 1, "no segment");
    expect_refusal(third + 40 + 8, 1, 1, "cut off"); /* the gap before the body */
}

Test(wire, a_tensor_of_too_many_bytes_is_refused)
{
    struct sample sample = sample_of_call();
    struct wire_limits limits = LIMITS;
    limits.max_message_bytes = 4 + 10 + 4000;
    cr_assert_eq(sample_decode(&sample, &limits), FERRY_OK);
    limits.max_message_bytes--;
    expect_error(sample_decode(&sample, &limits), FERRY_ERR_PROTOCOL, "4013 bytes allowed");
    limits = LIMITS;
    limits.inline_bytes = 9;
    expect_error(sample_decode(&sample, &limits), FERRY_ERR_PROTOCOL, "10 bytes inside");
    limits = LIMITS;
    limits.eager_bytes = sample.encoded.bytes - 1;
    expect_error(sample_decode(&sample, &limits), FERRY_ERR_PROTOCOL, "make sense");
    random_free(&sample.encoded);
}

Test(wire, every_field_of_a_reply_is_checked)
{
    static const uint8_t paths[] = {TRANSFER_HOST, TRANSFER_STAGED};
    struct sample sample = {
        .message = {
            .kind = WIRE_REPLY, .argument_paths = paths, .argument_count = 2, .tensor_count = 1}};
    sample.tensors[0] = tensor_of(1);
    sample_encode(&sample, &LIMITS);
    uint8_t *data = sample.encoded.data;
    cr_assert_eq(sample_decode(&sample, &LIMITS), FERRY_OK);
    data[68] = TRANSFER_PACKED + 1;
    expect_error(sample_decode(&sample, &LIMITS), FERRY_ERR_PROTOCOL, "path 5");
    data[68] = TRANSFER_HOST;
    wire_put_u32(data + 64, 5);
    expect_error(sample_decode(&sample, &LIMITS), FERRY_ERR_PROTOCOL, "5 arguments");
    wire_put_u32(data + 64, 0);
    expect_error(sample_decode(&sample, &LIMITS), FERRY_ERR_PROTOCOL, "0 arguments");
    wire_put_u32(data + 64, 2);
    wire_put_u32(data + 70 + WIRE_TENSOR_TARGET, kDLCUDA);
    expect_error(sample_decode(&sample, &LIMITS), FERRY_ERR_PROTOCOL, "entry");
    wire_put_u32(data + 70 + WIRE_TENSOR_TARGET, kDLCPU);
    wire_put_u16(data + WIRE_AT_STATUS, FERRY_PENDING);
    expect_error(sample_decode(&sample, &LIMITS), FERRY_ERR_PROTOCOL, "status 1");
    wire_put_u16(data + WIRE_AT_STATUS, FERRY_ERR_BUSY);
    expect_error(sample_decode(&sample, &LIMITS), FERRY_ERR_PROTOCOL, "status 9");
    wire_put_u16(data + WIRE_AT_TEXT_BYTES, 4);
    expect_error(sample_decode(&sample, &LIMITS), FERRY_ERR_PROTOCOL, "1 tensors");
    wire_put_u16(data + WIRE_AT_STATUS, FERRY_OK);
    expect_error(sample_decode(&sample, &LIMITS), FERRY_ERR_PROTOCOL, "error map of 4 bytes");
    wire_put_u16(data + WIRE_AT_TEXT_BYTES, 0);
    wire_put_u16(data + WIRE_AT_FLAGS, WIRE_BIT_PATHS | WIRE_BIT_RESULTS_DIRECT);
    expect_error(sample_decode(&sample, &LIMITS), FERRY_ERR_PROTOCOL, "flags 0x100");
    wire_put_u16(data + WIRE_AT_FLAGS, WIRE_BIT_PATHS | WIRE_BODY_SEGMENT);
    expect_error(sample_decode(&sample, &LIMITS), FERRY_ERR_PROTOCOL, "empty body");
    random_free(&sample.encoded);
}

Test(wire, paths_must_leave_room_for_the_error)
{
    static const uint8_t paths[4] = {TRANSFER_HOST};
    struct sample sample = {.message = {.kind = WIRE_REPLY,
                                        .status = FERRY_ERR_BUSY,
                                        .argument_paths = paths,
                                        .argument_count = 3}};
    sample_encode(&sample, &LIMITS);
    cr_assert_eq(sample_decode(&sample, &LIMITS), FERRY_OK);
    wire_put_u32(sample.encoded.data + 64, 4);
    sample.encoded.data[64 + 4 + 3] = TRANSFER_HOST; /* the map's first byte was here */
    expect_error(sample_decode(&sample, &LIMITS), FERRY_ERR_PROTOCOL, "cut off");
    random_free(&sample.encoded);
}

Test(wire, a_negative_timeout_travels_as_none_left)
{
    struct sample sample = {.message = call_of("m")};
    sample.message.timeout_ns = -1;
    sample_encode(&sample, &LIMITS);
    struct wire_message message;
    cr_assert_eq(random_decode(&sample.encoded, &LIMITS, &message, NULL), FERRY_OK);
    cr_assert_eq(message.timeout_ns, 0);
    random_free(&sample.encoded);
}

Test(wire, a_status_of_a_later_version_is_passed_on)
{
    struct sample sample = {.message = {.kind = WIRE_REPLY, .status = (ferry_status_t)200}};
    sample_encode(&sample, &LIMITS);
    struct wire_message message;
    cr_assert_eq(random_decode(&sample.encoded, &LIMITS, &message, NULL), FERRY_OK);
    cr_assert_eq((int)message.status, 200);
    random_free(&sample.encoded);
}
