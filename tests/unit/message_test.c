/* Messages: typed bodies written and read, the first mistake kept and named, hostile bytes
 * survived. */
#include <criterion/criterion.h>
#include <math.h>
#include <msgpack.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ferry/error.h>

#include "rpc/message.h"

static const DLDataType F32 = {.code = kDLFloat, .bits = 32, .lanes = 1};
static const DLDataType F16 = {.code = kDLFloat, .bits = 16, .lanes = 1};
static const DLDataType ANY = {.bits = 0};

static ferry_writer_t *writer_new(void)
{
    ferry_writer_t *writer = NULL;
    cr_assert_eq(ferry_writer_create(&writer), FERRY_OK);
    return writer;
}

static ferry_message_t finish(ferry_writer_t *writer)
{
    ferry_message_t message = {.body = NULL};
    cr_assert_eq(ferry_writer_finish(writer, &message), FERRY_OK, "%s", ferry_last_error()->text);
    return message;
}

static void expect_status(const ferry_reader_t *reader, ferry_status_t status, const char *text)
{
    cr_assert_eq(ferry_reader_status(reader), status, "status %d: %s",
                 (int)ferry_reader_status(reader), ferry_last_error()->text);
    if (status != FERRY_OK) {
        cr_assert_str_eq(ferry_last_error()->text, text);
    }
}

Test(message, every_kind_of_value_comes_back)
{
    ferry_writer_t *writer = writer_new();
    ferry_writer_int64(writer, "least", INT64_MIN);
    ferry_writer_uint64(writer, "most", UINT64_MAX);
    ferry_writer_double(writer, "rate", 0.1);
    ferry_writer_bool(writer, "yes", true);
    ferry_writer_nil(writer, "nothing");
    ferry_writer_string(writer, "text", "gr\u00fc\u00df dich");
    ferry_writer_bytes(writer, "raw", "a\0b", 3);
    ferry_writer_bytes(writer, "none", NULL, 0);
    ferry_writer_begin_array(writer, "sizes");
    for (int i = 0; i < 40; i++) {
        ferry_writer_int64(writer, NULL, i - 20);
    }
    ferry_writer_end(writer);
    ferry_writer_begin_map(writer, "args");
    ferry_writer_begin_map(writer, "deep");
    ferry_writer_int64(writer, "x", 7);
    ferry_writer_end(writer);
    ferry_writer_end(writer);
    ferry_message_t message = finish(writer);

    ferry_reader_t reader = ferry_reader(&message);
    char text[32];
    size_t bytes;
    ferry_reader_t args = ferry_reader_map(&reader, "args");
    ferry_reader_t deep = ferry_reader_map(&args, "deep");
    cr_assert_eq(ferry_reader_int64(&deep, "x"), 7);
    cr_assert_eq(ferry_reader_int64(&reader, "least"), INT64_MIN);
    cr_assert_eq(ferry_reader_uint64(&reader, "most"), UINT64_MAX);
    cr_assert_eq(ferry_reader_double(&reader, "rate"), 0.1);
    cr_assert(ferry_reader_bool(&reader, "yes"));
    cr_assert_str_eq(ferry_reader_string(&reader, "text", text, sizeof text),
                     "gr\u00fc\u00df dich");
    const void *raw = ferry_reader_bytes(&reader, "raw", &bytes);
    cr_assert_eq(bytes, 3u);
    cr_assert(memcmp(raw, "a\0b", 3) == 0);
    cr_assert_not_null(ferry_reader_bytes(&reader, "none", &bytes));
    cr_assert_eq(bytes, 0u);
    ferry_reader_bytes(&reader, "text", &bytes);
    cr_assert_eq(bytes, 11u);
    ferry_reader_t sizes = ferry_reader_array(&reader, "sizes");
    cr_assert_eq(ferry_reader_count(&sizes), 40u);
    for (int i = 0; i < 40; i++) {
        cr_assert(ferry_reader_has(&sizes, NULL));
        cr_assert_eq(ferry_reader_int64(&sizes, NULL), i - 20);
    }
    cr_assert_not(ferry_reader_has(&sizes, NULL));
    cr_assert_eq(ferry_reader_count(&sizes), 0u);
    cr_assert(ferry_reader_has(&reader, "raw"));
    cr_assert_not(ferry_reader_has(&reader, "nothing"));
    cr_assert_not(ferry_reader_has(&reader, "unknown"));
    expect_status(&reader, FERRY_OK, NULL);
    ferry_writer_destroy(writer);
}

Test(message, a_body_is_plain_msgpack)
{
    ferry_writer_t *writer = writer_new();
    ferry_writer_int64(writer, "a", 1);
    ferry_writer_begin_array(writer, "b");
    ferry_writer_double(writer, NULL, 2.5);
    ferry_writer_tensor(writer, NULL, "w");
    ferry_writer_end(writer);
    ferry_message_t message = finish(writer);
    msgpack_unpacked whole;
    msgpack_unpacked_init(&whole);
    size_t offset = 0;
    cr_assert_eq(msgpack_unpack_next(&whole, message.body, message.body_bytes, &offset),
                 MSGPACK_UNPACK_SUCCESS);
    cr_assert_eq(offset, message.body_bytes);
    char text[128];
    msgpack_object_print_buffer(text, sizeof text, whole.data);
    cr_assert_str_eq(text, "{\"a\"=>1, \"b\"=>[2.500000, (ext: 1)\"w\"]}");
    msgpack_unpacked_destroy(&whole);
    ferry_writer_destroy(writer);
}

Test(message, counts_of_every_width_are_written)
{
    static const int counts[] = {0, 1, 15, 16, 65535, 65536};
    ferry_writer_t *writer = writer_new();
    for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++) {
        ferry_writer_reset(writer);
        ferry_writer_begin_array(writer, "a");
        ferry_writer_begin_map(writer, NULL);
        for (int i = 0; i < counts[k]; i++) {
            char name[16];
            snprintf(name, sizeof name, "k%d", i);
            ferry_writer_int64(writer, name, i);
        }
        ferry_writer_end(writer);
        for (int i = 0; i < counts[k]; i++) {
            ferry_writer_int64(writer, NULL, i);
        }
        ferry_writer_end(writer);
        ferry_writer_int64(writer, "last", 3);
        ferry_message_t message = finish(writer);
        ferry_reader_t reader = ferry_reader(&message);
        ferry_reader_t array = ferry_reader_array(&reader, "a");
        cr_assert_eq(ferry_reader_count(&array), (size_t)counts[k] + 1);
        ferry_reader_t map = ferry_reader_map(&array, NULL);
        char name[16];
        snprintf(name, sizeof name, "k%d", counts[k] - 1);
        cr_assert_eq(ferry_reader_int64_or(&map, name, -1), counts[k] - 1);
        for (int i = 0; i < counts[k]; i++) {
            cr_assert_eq(ferry_reader_int64(&array, NULL), i);
        }
        cr_assert_eq(ferry_reader_int64(&reader, "last"), 3);
        expect_status(&reader, FERRY_OK, NULL);
    }
    ferry_writer_destroy(writer);
}

Test(message, fallbacks_stand_for_missing_and_nil)
{
    ferry_writer_t *writer = writer_new();
    ferry_writer_nil(writer, "n");
    ferry_writer_int64(writer, "i", 5);
    ferry_message_t message = finish(writer);
    ferry_reader_t reader = ferry_reader(&message);
    char text[8];
    cr_assert_eq(ferry_reader_int64_or(&reader, "i", 9), 5);
    cr_assert_eq(ferry_reader_int64_or(&reader, "n", 9), 9);
    cr_assert_eq(ferry_reader_uint64_or(&reader, "x", 9), 9u);
    cr_assert_eq(ferry_reader_double_or(&reader, "x", 0.5), 0.5);
    cr_assert(ferry_reader_bool_or(&reader, "x", true));
    cr_assert_str_eq(ferry_reader_string_or(&reader, "x", "adam", text, sizeof text), "adam");
    expect_status(&reader, FERRY_OK, NULL);
    cr_assert_not(ferry_reader_bool_or(&reader, "i", true), "a mistake gave the fallback");
    expect_status(&reader, FERRY_ERR_TYPE, "field 'i' is a number, wanted a bool");
    ferry_writer_destroy(writer);

    reader = ferry_reader(NULL);
    cr_assert_eq(ferry_reader_int64_or(&reader, "i", 9), 9);
    expect_status(&reader, FERRY_OK, NULL);
    reader = ferry_reader(&(ferry_message_t){.body = NULL});
    cr_assert_eq(ferry_reader_int64(&reader, "step"), 0);
    expect_status(&reader, FERRY_ERR_NOT_FOUND, "there is no field 'step', wanted an integer");
}

/* One number packed in msgpack-c's own way, read as each of the three. */
static void expect_number(void (*pack)(msgpack_packer *), const char *as_int64,
                          const char *as_uint64, const char *as_double)
{
    msgpack_sbuffer buffer;
    msgpack_packer packer;
    msgpack_sbuffer_init(&buffer);
    msgpack_packer_init(&packer, &buffer, msgpack_sbuffer_write);
    msgpack_pack_map(&packer, 1);
    msgpack_pack_str_with_body(&packer, "v", 1);
    pack(&packer);
    ferry_message_t message = {.body = buffer.data, .body_bytes = buffer.size};
    char text[3][32];
    ferry_reader_t reader = ferry_reader(&message);
    snprintf(text[0], sizeof text[0], "%lld", (long long)ferry_reader_int64(&reader, "v"));
    cr_assert_str_eq(ferry_reader_status(&reader) == FERRY_OK ? text[0] : "-", as_int64);
    reader = ferry_reader(&message);
    snprintf(text[1], sizeof text[1], "%llu",
             (unsigned long long)ferry_reader_uint64(&reader, "v"));
    cr_assert_str_eq(ferry_reader_status(&reader) == FERRY_OK ? text[1] : "-", as_uint64);
    reader = ferry_reader(&message);
    snprintf(text[2], sizeof text[2], "%.17g", ferry_reader_double(&reader, "v"));
    cr_assert_str_eq(ferry_reader_status(&reader) == FERRY_OK ? text[2] : "-", as_double);
    msgpack_sbuffer_destroy(&buffer);
}

static void pack_small(msgpack_packer *p)
{
    msgpack_pack_fix_uint64(p, 5);
}
static void pack_negative(msgpack_packer *p)
{
    msgpack_pack_int8(p, -100);
}
static void pack_above_int64(msgpack_packer *p)
{
    msgpack_pack_uint64(p, UINT64_C(1) << 63);
}
static void pack_most(msgpack_packer *p)
{
    msgpack_pack_uint64(p, UINT64_MAX);
}
static void pack_least(msgpack_packer *p)
{
    msgpack_pack_int64(p, INT64_MIN);
}
static void pack_odd(msgpack_packer *p)
{
    msgpack_pack_int64(p, -((INT64_C(1) << 53) + 1));
}
static void pack_integral(msgpack_packer *p)
{
    msgpack_pack_double(p, 4096.0);
}
static void pack_integral_float(msgpack_packer *p)
{
    msgpack_pack_float(p, -3.0f);
}
static void pack_fraction(msgpack_packer *p)
{
    msgpack_pack_double(p, 2.5);
}
static void pack_huge(msgpack_packer *p)
{
    msgpack_pack_double(p, 0x1p64);
}
static void pack_edge(msgpack_packer *p)
{
    msgpack_pack_double(p, 0x1p63);
}
static void pack_nan(msgpack_packer *p)
{
    msgpack_pack_double(p, (double)NAN);
}

Test(message, a_number_is_taken_in_every_type_that_holds_it)
{
    expect_number(pack_small, "5", "5", "5");
    expect_number(pack_negative, "-100", "-", "-100");
    expect_number(pack_above_int64, "-", "9223372036854775808", "9.2233720368547758e+18");
    expect_number(pack_most, "-", "18446744073709551615", "-");
    expect_number(pack_least, "-9223372036854775808", "-", "-9.2233720368547758e+18");
    expect_number(pack_odd, "-9007199254740993", "-", "-");
    expect_number(pack_integral, "4096", "4096", "4096");
    expect_number(pack_integral_float, "-3", "-", "-3");
    expect_number(pack_fraction, "-", "-", "2.5");
    expect_number(pack_huge, "-", "-", "1.8446744073709552e+19");
    expect_number(pack_edge, "-", "9223372036854775808", "9.2233720368547758e+18");
    expect_number(pack_nan, "-", "-", "nan");
}

Test(message, the_first_mistake_is_kept_with_its_path)
{
    ferry_writer_t *writer = writer_new();
    ferry_writer_begin_map(writer, "args");
    ferry_writer_begin_array(writer, "sizes");
    ferry_writer_int64(writer, NULL, 1);
    ferry_writer_string(writer, NULL, "two");
    ferry_writer_end(writer);
    ferry_writer_end(writer);
    ferry_writer_double(writer, "x", 2.5);
    ferry_message_t message = finish(writer);
    ferry_reader_t reader = ferry_reader(&message);
    ferry_reader_t args = ferry_reader_map(&reader, "args");
    ferry_reader_t sizes = ferry_reader_array(&args, "sizes");
    cr_assert_eq(ferry_reader_int64(&sizes, NULL), 1);
    cr_assert_eq(ferry_reader_int64(&sizes, NULL), 0);
    ferry_reader_bool(&reader, "missing");
    cr_assert_eq(ferry_reader_double(&reader, "x"), 0, "a read behind a mistake gave a value");
    cr_assert_eq(ferry_reader_double_or(&reader, "x", 1.5), 1.5);
    cr_assert_not(ferry_reader_has(&reader, "x"));
    cr_assert_eq(ferry_reader_count(&sizes), 0u);
    expect_status(&sizes, FERRY_ERR_TYPE, "field 'args.sizes[1]' is a string, wanted an integer");
    expect_status(&reader, FERRY_ERR_TYPE, "field 'args.sizes[1]' is a string, wanted an integer");

    reader = ferry_reader(&message);
    args = ferry_reader_map(&reader, "args");
    ferry_reader_bool(&args, "verbose");
    expect_status(&reader, FERRY_ERR_NOT_FOUND, "there is no field 'args.verbose', wanted a bool");
    reader = ferry_reader(&message);
    ferry_reader_int64(&reader, "x");
    expect_status(&reader, FERRY_ERR_TYPE, "field 'x' is 2.5, wanted an integer of 64 bits");
    reader = ferry_reader(&message);
    ferry_reader_t none = ferry_reader_array(&reader, "args");
    cr_assert_eq(ferry_reader_count(&none), 0u);
    cr_assert_eq(ferry_reader_int64(&none, NULL), 0);
    expect_status(&reader, FERRY_ERR_TYPE, "field 'args' is a map, wanted an array");
    ferry_writer_destroy(writer);
}

Test(message, elements_run_out_with_an_error)
{
    ferry_writer_t *writer = writer_new();
    ferry_writer_begin_array(writer, "a");
    ferry_writer_nil(writer, NULL);
    ferry_writer_end(writer);
    ferry_message_t message = finish(writer);
    ferry_reader_t reader = ferry_reader(&message);
    ferry_reader_t array = ferry_reader_array(&reader, "a");
    cr_assert_eq(ferry_reader_int64_or(&array, NULL, 4), 4);
    cr_assert_eq(ferry_reader_int64_or(&array, NULL, 6), 6);
    expect_status(&reader, FERRY_OK, NULL);
    ferry_reader_int64(&array, NULL);
    expect_status(&reader, FERRY_ERR_NOT_FOUND, "there is no field 'a[1]', wanted an integer");
    reader = ferry_reader(&message);
    array = ferry_reader_array(&reader, "a");
    ferry_reader_int64(&array, NULL);
    expect_status(&reader, FERRY_ERR_TYPE, "field 'a[0]' is nil, wanted an integer");
    ferry_writer_destroy(writer);
}

Test(message, strings_are_never_cut)
{
    ferry_writer_t *writer = writer_new();
    ferry_writer_string(writer, "s", "four");
    ferry_writer_string(writer, "empty", "");
    ferry_writer_bytes(writer, "b", "x", 1);
    ferry_message_t message = finish(writer);
    char five[5], four[4];
    ferry_reader_t reader = ferry_reader(&message);
    cr_assert_str_eq(ferry_reader_string(&reader, "s", five, sizeof five), "four");
    cr_assert_str_eq(ferry_reader_string(&reader, "empty", four, sizeof four), "");
    cr_assert_str_eq(ferry_reader_string(&reader, "s", four, sizeof four), "");
    expect_status(&reader, FERRY_ERR_LIMIT, "field 's' is a string of 4 bytes, at most 3 fit");
    reader = ferry_reader(&message);
    cr_assert_str_eq(ferry_reader_string(&reader, "b", five, sizeof five), "");
    expect_status(&reader, FERRY_ERR_TYPE, "field 'b' is bytes, wanted a string");
    reader = ferry_reader(&message);
    cr_assert_str_eq(ferry_reader_string_or(&reader, "x", "too long", five, sizeof five), "");
    cr_assert_eq(ferry_reader_status(&reader), FERRY_ERR_LIMIT);
    reader = ferry_reader(&message);
    cr_assert_str_eq(ferry_reader_string(&reader, "s", NULL, 9), "");
    cr_assert_eq(ferry_reader_status(&reader), FERRY_ERR_INVALID_ARGUMENT);
    ferry_writer_destroy(writer);
    static const unsigned char nul[] = {0x81, 0xa1, 's', 0xa3, 'a', 0, 'b'};
    message = (ferry_message_t){.body = nul, .body_bytes = sizeof nul};
    reader = ferry_reader(&message);
    cr_assert_str_eq(ferry_reader_string(&reader, "s", five, sizeof five), "");
    cr_assert_eq(ferry_reader_status(&reader), FERRY_ERR_TYPE);
}

Test(message, names_are_for_maps_and_only_there)
{
    ferry_writer_t *writer = writer_new();
    ferry_writer_begin_array(writer, "a");
    ferry_writer_int64(writer, NULL, 1);
    ferry_writer_end(writer);
    ferry_message_t message = finish(writer);
    ferry_reader_t reader = ferry_reader(&message);
    ferry_reader_int64(&reader, NULL);
    expect_status(&reader, FERRY_ERR_INVALID_ARGUMENT, "a map's field needs a name");
    reader = ferry_reader(&message);
    ferry_reader_t array = ferry_reader_array(&reader, "a");
    ferry_reader_int64(&array, "x");
    expect_status(&reader, FERRY_ERR_INVALID_ARGUMENT, "'x' names an array's element");
    ferry_writer_destroy(writer);
}

Test(message, the_first_field_of_a_name_counts)
{
    static const unsigned char body[] = {0x84, 0x05, 0x01, 0xa1, 'k', 0x07,
                                         0xa1, 'k',  0x08, 0xc0, 0xc0};
    ferry_message_t message = {.body = body, .body_bytes = sizeof body};
    ferry_reader_t reader = ferry_reader(&message);
    cr_assert_eq(ferry_reader_int64(&reader, "k"), 7);
    expect_status(&reader, FERRY_OK, NULL);
}

static ferry_tensor_t tensor_of(const char *name, DLDataType dtype)
{
    return (ferry_tensor_t){.name = name, .view = {.dtype = dtype}};
}

Test(message, tensors_are_found_by_field_and_by_slot)
{
    ferry_tensor_t tensors[] = {tensor_of(NULL, F32), tensor_of("w", F32), tensor_of("b", F16),
                                tensor_of("w", F16)};
    ferry_writer_t *writer = writer_new();
    ferry_writer_tensor(writer, "weights", "w");
    ferry_writer_nil(writer, "b");
    ferry_writer_begin_array(writer, "inputs");
    ferry_writer_tensor(writer, NULL, "b");
    ferry_writer_tensor(writer, NULL, "gone");
    ferry_writer_end(writer);
    ferry_message_t message = finish(writer);
    message.tensors = tensors;
    message.tensor_count = 4;
    cr_assert_eq(ferry_message_tensor(&message, "w"), &tensors[1]);
    cr_assert_null(ferry_message_tensor(&message, "x"));
    cr_assert_null(ferry_message_tensor(&message, NULL));
    cr_assert_null(ferry_message_tensor(NULL, "w"));

    ferry_reader_t reader = ferry_reader(&message);
    cr_assert_eq(ferry_reader_tensor(&reader, "weights", F32), &tensors[1]);
    cr_assert_eq(ferry_reader_tensor(&reader, "w", ANY), &tensors[1]);
    cr_assert_eq(ferry_reader_tensor(&reader, "b", F16), &tensors[2]);
    ferry_reader_t inputs = ferry_reader_array(&reader, "inputs");
    cr_assert_eq(ferry_reader_tensor(&inputs, NULL, F16), &tensors[2]);
    expect_status(&reader, FERRY_OK, NULL);
    cr_assert_null(ferry_reader_tensor(&inputs, NULL, ANY));
    expect_status(
        &reader, FERRY_ERR_NOT_FOUND,
        "field 'inputs[1]': there is no tensor 'gone', only an unnamed one, 'w', 'b', 'w'");
    reader = ferry_reader(&message);
    cr_assert_null(ferry_reader_tensor(&reader, "b", F32));
    expect_status(&reader, FERRY_ERR_TYPE, "'b' is float16, wanted float32");
    reader = ferry_reader(&message);
    cr_assert_null(ferry_reader_tensor(&reader, "weights", F16));
    expect_status(&reader, FERRY_ERR_TYPE, "field 'weights': 'w' is float32, wanted float16");
    reader = ferry_reader(&message);
    cr_assert_null(ferry_reader_tensor(&reader, "inputs", F16));
    expect_status(&reader, FERRY_ERR_TYPE, "field 'inputs' is an array, wanted a tensor");
    reader = ferry_reader(NULL);
    cr_assert_null(ferry_reader_tensor(&reader, "w", F32));
    expect_status(&reader, FERRY_ERR_NOT_FOUND, "there is no tensor 'w', nor any other");
    ferry_writer_destroy(writer);
}

static void expect_writer_error(ferry_writer_t *writer, ferry_status_t status, const char *text)
{
    ferry_message_t message = {.body_bytes = 99};
    ferry_writer_int64(writer, "later", 1);
    cr_assert_eq(ferry_writer_finish(writer, &message), status);
    cr_assert(strstr(ferry_last_error()->text, text) != NULL, "%s", ferry_last_error()->text);
    cr_assert_eq(message.body_bytes, 99u, "an error wrote the output");
    ferry_writer_reset(writer);
    ferry_writer_int64(writer, "ok", 1);
    cr_assert_eq(ferry_writer_finish(writer, &message), FERRY_OK);
    cr_assert_eq(message.body_bytes, 5u);
    ferry_writer_reset(writer);
}

Test(message, a_writer_keeps_the_first_mistake)
{
    ferry_writer_t *writer = writer_new();
    char name[FERRY_BODY_NAME_BYTES_MAX + 2];
    memset(name, 'n', sizeof name);
    name[sizeof name - 1] = '\0';
    ferry_writer_int64(writer, NULL, 1);
    ferry_writer_int64(writer, "", 1);
    expect_writer_error(writer, FERRY_ERR_INVALID_ARGUMENT, "a map's value needs a name");
    ferry_writer_int64(writer, "", 1);
    expect_writer_error(writer, FERRY_ERR_INVALID_ARGUMENT, "'' is no name");
    ferry_writer_int64(writer, name, 1);
    expect_writer_error(writer, FERRY_ERR_INVALID_ARGUMENT, "is no name: 1 to 255 bytes");
    ferry_writer_begin_array(writer, "a");
    ferry_writer_int64(writer, "x", 1);
    expect_writer_error(writer, FERRY_ERR_INVALID_ARGUMENT, "'x' names an array's element");
    ferry_writer_begin_map(writer, "m");
    expect_writer_error(writer, FERRY_ERR_INVALID_ARGUMENT, "1 maps or arrays lack their end");
    ferry_writer_end(writer);
    expect_writer_error(writer, FERRY_ERR_INVALID_ARGUMENT, "an end without a begin");
    ferry_writer_string(writer, "s", NULL);
    expect_writer_error(writer, FERRY_ERR_INVALID_ARGUMENT, "the string 's' is NULL");
    ferry_writer_bytes(writer, "b", NULL, 3);
    expect_writer_error(writer, FERRY_ERR_INVALID_ARGUMENT, "'b' is NULL, of 3 bytes");
    ferry_writer_bytes(writer, "b", "", (size_t)UINT32_MAX + 1);
    expect_writer_error(writer, FERRY_ERR_LIMIT, "4294967296 bytes");
    ferry_writer_tensor(writer, "t", "");
    expect_writer_error(writer, FERRY_ERR_INVALID_ARGUMENT, "is no slot name");
    for (int i = 0; i < FERRY_BODY_DEPTH_MAX; i++) {
        ferry_writer_begin_map(writer, "m");
    }
    expect_writer_error(writer, FERRY_ERR_LIMIT, "more than 32");
    finish(writer);
    expect_writer_error(writer, FERRY_ERR_STATE, "the body is finished");
    cr_assert_eq(ferry_writer_create(NULL), FERRY_ERR_INVALID_ARGUMENT);
    cr_assert_eq(ferry_writer_finish(writer, NULL), FERRY_ERR_INVALID_ARGUMENT);
    ferry_writer_destroy(writer);
    ferry_writer_destroy(NULL);
}

Test(message, the_deepest_body_that_can_be_written_can_be_read)
{
    ferry_writer_t *writer = writer_new();
    for (int i = 1; i < FERRY_BODY_DEPTH_MAX; i++) {
        ferry_writer_begin_map(writer, "m");
    }
    ferry_writer_int64(writer, "x", 3);
    for (int i = 1; i < FERRY_BODY_DEPTH_MAX; i++) {
        ferry_writer_end(writer);
    }
    ferry_message_t message = finish(writer);
    ferry_reader_t readers[FERRY_BODY_DEPTH_MAX];
    readers[0] = ferry_reader(&message);
    for (int i = 1; i < FERRY_BODY_DEPTH_MAX; i++) {
        readers[i] = ferry_reader_map(&readers[i - 1], "m");
    }
    cr_assert_eq(ferry_reader_int64(&readers[FERRY_BODY_DEPTH_MAX - 1], "x"), 3);
    expect_status(&readers[0], FERRY_OK, NULL);
    ferry_reader_bool(&readers[FERRY_BODY_DEPTH_MAX - 1], "x");
    cr_assert_eq(ferry_reader_status(&readers[0]), FERRY_ERR_TYPE);
    ferry_writer_destroy(writer);
}

static void expect_body(const void *body, size_t bytes, ferry_status_t status, const char *text)
{
    ferry_message_t message = {.body = body, .body_bytes = bytes};
    ferry_reader_t reader = ferry_reader(&message);
    cr_assert_eq(ferry_reader_int64_or(&reader, "x", 5), 5);
    cr_assert_eq(ferry_reader_status(&reader), status);
    cr_assert(strstr(ferry_last_error()->text, text) != NULL, "%s", ferry_last_error()->text);
}

Test(message, bodies_are_not_believed)
{
    static const unsigned char bomb[] = {0x81, 0xa1, 'a', 0xdd, 0xff, 0xff, 0xff, 0xff, 0x01};
    expect_body(bomb, sizeof bomb, FERRY_ERR_TYPE, "cut off or no msgpack at byte 9 of 9");
    static const unsigned char map_bomb[] = {0xdf, 0xff, 0xff, 0xff, 0xff};
    expect_body(map_bomb, sizeof map_bomb, FERRY_ERR_TYPE, "cut off");
    static const unsigned char text_bomb[] = {0x81, 0xa1, 'a', 0xdb, 0xff, 0xff, 0xff, 0xff, 'x'};
    expect_body(text_bomb, sizeof text_bomb, FERRY_ERR_TYPE, "cut off");
    unsigned char deep[100000];
    memset(deep, 0x91, sizeof deep);
    deep[0] = 0x81;
    deep[1] = 0xc0;
    expect_body(deep, sizeof deep, FERRY_ERR_LIMIT, "more than 32 maps and arrays");
    expect_body("\x80\x00", 2, FERRY_ERR_TYPE, "goes on for 1 bytes behind its map");
    expect_body("\x93\x01\x02\x03", 4, FERRY_ERR_TYPE, "no msgpack map (it begins with byte 0x93)");
    expect_body("\x81\xa1x\xc1", 4, FERRY_ERR_TYPE, "no msgpack at byte 3");
    expect_body("{}", 2, FERRY_ERR_TYPE, "no msgpack map (it begins with byte 0x7b)");
    expect_body(NULL, 2, FERRY_ERR_INVALID_ARGUMENT, "body is NULL");
}

static uint32_t random_next(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*state >> 33);
}

/* Asks a body every question there is; whatever it holds, nothing outside is touched. */
static bool interrogate(const ferry_message_t *message)
{
    static const char *const names[] = {"a", "b", "c"};
    ferry_reader_t fresh = ferry_reader(message);
    bool readable = ferry_reader_status(&fresh) == FERRY_OK;
    char text[16];
    size_t bytes;
    for (int i = 0; i < 3; i++) {
        ferry_reader_t reader = fresh;
        ferry_reader_has(&reader, names[i]);
        ferry_reader_double_or(&reader, names[i], 0);
        reader = fresh;
        ferry_reader_int64(&reader, names[i]);
        reader = fresh;
        ferry_reader_uint64(&reader, names[i]);
        reader = fresh;
        ferry_reader_bool(&reader, names[i]);
        reader = fresh;
        ferry_reader_tensor(&reader, names[i], ANY);
        reader = fresh;
        ferry_reader_string(&reader, names[i], text, sizeof text);
        reader = fresh;
        const unsigned char *raw = ferry_reader_bytes(&reader, names[i], &bytes);
        for (volatile size_t k = 0; k < bytes; k++) {
            (void)*(const volatile unsigned char *)&raw[k];
        }
        reader = fresh;
        ferry_reader_t array = ferry_reader_array(&reader, names[i]);
        while (ferry_reader_count(&array) > 0) {
            ferry_reader_t map = ferry_reader_map(&array, NULL);
            ferry_reader_string_or(&map, "a", "", text, sizeof text);
        }
    }
    return readable;
}

/* The body is put in a block of its exact size, so that the sanitizer sees a byte too many. */
static bool interrogate_exactly(const unsigned char *body, size_t bytes)
{
    unsigned char *copy = malloc(bytes == 0 ? 1 : bytes);
    memcpy(copy, body, bytes);
    ferry_message_t message = {.body = copy, .body_bytes = bytes};
    bool readable = interrogate(&message);
    free(copy);
    return readable;
}

Test(message, any_bytes_are_survived)
{
    static const unsigned char heads[] = {0x80, 0x81, 0x83, 0x90, 0x92, 0xa0, 0xa1, 0xa3, 0xc0,
                                          0xc1, 0xc3, 0xc4, 0xc7, 0xca, 0xcb, 0xcf, 0xd3, 0xd4,
                                          0xd8, 0xd9, 0xdb, 0xdc, 0xdd, 0xde, 0xdf, 0xff};
    uint64_t state = 31337;
    for (int round = 0; round < 200000; round++) {
        unsigned char body[48];
        size_t bytes = 1 + random_next(&state) % sizeof body;
        for (size_t i = 0; i < bytes; i++) {
            uint32_t choice = random_next(&state);
            body[i] = choice % 3 == 0   ? heads[(choice >> 8) % sizeof heads]
                      : choice % 3 == 1 ? (unsigned char)("abc\x01"[(choice >> 8) % 4])
                                        : (unsigned char)(choice >> 8);
        }
        body[0] = round % 4 == 0 ? body[0] : (unsigned char)(0x80 | (body[0] & 3));
        interrogate_exactly(body, bytes);
    }
}

/* Writes a random value under one of the names, or as an element. */
static void write_random(uint64_t *state, ferry_writer_t *writer, const char *name, int depth)
{
    switch (random_next(state) % (depth > 0 ? 9 : 7)) {
    case 0:
        ferry_writer_nil(writer, name);
        break;
    case 1:
        ferry_writer_bool(writer, name, random_next(state) % 2);
        break;
    case 2:
        ferry_writer_int64(writer, name, -(int64_t)random_next(state));
        break;
    case 3:
        ferry_writer_double(writer, name, random_next(state) / 3.0);
        break;
    case 4:
        ferry_writer_string(writer, name, "text");
        break;
    case 5:
        ferry_writer_bytes(writer, name, "0123456789", random_next(state) % 10);
        break;
    case 6:
        ferry_writer_tensor(writer, name, "w");
        break;
    case 7:
        ferry_writer_begin_array(writer, name);
        for (uint32_t i = random_next(state) % 4; i > 0; i--) {
            write_random(state, writer, NULL, depth - 1);
        }
        ferry_writer_end(writer);
        break;
    default:
        ferry_writer_begin_map(writer, name);
        for (uint32_t i = random_next(state) % 4; i > 0; i--) {
            write_random(state, writer, "a", depth - 1);
        }
        ferry_writer_end(writer);
    }
}

Test(message, damaged_bodies_are_survived)
{
    uint64_t state = 4242;
    ferry_writer_t *writer = writer_new();
    for (int round = 0; round < 20000; round++) {
        ferry_writer_reset(writer);
        write_random(&state, writer, "a", 4);
        write_random(&state, writer, "b", 4);
        write_random(&state, writer, "c", 4);
        ferry_message_t message = finish(writer);
        unsigned char body[4096];
        size_t bytes = message.body_bytes;
        cr_assert_lt(bytes, sizeof body);
        memcpy(body, message.body, bytes);
        cr_assert(interrogate_exactly(body, bytes), "round %d was written and not read", round);
        for (size_t cut = 1; cut < bytes; cut += 1 + bytes / 8) {
            cr_assert_not(interrogate_exactly(body, cut), "round %d: cut at %zu", round, cut);
        }
        body[random_next(&state) % bytes] = (unsigned char)random_next(&state);
        interrogate_exactly(body, bytes);
    }
    ferry_writer_destroy(writer);
}
