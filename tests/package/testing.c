/* An embedder's test: two agents in one process, and a call from one to the other. */
#include <ferry/testing.h>
#include <stdio.h>

static ferry_status_t answer(ferry_request_t *request, void *context)
{
    (void)context;
    return ferry_request_reply(request, NULL);
}

int main(void)
{
    ferry_testing_pair_t pair = {0};
    ferry_future_t *future = NULL;
    ferry_status_t status = ferry_testing_pair_create(NULL, &pair);
    if (status == FERRY_OK) {
        status = ferry_agent_register(pair.right, "answer", answer, NULL);
    }
    if (status == FERRY_OK) {
        status = ferry_call(pair.left, "right", "answer", NULL, NULL, &future);
    }
    if (status == FERRY_OK) {
        status = ferry_future_wait(future, FERRY_FOREVER, NULL);
    }
    if (status != FERRY_OK) {
        fprintf(stderr, "%s\n", ferry_last_error()->text);
    }
    ferry_future_release(future);
    ferry_testing_pair_destroy(&pair);
    return status != FERRY_OK;
}
