/* Control messages from a peer that sends what it likes: nothing crashes, nothing is read beyond the
 * message, and what is accepted lies within its limits. A program of its own; see fuzz.h. */
#include "fuzz/fuzz.h"

#include "fuzz/wire_random.h"

#define MUTATED_SEEDS 4000
#define MUTATIONS 25

static const struct wire_limits LIMITS = {.eager_bytes = 8192,
                                          .inline_bytes = 4096,
                                          .max_tensors = RANDOM_TENSORS_MAX,
                                          .max_message_bytes = 1ull << 40};

static void decode_and_check(const struct random_bytes *encoded, const struct wire_limits *limits)
{
    static struct wire_tensor tensors[RANDOM_TENSORS_MAX];
    struct wire_message message;
    if (random_decode(encoded, limits, &message, tensors) != FERRY_OK) {
        return;
    }
    const char *problem = random_check(encoded, limits, &message, tensors);
    if (problem != NULL) {
        fprintf(stderr, "%s\n", problem);
        abort();
    }
}

/* The first two bytes say how many of the rest are the control message; the others are the table. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes < 2) {
        return 0;
    }
    size_t message_bytes = (size_t)(data[0] | data[1] << 8);
    message_bytes = message_bytes < bytes - 2 ? message_bytes : bytes - 2;
    size_t table_bytes = bytes - 2 - message_bytes;
    struct random_bytes encoded = {.data = random_copy(data + 2, message_bytes),
                                   .bytes = message_bytes,
                                   .table_bytes = table_bytes};
    if (table_bytes > 0) {
        encoded.table = random_copy(data + 2 + message_bytes, table_bytes);
    }
    decode_and_check(&encoded, &LIMITS);
    random_free(&encoded);
    return 0;
}

#ifndef TEST_LIBFUZZER
/* Bytes that a length or a count would be hurt by. */
static void mutate(struct random_source *random, uint8_t *data, size_t bytes)
{
    static const uint8_t VALUES[] = {0, 1, 2, 0x7f, 0x80, 0xff};
    if (bytes == 0) {
        return;
    }
    for (uint64_t count = 1 + random_below(random, 3); count > 0; count--) {
        uint64_t head = random_below(random, 2) == 0 && bytes > 64 ? 64 : bytes;
        uint8_t *at = data + random_below(random, head);
        switch (random_below(random, 3)) {
        case 0:
            *at ^= (uint8_t)(1u << random_below(random, 8));
            break;
        case 1:
            *at = VALUES[random_below(random, sizeof VALUES)];
            break;
        default:
            *at = (uint8_t)random_next(random);
            break;
        }
    }
}

static void try_mutations(struct random_source *random, const struct random_bytes *encoded,
                          const struct wire_limits *limits)
{
    for (int i = 0; i < MUTATIONS; i++) {
        struct random_bytes mutated = {.bytes = encoded->bytes,
                                       .table_bytes = encoded->table_bytes};
        mutated.data = random_copy(encoded->data, encoded->bytes);
        if (encoded->table != NULL) {
            mutated.table = random_copy(encoded->table, encoded->table_bytes);
        }
        if (random_below(random, 8) == 0) {
            mutated.bytes = random_below(random, mutated.bytes + 1);
            free(mutated.data);
            mutated.data = random_copy(encoded->data, mutated.bytes);
        }
        if (encoded->table != NULL && random_below(random, 2) == 0) {
            mutate(random, mutated.table, mutated.table_bytes);
        } else {
            mutate(random, mutated.data, mutated.bytes);
        }
        decode_and_check(&mutated, limits);
        random_free(&mutated);
    }
}

int main(void)
{
    static struct random_message made;
    for (uint64_t seed = 1; seed <= MUTATED_SEEDS; seed++) {
        struct random_source random = {.state = seed * 0x9e3779b97f4a7c15ULL};
        struct random_bytes encoded;
        random_fill(&random, &made);
        if (random_encode(&made, &encoded)) {
            try_mutations(&random, &encoded, &made.limits);
            random_free(&encoded);
        }
        uint8_t noise[512];
        size_t bytes = random_below(&random, sizeof noise);
        for (size_t i = 0; i < bytes; i++) {
            noise[i] = (uint8_t)random_next(&random);
        }
        LLVMFuzzerTestOneInput(noise, bytes);
    }
    return 0;
}
#endif
