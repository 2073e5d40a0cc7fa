/* The simulated accelerator: what it does beyond the contract of all devices. */
#include <criterion/criterion.h>
#include <ferry/error.h>
#include <ferry/log.h>
#include <ferry/sim.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "device/registry.h"

#define BYTES 64
#define SIM(index) ((DLDevice){.device_type = (DLDeviceType)FERRY_DEVICE_SIM, .device_id = (index)})
#define CPU ((DLDevice){.device_type = kDLCPU, .device_id = 0})

#if defined(__SANITIZE_ADDRESS__)
#define UNDER_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define UNDER_ASAN 1
#endif
#endif

static const ferry_device_backend_t *sim;
static uintptr_t stream, other_stream;

static void sim_on(void)
{
    setenv("FERRY_SIM_DEVICES", "2", 1);
    sim = device_backend(SIM(0).device_type);
    sim->stream_create(0, &stream);
    sim->stream_create(0, &other_stream);
}

static void sim_end(void)
{
    sim->stream_destroy(0, stream);
    sim->stream_destroy(0, other_stream);
}

TestSuite(sim, .init = sim_on, .fini = sim_end);

static char *device_allocate(int32_t index)
{
    void *memory;
    cr_assert_eq(sim->allocate(index, BYTES, &memory), FERRY_OK);
    return memory;
}

static void device_write(char *memory, int value)
{
    char bytes[BYTES];
    memset(bytes, value, BYTES);
    cr_assert_eq(ferry_device_copy(SIM(0), memory, CPU, bytes, BYTES), FERRY_OK);
}

static int device_byte(const char *memory)
{
    char byte;
    cr_assert_eq(ferry_device_copy(CPU, &byte, SIM(0), memory, 1), FERRY_OK);
    return byte;
}

static void synchronize(uintptr_t which)
{
    cr_assert_eq(sim->stream_synchronize(0, which), FERRY_OK, "%s", ferry_last_error()->text);
}

/* What a kernel is given, and what it saw. */
struct kernel {
    char *device;
    char *host;
    char seen[BYTES];
    char thread_name[16];
    bool signals_blocked;
    ferry_status_t status;
    char text[256];
    struct timespec began;
};

static void kernel_double(void *context)
{
    struct kernel *kernel = context;
    kernel->host = ferry_sim_host_pointer(kernel->device);
    if (kernel->host == NULL) {
        kernel->status = ferry_last_error()->status;
        snprintf(kernel->text, sizeof kernel->text, "%s", ferry_last_error()->text);
        return;
    }
    for (int i = 0; i < BYTES; i++) {
        kernel->seen[i] = kernel->host[i];
        kernel->host[i] = (char)(2 * kernel->host[i]);
    }
}

static void kernel_look_around(void *context)
{
    struct kernel *kernel = context;
    sigset_t blocked;
    pthread_getname_np(pthread_self(), kernel->thread_name, sizeof kernel->thread_name);
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    kernel->signals_blocked =
        sigismember(&blocked, SIGINT) == 1 && sigismember(&blocked, SIGUSR1) == 1;
    clock_gettime(CLOCK_MONOTONIC, &kernel->began);
}

Test(sim, kernels_reach_device_memory)
{
    struct kernel kernel = {.device = device_allocate(0)};
    device_write(kernel.device, 21);
    cr_assert_eq(ferry_sim_launch(SIM(0), stream, kernel_double, &kernel, 0), FERRY_OK);
    synchronize(stream);
    cr_assert_eq(kernel.seen[BYTES - 1], 21);
    cr_assert_eq(device_byte(kernel.device), 42);
    cr_assert_neq(kernel.host, kernel.device, "the host's address is another one");
    sim->deallocate(0, kernel.device);
}

static void kernel_inside(void *context)
{
    struct kernel *kernel = context;
    kernel->host = ferry_sim_host_pointer(kernel->device + 5);
    kernel->host[0] = 9;
}

Test(sim, pointers_may_be_interior)
{
    struct kernel kernel = {.device = device_allocate(0)};
    device_write(kernel.device, 1);
    cr_assert_eq(ferry_sim_launch(SIM(0), stream, kernel_inside, &kernel, 0), FERRY_OK);
    synchronize(stream);
    cr_assert_eq(device_byte(kernel.device + 4), 1);
    cr_assert_eq(device_byte(kernel.device + 5), 9);
    sim->deallocate(0, kernel.device);
}

Test(sim, memory_is_reached_within_kernels_only)
{
    char *memory = device_allocate(0);
    cr_assert_null(ferry_sim_host_pointer(memory));
    cr_assert_eq(ferry_last_error()->status, FERRY_ERR_STATE);
    struct kernel kernel = {.device = (char *)&kernel};
    cr_assert_eq(ferry_sim_launch(SIM(0), stream, kernel_double, &kernel, 0), FERRY_OK);
    synchronize(stream);
    cr_assert_eq(kernel.status, FERRY_ERR_DEVICE);
    sim->deallocate(0, memory);
}

#ifndef UNDER_ASAN
Test(sim, the_host_faults_in_device_memory)
{
    char *memory = device_allocate(0);
    device_write(memory, 1);
    for (int write = 0; write < 2; write++) {
        pid_t child = fork();
        if (child == 0) {
            volatile char *stray = memory;
            signal(SIGSEGV, SIG_DFL);
            if (write) {
                *stray = 1;
            }
            _exit(*stray);
        }
        int status;
        cr_assert_eq(waitpid(child, &status, 0), child);
        cr_assert(WIFSIGNALED(status));
        cr_assert_eq(WTERMSIG(status), SIGSEGV);
    }
    sim->deallocate(0, memory);
}
#endif

static void expect_refused(ferry_status_t status, const void *pointer, const char *words)
{
    char text[32];
    snprintf(text, sizeof text, "%p", pointer);
    cr_assert_eq(status, FERRY_ERR_DEVICE);
    cr_assert_not_null(strstr(ferry_last_error()->text, text), "%s", ferry_last_error()->text);
    cr_assert_not_null(strstr(ferry_last_error()->text, words), "%s", ferry_last_error()->text);
}

Test(sim, refuses_stray_pointers)
{
    char host[2 * BYTES], *memory = device_allocate(0), *elsewhere = device_allocate(1);
    expect_refused(sim->copy(0, stream, FERRY_COPY_TO_HOST, host, host + 1, 1), host + 1,
                   "no memory of sim:0");
    expect_refused(sim->copy(0, stream, FERRY_COPY_FROM_HOST, memory, memory, 1), memory, "host");
    expect_refused(sim->copy(0, stream, FERRY_COPY_TO_HOST, memory, memory, 1), memory, "host");
    expect_refused(sim->copy(0, stream, FERRY_COPY_TO_HOST, host, memory + 1, BYTES), memory + 1,
                   "over the end");
    expect_refused(sim->copy(0, stream, FERRY_COPY_FROM_HOST, memory + BYTES, host, 1),
                   memory + BYTES, "in no block");
    expect_refused(sim->copy(0, stream, FERRY_COPY_TO_HOST, host, elsewhere, 1), elsewhere,
                   "of sim:1");
    expect_refused(sim->stream_wait_flag(0, stream, (uint32_t *)(void *)memory), memory, "host");
    cr_assert_eq(sim->copy(0, stream, FERRY_COPY_ON_DEVICE, memory, elsewhere, BYTES), FERRY_OK);
    synchronize(stream);
    sim->deallocate(0, memory);
    sim->deallocate(1, elsewhere);
}

Test(sim, refuses_views_that_leave_their_block)
{
    char *packed = device_allocate(0), *memory = device_allocate(0);
    int64_t shape[] = {8, 2}, strides[] = {-4, 1};
    DLTensor view = {.data = memory,
                     .device = SIM(0),
                     .ndim = 2,
                     .dtype = {.code = kDLUInt, .bits = 8, .lanes = 1},
                     .shape = shape,
                     .strides = strides,
                     .byte_offset = 28};
    cr_assert_eq(sim->gather(0, stream, packed, &view), FERRY_OK);
    view.byte_offset = 27;
    expect_refused(sim->gather(0, stream, packed, &view), memory - 1, "in no block");
    view.byte_offset = BYTES - 1;
    cr_assert_eq(sim->scatter(0, stream, &view, packed), FERRY_ERR_DEVICE);
    synchronize(stream);
    sim->deallocate(0, memory);
    sim->deallocate(0, packed);
}

Test(sim, refuses_streams_that_are_not_its_own)
{
    char host[BYTES], *memory = device_allocate(1);
    expect_refused(sim->copy(1, stream, FERRY_COPY_TO_HOST, host, memory, 1), (void *)stream,
                   "no stream of sim:1");
    cr_assert_eq(ferry_sim_hold(SIM(0), (uintptr_t)host), FERRY_ERR_DEVICE);
    cr_assert_eq(sim->stream_synchronize(1, stream), FERRY_ERR_DEVICE);
    sim->deallocate(1, memory);
}

Test(sim, holds_one_stream_and_no_other)
{
    char *memory = device_allocate(0), bytes[BYTES];
    ferry_event_t *event;
    device_write(memory, 1);
    memset(bytes, 2, BYTES);
    cr_assert_eq(sim->event_create(0, &event), FERRY_OK);
    cr_assert_eq(ferry_sim_hold(SIM(0), stream), FERRY_OK);
    cr_assert_eq(sim->copy(0, stream, FERRY_COPY_FROM_HOST, memory, bytes, BYTES), FERRY_OK);
    cr_assert_eq(sim->event_record(event, stream), FERRY_OK);
    for (int i = 0; i < 20; i++) {
        cr_assert_eq(device_byte(memory), 1);
        synchronize(other_stream);
        cr_assert_eq(sim->event_query(event), FERRY_PENDING);
    }
    memset(bytes, 3, BYTES); /* the host side is read when the copy runs */
    cr_assert_eq(ferry_sim_resume(SIM(0), stream), FERRY_OK);
    synchronize(stream);
    cr_assert_eq(sim->event_query(event), FERRY_OK);
    cr_assert_eq(device_byte(memory), 3);
    sim->event_destroy(event);
    sim->deallocate(0, memory);
}

Test(sim, kernels_run_late_and_on_a_quiet_thread)
{
    struct kernel kernel = {0};
    struct timespec queued;
    clock_gettime(CLOCK_MONOTONIC, &queued);
    cr_assert_eq(ferry_sim_launch(SIM(0), stream, kernel_look_around, &kernel, 30000000), FERRY_OK);
    synchronize(stream);
    double late = (double)(kernel.began.tv_sec - queued.tv_sec) +
                  1e-9 * (double)(kernel.began.tv_nsec - queued.tv_nsec);
    cr_assert_geq(late, 0.03);
    cr_assert_str_eq(kernel.thread_name, "ferry-sim");
    cr_assert(kernel.signals_blocked);
}

/* Streams overtake each other: among many pairs of copies both orders are seen. */
static char order[256];
static int order_count;

static void kernel_note(void *context)
{
    order[order_count++] = *(char *)context; /* one thread runs all kernels of a device */
}

Test(sim, streams_run_out_of_step)
{
    static char names[] = {'a', 'b'};
    for (int i = 0; i < 100; i++) {
        ferry_sim_launch(SIM(0), stream, kernel_note, &names[0], 0);
        ferry_sim_launch(SIM(0), other_stream, kernel_note, &names[1], 0);
    }
    synchronize(stream);
    synchronize(other_stream);
    int same = 0, swapped = 0;
    for (int i = 0; i + 1 < order_count; i += 2) {
        same += order[i] == order[i + 1];
        swapped += order[i] == 'b';
    }
    cr_assert_eq(order_count, 200);
    cr_assert_gt(same, 0);
    cr_assert_gt(swapped, 0);
}

Test(sim, freed_memory_serves_copies_that_were_queued_before)
{
    char *memory = device_allocate(0), *target = device_allocate(0);
    device_write(memory, 8);
    device_write(target, 0);
    cr_assert_eq(ferry_sim_hold(SIM(0), stream), FERRY_OK);
    cr_assert_eq(sim->copy(0, stream, FERRY_COPY_ON_DEVICE, target, memory, BYTES), FERRY_OK);
    sim->deallocate(0, memory);
    cr_assert_eq(ferry_sim_resume(SIM(0), stream), FERRY_OK);
    synchronize(stream);
    cr_assert_eq(device_byte(target), 8);
    sim->deallocate(0, target);
}

Test(sim, freed_memory_serves_kernels_that_were_queued_before)
{
    char *memory = device_allocate(0), *target = device_allocate(0);
    struct kernel before = {.device = memory}, after = {.device = memory};
    device_write(memory, 8);
    device_write(target, 0);
    cr_assert_eq(ferry_sim_hold(SIM(0), stream), FERRY_OK);
    cr_assert_eq(sim->copy(0, stream, FERRY_COPY_ON_DEVICE, target, memory, BYTES), FERRY_OK);
    cr_assert_eq(ferry_sim_launch(SIM(0), stream, kernel_double, &before, 0), FERRY_OK);
    sim->deallocate(0, memory);
    cr_assert_eq(ferry_sim_launch(SIM(0), stream, kernel_double, &after, 0), FERRY_OK);
    expect_refused(sim->copy(0, stream, FERRY_COPY_ON_DEVICE, target, memory, 1), memory, "freed");
    char *fresh = device_allocate(0);
    cr_assert_neq(fresh, memory, "it is still in use");
    cr_assert_eq(ferry_sim_resume(SIM(0), stream), FERRY_OK);
    synchronize(stream);
    cr_assert_eq(device_byte(target), 8);
    cr_assert_eq(before.seen[0], 8);
    cr_assert_null(after.host);
    cr_assert_eq(after.status, FERRY_ERR_DEVICE);
    sim->deallocate(0, target);
    sim->deallocate(0, fresh);
}

Test(sim, addresses_come_back_late)
{
    char *first = device_allocate(0);
    sim->deallocate(0, first);
    for (int i = 0; i < 1000; i++) {
        char *again = device_allocate(0);
        cr_assert_neq(again, first);
        sim->deallocate(0, again);
    }
    expect_refused(sim->copy(0, stream, FERRY_COPY_ON_DEVICE, first, first, 1), first, "freed");
}

static int log_lines;

static void count_lines(void *context, ferry_log_level_t level, const char *line)
{
    (void)context;
    log_lines += level == FERRY_LOG_ERROR && strstr(line, "freed on sim:0") != NULL;
}

Test(sim, frees_that_are_wrong_are_logged_and_change_nothing)
{
    char *memory = device_allocate(0);
    ferry_log_set_sink(count_lines, NULL);
    device_write(memory, 6);
    sim->deallocate(0, memory + 1);
    sim->deallocate(0, &log_lines);
    cr_assert_eq(device_byte(memory), 6);
    sim->deallocate(0, memory);
    sim->deallocate(0, memory);
    cr_assert_eq(log_lines, 3);
    ferry_log_set_sink(NULL, NULL);
}

Test(sim, failures_stay_and_spread_through_events)
{
    char host[BYTES] = {0}, *memory = device_allocate(0);
    ferry_event_t *event;
    device_write(memory, 5);
    cr_assert_eq(sim->event_create(0, &event), FERRY_OK);
    cr_assert_eq(ferry_sim_hold(SIM(0), stream), FERRY_OK);
    cr_assert_eq(ferry_sim_fail(SIM(0), stream, "out of smoke"), FERRY_OK);
    cr_assert_eq(sim->copy(0, stream, FERRY_COPY_TO_HOST, host, memory, BYTES), FERRY_OK);
    cr_assert_eq(sim->event_record(event, stream), FERRY_OK);
    cr_assert_eq(sim->stream_wait(0, other_stream, event), FERRY_OK);
    cr_assert_eq(ferry_sim_resume(SIM(0), stream), FERRY_OK);
    cr_assert_eq(sim->stream_synchronize(0, other_stream), FERRY_ERR_DEVICE);
    cr_assert_str_eq(ferry_last_error()->text, "out of smoke");
    cr_assert_eq(sim->event_query(event), FERRY_ERR_DEVICE);
    cr_assert_str_eq(ferry_last_error()->text, "out of smoke");
    cr_assert_eq(sim->copy(0, stream, FERRY_COPY_TO_HOST, host, memory, BYTES), FERRY_ERR_DEVICE);
    cr_assert_eq(host[0], 0, "nothing runs behind a failure");
    cr_assert_eq(device_byte(memory), 5, "other streams go on");
    sim->event_destroy(event);
    sim->deallocate(0, memory);
}

Test(sim, a_destroyed_stream_still_runs)
{
    char *memory = device_allocate(0), bytes[BYTES];
    uintptr_t brief;
    ferry_event_t *event;
    memset(bytes, 4, BYTES);
    cr_assert_eq(sim->event_create(0, &event), FERRY_OK);
    cr_assert_eq(sim->stream_create(0, &brief), FERRY_OK);
    cr_assert_eq(ferry_sim_hold(SIM(0), brief), FERRY_OK);
    cr_assert_eq(sim->copy(0, brief, FERRY_COPY_FROM_HOST, memory, bytes, BYTES), FERRY_OK);
    cr_assert_eq(sim->event_record(event, brief), FERRY_OK);
    cr_assert_eq(sim->stream_wait(0, stream, event), FERRY_OK);
    sim->stream_destroy(0, brief);
    cr_assert_eq(sim->event_record(event, brief), FERRY_ERR_DEVICE);
    synchronize(stream);
    cr_assert_eq(device_byte(memory), 4);
    sim->event_destroy(event);
    sim->deallocate(0, memory);
}

Test(sim, a_child_process_has_devices_of_its_own)
{
    char *memory = device_allocate(0);
    device_write(memory, 1);
    ferry_sim_hold(SIM(0), stream);
    pid_t child = fork();
    if (child == 0) {
        char byte = 7, back = 0;
        void *own;
        bool works = ferry_device_allocate(SIM(0), 1, &own) == FERRY_OK &&
                     ferry_device_copy(SIM(0), own, CPU, &byte, 1) == FERRY_OK &&
                     ferry_device_copy(CPU, &back, SIM(0), own, 1) == FERRY_OK && back == 7;
        bool refuses = ferry_device_copy(CPU, &back, SIM(0), memory, 1) == FERRY_ERR_DEVICE;
        _exit(works && refuses ? 0 : 1);
    }
    int status;
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFEXITED(status));
    cr_assert_eq(WEXITSTATUS(status), 0);
    cr_assert_eq(device_byte(memory), 1);
    ferry_sim_resume(SIM(0), stream);
    sim->deallocate(0, memory);
}

Test(sim, refuses_what_is_no_simulated_device)
{
    cr_assert_eq(ferry_sim_launch(CPU, 0, kernel_double, NULL, 0), FERRY_ERR_INVALID_ARGUMENT);
    cr_assert_not_null(strstr(ferry_last_error()->text, "cpu"));
    cr_assert_eq(ferry_sim_launch(SIM(0), 0, NULL, NULL, 0), FERRY_ERR_INVALID_ARGUMENT);
    cr_assert_eq(ferry_sim_launch(SIM(2), 0, kernel_double, NULL, 0), FERRY_ERR_UNKNOWN_DEVICE);
    cr_assert_eq(ferry_sim_hold(CPU, 0), FERRY_ERR_INVALID_ARGUMENT);
    cr_assert_eq(ferry_sim_resume(SIM(9), 0), FERRY_ERR_UNKNOWN_DEVICE);
    cr_assert_eq(ferry_sim_fail(CPU, 0, "no"), FERRY_ERR_INVALID_ARGUMENT);
}
