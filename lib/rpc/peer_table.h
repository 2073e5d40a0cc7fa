/* The peers of an agent by name. Every call looks here, so the hashes lie beside each other and a look-up touches one line of the table and the peer that it finds. Peers live as long
 * as their agent: none is ever taken out. Under the agent's lock. */
#ifndef FERRY_RPC_PEER_TABLE_H
#define FERRY_RPC_PEER_TABLE_H

#include <stddef.h>
#include <stdint.h>

#include <ferry/status.h>

struct peer;

struct peer_slot {
    uint64_t hash;
    struct peer *peer; /* NULL: free */
};

struct peer_table {
    struct peer_slot *slots; /* owned; a power of two of them, at most half in use */
    size_t capacity, count;
    uint64_t seed; /* of the hashes: names come from others, too */
};

/* NULL: there is none of that name. */
struct peer *peer_table_find(const struct peer_table *table, const char *name);
/* One whose name is not in the table. FERRY_ERR_NO_MEMORY, raised. */
ferry_status_t peer_table_add(struct peer_table *table, struct peer *peer);
/* The next peer, from *at on, which begins at 0; NULL: that was the last. */
struct peer *peer_table_next(const struct peer_table *table, size_t *at);
/* The peers are their owner's. */
void peer_table_finish(struct peer_table *table);

#endif
