/* The store against clients that do not keep the rules: a bad one loses its connection, everybody else notices nothing. */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <ferry/log.h>

#include "naming/fields.h"
#include "naming/store.h"
#include "support/naming_party.h"

static int64_t now_ns;
static struct poller *poller;
static struct store *store;

static int64_t fake_now(void *context)
{
    return *(int64_t *)context;
}

static void setup(void)
{
    ferry_log_set_level(FERRY_LOG_OFF); /* the strangers are meant */
    struct clock clock = {.now_ns = fake_now, .context = &now_ns};
    cr_assert_eq(poller_create(clock, &poller), FERRY_OK);
    cr_assert_eq(store_open(poller, clock, "127.0.0.1", 0, &store), FERRY_OK);
}

static void teardown(void)
{
    store_close(store);
    cr_assert_eq(poller_next_deadline_ns(poller), FERRY_FOREVER, "a timer was left behind");
    poller_destroy(poller);
}

TestSuite(naming_store, .init = setup, .fini = teardown, .timeout = 60);

/* A plain socket to the store. */
static int dial(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(store_port(store))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_eq(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    struct timeval patience = {.tv_usec = 1000};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    return fd;
}

static void serve(void)
{
    for (int i = 0; i < 20; i++) {
        poller_wait(poller, 200000);
        poller_dispatch(poller);
    }
}

static void say_bytes(int fd, const void *data, size_t bytes)
{
    uint8_t frame[8192] = {(uint8_t)bytes, (uint8_t)(bytes >> 8), 0, 0};
    cr_assert_leq(bytes, sizeof frame - 4);
    memcpy(frame + 4, data, bytes);
    send(fd, frame, 4 + bytes, MSG_NOSIGNAL);
}

static void say(int fd, struct fields_writer *writer)
{
    say_bytes(fd, writer->buffer.data, writer->buffer.size);
    fields_write_finish(writer);
}

/* The next frame; false when the connection is closed. */
static bool hear(int fd, struct fields *fields, uint8_t *buffer, size_t capacity)
{
    size_t used = 0;
    for (int tries = 0; tries < 5000; tries++) {
        size_t wanted = used < 4 ? 4 : 4 + (size_t)buffer[0] + 256 * (size_t)buffer[1];
        cr_assert_leq(wanted, capacity);
        if (used >= 4 && used == wanted) {
            cr_assert(fields_open(fields, buffer + 4, wanted - 4));
            return true;
        }
        poller_dispatch(poller);
        ssize_t got = recv(fd, buffer + used, wanted - used, 0);
        if (got > 0) {
            used += (size_t)got;
        } else if (got == 0) {
            return false;
        }
    }
    cr_assert_fail("neither a frame nor an end");
    return false;
}

static bool is_closed(int fd)
{
    uint8_t byte;
    for (int tries = 0; tries < 200; tries++) {
        poller_dispatch(poller);
        ssize_t got = recv(fd, &byte, 1, 0);
        if (got == 0 || (got < 0 && errno == ECONNRESET)) {
            return true;
        }
    }
    return false;
}

static void hello(int fd, uint8_t id)
{
    struct fields_writer writer;
    struct fields fields;
    uint8_t client[STORE_CLIENT_ID_BYTES] = {id};
    uint8_t buffer[512];
    fields_write(&writer, 4);
    fields_write_text(&writer, "op", "hello");
    fields_write_number(&writer, "version", STORE_PROTOCOL_VERSION);
    fields_write_bytes(&writer, "client", client, sizeof client);
    fields_write_text(&writer, "unknown", "fields are ignored");
    say(fd, &writer);
    char op[16];
    cr_assert(hear(fd, &fields, buffer, sizeof buffer));
    cr_assert(fields_text(&fields, "op", op, sizeof op));
    cr_assert_str_eq(op, "hello");
    fields_close(&fields);
}

static void publish(int fd, const char *name, bool expected)
{
    struct fields_writer writer;
    struct fields fields;
    uint8_t buffer[2048];
    uint64_t code;
    fields_write(&writer, 4);
    fields_write_text(&writer, "op", "publish");
    fields_write_number(&writer, "id", 5);
    fields_write_text(&writer, "name", name);
    fields_write_bytes(&writer, "address", "here", 4);
    say(fd, &writer);
    cr_assert(hear(fd, &fields, buffer, sizeof buffer));
    cr_assert_eq(!fields_number(&fields, "status", &code), expected);
    fields_close(&fields);
}

/* The store still serves a client that behaves. */
static void is_well(void)
{
    int fd = dial();
    hello(fd, 200);
    publish(fd, "well", true);
    close(fd);
    serve();
}

Test(naming_store, random_bytes)
{
    srand(5);
    error_raise(FERRY_ERR_BUSY, "untouched");
    for (int round = 0; round < 400; round++) {
        uint8_t noise[200];
        int fd = dial();
        for (size_t i = 0; i < sizeof noise; i++) {
            noise[i] = (uint8_t)rand();
        }
        if (round % 2 == 0) {
            say_bytes(fd, noise, sizeof noise); /* a proper frame of nonsense */
            cr_assert(is_closed(fd));
        } else {
            send(fd, noise, sizeof noise, MSG_NOSIGNAL);
            shutdown(fd, SHUT_WR);
            cr_assert(is_closed(fd));
        }
        close(fd);
    }
    cr_assert_str_eq(ferry_last_error()->text, "untouched",
                     "the driver of the poller did not fail");
    is_well();
}

Test(naming_store, an_oversized_length_is_not_waited_for)
{
    static const uint8_t header[] = {0xff, 0xff, 0xff, 0x7f};
    int fd = dial();
    hello(fd, 1);
    send(fd, header, sizeof header, MSG_NOSIGNAL);
    cr_assert(is_closed(fd));
    close(fd);
    is_well();
}

/* msgpack that announces more than is there, and nests without end. */
Test(naming_store, containers_that_lie)
{
    static const uint8_t huge_array[] = {0xdd, 0xff, 0xff, 0xff, 0xff};
    static const uint8_t huge_map[] = {0xdf, 0x7f, 0xff, 0xff, 0xff, 0xa2, 'o', 'p'};
    static const uint8_t huge_str[] = {0x81, 0xa2, 'o', 'p', 0xdb, 0xff, 0xff, 0xff, 0xff};
    static const uint8_t extension[] = {0x81, 0xa2, 'o', 'p', 0xd4, 1, 1};
    static const uint8_t trailing[] = {0x80, 0x80};
    static const struct {
        const void *data;
        size_t bytes;
    } cases[] = {{huge_array, sizeof huge_array}, {huge_map, sizeof huge_map},
                 {huge_str, sizeof huge_str},     {extension, sizeof extension},
                 {trailing, sizeof trailing},     {"", 0}};
    uint8_t nested[4000];
    memset(nested, 0x91, sizeof nested);
    for (size_t i = 0; i <= sizeof cases / sizeof cases[0]; i++) {
        int fd = dial();
        hello(fd, 1);
        if (i < sizeof cases / sizeof cases[0]) {
            say_bytes(fd, cases[i].data, cases[i].bytes);
        } else {
            say_bytes(fd, nested, sizeof nested);
        }
        cr_assert(is_closed(fd), "case %zu", i);
        close(fd);
    }
    is_well();
}

struct oddity {
    const char *op;
    bool greeted;
    void (*fill)(struct fields_writer *writer); /* two more fields */
};

static void fill_nothing(struct fields_writer *writer)
{
    fields_write_flag(writer, "a", true);
    fields_write_flag(writer, "b", true);
}

static void fill_types(struct fields_writer *writer)
{
    fields_write_text(writer, "id", "one");
    fields_write_number(writer, "name", 1);
}

static void fill_bad_name(struct fields_writer *writer)
{
    fields_write_number(writer, "id", 1);
    fields_write_text(writer, "name", "not a name");
}

static void fill_long_name(struct fields_writer *writer)
{
    char name[300];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    fields_write_number(writer, "id", 1);
    fields_write_text(writer, "name", name);
}

static void fill_version(struct fields_writer *writer)
{
    fields_write_number(writer, "version", STORE_PROTOCOL_VERSION);
    fields_write_bytes(writer, "client", "short", 5);
}

Test(naming_store, frames_that_make_no_sense)
{
    static const struct oddity oddities[] = {
        {"resolve", false, fill_nothing},
        {"publish", false, fill_nothing},
        {"watch", false, fill_nothing},
        {"hello", false, fill_nothing},
        {"hello", false, fill_version},
        {"hello", true, fill_version},
        {"resolve", true, fill_nothing},
        {"resolve", true, fill_types},
        {"resolve", true, fill_bad_name},
        {"resolve", true, fill_long_name},
        {"publish", true, fill_types},
        {"publish", true, fill_bad_name},
        {"cancel", true, fill_nothing},
        {"unknown", true, fill_nothing},
        {"a_very_long_operation_name", true, fill_nothing},
    };
    for (size_t i = 0; i < sizeof oddities / sizeof oddities[0]; i++) {
        struct fields_writer writer;
        int fd = dial();
        if (oddities[i].greeted) {
            hello(fd, 1);
        }
        fields_write(&writer, 3);
        fields_write_text(&writer, "op", oddities[i].op);
        oddities[i].fill(&writer);
        say(fd, &writer);
        cr_assert(is_closed(fd), "case %zu", i);
        close(fd);
    }
    is_well();
}

Test(naming_store, an_address_over_the_bound)
{
    static const uint8_t address[NAMING_ADDRESS_BYTES_MAX + 1];
    struct fields_writer writer;
    int fd = dial();
    hello(fd, 1);
    fields_write(&writer, 4);
    fields_write_text(&writer, "op", "publish");
    fields_write_number(&writer, "id", 5);
    fields_write_text(&writer, "name", "big");
    fields_write_bytes(&writer, "address", address, sizeof address);
    say(fd, &writer);
    cr_assert(is_closed(fd));
    close(fd);
    is_well();
}

Test(naming_store, another_protocol_version_is_told_so)
{
    struct fields_writer writer;
    struct fields fields;
    uint8_t buffer[512];
    char text[256];
    int fd = dial();
    fields_write(&writer, 2);
    fields_write_text(&writer, "op", "hello");
    fields_write_number(&writer, "version", 99);
    say(fd, &writer);
    cr_assert(hear(fd, &fields, buffer, sizeof buffer));
    cr_assert(fields_text(&fields, "text", text, sizeof text));
    cr_assert_not_null(strstr(text, "version 99"), "%s", text);
    fields_close(&fields);
    cr_assert(is_closed(fd));
    close(fd);
    is_well();
}

Test(naming_store, a_second_name_on_one_connection_ends_it)
{
    struct fields_writer writer;
    int fd = dial();
    hello(fd, 1);
    publish(fd, "one", true);
    fields_write(&writer, 4);
    fields_write_text(&writer, "op", "publish");
    fields_write_number(&writer, "id", 6);
    fields_write_text(&writer, "name", "two");
    fields_write_bytes(&writer, "address", "x", 1);
    say(fd, &writer);
    cr_assert(is_closed(fd));
    close(fd);
    is_well();
}

Test(naming_store, the_same_client_takes_its_name_over)
{
    int old = dial();
    hello(old, 7);
    publish(old, "mine", true);
    int stranger = dial();
    hello(stranger, 8);
    publish(stranger, "mine", false);
    int again = dial(); /* the old connection is broken, which the store cannot know yet */
    hello(again, 7);
    publish(again, "mine", true);
    cr_assert(is_closed(old));
    close(old);
    publish(stranger, "mine", false);
    close(stranger);
    close(again);
    serve();
    is_well();
}

Test(naming_store, a_silent_stranger_is_shown_the_door)
{
    int silent = dial();
    int greeted = dial();
    serve();
    hello(greeted, 1);
    now_ns += 9000000000;
    serve();
    cr_assert_not(is_closed(silent));
    now_ns += 2000000000;
    cr_assert(is_closed(silent));
    publish(greeted, "still", true);
    close(silent);
    close(greeted);
    serve();
}

/* A publish and a withdraw of a long name, as two frames. */
static size_t round_fill(uint8_t *round)
{
    struct fields_writer writer;
    char name[NAMING_NAME_BYTES_MAX + 1];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    fields_write(&writer, 4);
    fields_write_text(&writer, "op", "publish");
    fields_write_number(&writer, "id", 6);
    fields_write_text(&writer, "name", name);
    fields_write_bytes(&writer, "address", "x", 1);
    size_t first = writer.buffer.size;
    memcpy(round, (uint8_t[]){(uint8_t)first, 0, 0, 0}, 4);
    memcpy(round + 4, writer.buffer.data, first);
    fields_write_finish(&writer);
    fields_write(&writer, 1);
    fields_write_text(&writer, "op", "withdraw");
    size_t second = writer.buffer.size;
    memcpy(round + 4 + first, (uint8_t[]){(uint8_t)second, 0, 0, 0}, 4);
    memcpy(round + 8 + first, writer.buffer.data, second);
    fields_write_finish(&writer);
    return first + second + 8;
}

/* A watcher that never reads is dropped when its queue is full; it holds up nobody. */
Test(naming_store, a_watcher_that_does_not_read)
{
    struct fields_writer writer;
    int deaf = dial();
    int small = 65536;
    setsockopt(deaf, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    hello(deaf, 1);
    fields_write(&writer, 1);
    fields_write_text(&writer, "op", "watch");
    say(deaf, &writer);
    serve();
    int busy = dial();
    hello(busy, 2);
    /* Each round tells the watcher twice; the kernel takes some megabytes of it, the store one. */
    uint8_t round[1024];
    size_t bytes = round_fill(round);
    uint8_t trash[4096];
    for (int i = 0; i < 30000; i++) {
        cr_assert_eq(send(busy, round, bytes, MSG_NOSIGNAL), (ssize_t)bytes);
        poller_dispatch(poller);
        while (recv(busy, trash, sizeof trash, MSG_DONTWAIT) > 0) {
        }
    }
    /* What reached the deaf one's socket before can be read, and then it is over. */
    char byte[65536];
    ssize_t got;
    int64_t end_ns = clock_monotonic_ns() + 10000000000;
    do {
        poller_dispatch(poller);
        got = recv(deaf, byte, sizeof byte, 0);
    } while (got != 0 && !(got < 0 && errno == ECONNRESET) && clock_monotonic_ns() < end_ns);
    cr_assert_lt(clock_monotonic_ns(), end_ns);
    close(deaf);
    close(busy);
    serve();
}
