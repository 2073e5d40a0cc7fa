#include <stdlib.h>
#include <string.h>

#include "rpc/call.h"
#include "rpc/engine.h"
#include "rpc/link.h"

static const char *path_word(enum transfer_path path)
{
    switch (path) {
    case TRANSFER_NONE:
        return "inline";
    case TRANSFER_HOST:
        return "host";
    case TRANSFER_DIRECT:
        return "direct";
    case TRANSFER_STAGED:
        return "staged";
    case TRANSFER_PACKED:
        return "packed";
    }
    return "unknown";
}

#define PATH_BYTES 320

static char *path_print(const char *lanes, DLDevice from, enum transfer_path sent,
                        enum transfer_path received, DLDevice to)
{
    char left[FERRY_DEVICE_TEXT_BYTES], right[FERRY_DEVICE_TEXT_BYTES];
    char *text = malloc(PATH_BYTES);
    if (text != NULL) {
        snprintf(text, PATH_BYTES, "%s -%s-> %s -%s-> %s", ferry_device_print(from, left),
                 path_word(sent), lanes, path_word(received), ferry_device_print(to, right));
    }
    return text;
}

/* Which tensor is meant: "#2" by position, arguments first; "->x" an argument, "<-x" a result, "x" the first of both. */
static bool path_find(const struct ferry_future *future, const char *slot, size_t *index_out)
{
    size_t arguments = future->outgoing.message.tensor_count;
    size_t count = arguments + (future->failed ? 0 : future->incoming.wire.tensor_count);
    if (slot[0] == '#') {
        char *end;
        unsigned long index = strtoul(slot + 1, &end, 10);
        *index_out = index;
        return end != slot + 1 && *end == '\0' && index < count;
    }
    size_t from = 0, to = count;
    if (strncmp(slot, "->", 2) == 0) {
        to = arguments;
        slot += 2;
    } else if (strncmp(slot, "<-", 2) == 0) {
        from = arguments;
        slot += 2;
    }
    for (size_t i = from; i < to; i++) {
        const char *name = i < arguments ? future->outgoing.tensors[i].name
                                         : future->incoming.tensors[i - arguments].name;
        if (strcmp(name, slot) == 0) {
            *index_out = i;
            return true;
        }
    }
    return false;
}

static char *path_make(const struct ferry_future *future, size_t index)
{
    size_t arguments = future->outgoing.message.tensor_count;
    const char *lanes = future->link == NULL ? "" : link_route(future->link);
    if (index < arguments) {
        const struct wire_message *reply = &future->incoming.wire;
        enum transfer_path received = index < reply->argument_count
                                          ? (enum transfer_path)reply->argument_paths[index]
                                          : TRANSFER_NONE;
        return path_print(lanes, future->outgoing.wire[index].source,
                          future->outgoing.tensors[index].path, received,
                          future->outgoing.wire[index].target);
    }
    const struct incoming_tensor *result = &future->incoming.tensors[index - arguments];
    return path_print(lanes, result->source, result->sender_path, result->path,
                      result->view.view.device);
}

static const char *path_of(struct ferry_future *future, const char *slot)
{
    size_t index;
    if (future->reply_ns == 0 || !path_find(future, slot, &index)) {
        return NULL;
    }
    size_t count = future->outgoing.message.tensor_count + future->incoming.wire.tensor_count;
    if (future->paths == NULL) {
        future->paths = calloc(count, sizeof(*future->paths));
        future->path_count = future->paths == NULL ? 0 : count;
    }
    if (future->paths == NULL) {
        return NULL;
    }
    if (future->paths[index] == NULL) {
        future->paths[index] = path_make(future, index);
    }
    return future->paths[index];
}

const char *ferry_future_path(const ferry_future_t *future, const char *slot)
{
    if (slot == NULL || !ferry_future_done(future)) {
        return NULL;
    }
    /* The texts are made at first request, which is no change that a holder could see. */
    struct ferry_future *mutable_future = (struct ferry_future *)(uintptr_t)future;
    engine_lock(mutable_future->agent);
    const char *text = path_of(mutable_future, slot);
    engine_unlock(mutable_future->agent);
    return text;
}
