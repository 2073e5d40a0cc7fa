/* Ferry is a guest in its program: signals, standard output, threads, descriptors and forks stay as
 * the program wants them, with UCX at work. A plain program, since Criterion has threads and signal
 * handlers of its own. */
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/clock.h"
#include "support/pair.h"

enum { SIGNALS = 64, LIST_MAX = 256 };

static void on_signal(int number)
{
    (void)number;
}

static bool sanitized(void)
{
    const char *sanitize = getenv("TEST_SANITIZE");
    return sanitize != NULL && sanitize[0] != '\0';
}

/* ---- what the program has ---- */

struct numbers {
    int count, values[LIST_MAX];
};

/* The numbered entries of a folder under /proc/self. */
static struct numbers numbers_of(const char *path)
{
    struct numbers numbers = {.count = 0};
    DIR *folder = opendir(path);
    TEST_CHECK(folder != NULL);
    for (struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        int value = atoi(entry->d_name);
        if (entry->d_name[0] != '.' && !(strstr(path, "/fd") != NULL && value == dirfd(folder))) {
            TEST_CHECK(numbers.count < LIST_MAX);
            numbers.values[numbers.count++] = value;
        }
    }
    closedir(folder);
    return numbers;
}

static bool has(const struct numbers *numbers, int value)
{
    for (int i = 0; i < numbers->count; i++) {
        if (numbers->values[i] == value) {
            return true;
        }
    }
    return false;
}

static void describe_fd(int fd, char *text, size_t capacity)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    ssize_t length = readlink(path, text, capacity - 1);
    text[length < 0 ? 0 : length] = '\0';
}

struct dispositions {
    struct sigaction actions[SIGNALS + 1];
    sigset_t mask;
};

static struct dispositions dispositions_now(void)
{
    struct dispositions now;
    memset(&now, 0, sizeof(now));
    for (int number = 1; number <= SIGNALS; number++) {
        sigaction(number, NULL, &now.actions[number]); /* 32 and 33 are the C library's: zeros */
    }
    pthread_sigmask(SIG_SETMASK, NULL, &now.mask);
    return now;
}

/* Only the members count: the C library leaves the rest of a set undefined. */
static bool same_set(const sigset_t *left, const sigset_t *right)
{
    for (int number = 1; number <= SIGNALS; number++) {
        if (sigismember(left, number) != sigismember(right, number)) {
            return false;
        }
    }
    return true;
}

static void expect_dispositions(const struct dispositions *wanted, const char *when)
{
    struct dispositions now = dispositions_now();
    for (int number = 1; number <= SIGNALS; number++) {
        const struct sigaction *is = &now.actions[number], *was = &wanted->actions[number];
        if (is->sa_handler != was->sa_handler || is->sa_flags != was->sa_flags ||
            !same_set(&is->sa_mask, &was->sa_mask)) {
            fprintf(stderr, "%s: another took signal %d (%s)\n", when, number, strsignal(number));
            exit(1);
        }
    }
    TEST_CHECK(same_set(&now.mask, &wanted->mask));
}

/* ---- the program ---- */

static ferry_testing_pair_t working_pair(void)
{
    ferry_testing_pair_t pair = test_pair("ucx", NULL, NULL);
    static uint8_t data[3000000];
    int64_t shape[1] = {sizeof(data)};
    ferry_tensor_t tensor = test_tensor("x", data, test_u8, 1, shape);
    ferry_message_t message = {.tensors = &tensor, .tensor_count = 1};
    ferry_future_release(test_call(pair.left, "right", "echo", &message, NULL));
    test_call_fails(pair.left, "right", "fail", NULL, NULL, NULL);
    return pair;
}

/* Nothing is installed at the time of loading: main() finds what exec() left. */
static void loading_takes_no_signal(void)
{
    struct dispositions now = dispositions_now();
    for (int number = 1; number <= SIGNALS && !sanitized(); number++) {
        if (now.actions[number].sa_handler != SIG_DFL &&
            now.actions[number].sa_handler != SIG_IGN) {
            fprintf(stderr, "loading took signal %d (%s)\n", number, strsignal(number));
            exit(1);
        }
    }
}

static void signals_stay_the_programs(void)
{
    struct dispositions before = dispositions_now();
    ferry_testing_pair_t pair = working_pair();
    expect_dispositions(&before, "defaults, while two agents live");
    ferry_testing_pair_destroy(&pair);
    expect_dispositions(&before, "defaults, after two agents");

    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaddset(&action.sa_mask, SIGUSR2);
    for (int number = 1; number <= SIGNALS; number++) {
        sigaction(number, &action, NULL); /* those that cannot be caught say so */
    }
    struct dispositions own = dispositions_now();
    pair = working_pair();
    expect_dispositions(&own, "own handlers, while two agents live");
    ferry_testing_pair_destroy(&pair);
    expect_dispositions(&own, "own handlers, after two agents");
    for (int number = 1; number <= SIGNALS; number++) {
        sigaction(number, &before.actions[number], NULL);
    }
}

static void status_line(int thread, const char *file, const char *key, char *text, size_t capacity)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/task/%d/%s", thread, file);
    FILE *stream = fopen(path, "r");
    text[0] = '\0';
    while (stream != NULL && fgets(text, (int)capacity, stream) != NULL &&
           strncmp(text, key, strlen(key)) != 0) {
    }
    if (stream != NULL) {
        fclose(stream);
    }
    memmove(text, text + strlen(key), strlen(text) - strlen(key) + 1);
    text[strcspn(text, "\n")] = '\0';
}

/* Every thread that came with an agent leaves the program's signals to the program's threads. */
static void threads_are_named_and_take_no_signals(void)
{
    struct numbers before = numbers_of("/proc/self/task");
    ferry_testing_pair_t pair = working_pair();
    struct numbers now = numbers_of("/proc/self/task");
    int named = 0;
    for (int i = 0; i < now.count; i++) {
        if (has(&before, now.values[i])) {
            continue;
        }
        char name[64], blocked[64];
        status_line(now.values[i], "comm", "", name, sizeof(name));
        status_line(now.values[i], "status", "SigBlk:\t", blocked, sizeof(blocked));
        uint64_t mask = strtoull(blocked, NULL, 16);
        uint64_t never = 1ull << (SIGKILL - 1) | 1ull << (SIGSTOP - 1) | 3ull << 31;
        if ((mask | never) != UINT64_MAX) {
            fprintf(stderr, "thread '%s' blocks only %s\n", name, blocked);
            exit(1);
        }
        named += strncmp(name, "ferry-", 6) == 0;
        if (strncmp(name, "ferry-", 6) != 0 && strcmp(name, "async") != 0) {
            fprintf(stderr, "a thread is called '%s'\n", name); /* "async" is UCX's own */
            exit(1);
        }
    }
    TEST_CHECK(named >= 2);
    ferry_testing_pair_destroy(&pair);
}

/* One that is open now, was not before, and stays so in a child; -1: none. */
static int surviving_exec(const struct numbers *before)
{
    struct numbers now = numbers_of("/proc/self/fd");
    for (int i = 0; i < now.count; i++) {
        int flags = fcntl(now.values[i], F_GETFD);
        if (!has(before, now.values[i]) && flags >= 0 && (flags & FD_CLOEXEC) == 0) {
            return now.values[i];
        }
    }
    return -1;
}

static void descriptors_are_closed_on_exec_and_after_use(void)
{
    struct numbers before = numbers_of("/proc/self/fd");
    ferry_testing_pair_t pair = working_pair();
    struct numbers now = numbers_of("/proc/self/fd");
    TEST_CHECK(now.count > before.count);
    char text[128];
    int64_t deadline = clock_monotonic_ns() + TEST_SECONDS(30); /* UCX opens some at leisure */
    for (int fd = surviving_exec(&before); fd >= 0; fd = surviving_exec(&before)) {
        if (clock_monotonic_ns() >= deadline) {
            describe_fd(fd, text, sizeof(text));
            fprintf(stderr, "descriptor %d (%s) survives exec()\n", fd, text);
            exit(1);
        }
        sched_yield();
    }
    ferry_testing_pair_destroy(&pair);
    now = numbers_of("/proc/self/fd");
    for (int i = 0; i < now.count; i++) {
        if (!has(&before, now.values[i])) {
            describe_fd(now.values[i], text, sizeof(text));
            fprintf(stderr, "descriptor %d (%s) is left behind\n", now.values[i], text);
            exit(1);
        }
    }
}

/* ---- fork ---- */

static int in_the_child(void)
{
    ferry_testing_options_t options = ferry_testing_options();
    options.left_name = "one";
    options.right_name = "two";
    ferry_testing_pair_t pair;
    TEST_CHECK(ferry_testing_pair_create(&options, &pair) == FERRY_OK);
    test_register(pair.right);
    ferry_future_release(test_call(pair.left, "two", "echo", NULL, NULL));
    ferry_testing_pair_destroy(&pair);

    ferry_testing_setting_t setting = {"FERRY_TRANSPORT", "ucx"};
    options.settings = &setting;
    options.setting_count = 1;
    TEST_CHECK(ferry_testing_pair_create(&options, &pair) == FERRY_ERR_FORKED);
    TEST_CHECK(strstr(ferry_last_error()->text, "fork") != NULL);
    TEST_CHECK(strstr(ferry_last_error()->text, "exec") != NULL);
    return 0;
}

static void a_forked_child_may_use_inproc_but_not_ucx(void)
{
    ferry_testing_pair_t pair = working_pair();
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        _exit(in_the_child());
    }
    int status = -1;
    TEST_CHECK(child > 0 && waitpid(child, &status, 0) == child);
    TEST_CHECK(status == 0);
    ferry_future_release(test_call(pair.left, "right", "echo", NULL, NULL));
    ferry_testing_pair_destroy(&pair);
}

int main(int argc, char **argv)
{
    (void)argc;
    if (getenv("UCX_LOG_LEVEL") == NULL) { /* UCX would tell much, on standard output */
        setenv("UCX_LOG_LEVEL", "info", 1);
        setenv("FERRY_LOG", "error", 1);
        execv("/proc/self/exe", argv);
        return 1;
    }
    int ends[2];
    TEST_CHECK(pipe2(ends, O_CLOEXEC) == 0);
    TEST_CHECK(dup2(ends[1], STDOUT_FILENO) == STDOUT_FILENO);
    loading_takes_no_signal();
    signals_stay_the_programs();
    threads_are_named_and_take_no_signals();
    descriptors_are_closed_on_exec_and_after_use();
    a_forked_child_may_use_inproc_but_not_ucx();
    fflush(stdout);
    struct pollfd readable = {.fd = ends[0], .events = POLLIN};
    if (poll(&readable, 1, 0) != 0) {
        char text[256];
        ssize_t length = read(ends[0], text, sizeof(text));
        fprintf(stderr, "on standard output: %.*s\n", (int)length, text);
        return 1;
    }
    return 0;
}
