/* Ferry inside an event loop that is somebody else's: in manual mode an agent is one more
 * descriptor beside a timer and signals, and no thread of Ferry's drives it.
 *
 *   epoll_server     starts a client process that calls, and ends when the client has */
#include <errno.h>
#include <ferry/ferry.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

#define CALLS 5
#define TICK_MS 50
#define TICKS_MAX 600 /* 30 s: then the client is given up */
#define SECOND INT64_C(1000000000)

struct server {
    ferry_agent_t *agent;
    int epoll_fd, timer_fd, signal_fd;
    pid_t client;
    int served, ticks;
    bool done, failed;
};

static int complain(const char *who)
{
    fprintf(stderr, "%s: %s\n", who, ferry_last_error()->text);
    return 1;
}

/* Registered inline, so it runs inside ferry_agent_progress() below, in the loop's own thread:
 * no lock is needed. */
static ferry_status_t answer_add(ferry_request_t *request, void *context)
{
    struct server *server = context;
    ferry_reader_t reader = ferry_reader(ferry_request_message(request));
    int64_t left = ferry_reader_int64(&reader, "left");
    int64_t right = ferry_reader_int64_or(&reader, "right", 0);
    ferry_status_t status = ferry_reader_status(&reader);
    ferry_writer_t *writer = NULL;
    ferry_message_t answer = {.body = NULL};
    if (status == FERRY_OK) {
        status = ferry_writer_create(&writer);
    }
    if (status == FERRY_OK) {
        ferry_writer_int64(writer, "sum", left + right);
        status = ferry_writer_finish(writer, &answer);
    }
    if (status == FERRY_OK) {
        status = ferry_request_reply(request, &answer); /* copies the body */
    }
    ferry_writer_destroy(writer);
    if (status == FERRY_OK) {
        server->served++;
        printf("server: %s asked for %lld + %lld\n", ferry_request_caller(request), (long long)left,
               (long long)right);
    }
    return status;
}

/* ---- the loop ---- */

static void on_timer(struct server *server)
{
    uint64_t expirations = 0;
    if (read(server->timer_fd, &expirations, sizeof(expirations)) == sizeof(expirations)) {
        server->ticks += (int)expirations;
    }
    if (server->ticks >= TICKS_MAX) {
        fprintf(stderr, "server: the client has not ended in time\n");
        server->done = server->failed = true;
    }
}

static void on_signal(struct server *server)
{
    struct signalfd_siginfo info;
    if (read(server->signal_fd, &info, sizeof(info)) != sizeof(info)) {
        return;
    }
    if (info.ssi_signo == SIGCHLD) {
        int status = -1;
        if (waitpid(server->client, &status, WNOHANG) != server->client) {
            return;
        }
        server->client = 0;
        server->failed = !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    }
    server->done = true; /* the client's end, or SIGTERM, or SIGINT */
}

static int milliseconds(int64_t timeout_ns)
{
    if (timeout_ns == FERRY_FOREVER) {
        return -1;
    }
    int64_t rounded = timeout_ns / 1000000 + (timeout_ns % 1000000 != 0); /* up: 0 would spin */
    return rounded > 60000 ? 60000 : (int)rounded;
}

static int loop(struct server *server)
{
    while (!server->done) {
        while (ferry_agent_progress(server->agent) > 0) {
        }
        int64_t timeout_ns;
        ferry_status_t status = ferry_agent_prepare_wait(server->agent, &timeout_ns);
        if (status == FERRY_PENDING) {
            continue; /* something came meanwhile */
        }
        if (status != FERRY_OK) {
            return complain("server");
        }
        struct epoll_event events[4];
        int count = epoll_wait(server->epoll_fd, events, 4, milliseconds(timeout_ns));
        if (count < 0 && errno != EINTR) {
            perror("epoll_wait");
            return 1;
        }
        for (int i = 0; i < count; i++) {
            if (events[i].data.fd == server->timer_fd) {
                on_timer(server);
            } else if (events[i].data.fd == server->signal_fd) {
                on_signal(server);
            } /* else the agent's: the loop begins with its progress anyway */
        }
    }
    return 0;
}

static int watch(const struct server *server, int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data = {.fd = fd}};
    return fd < 0 || epoll_ctl(server->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0;
}

static int serve_loop(struct server *server, const sigset_t *signals)
{
    struct itimerspec tick = {.it_interval = {.tv_nsec = TICK_MS * 1000000},
                              .it_value = {.tv_nsec = TICK_MS * 1000000}};
    server->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    server->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    server->signal_fd = signalfd(-1, signals, SFD_CLOEXEC | SFD_NONBLOCK);
    int failed = watch(server, server->timer_fd) || watch(server, server->signal_fd) ||
                 watch(server, ferry_agent_fd(server->agent)) ||
                 timerfd_settime(server->timer_fd, 0, &tick, NULL) != 0;
    if (failed) {
        perror("server");
    } else {
        failed = loop(server);
    }
    close(server->signal_fd);
    close(server->timer_fd);
    close(server->epoll_fd);
    return failed;
}

static ferry_status_t start_agent(struct server *server)
{
    ferry_config_t *config = NULL;
    ferry_method_options_t method = ferry_method_options();
    method.run_inline = true;
    ferry_agent_options_t options = ferry_agent_options();
    options.name = "server";
    ferry_status_t status = ferry_config_create(&config);
    if (status == FERRY_OK) {
        status = ferry_config_set(config, "progress", "manual");
    }
    if (status == FERRY_OK) {
        options.config = config; /* the agent's from here on */
        status = ferry_agent_create(&options, &server->agent);
    }
    if (status != FERRY_OK) {
        ferry_config_destroy(config);
        return status;
    }
    status = ferry_agent_register_with(server->agent, "add", answer_add, server, &method);
    return status == FERRY_OK ? ferry_agent_start(server->agent) : status;
}

static int serve(pid_t client, const sigset_t *signals)
{
    struct server server = {.client = client};
    int failed =
        start_agent(&server) == FERRY_OK ? serve_loop(&server, signals) : complain("server");
    ferry_agent_destroy(server.agent);
    if (server.client != 0) {
        kill(server.client, SIGKILL);
        waitpid(server.client, NULL, 0);
    }
    printf("server: %d calls served, %s\n", server.served,
           server.ticks > 0 ? "and the timer ticked meanwhile" : "before the timer's first tick");
    return failed || server.failed || server.served != CALLS;
}

/* ---- the client ---- */

static int call_add(ferry_agent_t *agent, ferry_writer_t *writer, int64_t left, int64_t right)
{
    ferry_message_t message = {.body = NULL};
    ferry_call_options_t options = ferry_call_options();
    options.timeout_ns = 10 * SECOND;
    options.wait_for_peer = true; /* the server may not be there yet */
    ferry_future_t *future = NULL;
    const ferry_message_t *result;
    ferry_writer_reset(writer);
    ferry_writer_int64(writer, "left", left);
    ferry_writer_int64(writer, "right", right);
    if (ferry_writer_finish(writer, &message) != FERRY_OK ||
        ferry_call(agent, "server", "add", &message, &options, &future) != FERRY_OK ||
        ferry_future_wait(future, FERRY_FOREVER, &result) != FERRY_OK) {
        ferry_future_release(future);
        return complain("client");
    }
    ferry_reader_t reader = ferry_reader(result);
    int64_t sum = ferry_reader_int64(&reader, "sum");
    int failed =
        ferry_reader_status(&reader) != FERRY_OK ? complain("client") : sum != left + right;
    printf("client: %lld + %lld = %lld\n", (long long)left, (long long)right, (long long)sum);
    ferry_future_release(future);
    return failed;
}

static int call(void)
{
    ferry_agent_options_t options = ferry_agent_options();
    options.name = "client";
    ferry_agent_t *agent = NULL;
    ferry_writer_t *writer = NULL;
    int failed = 0;
    if (ferry_agent_create(&options, &agent) != FERRY_OK || ferry_agent_start(agent) != FERRY_OK ||
        ferry_writer_create(&writer) != FERRY_OK) {
        failed = complain("client");
    }
    for (int i = 0; i < CALLS && !failed; i++) {
        failed = call_add(agent, writer, i, 10 * i);
    }
    ferry_writer_destroy(writer);
    ferry_agent_destroy(agent);
    return failed;
}

/* ---- both at once ---- */

static pid_t start_client(const sigset_t *signals)
{
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        sigprocmask(SIG_UNBLOCK, signals, NULL);
        execl("/proc/self/exe", "epoll_server", "client", (char *)NULL);
        _exit(127);
    }
    return child;
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *where)
{
    (void)info, (void)type, (void)where;
    return remove(path);
}

static int start_both(void)
{
    char folder[] = "/tmp/epoll_server-XXXXXX", naming[64];
    if (mkdtemp(folder) == NULL) {
        perror(folder);
        return 1;
    }
    snprintf(naming, sizeof(naming), "file://%s", folder);
    setenv("FERRY_NAMING", naming, 1); /* where the two find each other */
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGCHLD);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigprocmask(SIG_BLOCK, &signals, NULL); /* they come through the signalfd */
    pid_t client = start_client(&signals);  /* before there is an agent: no fork after that */
    int failed = client < 0 || serve(client, &signals);
    nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
    return failed;
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    return argc > 1 && strcmp(argv[1], "client") == 0 ? call() : start_both();
}
