/* The contract's cases on what a link carries. */
#include "support/transport_contract.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <ferry/error.h>

#define MANY 400
#define ORDERED_MESSAGES 3000

void contract_describes_itself(const char *transport, const char *tls)
{
    struct contract_pair pair;
    contract_pair_connected(&pair, transport, tls);
    const ferry_transport_ops_t *ops = pair.parties[0].ops;
    const ferry_transport_t *instances[2] = {pair.parties[0].transport, pair.parties[1].transport};
    cr_assert_eq(strncmp(transport, ops->name, strlen(ops->name)), 0);
    cr_assert_eq(instances[0]->ops, ops);
    cr_assert((ops->capabilities(instances[0]) & FERRY_TRANSPORT_HOST) != 0);
    cr_assert_str_eq(ops->identity(instances[0]), ops->identity(instances[1]));
    cr_assert_eq(strncmp(ops->identity(instances[0]), ops->name, strlen(ops->name)), 0);
    const char *protocol = strchr(transport, ':');
    cr_assert(protocol == NULL || strstr(ops->identity(instances[0]), protocol + 1) != NULL);
    const void *address[2];
    size_t bytes[2];
    for (int i = 0; i < 2; i++) {
        ops->address(instances[i], &address[i], &bytes[i]);
        cr_assert_gt(bytes[i], 0);
        cr_assert_leq(bytes[i], FERRY_TRANSPORT_ADDRESS_BYTES_MAX);
        cr_assert_eq(ops->pending(instances[i]), 0);
        cr_assert_geq(ops->wait_fd(instances[i]), 0);
    }
    cr_assert(bytes[0] != bytes[1] || memcmp(address[0], address[1], bytes[0]) != 0);
    char whole[256], cut[5] = "....";
    ops->describe(pair.parties[0].link, whole, sizeof whole);
    ops->describe(pair.parties[0].link, cut, 4);
    ops->describe(pair.parties[0].link, NULL, 0);
    cr_assert_lt(strlen(cut), 4);
    cr_assert_eq(strncmp(whole, cut, strlen(cut)), 0);
    cr_assert_null(strchr(whole, '\n'));
    contract_pair_close(&pair);
}

static void expect_message(const struct contract_party *party, size_t number, size_t bytes,
                           uint32_t seed)
{
    const struct contract_message *message = &party->messages[number];
    cr_assert_eq(message->link, party->link);
    cr_assert_eq(message->bytes, bytes);
    cr_assert(contract_filled(message->data, bytes, seed), "message of %zu bytes", bytes);
}

static void messages_of_all_sizes(struct contract_pair *pair, int from)
{
    static const size_t sizes[] = {0,   1,    7,    8,    9,    63,   64,
                                   512, 2047, 2048, 4096, 8100, 8191, CONTRACT_MESSAGE_BYTES};
    struct contract_party *sender = &pair->parties[from], *receiver = &pair->parties[1 - from];
    unsigned char data[CONTRACT_MESSAGE_BYTES + 1];
    struct contract_post post;
    for (uint32_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        contract_party_forget_messages(receiver);
        contract_fill(data, sizes[i], i);
        contract_post(&post, sender->link, CONTRACT_MESSAGE, 0, data, sizes[i]);
        contract_pair_await(pair, &post);
        cr_assert_eq(post.status, FERRY_OK);
        contract_pair_await_messages(pair, 1 - from, 1);
        expect_message(receiver, 0, sizes[i], i);
    }
    contract_post(&post, sender->link, CONTRACT_MESSAGE, 0, data, sizeof data);
    cr_assert_eq(post.status, FERRY_ERR_LIMIT);
}

static void messages_in_a_row(struct contract_pair *pair)
{
    struct contract_post *posts = calloc(ORDERED_MESSAGES, sizeof *posts);
    uint32_t numbers[ORDERED_MESSAGES];
    bool seen[ORDERED_MESSAGES] = {false};
    struct contract_party *receiver = &pair->parties[1];
    bool ordered =
        (receiver->ops->capabilities(receiver->transport) & FERRY_TRANSPORT_ORDERED) != 0;
    contract_party_forget_messages(receiver);
    for (uint32_t i = 0; i < ORDERED_MESSAGES; i++) {
        numbers[i] = i;
        contract_post(&posts[i], pair->parties[0].link, CONTRACT_MESSAGE, 0, &numbers[i],
                      sizeof numbers[i]);
        if (i % 7 == 0) {
            contract_pair_progress(pair);
        }
    }
    contract_pair_await_messages(pair, 1, ORDERED_MESSAGES);
    for (uint32_t i = 0; i < ORDERED_MESSAGES; i++) {
        contract_pair_await(pair, &posts[i]);
        cr_assert_eq(posts[i].status, FERRY_OK);
        uint32_t number;
        memcpy(&number, receiver->messages[i].data, sizeof number);
        cr_assert(number < ORDERED_MESSAGES && !seen[number]);
        seen[number] = true;
        cr_assert(!ordered || number == i, "message %u came as the %uth", number, i);
    }
    free(posts);
}

void contract_carries_messages(const char *transport, const char *tls)
{
    struct contract_pair pair;
    contract_pair_connected(&pair, transport, tls);
    messages_of_all_sizes(&pair, 0);
    messages_of_all_sizes(&pair, 1);
    messages_in_a_row(&pair);
    contract_pair_close(&pair);
}

/* Neither end waits for the other's connect(). */
void contract_keeps_early_messages(const char *transport, const char *tls)
{
    struct contract_pair pair;
    struct contract_post messages[3], segment, receive;
    unsigned char data[100], got[100];
    contract_fill(data, sizeof data, 5);
    contract_pair_open(&pair, transport, tls);
    struct contract_party *first = &pair.parties[0], *second = &pair.parties[1];
    first->link = contract_party_connect(first, second, 4, 3);
    contract_post(&segment, first->link, CONTRACT_SEND, 9, data, sizeof data);
    for (size_t i = 0; i < 3; i++) {
        contract_post(&messages[i], first->link, CONTRACT_MESSAGE, 0, data, sizeof data - i);
    }
    contract_pair_settle(&pair);
    cr_assert_eq(second->message_count, 0);
    second->link = contract_party_connect(second, first, 3, 4);
    cr_assert(contract_party_sleep(second, 10000), "what came early wakes nobody");
    contract_pair_await_messages(&pair, 1, 3);
    for (size_t i = 0; i < 3; i++) {
        expect_message(second, i, sizeof data - i, 5);
        contract_pair_await(&pair, &messages[i]);
        cr_assert_eq(messages[i].status, FERRY_OK);
    }
    contract_post(&receive, second->link, CONTRACT_RECEIVE, 9, got, sizeof got);
    contract_pair_await(&pair, &receive);
    contract_pair_await(&pair, &segment);
    cr_assert_eq(receive.status, FERRY_OK);
    cr_assert(contract_filled(got, sizeof got, 5));
    contract_pair_close(&pair);
}

/* Memory with a byte on either side that must not change. */
static unsigned char *guarded(size_t bytes)
{
    unsigned char *block = malloc(bytes + 2);
    memset(block, 0x77, bytes + 2);
    return block + 1;
}

static void guarded_free(unsigned char *data, size_t bytes)
{
    cr_assert_eq(data[-1], 0x77);
    cr_assert_eq(data[bytes], 0x77);
    free(data - 1);
}

static void segment_once(struct contract_pair *pair, int from, size_t bytes, uint32_t segment,
                         bool receive_first)
{
    unsigned char *data = malloc(bytes + 1), *got = guarded(bytes);
    struct contract_post send, receive;
    contract_fill(data, bytes, segment);
    if (receive_first) {
        contract_post(&receive, pair->parties[1 - from].link, CONTRACT_RECEIVE, segment, got,
                      bytes);
        contract_pair_settle(pair);
        cr_assert_eq(receive.done, 0);
    }
    contract_post(&send, pair->parties[from].link, CONTRACT_SEND, segment, data, bytes);
    if (!receive_first) {
        contract_pair_settle(pair);
        contract_post(&receive, pair->parties[1 - from].link, CONTRACT_RECEIVE, segment, got,
                      bytes);
    }
    contract_pair_await(pair, &receive);
    contract_pair_await(pair, &send);
    cr_assert_eq(receive.status, FERRY_OK);
    cr_assert_eq(send.status, FERRY_OK);
    cr_assert_eq(receive.bytes, bytes);
    cr_assert(contract_filled(got, bytes, segment), "segment of %zu bytes", bytes);
    guarded_free(got, bytes);
    free(data);
}

/* Two halves of memory that are never in the way of a small machine; TEST_LARGE asks for it. */
static void segment_over_4_gib(struct contract_pair *pair)
{
    size_t bytes = (UINT64_C(4) << 30) + 4097;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    unsigned char *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    unsigned char *got = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    cr_assert(data != MAP_FAILED && got != MAP_FAILED);
    struct contract_post send, receive;
    contract_fill(data + bytes - 5000, 5000, 1);
    contract_post(&receive, pair->parties[1].link, CONTRACT_RECEIVE, 7, got, bytes);
    contract_post(&send, pair->parties[0].link, CONTRACT_SEND, 7, data, bytes);
    contract_pair_await(pair, &receive);
    cr_assert_eq(receive.status, FERRY_OK);
    cr_assert_eq(receive.bytes, bytes);
    cr_assert(contract_filled(got + bytes - 5000, 5000, 1));
    contract_pair_await(pair, &send);
    munmap(data, bytes);
    munmap(got, bytes);
}

void contract_carries_segments(const char *transport, const char *tls)
{
    static const size_t sizes[] = {0,     1,     8,       1000,          4096,
                                   65536, 70001, 1 << 20, (3 << 20) + 5, (size_t)64 << 20};
    struct contract_pair pair;
    uint32_t segment = UINT32_MAX - 3; /* over the end of the numbers, too */
    contract_pair_connected(&pair, transport, tls);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        for (int way = 0; way < 4; way++) {
            segment_once(&pair, way & 1, sizes[i], segment++, (way & 2) != 0);
        }
    }
    if (getenv("TEST_LARGE") != NULL) {
        segment_over_4_gib(&pair);
    }
    contract_pair_close(&pair);
}

/* The order of sends and that of receives have nothing to do with each other, and both ends use
 * the same numbers. */
void contract_carries_many_at_once(const char *transport, const char *tls)
{
    struct contract_pair pair;
    contract_pair_connected(&pair, transport, tls);
    struct contract_post *sends = calloc(2 * MANY, sizeof *sends);
    struct contract_post *receives = calloc(2 * MANY, sizeof *receives);
    unsigned char **data = calloc(2 * MANY, sizeof *data), **got = calloc(2 * MANY, sizeof *got);
    size_t bytes[MANY];
    for (uint32_t i = 0; i < 2 * MANY; i++) {
        uint32_t segment = i % MANY;
        bytes[segment] = segment % 50 == 0 ? 300000 + segment : segment * 37 % 9000;
        data[i] = malloc(bytes[segment] + 1);
        got[i] = guarded(bytes[segment]);
        contract_fill(data[i], bytes[segment], i);
    }
    for (uint32_t i = 0; i < 2 * MANY; i++) {
        uint32_t sent = i * 7 % (2 * MANY), taken = i * 11 % (2 * MANY);
        contract_post(&sends[sent], pair.parties[sent / MANY].link, CONTRACT_SEND, sent % MANY,
                      data[sent], bytes[sent % MANY]);
        contract_post(&receives[taken], pair.parties[1 - taken / MANY].link, CONTRACT_RECEIVE,
                      taken % MANY, got[taken], bytes[taken % MANY]);
        if (i % 13 == 0) {
            contract_pair_progress(&pair);
        }
    }
    for (uint32_t i = 0; i < 2 * MANY; i++) {
        contract_pair_await(&pair, &receives[i]);
        contract_pair_await(&pair, &sends[i]);
        cr_assert_eq(receives[i].status, FERRY_OK);
        cr_assert_eq(receives[i].bytes, bytes[i % MANY]);
        cr_assert(contract_filled(got[i], bytes[i % MANY], i));
        guarded_free(got[i], bytes[i % MANY]);
        free(data[i]);
    }
    cr_assert_eq(pair.parties[0].ops->pending(pair.parties[0].transport), 0);
    free(got);
    free(data);
    free(receives);
    free(sends);
    contract_pair_close(&pair);
}

void contract_takes_registered_memory(const char *transport, const char *tls)
{
    struct contract_pair pair;
    contract_pair_connected(&pair, transport, tls);
    const ferry_transport_ops_t *ops = pair.parties[0].ops;
    ferry_memory_t memory[2];
    for (int i = 0; i < 2; i++) {
        memory[i] =
            (ferry_memory_t){.bytes = 1 << 20, .device = {.device_type = kDLCPU}, .handle = NULL};
        cr_assert_eq(posix_memalign(&memory[i].data, 4096, memory[i].bytes), 0);
        ferry_status_t status =
            ops->register_memory(pair.parties[i].transport, &memory[i], &memory[i].handle);
        bool registers =
            (ops->capabilities(pair.parties[i].transport) & FERRY_TRANSPORT_REGISTERS) != 0;
        cr_assert_eq(status, registers ? FERRY_OK : FERRY_ERR_UNSUPPORTED);
        cr_assert_eq(memory[i].handle != NULL, registers);
    }
    struct contract_post send, receive;
    contract_post(&receive, pair.parties[1].link, CONTRACT_RECEIVE, 1, memory[1].data, 0);
    contract_post(&send, pair.parties[0].link, CONTRACT_SEND, 1, memory[0].data, 0);
    contract_pair_await(&pair, &receive);
    contract_pair_await(&pair, &send);
    contract_fill(memory[0].data, memory[0].bytes, 3);
    ferry_operation_t complete = send.operation;
    send = (struct contract_post){.operation = complete};
    receive = (struct contract_post){.operation = complete};
    send.operation.context = &send;
    receive.operation.context = &receive;
    ferry_status_t received = ops->receive(pair.parties[1].link, 2, &memory[1], &receive.operation);
    ferry_status_t sent = ops->send(pair.parties[0].link, 2, &memory[0], &send.operation);
    receive.done += received == FERRY_OK;
    send.done += sent == FERRY_OK;
    contract_pair_await(&pair, &receive);
    contract_pair_await(&pair, &send);
    cr_assert(contract_filled(memory[1].data, memory[1].bytes, 3));
    for (int i = 0; i < 2; i++) {
        if (memory[i].handle != NULL) {
            ops->unregister_memory(pair.parties[i].transport, memory[i].handle);
        }
        free(memory[i].data);
    }
    contract_pair_close(&pair);
}

/* The sender is done and what it sends next is untouched by what was declined. */
void contract_declines(const char *transport, const char *tls)
{
    static const size_t sizes[] = {0, 1, 100, 20000, 1 << 20};
    struct contract_pair pair;
    struct contract_post send, decline;
    unsigned char *data = malloc(1 << 20);
    uint32_t segment = 1;
    contract_pair_connected(&pair, transport, tls);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        for (int late = 0; late < 2; late++, segment++) {
            contract_fill(data, sizes[i], segment);
            if (!late) {
                contract_post(&decline, pair.parties[1].link, CONTRACT_DECLINE, segment, NULL,
                              sizes[i]);
            }
            contract_post(&send, pair.parties[0].link, CONTRACT_SEND, segment, data, sizes[i]);
            if (late) {
                contract_pair_settle(&pair);
                contract_post(&decline, pair.parties[1].link, CONTRACT_DECLINE, segment, NULL,
                              sizes[i]);
            }
            contract_pair_await(&pair, &send);
            contract_pair_await(&pair, &decline);
            cr_assert_eq(send.status, FERRY_OK);
            cr_assert_eq(decline.status, FERRY_OK);
            segment_once(&pair, 0, sizes[i], segment, late); /* the number is free again */
        }
    }
    free(data);
    contract_pair_close(&pair);
}

void contract_refuses_other_sizes(const char *transport, const char *tls)
{
    static const size_t sizes[][2] = {{0, 1},           {1, 0},           {100, 99},
                                      {99, 100},        {20000, 7},       {7, 20000},
                                      {1 << 20, 70000}, {70000, 1 << 20}, {300000, 0}};
    struct contract_pair pair;
    struct contract_post send, receive;
    unsigned char *data = calloc(1, 1 << 20);
    uint32_t segment = 1;
    contract_pair_connected(&pair, transport, tls);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        for (int late = 0; late < 2; late++, segment++) {
            unsigned char *got = guarded(sizes[i][1]);
            if (!late) {
                contract_post(&receive, pair.parties[1].link, CONTRACT_RECEIVE, segment, got,
                              sizes[i][1]);
            }
            contract_post(&send, pair.parties[0].link, CONTRACT_SEND, segment, data, sizes[i][0]);
            if (late) {
                contract_pair_settle(&pair);
                contract_post(&receive, pair.parties[1].link, CONTRACT_RECEIVE, segment, got,
                              sizes[i][1]);
            }
            contract_pair_await(&pair, &receive);
            contract_pair_await(&pair, &send);
            cr_assert_eq(receive.status, FERRY_ERR_PROTOCOL, "%zu bytes into %zu: %d", sizes[i][0],
                         sizes[i][1], (int)receive.status);
            cr_assert_eq(receive.bytes, 0);
            guarded_free(got, sizes[i][1]);
        }
    }
    segment_once(&pair, 0, 5000, segment, false);
    free(data);
    contract_pair_close(&pair);
}

void contract_refuses_other_memory(const char *transport, const char *tls)
{
    struct contract_pair pair;
    contract_pair_connected(&pair, transport, tls);
    const ferry_transport_ops_t *ops = pair.parties[0].ops;
    uint32_t capabilities = ops->capabilities(pair.parties[0].transport);
    static const struct {
        DLDeviceType type;
        uint32_t capability;
    } kinds[] = {{kDLMetal, 0},
                 {kDLROCM, 0},
                 {kDLExtDev, FERRY_TRANSPORT_SIM},
                 {kDLCUDA, FERRY_TRANSPORT_CUDA}};
    ferry_operation_t operation;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        ferry_memory_t memory = {
            .data = &pair, .bytes = sizeof pair, .device = {.device_type = kinds[i].type}};
        if ((capabilities & kinds[i].capability) == 0) {
            cr_assert_eq(ops->send(pair.parties[0].link, 1, &memory, &operation),
                         FERRY_ERR_UNSUPPORTED);
            cr_assert_eq(ops->receive(pair.parties[0].link, 1, &memory, &operation),
                         FERRY_ERR_UNSUPPORTED);
        }
    }
    cr_assert_eq(ops->pending(pair.parties[0].transport), 0);
    contract_pair_close(&pair);
}
