/* Names and sentences of the status codes. */
#include <stddef.h>

#include <ferry/status.h>

struct status_words {
    const char *name;
    const char *text;
};

#define WORDS(status, sentence) [status] = {#status, sentence}

static const struct status_words WORDS_OF[FERRY_STATUS_COUNT] = {
    WORDS(FERRY_OK, "success"),
    WORDS(FERRY_PENDING, "not yet"),
    WORDS(FERRY_ERR_INVALID_ARGUMENT, "an argument is out of its range"),
    WORDS(FERRY_ERR_NO_MEMORY, "an allocation failed or a pool is exhausted"),
    WORDS(FERRY_ERR_STATE, "not allowed in this state"),
    WORDS(FERRY_ERR_CONFIG, "an option's value cannot be used"),
    WORDS(FERRY_ERR_UNSUPPORTED, "this build, transport or device cannot do it"),
    WORDS(FERRY_ERR_LIMIT, "a count or length is over a configured bound"),
    WORDS(FERRY_ERR_WOULD_BLOCK, "there is no room now and waiting is not allowed here"),
    WORDS(FERRY_ERR_BUSY, "a pool or a method's concurrency limit is exhausted"),
    WORDS(FERRY_ERR_SYSTEM, "an operating system call failed"),
    WORDS(FERRY_ERR_DEVICE_MAP, "the device map's text or a rule of it is wrong"),
    WORDS(FERRY_ERR_UNMAPPED_DEVICE, "no rule says where a device tensor should arrive"),
    WORDS(FERRY_ERR_UNKNOWN_DEVICE, "this process or that peer does not have the device"),
    WORDS(FERRY_ERR_DEVICE, "a device's own operation failed"),
    WORDS(FERRY_ERR_RESULT_MISMATCH, "a result does not fit the buffer given for it"),
    WORDS(FERRY_ERR_TYPE, "a field or tensor has another type than the reader asked for"),
    WORDS(FERRY_ERR_NOT_FOUND, "there is no such slot, field, method or option"),
    WORDS(FERRY_ERR_NAMING, "the naming service cannot be reached or answered nonsense"),
    WORDS(FERRY_ERR_NAME_TAKEN, "the name is already in use"),
    WORDS(FERRY_ERR_UNKNOWN_PEER, "nobody has that name"),
    WORDS(FERRY_ERR_UNREACHABLE, "the name is known but its address does not answer"),
    WORDS(FERRY_ERR_INCOMPATIBLE, "the peer's Ferry or UCX version does not fit"),
    WORDS(FERRY_ERR_REFUSED, "the peer refused the connection"),
    WORDS(FERRY_ERR_PROTOCOL, "the peer sent bytes that make no sense"),
    WORDS(FERRY_ERR_TRANSPORT, "the transport's own operation failed"),
    WORDS(FERRY_ERR_PEER_LOST, "the peer died, left or became unreachable"),
    WORDS(FERRY_ERR_UNKNOWN_METHOD, "the callee has no method of that name"),
    WORDS(FERRY_ERR_UNANSWERED, "the callee released the request without an answer"),
    WORDS(FERRY_ERR_APPLICATION, "the callee's handler failed the request"),
    WORDS(FERRY_ERR_TIMEOUT, "the call's own timeout passed"),
    WORDS(FERRY_ERR_CANCELLED, "the future was cancelled or released while pending"),
    WORDS(FERRY_ERR_SHUTDOWN, "the agent, here or there, is shutting down"),
    WORDS(FERRY_ERR_FORKED, "UCX cannot be used in a child forked after an agent existed"),
};

static const struct status_words *words_find(ferry_status_t status)
{
    int64_t code = (int64_t)status;
    if (code < 0 || code >= FERRY_STATUS_COUNT || WORDS_OF[code].name == NULL) {
        return NULL;
    }
    return &WORDS_OF[code];
}

const char *ferry_status_name(ferry_status_t status)
{
    const struct status_words *words = words_find(status);
    return words != NULL ? words->name : "unknown status";
}

const char *ferry_status_text(ferry_status_t status)
{
    const struct status_words *words = words_find(status);
    return words != NULL ? words->text : "unknown status";
}
