#include "rpc/control.h"

#include <stddef.h>
#include <stdlib.h>

#include "rpc/incoming.h"
#include "rpc/link.h"

#define CONTROL_BYTES 256

struct control_message {
    ferry_operation_t operation;
    uint64_t bytes[CONTROL_BYTES / sizeof(uint64_t)];
};

static void control_sent(ferry_operation_t *operation, ferry_status_t status, size_t bytes)
{
    (void)status;
    (void)bytes;
    free(operation->context);
}

void control_send(struct link *link, enum wire_kind kind, uint64_t call_id)
{
    struct control_message *control = malloc(sizeof(*control));
    if (control == NULL) {
        return;
    }
    struct wire_message message = {.kind = kind, .call_id = call_id};
    size_t bytes, table_bytes;
    ferry_status_t status = wire_plan(&message, NULL, &link->send_limits, &bytes, &table_bytes);
    if (status == FERRY_OK && bytes <= CONTROL_BYTES) {
        wire_encode(&message, NULL, control->bytes, NULL);
        control->operation = (ferry_operation_t){.complete = control_sent, .context = control};
        status = link->wire->transport->ops->send_message(link->wire, control->bytes, bytes,
                                                          &control->operation);
    }
    if (status != FERRY_PENDING) {
        free(control);
    }
}

/* A message that is only parsed so that its segments can be declined. */
struct dropped {
    struct incoming incoming;
    struct link *link; /* retained */
};

static void dropped_free(struct dropped *dropped)
{
    incoming_finish(&dropped->incoming);
    link_release(dropped->link);
    free(dropped);
}

static void dropped_complete(struct incoming *incoming)
{
    dropped_free((struct dropped *)((char *)incoming - offsetof(struct dropped, incoming)));
}

static void dropped_described(struct incoming *incoming)
{
    incoming_refuse(incoming);
    dropped_complete(incoming);
}

ferry_status_t control_drop(struct link *link, const void *data, size_t bytes,
                            const struct wire_message *header, size_t table_bytes)
{
    struct dropped *dropped = calloc(1, sizeof(*dropped));
    if (dropped == NULL) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory to drop a message");
    }
    dropped->link = link;
    link_retain(link);
    dropped->incoming.described = dropped_described;
    dropped->incoming.complete = dropped_complete;
    ferry_status_t status =
        incoming_open(&dropped->incoming, link, data, bytes, header, table_bytes);
    if (status != FERRY_OK) {
        dropped_free(dropped);
    }
    return status;
}
