#include "rpc/peer_table.h"

#include <stdlib.h>
#include <string.h>

#include "rpc/peer.h"

#define CAPACITY_FIRST 16

static uint64_t mix(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ hash >> 32;
}

static uint64_t name_hash(const struct peer_table *table, const char *name)
{
    size_t bytes = strlen(name);
    uint64_t hash = mix(table->seed, bytes), word;
    for (; bytes >= sizeof(word); name += sizeof(word), bytes -= sizeof(word)) {
        memcpy(&word, name, sizeof(word));
        hash = mix(hash, word);
    }
    word = 0;
    memcpy(&word, name, bytes);
    return mix(hash, word);
}

/* Where the peer of that hash and name is, or would be; the table has a free slot. */
static struct peer_slot *slot_find(const struct peer_table *table, uint64_t hash, const char *name)
{
    size_t at = (size_t)hash & (table->capacity - 1);
    for (;; at = (at + 1) & (table->capacity - 1)) {
        struct peer_slot *slot = &table->slots[at];
        if (slot->peer == NULL || (slot->hash == hash && strcmp(slot->peer->name, name) == 0)) {
            return slot;
        }
    }
}

struct peer *peer_table_find(const struct peer_table *table, const char *name)
{
    if (table->count == 0) {
        return NULL;
    }
    return slot_find(table, name_hash(table, name), name)->peer;
}

static ferry_status_t table_grow(struct peer_table *table)
{
    struct peer_table larger = *table;
    larger.capacity = table->capacity == 0 ? CAPACITY_FIRST : table->capacity * 2;
    larger.slots = calloc(larger.capacity, sizeof(*larger.slots));
    if (larger.slots == NULL) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory for %zu peers", larger.capacity / 2);
    }
    for (size_t i = 0; i < table->capacity; i++) {
        const struct peer_slot *slot = &table->slots[i];
        if (slot->peer != NULL) {
            *slot_find(&larger, slot->hash, slot->peer->name) = *slot;
        }
    }
    free(table->slots);
    *table = larger;
    return FERRY_OK;
}

ferry_status_t peer_table_add(struct peer_table *table, struct peer *peer)
{
    if (2 * (table->count + 1) > table->capacity) {
        ferry_status_t status = table_grow(table);
        if (status != FERRY_OK) {
            return status;
        }
    }
    uint64_t hash = name_hash(table, peer->name);
    *slot_find(table, hash, peer->name) = (struct peer_slot){.hash = hash, .peer = peer};
    table->count++;
    return FERRY_OK;
}

struct peer *peer_table_next(const struct peer_table *table, size_t *at)
{
    while (*at < table->capacity) {
        struct peer *peer = table->slots[(*at)++].peer;
        if (peer != NULL) {
            return peer;
        }
    }
    return NULL;
}

void peer_table_finish(struct peer_table *table)
{
    free(table->slots);
    *table = (struct peer_table){.seed = table->seed};
}
