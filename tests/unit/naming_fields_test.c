/* msgpack maps of the naming protocol: what is taken for sane, and what the getters refuse. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "naming/fields.h"

#define SANE(...)                                                                                  \
    fields_sane((const uint8_t[]){__VA_ARGS__}, sizeof((const uint8_t[]){__VA_ARGS__}))

Test(naming_fields, sane_values)
{
    cr_assert(SANE(0x80));
    cr_assert(SANE(0x90));
    cr_assert(SANE(0x00));
    cr_assert(SANE(0xff));
    cr_assert(SANE(0xc0));
    cr_assert(SANE(0xa1, 'x'));
    cr_assert(SANE(0xcf, 1, 2, 3, 4, 5, 6, 7, 8));
    cr_assert(SANE(0xcb, 1, 2, 3, 4, 5, 6, 7, 8));
    cr_assert(SANE(0xc4, 2, 1, 2));
    cr_assert(SANE(0x82, 0xa1, 'a', 0x91, 0x80, 0xa1, 'b', 0xdc, 0, 2, 1, 2));
    cr_assert(SANE(0x91, 0x91, 0x91, 0x91, 0x91, 0x91, 0x91, 0x91, 0x00));
}

Test(naming_fields, insane_values)
{
    cr_assert_not(fields_sane("", 0));
    cr_assert_not(SANE(0x81));
    cr_assert_not(SANE(0x81, 0xa1, 'x'));
    cr_assert_not(SANE(0x00, 0x00));
    cr_assert_not(SANE(0xc1));
    cr_assert_not(SANE(0xd4, 0, 0));
    cr_assert_not(SANE(0xc7, 0, 0));
    cr_assert_not(SANE(0xa2, 'x'));
    cr_assert_not(SANE(0xcd, 1));
    cr_assert_not(SANE(0xdd, 0xff, 0xff, 0xff, 0xff, 0));
    cr_assert_not(SANE(0xdf, 0x80, 0, 0, 0, 0, 0));
    cr_assert_not(SANE(0x91, 0x91, 0x91, 0x91, 0x91, 0x91, 0x91, 0x91, 0x91, 0x00));
}

/* What is sane is also what msgpack-c can read, so the two cannot disagree on where a value ends. */
Test(naming_fields, sane_means_readable)
{
    srand(17);
    unsigned sane = 0;
    for (int round = 0; round < 300000; round++) {
        uint8_t data[12];
        size_t bytes = 1 + (size_t)rand() % sizeof data;
        for (size_t i = 0; i < bytes; i++) {
            data[i] = (uint8_t)(rand() % 3 == 0 ? rand() : 0x80 | rand() % 64);
        }
        if (!fields_sane(data, bytes)) {
            continue;
        }
        sane++;
        msgpack_unpacked unpacked;
        size_t offset = 0;
        msgpack_unpacked_init(&unpacked);
        cr_assert_eq(msgpack_unpack_next(&unpacked, (const char *)data, bytes, &offset),
                     MSGPACK_UNPACK_SUCCESS);
        cr_assert_eq(offset, bytes);
        msgpack_unpacked_destroy(&unpacked);
    }
    cr_assert_gt(sane, 1000);
}

Test(naming_fields, getters)
{
    struct fields_writer writer;
    struct fields fields;
    char text[4];
    const void *data;
    size_t bytes;
    uint64_t number;
    bool flag;
    fields_write(&writer, 4);
    fields_write_text(&writer, "text", "abc");
    fields_write_bytes(&writer, "bytes", "a\0b", 3);
    fields_write_number(&writer, "number", UINT64_MAX);
    fields_write_flag(&writer, "flag", true);
    cr_assert_not(writer.failed);
    cr_assert(fields_open(&fields, writer.buffer.data, writer.buffer.size));
    cr_assert(fields_text(&fields, "text", text, sizeof text));
    cr_assert_str_eq(text, "abc");
    cr_assert_not(fields_text(&fields, "text", text, 3), "it does not fit");
    cr_assert(fields_bytes(&fields, "bytes", &data, &bytes));
    cr_assert_eq(bytes, 3);
    cr_assert_eq(memcmp(data, "a\0b", 3), 0);
    cr_assert(fields_number(&fields, "number", &number));
    cr_assert_eq(number, UINT64_MAX);
    cr_assert(fields_flag(&fields, "flag", &flag));
    cr_assert(flag);
    cr_assert_not(fields_number(&fields, "text", &number));
    cr_assert_not(fields_text(&fields, "bytes", text, sizeof text));
    cr_assert_not(fields_bytes(&fields, "text", &data, &bytes));
    cr_assert_not(fields_flag(&fields, "number", &flag));
    cr_assert_not(fields_flag(&fields, "missing", &flag));
    fields_close(&fields);
    fields_write_finish(&writer);

    static const uint8_t nul_inside[] = {0x81, 0xa1, 'k', 0xa3, 'a', 0, 'b'};
    cr_assert(fields_open(&fields, nul_inside, sizeof nul_inside));
    cr_assert_not(fields_text(&fields, "k", text, sizeof text));
    fields_close(&fields);
    cr_assert_not(fields_open(&fields, "\x01", 1), "not a map");
}
