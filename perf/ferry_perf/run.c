/* The two ends in step: the client says what comes next, both do it, and both say that it is done.
 * A failure of either ends the whole run in both. */
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "ferry_perf/run.h"

void slot_close(struct slot *slot)
{
    if (slot->test != NULL) {
        slot->test->close(slot->state);
        slot->test = NULL;
    }
}

static ferry_status_t slot_open(struct slot *slot, const struct command *command, bool client,
                                struct perf_control *control)
{
    const struct perf_test *test = perf_test_find(command->test);
    if (test == NULL) {
        return error_raise(FERRY_ERR_UNSUPPORTED, "there is no test %s", command->test);
    }
    slot->options = command->options;
    slot->end = (struct perf_end){.client = client, .control = control, .options = &slot->options};
    ferry_status_t status = test->open(&slot->end, &slot->state);
    slot->test = status == FERRY_OK ? test : NULL;
    return status;
}

ferry_status_t slot_do(struct slot *slot, const struct command *command, bool client,
                       struct perf_control *control, struct perf_samples *samples)
{
    switch (command->kind) {
    case COMMAND_OPEN:
        return slot_open(slot, command, client, control);
    case COMMAND_PREPARE:
        return slot->test->prepare(slot->state, command->bytes);
    case COMMAND_RUN:
        slot->options.validate = command->options.validate;
        return slot->test->run(slot->state, command->operations, samples);
    case COMMAND_CLOSE:
        slot_close(slot);
        return FERRY_OK;
    default:
        return FERRY_OK;
    }
}

/* The other end is told first, since closing may take its time and have errors of its own. */
ferry_status_t slots_end(struct slot slots[SLOTS], struct perf_control *control,
                         ferry_status_t status)
{
    struct error_record error;
    if (status != FERRY_OK) {
        perf_control_tell_error(control);
        error_record_take(&error);
    }
    for (size_t i = 0; i < SLOTS; i++) {
        slot_close(&slots[i]);
    }
    return status == FERRY_OK ? FERRY_OK : error_raise_record(&error);
}

/* The next command, whose figures the tests then rely on. */
static ferry_status_t server_receive(struct perf_control *control, const struct slot slots[SLOTS],
                                     struct command *command)
{
    size_t bytes = 0;
    ferry_status_t status = perf_control_receive(control, command, sizeof *command, &bytes);
    if (status != FERRY_OK) {
        return status;
    }
    const struct perf_options *options = &command->options;
    bool good = bytes == sizeof *command && command->slot < SLOTS &&
                memchr(command->test, '\0', sizeof command->test) != NULL;
    if (good && command->kind == COMMAND_OPEN) {
        good = slots[command->slot].test == NULL && options->window >= 1 &&
               options->window <= PERF_WINDOW_MAX && options->threads >= 1 &&
               options->threads <= PERF_THREADS_MAX && options->tensors >= 1 &&
               options->tensors <= PERF_TENSORS_MAX;
    } else if (good && command->kind != COMMAND_END) {
        good = slots[command->slot].test != NULL;
    }
    return good ? FERRY_OK
                : error_raise(FERRY_ERR_PROTOCOL, "the client asks for nothing that is known");
}

ferry_status_t perf_server_run(struct perf_control *control)
{
    struct slot slots[SLOTS] = {{.test = NULL}};
    struct command command = {.kind = COMMAND_OPEN};
    ferry_status_t status = FERRY_OK;
    double *ns = calloc(SAMPLES_MAX, sizeof(double));
    if (ns == NULL) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory for samples");
    }
    while (status == FERRY_OK && command.kind != COMMAND_END) {
        status = server_receive(control, slots, &command);
        if (status == FERRY_OK) {
            struct perf_samples samples = {.ns = ns, .capacity = SAMPLES_MAX};
            status = slot_do(&slots[command.slot], &command, false, control, &samples);
        }
        if (status == FERRY_OK) {
            status = perf_barrier(control);
        }
    }
    free(ns);
    return slots_end(slots, control, status);
}
