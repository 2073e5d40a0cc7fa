#include "rpc/message.h"

#include <stdio.h>
#include <string.h>

const ferry_tensor_t *ferry_message_tensor(const ferry_message_t *message, const char *slot)
{
    if (message == NULL || slot == NULL) {
        return NULL;
    }
    for (size_t i = 0; i < message->tensor_count; i++) {
        const ferry_tensor_t *tensor = &message->tensors[i];
        if (tensor->name != NULL && strcmp(tensor->name, slot) == 0) {
            return tensor;
        }
    }
    return NULL;
}

/* "'weights', 'bias'", cut with "..." when there are many. */
static void slots_print(const ferry_message_t *message, char *text, size_t capacity)
{
    size_t length = 0;
    text[0] = '\0';
    for (size_t i = 0; i < message->tensor_count; i++) {
        const char *name = message->tensors[i].name;
        const char *comma = i == 0 ? "" : ", ";
        if (length + FERRY_SLOT_BYTES_MAX + 12 > capacity) {
            snprintf(text + length, capacity - length, "%s...", comma);
            return;
        }
        length += (size_t)snprintf(text + length, capacity - length, "%s%s%.*s%s", comma,
                                   name == NULL ? "" : "'", FERRY_SLOT_BYTES_MAX,
                                   name == NULL ? "an unnamed one" : name, name == NULL ? "" : "'");
    }
}

static bool dtype_fits(DLDataType wanted, DLDataType there)
{
    return wanted.bits == 0 ||
           (wanted.code == there.code && wanted.bits == there.bits && wanted.lanes == there.lanes);
}

ferry_status_t message_tensor(const ferry_message_t *message, const char *slot, DLDataType dtype,
                              const ferry_tensor_t **tensor_out)
{
    const ferry_tensor_t *tensor = ferry_message_tensor(message, slot);
    if (tensor == NULL) {
        char slots[512];
        size_t count = message == NULL ? 0 : message->tensor_count;
        slots[0] = '\0';
        if (count > 0) {
            slots_print(message, slots, sizeof slots);
        }
        return error_raise(FERRY_ERR_NOT_FOUND, "there is no tensor '%.*s', %s%s",
                           FERRY_SLOT_BYTES_MAX, slot == NULL ? "(NULL)" : slot,
                           count == 0 ? "nor any other" : "only ", slots);
    }
    if (!dtype_fits(dtype, tensor->view.dtype)) {
        char there[FERRY_DTYPE_TEXT_BYTES], wanted[FERRY_DTYPE_TEXT_BYTES];
        return error_raise(FERRY_ERR_TYPE, "'%.*s' is %s, wanted %s", FERRY_SLOT_BYTES_MAX, slot,
                           ferry_dtype_print(tensor->view.dtype, there),
                           ferry_dtype_print(dtype, wanted));
    }
    *tensor_out = tensor;
    return FERRY_OK;
}
