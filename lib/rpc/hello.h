/* The hello: the msgpack maps that two agents exchange over the link's own socket before a transport link exists, and the address that the naming service
 * stores. Maps, so that they can grow: unknown fields are ignored, missing ones have defaults,
 * every length is bounded. */
#ifndef FERRY_RPC_HELLO_H
#define FERRY_RPC_HELLO_H

#include <stdbool.h>

#include <ferry/transport.h>

#include "core/error.h"

#define HELLO_VERSION 1
#define HELLO_DEVICES_MAX 256
#define HELLO_TRANSPORTS_MAX 4
#define HELLO_TEXT_BYTES 128
#define HELLO_TRANSPORT_BYTES (FERRY_TRANSPORT_NAME_BYTES_MAX + 1)

/* What the naming service stores for an agent. */
struct hello_address {
    char host[64]; /* numeric */
    uint16_t port; /* of the agent's own listening socket */
    int64_t pid;
    uint8_t process
        [16]; /* random, one a process (and a new one after fork): equal means same process */
    uint8_t agent[16]; /* random, one an agent instance: tells a restarted one from the old */
};
#define HELLO_ADDRESS_BYTES_MAX 512
ferry_status_t hello_address_pack(const struct hello_address *address, void *buffer,
                                  size_t capacity, size_t *bytes_out);
/* FERRY_ERR_PROTOCOL names what is wrong. */
ferry_status_t hello_address_unpack(const void *data, size_t bytes,
                                    struct hello_address *address_out);

struct hello_transport {
    char name[HELLO_TRANSPORT_BYTES];
    char identity[FERRY_TRANSPORT_IDENTITY_BYTES_MAX + 1];
    uint8_t address[FERRY_TRANSPORT_ADDRESS_BYTES_MAX];
    size_t address_bytes;
    uint32_t capabilities;
    uint64_t operation_bytes_max; /* transfer_receive_bound() over it; 0: any */
};

/* Both directions carry the same map; the answer also says which transport was chosen, or refuses. */
struct hello {
    uint32_t version;
    char ferry_version[32];
    char name[HELLO_TEXT_BYTES];   /* who speaks */
    char wanted[HELLO_TEXT_BYTES]; /* dialler: whom it wants */
    uint8_t process[16], agent[16];
    int64_t pid;
    uint64_t epoch;   /* the dialler's count of links it made to this name, from 1 */
    uint32_t session; /* what the speaker wants to receive under */
    uint32_t eager_bytes, inline_bytes;
    uint64_t max_tensors, max_message_bytes;
    DLDevice devices[HELLO_DEVICES_MAX];
    uint8_t device_uuid[HELLO_DEVICES_MAX][16];
    size_t device_count;
    struct hello_transport transports[HELLO_TRANSPORTS_MAX];
    size_t transport_count;
    char chosen[HELLO_TRANSPORT_BYTES]; /* answer: transport */
};
#define HELLO_BYTES_MAX (48 * 1024)

enum hello_kind {
    HELLO_DIAL = 1,   /* dialler's hello */
    HELLO_ACCEPT = 2, /* acceptor's hello with the chosen transport */
    HELLO_REFUSE = 3, /* acceptor: status and text; nothing follows */
    HELLO_READY = 4,  /* either: my end of the transport link exists */
    HELLO_BYE = 5     /* either: the agent leaves in good order; text says why */
};

ferry_status_t hello_pack(enum hello_kind kind, const struct hello *hello, void *buffer,
                          size_t capacity, size_t *bytes_out);
/* HELLO_REFUSE, HELLO_READY, HELLO_BYE. status FERRY_OK and text "" for READY. */
ferry_status_t hello_pack_short(enum hello_kind kind, ferry_status_t status, const char *text,
                                void *buffer, size_t capacity, size_t *bytes_out);
/* Reads any of the five: kind_out, and hello_out (DIAL, ACCEPT) or error_out (REFUSE, BYE). FERRY_ERR_PROTOCOL names what is wrong. */
ferry_status_t hello_unpack(const void *data, size_t bytes, enum hello_kind *kind_out,
                            struct hello *hello_out, struct error_record *error_out);

#endif
