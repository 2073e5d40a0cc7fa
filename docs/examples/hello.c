#include <ferry/ferry.h>
#include <stdio.h>

static ferry_status_t multiply(ferry_request_t *request, void *factor)
{
    const ferry_message_t *message = ferry_request_message(request);
    *(double *)message->tensors[0].view.data *= *(double *)factor;
    return ferry_request_reply(request, message);
}

int main(void)
{
    double x = 21, two = 2;
    ferry_tensor_t tensor = {.name = "x", .view = {&x, {kDLCPU, 0}, 0, {kDLFloat, 64, 1}, 0, 0, 0}};
    ferry_message_t message = {.tensors = &tensor, .tensor_count = 1};
    ferry_agent_options_t here = ferry_agent_options(), there = ferry_agent_options();
    ferry_agent_t *client = NULL, *server = NULL;
    ferry_future_t *future = NULL;
    here.name = "client", there.name = "server";
    if (ferry_agent_create(&there, &server) || ferry_agent_create(&here, &client) ||
        ferry_agent_register(server, "double", multiply, &two) || ferry_agent_start(server) ||
        ferry_agent_start(client) ||
        ferry_call(client, "server", "double", &message, NULL, &future) ||
        ferry_future_wait(future, FERRY_FOREVER, NULL)) {
        fprintf(stderr, "%s\n", ferry_last_error()->text);
        return 1;
    }
    printf("%g\n", *(double *)ferry_future_result(future)->tensors[0].view.data);
    ferry_future_release(future);
    ferry_agent_destroy(client);
    ferry_agent_destroy(server);
    return 0;
}
