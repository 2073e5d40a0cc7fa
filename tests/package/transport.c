/* Two agents call each other over a transport that Ferry does not know: FERRY_TRANSPORT=unix. */
#include <ferry/testing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "unix_transport.h"

#define COUNT (300 * 1000) /* more than one frame */

static ferry_status_t negate(ferry_request_t *request, void *context)
{
    (void)context;
    const ferry_message_t *message = ferry_request_message(request);
    double *x = message->tensors[0].view.data;
    for (int64_t i = 0; i < message->tensors[0].view.shape[0]; i++) {
        x[i] = -x[i];
    }
    return ferry_request_reply(request, message);
}

static int complain(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, ferry_last_error()->text);
    return 1;
}

static int is_negated(const ferry_message_t *result)
{
    const double *x = result->tensors[0].view.data;
    for (int64_t i = 0; i < COUNT; i++) {
        if (x[i] != -(double)i) {
            return 0;
        }
    }
    return result->tensors[0].view.shape[0] == COUNT;
}

static int call(ferry_agent_t *agent, const char *peer, double *data)
{
    int64_t shape[] = {COUNT};
    ferry_tensor_t tensor = {.name = "x",
                             .view = {data, {kDLCPU, 0}, 1, {kDLFloat, 64, 1}, shape, NULL, 0}};
    ferry_message_t message = {.tensors = &tensor, .tensor_count = 1};
    const ferry_message_t *result;
    ferry_future_t *future = NULL;
    int failed = 0;
    if (ferry_call(agent, peer, "negate", &message, NULL, &future) != FERRY_OK ||
        ferry_future_wait(future, FERRY_FOREVER, &result) != FERRY_OK) {
        failed = complain(peer);
    } else if (!is_negated(result)) {
        failed = complain("the data is wrong");
    } else if (strcmp(ferry_future_path(future, "->x"),
                      "cpu -host-> unix(seqpacket) -host-> cpu")) {
        failed = complain(ferry_future_path(future, "->x"));
    }
    ferry_future_release(future);
    return failed;
}

static int name_is_unknown(void)
{
    ferry_testing_setting_t setting = {"FERRY_TRANSPORT", "pigeon"};
    ferry_testing_options_t options = ferry_testing_options();
    options.settings = &setting;
    options.setting_count = 1;
    ferry_testing_pair_t pair;
    const char *expected = "FERRY_TRANSPORT: there is no transport 'pigeon'; there are auto, "
                           "inproc, ucx, unix";
    return ferry_testing_pair_create(&options, &pair) == FERRY_ERR_CONFIG &&
           strcmp(ferry_last_error()->text, expected) == 0;
}

int main(void)
{
    static double data[COUNT];
    ferry_testing_setting_t setting = {"FERRY_TRANSPORT", "unix"};
    ferry_testing_options_t options = ferry_testing_options();
    ferry_testing_pair_t pair = {0};
    options.settings = &setting;
    options.setting_count = 1;
    if (ferry_transport_register(&unix_transport_ops) != FERRY_OK ||
        ferry_testing_pair_create(&options, &pair) != FERRY_OK ||
        ferry_agent_register(pair.left, "negate", negate, NULL) != FERRY_OK ||
        ferry_agent_register(pair.right, "negate", negate, NULL) != FERRY_OK) {
        return complain("starting");
    }
    for (int i = 0; i < COUNT; i++) {
        data[i] = i;
    }
    int failed = call(pair.left, "right", data) || call(pair.right, "left", data);
    ferry_testing_pair_destroy(&pair);
    return failed || (!name_is_unknown() && complain("an unknown transport"));
}
