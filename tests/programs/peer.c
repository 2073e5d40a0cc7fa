/* One agent that a script commands through its standard input: a line in, a line out. Everything else
 * comes from the environment, as with any program.
 *
 *   peer [NAME]           "started NAME PORT" (of the naming store, 0: none), or "failed STATUS: TEXT"
 *   call PEER BYTES       echoes so many bytes of body and of tensor: "ok PATH", or "STATUS: TEXT"
 *   wait PEER BYTES       the same, waiting for the peer's name
 *   connect PEER          "ok", or "STATUS: TEXT"
 *   pending PEER COUNT BYTES    starts calls that nobody answers, with a tensor each: "pending COUNT"
 *   join                  waits for those: "COUNT STATUS: TEXT" of the last, or "different" */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/pair.h"

enum { PENDING_MAX = 64 };

static struct {
    ferry_agent_t *agent;
    ferry_future_t *pending[PENDING_MAX];
    size_t pending_count;
} peer;

static void say_error(void)
{
    const ferry_error_t *error = ferry_last_error();
    printf("%s: %s\n", ferry_status_name(error->status), error->text);
}

static ferry_status_t keep(ferry_request_t *request, void *context)
{
    (void)request; /* for ever */
    (void)context;
    return FERRY_PENDING;
}

static bool same(const ferry_message_t *result, const ferry_message_t *sent)
{
    if (result->body_bytes != sent->body_bytes || result->tensor_count != 1) {
        return false;
    }
    size_t bytes = sent->body_bytes;
    return bytes == 0 ||
           (memcmp(result->body, sent->body, bytes) == 0 &&
            memcmp(result->tensors[0].view.data, sent->tensors[0].view.data, bytes) == 0);
}

static void call(const char *name, size_t bytes, bool wait_for_peer)
{
    unsigned char *body = malloc(bytes + 1), *data = malloc(bytes + 1);
    test_random(body, bytes);
    test_random(data, bytes);
    int64_t shape[1] = {(int64_t)bytes};
    ferry_tensor_t tensor = test_tensor("data", data, test_u8, 1, shape);
    ferry_message_t message = {
        .body = body, .body_bytes = bytes, .tensors = &tensor, .tensor_count = 1};
    ferry_call_options_t options = ferry_call_options();
    options.wait_for_peer = wait_for_peer;
    ferry_future_t *future = NULL;
    const ferry_message_t *result;
    if (ferry_call(peer.agent, name, "echo", &message, &options, &future) != FERRY_OK ||
        ferry_future_wait(future, FERRY_FOREVER, &result) != FERRY_OK) {
        say_error();
    } else if (!same(result, &message)) {
        printf("other bytes came back\n");
    } else {
        printf("ok %s\n", ferry_future_path(future, "data"));
    }
    ferry_future_release(future);
    free(body);
    free(data);
}

static void start_pending(const char *name, size_t count, size_t bytes)
{
    ferry_call_options_t options = ferry_call_options();
    options.timeout_ns = FERRY_FOREVER;
    for (size_t i = 0; i < count && peer.pending_count < PENDING_MAX; i++) {
        int64_t shape[1] = {(int64_t)bytes};
        ferry_tensor_t tensor = test_tensor("data", calloc(1, bytes + 1), test_u8, 1, shape);
        tensor.release = free;
        tensor.context = tensor.view.data;
        ferry_message_t message = {.tensors = &tensor, .tensor_count = 1};
        if (ferry_call(peer.agent, name, "keep", &message, &options,
                       &peer.pending[peer.pending_count]) != FERRY_OK) {
            free(tensor.context);
            say_error();
            return;
        }
        peer.pending_count++;
    }
    printf("pending %zu\n", peer.pending_count);
}

static void join_pending(void)
{
    char first[600] = "";
    bool different = false;
    for (size_t i = 0; i < peer.pending_count; i++) {
        char text[600] = "FERRY_OK";
        if (ferry_future_wait(peer.pending[i], FERRY_FOREVER, NULL) != FERRY_OK) {
            snprintf(text, sizeof(text), "%s: %.500s",
                     ferry_status_name(ferry_last_error()->status), ferry_last_error()->text);
        }
        ferry_future_release(peer.pending[i]);
        different = different || (i > 0 && strcmp(text, first) != 0);
        memcpy(first, text, sizeof(first));
    }
    printf("%zu %s\n", peer.pending_count, different ? "different" : first);
    peer.pending_count = 0;
}

static void obey(const char *line)
{
    char verb[16], name[160];
    size_t number = 0, bytes = 0;
    int words = sscanf(line, "%15s %159s %zu %zu", verb, name, &number, &bytes);
    if (words == 3 && (strcmp(verb, "call") == 0 || strcmp(verb, "wait") == 0)) {
        call(name, number, verb[0] == 'w');
    } else if (words == 4 && strcmp(verb, "pending") == 0) {
        start_pending(name, number, bytes);
    } else if (words == 2 && strcmp(verb, "connect") == 0) {
        if (ferry_agent_connect(peer.agent, name, 0) == FERRY_OK) {
            printf("ok\n");
        } else {
            say_error();
        }
    } else if (words == 1 && strcmp(verb, "join") == 0) {
        join_pending();
    } else {
        printf("what? %s", line);
    }
}

int main(int argc, char **argv)
{
    ferry_agent_options_t options = ferry_agent_options();
    options.name = argc > 1 ? argv[1] : NULL;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (ferry_agent_create(&options, &peer.agent) != FERRY_OK) {
        printf("failed ");
        say_error();
        return 1;
    }
    test_register(peer.agent);
    TEST_CHECK(ferry_agent_register(peer.agent, "keep", keep, NULL) == FERRY_OK);
    int failed = ferry_agent_start(peer.agent) != FERRY_OK;
    if (failed) {
        printf("failed ");
        say_error();
    } else {
        printf("started %s %u\n", ferry_agent_name(peer.agent),
               (unsigned)ferry_agent_naming_port(peer.agent));
    }
    char line[256];
    while (!failed && fgets(line, sizeof(line), stdin) != NULL) {
        obey(line);
    }
    ferry_agent_destroy(peer.agent);
    return failed;
}
