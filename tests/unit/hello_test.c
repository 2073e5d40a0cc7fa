/* Hellos and addresses: what is said is heard, what later versions add is ignored, what is missing has a
 * default, and what a stranger makes up is refused. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include <ferry/error.h>

#include "rpc/hello.h"
#include "rpc/wire_pack.h"

static struct hello sent, got;
static struct error_record record;
static enum hello_kind kind;
static uint8_t buffer[HELLO_BYTES_MAX];

static void expect_error(ferry_status_t status, ferry_status_t expected, const char *text)
{
    cr_assert_eq(status, expected, "status %d: %s", (int)status, ferry_last_error()->text);
    cr_assert(strstr(ferry_last_error()->text, text) != NULL, "'%s' lacks '%s'",
              ferry_last_error()->text, text);
}

/* From an allocation of exactly that size, so that a sanitizer sees one byte too far. */
static ferry_status_t unpack(const void *data, size_t bytes)
{
    uint8_t *copy = malloc(bytes == 0 ? 1 : bytes);
    if (bytes > 0) {
        memcpy(copy, data, bytes);
    }
    ferry_status_t status = hello_unpack(copy, bytes, &kind, &got, &record);
    free(copy);
    return status;
}

static ferry_status_t unpack_address(const void *data, size_t bytes, struct hello_address *address)
{
    uint8_t *copy = malloc(bytes == 0 ? 1 : bytes);
    memcpy(copy, data, bytes);
    ferry_status_t status = hello_address_unpack(copy, bytes, address);
    free(copy);
    return status;
}

#define UNPACK(literal) unpack(literal, sizeof(literal) - 1)

static void fill_text(char *text, size_t capacity, char letter)
{
    memset(text, letter, capacity - 1);
    text[capacity - 1] = '\0';
}

/* Every field as large as it can be. */
static void fill_sent(void)
{
    memset(&sent, 0, sizeof sent);
    sent.version = UINT32_MAX;
    fill_text(sent.ferry_version, sizeof sent.ferry_version, 'v');
    fill_text(sent.name, sizeof sent.name, 'n');
    fill_text(sent.wanted, sizeof sent.wanted, 'w');
    fill_text(sent.chosen, sizeof sent.chosen, 'c');
    memset(sent.process, 0xab, sizeof sent.process);
    memset(sent.agent, 0xcd, sizeof sent.agent);
    sent.pid = INT32_MAX;
    sent.epoch = UINT64_MAX;
    sent.session = UINT32_MAX - 1;
    sent.eager_bytes = 8192;
    sent.inline_bytes = 4096;
    sent.max_tensors = 65536;
    sent.max_message_bytes = UINT64_MAX;
    sent.device_count = HELLO_DEVICES_MAX;
    for (int i = 0; i < HELLO_DEVICES_MAX; i++) {
        sent.devices[i] =
            (DLDevice){.device_type = (DLDeviceType)(1 + i), .device_id = INT32_MAX - i};
        memset(sent.device_uuid[i], i, sizeof sent.device_uuid[i]);
    }
    sent.transport_count = HELLO_TRANSPORTS_MAX;
    for (int i = 0; i < HELLO_TRANSPORTS_MAX; i++) {
        struct hello_transport *transport = &sent.transports[i];
        fill_text(transport->name, sizeof transport->name, (char)('a' + i));
        fill_text(transport->identity, sizeof transport->identity, (char)('A' + i));
        memset(transport->address, i, sizeof transport->address);
        transport->address_bytes = sizeof transport->address - (size_t)i;
        memset(transport->address + transport->address_bytes, 0, (size_t)i);
        transport->capabilities = 0x80000001u + (uint32_t)i;
        transport->operation_bytes_max = (uint64_t)i << 40;
    }
}

Test(hello, the_largest_hello_is_heard_as_it_was_said)
{
    fill_sent();
    size_t bytes;
    cr_assert_eq(hello_pack(HELLO_DIAL, &sent, buffer, sizeof buffer, &bytes), FERRY_OK);
    cr_assert_eq(unpack(buffer, bytes), FERRY_OK, "%s", ferry_last_error()->text);
    cr_assert_eq(kind, HELLO_DIAL);
    cr_assert_eq(memcmp(&sent, &got, sizeof sent), 0);
    cr_assert_eq(hello_pack(HELLO_ACCEPT, &sent, buffer, bytes, &bytes), FERRY_OK);
    cr_assert_eq(unpack(buffer, bytes), FERRY_OK);
    cr_assert_eq(kind, HELLO_ACCEPT);
    expect_error(hello_pack(HELLO_ACCEPT, &sent, buffer, bytes - 1, &bytes), FERRY_ERR_LIMIT,
                 "room");
    sent.device_count++;
    expect_error(hello_pack(HELLO_DIAL, &sent, buffer, sizeof buffer, &bytes), FERRY_ERR_LIMIT,
                 "257 devices");
}

Test(hello, refusals_and_farewells_carry_an_error)
{
    size_t bytes;
    cr_assert_eq(hello_pack_short(HELLO_REFUSE, FERRY_ERR_INCOMPATIBLE, "UCX 1.13 and 1.22", buffer,
                                  sizeof buffer, &bytes),
                 FERRY_OK);
    cr_assert_eq(unpack(buffer, bytes), FERRY_OK);
    cr_assert_eq(kind, HELLO_REFUSE);
    cr_assert_eq(record.status, FERRY_ERR_INCOMPATIBLE);
    cr_assert_eq(record.effect, FERRY_NOT_RUN);
    cr_assert_str_eq(record.text, "UCX 1.13 and 1.22");
    static char text[2 * ERROR_TEXT_BYTES];
    fill_text(text, sizeof text, 't');
    cr_assert_eq(
        hello_pack_short(HELLO_BYE, FERRY_ERR_SHUTDOWN, text, buffer, sizeof buffer, &bytes),
        FERRY_OK);
    cr_assert_eq(unpack(buffer, bytes), FERRY_OK);
    cr_assert_eq(kind, HELLO_BYE);
    cr_assert_eq(record.status, FERRY_ERR_SHUTDOWN);
    cr_assert_eq(strlen(record.text), ERROR_TEXT_BYTES - 1);
    cr_assert_eq(hello_pack_short(HELLO_READY, FERRY_OK, "", buffer, sizeof buffer, &bytes),
                 FERRY_OK);
    cr_assert_eq(unpack(buffer, bytes), FERRY_OK);
    cr_assert_eq(kind, HELLO_READY);
    cr_assert_eq(UNPACK("\x81\xa4kind\x03"), FERRY_OK);
    cr_assert_eq(record.status, FERRY_ERR_REFUSED, "a refusal that names no status");
}

Test(hello, unknown_fields_are_ignored_and_missing_ones_have_defaults)
{
    memset(&got, 0xff, sizeof got);
    cr_assert_eq(UNPACK("\x87\xa4kind\x02"
                        "\xa5later\x82\x01\x02\x93\x01\x02\x03\x04"
                        "\xc0\xc3" /* keys need not be text */
                        "\xa4name\xa2w1"
                        "\xa7"
                        "devices\x91\x94\x0c\x03\xc4\x10"
                        "0123456789abcdef\xa3new"
                        "\xaatransports\x91\x82\xa4name\xa3ucx\xa5later\xca\0\0\0\0"
                        "\xa5"
                        "epoch\xd3\0\0\0\0\0\0\0\x07"), /* a signed form of 7 */
                 FERRY_OK, "%s", ferry_last_error()->text);
    cr_assert_eq(kind, HELLO_ACCEPT);
    cr_assert_str_eq(got.name, "w1");
    cr_assert_str_eq(got.wanted, "");
    cr_assert_str_eq(got.chosen, "");
    cr_assert_eq(got.epoch, 7);
    cr_assert_eq(got.version, 0);
    cr_assert_eq(got.max_message_bytes, 0);
    cr_assert_eq(got.device_count, 1);
    cr_assert_eq(got.devices[0].device_type, kDLExtDev);
    cr_assert_eq(got.devices[0].device_id, 3);
    cr_assert_eq(memcmp(got.device_uuid[0], "0123456789abcdef", 16), 0);
    cr_assert_eq(got.transport_count, 1);
    cr_assert_str_eq(got.transports[0].name, "ucx");
    cr_assert_eq(got.transports[0].address_bytes, 0);
    cr_assert_eq(got.transports[0].capabilities, 0);
}

Test(hello, fields_of_another_type_or_size_are_refused_by_name)
{
    static const struct {
        const char *data;
        size_t bytes;
        const char *text;
    } CASES[] = {
#define CASE(literal, expected) {literal, sizeof(literal) - 1, expected}
        CASE("\x80", "kind"),
        CASE("\x81\xa4kind\x06", "\"kind\" is 6"),
        CASE("\x81\xa4kind\xa1x", "\"kind\""),
        CASE("\x81\xa4kind\xcf\xff\xff\xff\xff\xff\xff\xff\xff", "\"kind\""),
        CASE("\x81\xa4name\x01", "\"name\" is not text"),
        CASE("\x81\xa4name\xa3w\0x", "NUL"),
        CASE("\x81\xa6wanted\xd9\x80"
             "12345678901234567890123456789012345678901234567890123456789012345678901234567890"
             "123456789012345678901234567890123456789012345678",
             "\"wanted\" has 128 bytes"),
        CASE("\x81\xa5"
             "epoch\xff",
             "\"epoch\""),
        CASE("\x81\xa7session\xcf\0\0\0\x01\0\0\0\0", "\"session\""),
        CASE("\x81\xa5"
             "eager\xcb\x40\0\0\0\0\0\0\0",
             "\"eager\""),
        CASE("\x81\xa3pid\xff", "\"pid\" is -1"),
        CASE("\x81\xa7process\xc4\x0f"
             "123456789012345",
             "\"process\" has 15 bytes"),
        CASE("\x81\xa5"
             "agent\xa1x",
             "\"agent\" is not a byte string"),
        CASE("\x81\xa7"
             "devices\x80",
             "\"devices\""),
        CASE("\x81\xa7"
             "devices\x91\x91\x01",
             "devices"),
        CASE("\x81\xa7"
             "devices\x91\x92\x00\x00",
             "device type"),
        CASE("\x81\xa7"
             "devices\x91\x92\x01\xff",
             "device index"),
        CASE("\x81\xa7"
             "devices\x91\x93\x01\x01\xc4\x01x",
             "device uuid"),
        CASE("\x81\xaatransports\x95\x80\x80\x80\x80\x80", "\"transports\""),
        CASE("\x81\xaatransports\x91\x01", "transports"),
        CASE("\x81\xaatransports\x91\x81\xa7"
             "address\xa1x",
             "\"address\""),
        CASE("\x81\xa6status\xce\x00\x01\x00\x00", "\"status\""),
#undef CASE
    };
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        expect_error(unpack(CASES[i].data, CASES[i].bytes), FERRY_ERR_PROTOCOL, CASES[i].text);
    }
}

/* A list of more devices, or a longer address, than there is room for. */
Test(hello, lists_and_addresses_over_their_bounds_are_refused)
{
    struct pack_buffer target = {.data = buffer, .capacity = sizeof buffer};
    msgpack_packer packer;
    pack_init(&packer, &target);
    msgpack_pack_map(&packer, 1);
    pack_key(&packer, "devices");
    msgpack_pack_array(&packer, HELLO_DEVICES_MAX + 1);
    for (int i = 0; i <= HELLO_DEVICES_MAX; i++) {
        msgpack_pack_array(&packer, 2);
        msgpack_pack_int(&packer, 1);
        msgpack_pack_int(&packer, 0);
    }
    expect_error(unpack(buffer, target.bytes), FERRY_ERR_PROTOCOL, "at most 256");
    static uint8_t address[FERRY_TRANSPORT_ADDRESS_BYTES_MAX + 1];
    target.bytes = 0;
    msgpack_pack_map(&packer, 1);
    pack_key(&packer, "transports");
    msgpack_pack_array(&packer, 1);
    msgpack_pack_map(&packer, 1);
    pack_field_bytes(&packer, "address", address, sizeof address);
    expect_error(unpack(buffer, target.bytes), FERRY_ERR_PROTOCOL, "3073 bytes");
    static uint8_t large[HELLO_BYTES_MAX + 1];
    expect_error(unpack(large, sizeof large), FERRY_ERR_PROTOCOL, "at most");
}

Test(hello, a_claimed_length_allocates_nothing)
{
    expect_error(UNPACK("\x81\xa1x\xdd\xff\xff\xff\xff"), FERRY_ERR_PROTOCOL, "more than its");
    expect_error(UNPACK("\x81\xa1x\xdf\xff\xff\xff\xff"), FERRY_ERR_PROTOCOL, "more than its");
    expect_error(UNPACK("\xdf\x80\0\0\0"), FERRY_ERR_PROTOCOL, "more than its");
    expect_error(UNPACK("\x81\xa1x\xc6\xff\xff\xff\xff"), FERRY_ERR_PROTOCOL, "more than its");
    expect_error(UNPACK("\x81\xa1x\xdb\xff\xff\xff\xff"), FERRY_ERR_PROTOCOL, "more than its");
    expect_error(UNPACK("\x81\xa1x\xc9\xff\xff\xff\xff\x01"), FERRY_ERR_PROTOCOL, "more than its");
    expect_error(UNPACK("\x81\xa1x\xc1"), FERRY_ERR_PROTOCOL, "no msgpack");
    expect_error(UNPACK("\x81\xa1x\xdd\x00"), FERRY_ERR_PROTOCOL, "too early");
    expect_error(UNPACK("\x80\x80"), FERRY_ERR_PROTOCOL, "behind its end");
    expect_error(UNPACK(""), FERRY_ERR_PROTOCOL, "too early");
    expect_error(UNPACK("\x90"), FERRY_ERR_PROTOCOL, "no msgpack map");
    /* lists that each claim what their neighbours need too */
    uint8_t lists[4096];
    memset(lists, 0x9f, sizeof lists);
    lists[0] = 0x81;
    lists[1] = 0x01;
    expect_error(unpack(lists, sizeof lists), FERRY_ERR_PROTOCOL, "nested too deeply");
    memset(lists, 0x91, sizeof lists);
    lists[0] = 0x81;
    lists[1] = 0x01;
    lists[16] = 0x01;
    expect_error(unpack(lists, 17), FERRY_ERR_PROTOCOL, "kind");
    lists[16] = 0x91;
    lists[17] = 0x01;
    expect_error(unpack(lists, 18), FERRY_ERR_PROTOCOL, "nested too deeply");
}

/* Every kind of msgpack object that a later version might use for a field, after which comes the kind. */
Test(hello, unknown_fields_may_be_of_any_type)
{
    static const struct {
        const char *data;
        size_t bytes;
    } VALUES[] = {
#define VALUE(literal) {literal, sizeof(literal) - 1}
        VALUE("\x7f"),
        VALUE("\xe0"),
        VALUE("\xc0"),
        VALUE("\xc2"),
        VALUE("\xc4\x01x"),
        VALUE("\xc5\x00\x01x"),
        VALUE("\xc6\x00\x00\x00\x01x"),
        VALUE("\xc7\x01\x05x"),
        VALUE("\xc8\x00\x01\x05x"),
        VALUE("\xc9\x00\x00\x00\x01\x05x"),
        VALUE("\xca\0\0\0\0"),
        VALUE("\xcb\0\0\0\0\0\0\0\0"),
        VALUE("\xcc\xff"),
        VALUE("\xcd\xff\xff"),
        VALUE("\xce\xff\xff\xff\xff"),
        VALUE("\xcf\xff\xff\xff\xff\xff\xff\xff\xff"),
        VALUE("\xd0\xff"),
        VALUE("\xd1\xff\xff"),
        VALUE("\xd2\xff\xff\xff\xff"),
        VALUE("\xd3\xff\xff\xff\xff\xff\xff\xff\xff"),
        VALUE("\xd4\x01x"),
        VALUE("\xd5\x01xx"),
        VALUE("\xd6\x01xxxx"),
        VALUE("\xd7\x01xxxxxxxx"),
        VALUE("\xd8\x01xxxxxxxxxxxxxxxx"),
        VALUE("\xd9\x01x"),
        VALUE("\xda\x00\x01x"),
        VALUE("\xdb\x00\x00\x00\x01x"),
        VALUE("\xdc\x00\x01\x01"),
        VALUE("\xdd\x00\x00\x00\x01\x01"),
        VALUE("\xde\x00\x01\x01\x02"),
        VALUE("\xdf\x00\x00\x00\x01\x01\x02"),
        VALUE("\x90"),
        VALUE("\x80"),
        VALUE("\xa0"),
#undef VALUE
    };
    for (size_t i = 0; i < sizeof VALUES / sizeof VALUES[0]; i++) {
        uint8_t data[64] = "\x82\xa5later";
        memcpy(data + 7, VALUES[i].data, VALUES[i].bytes);
        memcpy(data + 7 + VALUES[i].bytes, "\xa4kind\x04", 6);
        size_t bytes = 7 + VALUES[i].bytes + 6;
        cr_assert_eq(unpack(data, bytes), FERRY_OK, "0x%02x: %s", (uint8_t)VALUES[i].data[0],
                     ferry_last_error()->text);
        cr_assert_eq(kind, HELLO_READY);
        for (size_t cut = 0; cut < bytes; cut++) {
            cr_assert_eq(unpack(data, cut), FERRY_ERR_PROTOCOL);
        }
    }
}

Test(hello, addresses_travel)
{
    struct hello_address address = {.host =
                                        "ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255%ethernet",
                                    .port = 65535,
                                    .pid = INT32_MAX,
                                    .process = {1, 2, 3},
                                    .agent = {[15] = 9}};
    struct hello_address heard;
    memset(&heard, 0, sizeof heard);
    size_t bytes;
    cr_assert_eq(hello_address_pack(&address, buffer, HELLO_ADDRESS_BYTES_MAX, &bytes), FERRY_OK);
    cr_assert_eq(unpack_address(buffer, bytes, &heard), FERRY_OK, "%s", ferry_last_error()->text);
    cr_assert_str_eq(heard.host, address.host);
    cr_assert_eq(heard.port, address.port);
    cr_assert_eq(heard.pid, address.pid);
    cr_assert_eq(memcmp(heard.process, address.process, 16), 0);
    cr_assert_eq(memcmp(heard.agent, address.agent, 16), 0);
    for (size_t cut = 0; cut < bytes; cut++) {
        cr_assert_eq(unpack_address(buffer, cut, &heard), FERRY_ERR_PROTOCOL);
    }
    expect_error(hello_address_pack(&address, buffer, bytes - 1, &bytes), FERRY_ERR_LIMIT, "room");
}

#define UNPACK_ADDRESS(literal, address) unpack_address(literal, sizeof(literal) - 1, address)

Test(hello, addresses_may_grow_but_must_say_where)
{
    struct hello_address address = {.port = 3};
    cr_assert_eq(UNPACK_ADDRESS("\x83\xa4host\xa1h\xa4port\x07\xa5later\x90", &address), FERRY_OK);
    cr_assert_eq(address.port, 7);
    cr_assert_eq(address.pid, 0);
    expect_error(UNPACK_ADDRESS("\x81\xa4host\xa1h", &address), FERRY_ERR_PROTOCOL, "lacks");
    expect_error(UNPACK_ADDRESS("\x81\xa4port\x08", &address), FERRY_ERR_PROTOCOL, "lacks");
    expect_error(UNPACK_ADDRESS("\x81\xa4port\xce\x00\x01\x00\x00", &address), FERRY_ERR_PROTOCOL,
                 "\"port\" is 65536");
    cr_assert_eq(address.port, 7, "written only on success");
    static const uint8_t large[HELLO_ADDRESS_BYTES_MAX + 1];
    expect_error(unpack_address(large, sizeof large, &address), FERRY_ERR_PROTOCOL, "at most 512");
}
