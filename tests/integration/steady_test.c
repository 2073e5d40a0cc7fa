/* What a call costs beside its work, once it has run for a while: no heap allocation and no system
 * call, neither of Ferry's nor of UCX's, in the caller or the callee. Over shared memory between
 * two processes that spin, for an empty call and for one with a cpu tensor of 1 MiB.
 *
 * Allocations are counted by the program's own malloc(), which stands before the C library's in
 * every library; system calls by this process, which traces the two others. A traced process stops
 * at each of them, so that none is missed, and without any nothing is slower.
 *
 * What an agent does by the clock (a look at the sockets about every millisecond, more in the first
 * seconds of a connection) is no cost of a call. So the calls are counted in short rounds: what
 * every call costs shows in every round, so some must have nothing; more than half of them where
 * the machine is idle, and enough to tell where it is not.
 *
 * ctest: serial */
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/pair.h"

#define TENSOR_BYTES ((int64_t)1 << 20)
#define ROUNDS 400
#define ALLOCATORS_KEPT 8
#define NUMBERS 512
#define SKIPPED 77

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED /* which brings a malloc() of its own */
#endif

enum { CALLER, CALLEE, PROCESSES };
enum { EMPTY, TENSOR, KINDS };

static const char *const process_names[PROCESSES] = {"caller", "callee"};
static const char *const kind_names[KINDS] = {"empty call", "call with a 1 MiB cpu tensor"};
static const int warm_up_calls[KINDS] = {20000, 1000};
static const int round_calls[KINDS] = {50, 1}; /* some 50 to 100 us */

struct counts {
    unsigned rounds[ROUNDS];            /* allocations and system calls of both processes */
    unsigned calls[PROCESSES][NUMBERS]; /* by the system call's number */
    atomic_uint allocations[PROCESSES];
    const void *allocators[PROCESSES][ALLOCATORS_KEPT];
};

/* What all three processes see. */
static struct {
    atomic_int kind, round; /* of what is counted; round -1: nothing */
    atomic_uint counted;    /* in this round */
    struct counts counts[KINDS];
} * shared;

static int process = -1; /* which one this is; -1: neither */

/* ---- allocations ---- */

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *block, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);

static struct counts *counts_now(void)
{
    bool counts = atomic_load_explicit(&shared->round, memory_order_relaxed) >= 0;
    return counts ? &shared->counts[atomic_load(&shared->kind)] : NULL;
}

#ifndef SANITIZED
static void count_allocation(const void *allocator)
{
    struct counts *counts = process < 0 ? NULL : counts_now();
    if (counts == NULL) {
        return;
    }
    atomic_fetch_add(&shared->counted, 1);
    unsigned index = atomic_fetch_add(&counts->allocations[process], 1);
    if (index < ALLOCATORS_KEPT) {
        counts->allocators[process][index] = allocator;
    }
}

#pragma GCC visibility push(default) /* so that the libraries find these */

void *malloc(size_t bytes)
{
    count_allocation(__builtin_return_address(0));
    return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    count_allocation(__builtin_return_address(0));
    return __libc_calloc(count, bytes);
}

void *realloc(void *block, size_t bytes)
{
    count_allocation(__builtin_return_address(0));
    return __libc_realloc(block, bytes);
}

void *memalign(size_t alignment, size_t bytes)
{
    count_allocation(__builtin_return_address(0));
    return __libc_memalign(alignment, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    count_allocation(__builtin_return_address(0));
    return __libc_memalign(alignment, bytes);
}

int posix_memalign(void **block_out, size_t alignment, size_t bytes)
{
    count_allocation(__builtin_return_address(0));
    *block_out = __libc_memalign(alignment, bytes);
    return *block_out == NULL ? ENOMEM : 0;
}

#pragma GCC visibility pop
#endif

/* ---- the two processes ---- */

static ferry_agent_t *start_agent(const char *naming)
{
    ferry_config_t *config;
    ferry_agent_options_t options = ferry_agent_options();
    ferry_agent_t *agent;
    TEST_CHECK(ferry_config_create(&config) == FERRY_OK);
    TEST_CHECK(ferry_config_set(config, "FERRY_PROGRESS", "spin") == FERRY_OK);
    options.name = process_names[process];
    options.naming = naming;
    options.config = config;
    TEST_CHECK(ferry_agent_create(&options, &agent) == FERRY_OK);
    return agent;
}

static ferry_status_t answer(ferry_request_t *request, void *context)
{
    (void)context;
    return ferry_request_reply(request, NULL);
}

static ferry_status_t leave(ferry_request_t *request, void *context)
{
    ferry_agent_stop(context);
    return ferry_request_reply(request, NULL);
}

static void be_callee(const char *naming)
{
    ferry_agent_t *agent = start_agent(naming);
    ferry_method_options_t options = ferry_method_options();
    options.run_inline = true;
    TEST_CHECK(ferry_agent_register_with(agent, "answer", answer, NULL, &options) == FERRY_OK);
    TEST_CHECK(ferry_agent_register(agent, "leave", leave, agent) == FERRY_OK);
    TEST_CHECK(ferry_agent_start(agent) == FERRY_OK);
    TEST_CHECK(ferry_agent_run(agent) == FERRY_OK);
    ferry_agent_shutdown(agent, TEST_SECONDS(5));
    ferry_agent_destroy(agent);
}

static void call_many(ferry_agent_t *agent, const ferry_message_t *message, int count)
{
    for (int i = 0; i < count; i++) {
        ferry_future_release(test_call(agent, "callee", "answer", message, NULL));
    }
}

static void measure(ferry_agent_t *agent, int kind, const ferry_message_t *message)
{
    call_many(agent, message, warm_up_calls[kind]);
    atomic_store(&shared->kind, kind);
    atomic_store(&shared->counted, 0);
    for (int round = 0; round < ROUNDS; round++) {
        atomic_store(&shared->round, round);
        call_many(agent, message, round_calls[kind]);
        shared->counts[kind].rounds[round] = atomic_exchange(&shared->counted, 0);
    }
    atomic_store(&shared->round, -1);
}

static void be_caller(const char *naming)
{
    ferry_agent_t *agent = start_agent(naming);
    ferry_call_options_t options = ferry_call_options();
    options.wait_for_peer = true;
    TEST_CHECK(ferry_agent_start(agent) == FERRY_OK);
    ferry_future_release(test_call(agent, "callee", "answer", NULL, &options));
    void *data = calloc(1, TENSOR_BYTES);
    int64_t shape[] = {TENSOR_BYTES};
    ferry_tensor_t tensor = test_tensor("x", data, test_u8, 1, shape);
    ferry_message_t message = {.tensors = &tensor, .tensor_count = 1};
    measure(agent, EMPTY, NULL);
    measure(agent, TENSOR, &message);
    ferry_future_release(test_call(agent, "callee", "leave", NULL, NULL));
    ferry_agent_shutdown(agent, TEST_SECONDS(5));
    ferry_agent_destroy(agent);
    free(data);
}

/* ---- system calls ---- */

static pid_t start(int which, const char *naming)
{
    pid_t child = fork();
    TEST_CHECK(child >= 0);
    if (child == 0) {
        process = which;
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0) {
            _exit(SKIPPED);
        }
        raise(SIGSTOP);
        if (which == CALLER) {
            be_caller(naming);
        } else {
            be_callee(naming);
        }
        exit(0);
    }
    return child;
}

/* Of which process a thread is. */
static int process_of(pid_t thread, const pid_t *children)
{
    char path[64];
    for (int which = 0; which < PROCESSES; which++) {
        snprintf(path, sizeof(path), "/proc/%d/task/%d", (int)children[which], (int)thread);
        if (access(path, F_OK) == 0) {
            return which;
        }
    }
    return -1;
}

static void count_system_call(pid_t thread, const pid_t *children)
{
    struct __ptrace_syscall_info info;
    struct counts *counts = counts_now();
    if (counts == NULL ||
        ptrace(PTRACE_GET_SYSCALL_INFO, thread, (void *)sizeof(info), &info) <= 0 ||
        info.op != PTRACE_SYSCALL_INFO_ENTRY) {
        return;
    }
    atomic_fetch_add(&shared->counted, 1);
    int which = process_of(thread, children);
    if (which >= 0 && info.entry.nr < NUMBERS) {
        counts->calls[which][info.entry.nr]++;
    }
}

/* Until both have ended. */
static void trace(const pid_t *children)
{
    int status, left = PROCESSES;
    pid_t thread;
    while (left > 0 && (thread = waitpid(-1, &status, __WALL)) > 0) {
        bool first = thread == children[CALLER] || thread == children[CALLEE];
        if (WIFEXITED(status) || WIFSIGNALED(status)) {
            left -= first;
            if (first && WIFEXITED(status) && WEXITSTATUS(status) == SKIPPED) {
                printf("this system does not let a process trace another\n");
                exit(SKIPPED);
            }
            TEST_CHECK(!first || (WIFEXITED(status) && WEXITSTATUS(status) == 0));
            continue;
        }
        int signal = WSTOPSIG(status);
        if (signal == (SIGTRAP | 0x80)) {
            count_system_call(thread, children);
            signal = 0;
        } else if (signal == SIGSTOP || signal == SIGTRAP) {
            ptrace(PTRACE_SETOPTIONS, thread, NULL,
                   (void *)(PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL));
            signal = 0;
        }
        ptrace(PTRACE_SYSCALL, thread, NULL, (void *)(intptr_t)signal);
    }
}

/* What there was, by the numbers of <asm/unistd_64.h>, to find out where it came from. */
static void explain(const struct counts *counts, int which)
{
    for (int number = 0; number < NUMBERS; number++) {
        if (counts->calls[which][number] > 0) {
            fprintf(stderr, "  %s: system call %d, %u times\n", process_names[which], number,
                    counts->calls[which][number]);
        }
    }
    for (unsigned i = 0; i < counts->allocations[which] && i < ALLOCATORS_KEPT; i++) {
        Dl_info info = {.dli_fname = "?"};
        dladdr(counts->allocators[which][i], &info);
        fprintf(stderr, "  %s: allocation %u of %u, at %p in %s\n", process_names[which], i + 1,
                counts->allocations[which], counts->allocators[which][i], info.dli_fname);
    }
}

static bool is_steady(int kind)
{
    const struct counts *counts = &shared->counts[kind];
    int clean = 0;
    for (int round = 0; round < ROUNDS; round++) {
        clean += counts->rounds[round] == 0;
    }
    if (clean > ROUNDS / 8) {
        return true;
    }
    fprintf(stderr,
            "%s: only %d of %d rounds of %d calls did without allocations and system calls\n",
            kind_names[kind], clean, ROUNDS, round_calls[kind]);
    explain(counts, CALLER);
    explain(counts, CALLEE);
    return false;
}

int main(void)
{
    char naming[] = "file:///tmp/ferry-steady-XXXXXX";
    const char *sanitize = getenv("TEST_SANITIZE");
    if (sanitize != NULL && sanitize[0] != '\0') {
        printf("a sanitizer allocates and calls the system itself\n");
        return SKIPPED;
    }
    TEST_CHECK(mkdtemp(naming + strlen("file://")) != NULL);
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    TEST_CHECK(shared != MAP_FAILED);
    atomic_init(&shared->round, -1);
    pid_t children[PROCESSES];
    for (int which = 0; which < PROCESSES; which++) {
        children[which] = start(which, naming);
    }
    trace(children);
    rmdir(naming + strlen("file://"));
    bool empty = is_steady(EMPTY), tensor = is_steady(TENSOR);
    return !(empty && tensor);
}
