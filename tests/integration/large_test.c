/* Bodies and tensors over 2 GiB and over 4 GiB arrive intact, between two processes over UCX.
 * ctest: serial
 * ctest: timeout 600 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/pair.h"

#define GIB ((size_t)1 << 30)
#define NEEDED_KIB ((size_t)11 << 20)

enum { SKIPPED = 77 };

/* ---- bytes that say where they belong ---- */

static uint64_t word_at(uint64_t seed, size_t index)
{
    uint64_t value = (seed + index) * 0x9e3779b97f4a7c15u;
    return value ^ value >> 29;
}

static void *pattern_new(uint64_t seed, size_t bytes)
{
    uint64_t *words = malloc((bytes + 7) / 8 * 8);
    TEST_CHECK(words != NULL);
    for (size_t i = 0; i < (bytes + 7) / 8; i++) {
        words[i] = word_at(seed, i);
    }
    return words;
}

/* The first byte that is not the pattern's; bytes if all are. */
static size_t pattern_check(const void *data, uint64_t seed, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += 8) {
        uint64_t is = 0, wanted = word_at(seed, at / 8);
        size_t left = bytes - at < 8 ? bytes - at : 8;
        memcpy(&is, (const char *)data + at, left);
        if (memcmp(&is, &wanted, left) != 0) {
            return at;
        }
    }
    return bytes;
}

/* ---- the callee ---- */

static ferry_status_t answer_number(ferry_request_t *request, uint64_t number)
{
    ferry_message_t message = {.body = &number, .body_bytes = sizeof(number)};
    return ferry_request_reply(request, &message);
}

/* How much of body or tensor is the pattern of seed 1. */
static ferry_status_t answer_check(ferry_request_t *request, void *context)
{
    (void)context;
    const ferry_message_t *message = ferry_request_message(request);
    if (message->tensor_count == 0) {
        return answer_number(request, pattern_check(message->body, 1, message->body_bytes));
    }
    const DLTensor *view = &message->tensors[0].view;
    return answer_number(request, pattern_check(view->data, 1, (size_t)view->shape[0]));
}

/* The pattern of seed 2, of the length that the body says: as body or as tensor. */
static ferry_status_t answer_make(ferry_request_t *request, void *as_tensor)
{
    uint64_t bytes = 0;
    TEST_CHECK(ferry_request_message(request)->body_bytes == sizeof(bytes));
    memcpy(&bytes, ferry_request_message(request)->body, sizeof(bytes));
    void *data = pattern_new(2, bytes);
    int64_t shape[1] = {(int64_t)bytes};
    ferry_tensor_t tensor = test_tensor("made", data, test_u8, 1, shape);
    tensor.release = free;
    tensor.context = data;
    ferry_message_t message = {.tensors = &tensor, .tensor_count = 1};
    if (as_tensor == NULL) {
        message = (ferry_message_t){.body = data, .body_bytes = bytes};
    }
    ferry_status_t status = ferry_request_reply(request, &message);
    if (as_tensor == NULL || status != FERRY_OK) {
        free(data);
    }
    return status;
}

static ferry_agent_t *agent_new(const char *name, const char *naming)
{
    ferry_agent_options_t options = ferry_agent_options();
    options.name = name;
    options.naming = naming;
    ferry_agent_t *agent;
    TEST_CHECK(ferry_agent_create(&options, &agent) == FERRY_OK);
    TEST_CHECK(ferry_agent_register(agent, "check", answer_check, NULL) == FERRY_OK);
    TEST_CHECK(ferry_agent_register(agent, "make_body", answer_make, NULL) == FERRY_OK);
    TEST_CHECK(ferry_agent_register(agent, "make_tensor", answer_make, agent) == FERRY_OK);
    TEST_CHECK(ferry_agent_start(agent) == FERRY_OK);
    return agent;
}

static int callee(const char *naming)
{
    ferry_agent_t *agent = agent_new("callee", naming);
    TEST_CHECK(ferry_agent_run(agent) == FERRY_OK); /* until it is killed */
    return 1;
}

/* ---- the caller ---- */

static ferry_future_t *call(ferry_agent_t *agent, const char *method,
                            const ferry_message_t *message)
{
    ferry_call_options_t options = ferry_call_options();
    options.timeout_ns = TEST_SECONDS(300);
    options.wait_for_peer = true;
    ferry_future_t *future = NULL;
    TEST_CHECK(ferry_call(agent, "callee", method, message, &options, &future) == FERRY_OK);
    TEST_CHECK(ferry_future_wait(future, FERRY_FOREVER, NULL) == FERRY_OK);
    return future;
}

static void send_large(ferry_agent_t *agent, size_t bytes, bool as_tensor)
{
    void *data = pattern_new(1, bytes);
    int64_t shape[1] = {(int64_t)bytes};
    ferry_tensor_t tensor = test_tensor("large", data, test_u8, 1, shape);
    ferry_message_t message = {.body = data, .body_bytes = bytes};
    if (as_tensor) {
        message = (ferry_message_t){.tensors = &tensor, .tensor_count = 1};
    }
    ferry_future_t *future = call(agent, "check", &message);
    uint64_t good = 0;
    memcpy(&good, ferry_future_result(future)->body, sizeof(good));
    if (good != bytes) {
        fprintf(stderr, "a %s of %zu bytes: byte %zu arrived wrong\n",
                as_tensor ? "tensor" : "body", bytes, (size_t)good);
        exit(1);
    }
    ferry_future_release(future);
    free(data);
}

static void receive_large(ferry_agent_t *agent, size_t bytes, bool as_tensor)
{
    uint64_t wanted = bytes;
    ferry_message_t message = {.body = &wanted, .body_bytes = sizeof(wanted)};
    ferry_future_t *future = call(agent, as_tensor ? "make_tensor" : "make_body", &message);
    const ferry_message_t *result = ferry_future_result(future);
    size_t good;
    if (as_tensor) {
        TEST_CHECK(result->tensors[0].view.shape[0] == (int64_t)bytes);
        good = pattern_check(result->tensors[0].view.data, 2, bytes);
    } else {
        TEST_CHECK(result->body_bytes == bytes);
        good = pattern_check(result->body, 2, bytes);
    }
    if (good != bytes) {
        fprintf(stderr, "a result's %s of %zu bytes: byte %zu arrived wrong\n",
                as_tensor ? "tensor" : "body", bytes, good);
        exit(1);
    }
    ferry_future_release(future);
}

static size_t available_kib(void)
{
    FILE *stream = fopen("/proc/meminfo", "r");
    char line[128];
    size_t kib = 0;
    while (stream != NULL && fgets(line, sizeof(line), stream) != NULL) {
        if (sscanf(line, "MemAvailable: %zu", &kib) == 1) {
            break;
        }
    }
    if (stream != NULL) {
        fclose(stream);
    }
    return kib;
}

static int caller(const char *naming)
{
    setenv("FERRY_POOL_BYTES", "0", 1); /* gigabytes of it would be kept */
    ferry_agent_t *agent = agent_new("caller", naming);
    send_large(agent, 4 * GIB + 4099, true);
    send_large(agent, 2 * GIB + 4099, false);
    receive_large(agent, 2 * GIB + 5, false);
    receive_large(agent, 4 * GIB + 5, true);
    ferry_agent_destroy(agent);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        return callee(argv[1]);
    }
    const char *sanitize = getenv("TEST_SANITIZE");
    if ((sanitize != NULL && sanitize[0] != '\0') || available_kib() < NEEDED_KIB) {
        fprintf(stderr, "not under a sanitizer, nor with less than %zu GiB of free memory\n",
                NEEDED_KIB >> 20);
        return SKIPPED;
    }
    char folder[] = "/tmp/large-XXXXXX", naming[64], command[64];
    TEST_CHECK(mkdtemp(folder) != NULL);
    snprintf(naming, sizeof(naming), "file://%s", folder);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        setenv("FERRY_POOL_BYTES", "0", 1);
        execl("/proc/self/exe", "large", naming, (char *)NULL);
        _exit(127);
    }
    int rc = caller(naming);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    snprintf(command, sizeof(command), "rm -rf %s", folder);
    return system(command) == 0 ? rc : 1;
}
