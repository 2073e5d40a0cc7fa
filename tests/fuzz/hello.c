/* Hellos and addresses from a stranger: nothing crashes, nothing is read beyond the bytes, texts end, and
 * counts keep to their bounds. A program of its own; see fuzz.h. */
#include "fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz/wire_random.h"
#include "rpc/hello.h"

#define SEEDS 30000

static void require(bool holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "%s\n", what);
        abort();
    }
}

static bool ends(const char *text, size_t capacity)
{
    return memchr(text, '\0', capacity) != NULL;
}

static void check_hello(const struct hello *hello)
{
    require(hello->device_count <= HELLO_DEVICES_MAX &&
                hello->transport_count <= HELLO_TRANSPORTS_MAX,
            "a count is over its bound");
    require(ends(hello->ferry_version, sizeof hello->ferry_version) &&
                ends(hello->name, sizeof hello->name) &&
                ends(hello->wanted, sizeof hello->wanted) &&
                ends(hello->chosen, sizeof hello->chosen),
            "a text does not end");
    for (size_t i = 0; i < hello->device_count; i++) {
        require(hello->devices[i].device_type > 0 && hello->devices[i].device_id >= 0,
                "a device makes no sense");
    }
    for (size_t i = 0; i < hello->transport_count; i++) {
        const struct hello_transport *transport = &hello->transports[i];
        require(ends(transport->name, sizeof transport->name) &&
                    ends(transport->identity, sizeof transport->identity) &&
                    transport->address_bytes <= sizeof transport->address,
                "a transport's field is out of its range");
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct hello hello;
    static struct error_record error;
    uint8_t *copy = random_copy(data, bytes);
    struct hello_address address;
    if (hello_address_unpack(copy, bytes, &address) == FERRY_OK) {
        require(ends(address.host, sizeof address.host) && address.port != 0,
                "an address makes no sense");
    }
    enum hello_kind kind;
    if (hello_unpack(copy, bytes, &kind, &hello, &error) == FERRY_OK) {
        if (kind == HELLO_DIAL || kind == HELLO_ACCEPT) {
            check_hello(&hello);
        } else if (kind != HELLO_READY) {
            require(ends(error.text, sizeof error.text), "an error's text does not end");
        }
    }
    free(copy);
    return 0;
}

#ifndef TEST_LIBFUZZER
static void random_hello(struct random_source *random, struct hello *hello)
{
    memset(hello, 0, sizeof *hello);
    snprintf(hello->name, sizeof hello->name, "worker%u", (unsigned)random_below(random, 100));
    hello->device_count = random_below(random, 4);
    hello->transport_count = random_below(random, 3);
    for (size_t i = 0; i < hello->device_count; i++) {
        hello->devices[i] = random_device(random);
    }
    for (size_t i = 0; i < hello->transport_count; i++) {
        snprintf(hello->transports[i].name, sizeof hello->transports[i].name, "ucx");
        hello->transports[i].address_bytes = random_below(random, 64);
    }
}

int main(void)
{
    static struct hello hello;
    static uint8_t buffer[HELLO_BYTES_MAX];
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct random_source random = {.state = seed * 0x9e3779b97f4a7c15ULL};
        size_t bytes;
        ferry_status_t status;
        switch (random_below(&random, 3)) {
        case 0: {
            struct hello_address address = {.host = "127.0.0.1", .port = 4711, .pid = 12};
            status = hello_address_pack(&address, buffer, sizeof buffer, &bytes);
            break;
        }
        case 1:
            status = hello_pack_short(HELLO_REFUSE, FERRY_ERR_REFUSED, "not today", buffer,
                                      sizeof buffer, &bytes);
            break;
        default:
            random_hello(&random, &hello);
            status = hello_pack(HELLO_DIAL, &hello, buffer, sizeof buffer, &bytes);
            break;
        }
        require(status == FERRY_OK, "a valid hello cannot be packed");
        for (uint64_t count = random_below(&random, 4); count > 0; count--) {
            buffer[random_below(&random, bytes)] = (uint8_t)random_next(&random);
        }
        bytes = random_below(&random, 4) == 0 ? random_below(&random, bytes + 1) : bytes;
        LLVMFuzzerTestOneInput(buffer, bytes);
    }
    return 0;
}
#endif
