/* ferry_perf: what Ferry's calls cost between two processes, beside UCX alone, in the manner of
 * ucx_perftest. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ferry/version.h>

#include "core/channel.h"
#include "core/config.h"
#include "core/error.h"
#include "ferry_perf/frame.h"

static const char HELP[] =
    "ferry_perf: what Ferry's calls cost between two processes, beside UCX alone\n"
    "\n"
    "  ferry_perf [-p PORT]             the server, for one client\n"
    "  ferry_perf -t TEST [flags] HOST  the client, which measures\n"
    "  ferry_perf --local [flags]       both here; without -t a table of Ferry, UCX and the ratio\n"
    "\n"
    "  -t TEST,...     tests, see below\n"
    "  -s SIZE,...     payload in bytes: 4096, a list 4,64K,1M, or powers of two 1K:1M\n"
    "  -n COUNT        operations of a row, with --ratio of a round; else as many as fit into -D\n"
    "  -w COUNT        operations to warm up with; chosen where it is not given\n"
    "  -D SECONDS      time of a row, 1 by default; UCX's share with --ratio takes as long again\n"
    "  -m MEMORY       host, cuda:0 or sim:0 at both ends, or CLIENT,SERVER\n"
    "  -O COUNT        operations in flight, of each thread, 32 by default\n"
    "  -T COUNT        client threads that share one agent (rpc_*)\n"
    "  -c CPUS         the client's and the server's CPUs: 0,1 or 0-3,4-7\n"
    "  -p PORT         of the server, 13337 by default\n"
    "  -b FILE         a line of flags a test, over those given here; # begins a comment\n"
    "  -R RANK,...     percentiles, 50,99 by default, of tests that time each operation\n"
    "  -V              before the clock starts, send up to 64 times fresh random data and compare\n"
    "  -f              only the rows    -v  as CSV    --json  as a JSON object a line\n"
    "  --ratio         UCX alone in turn with ours, in --rounds rounds (5); medians. Not where "
    "UCX\n"
    "                  has no such test (rpc_rate, rpc_bidir) or cannot take the memory\n"
    "  --pool          methods run in the thread pool and not inline (rpc_*)\n"
    "  --tensors COUNT tensors of a call, that share the bytes (rpc_*)\n"
    "  -h, --help; --version\n"
    "\n"
    "us is of one operation: a round trip for rpc_lat and rpc_echo, which --ratio sets against\n"
    "UCX's way there and back, and one way for other *_lat. 1 MB is 1,000,000 bytes. UCX alone "
    "has\n"
    "Ferry's peer error mode. Ferry's and UCX's variables hold at both ends; FERRY_INTERFACE, at\n"
    "both, names the interface between two machines.\n"
    "Exit status: 0 all is well, 1 a failure, 2 a wrong command line.\n"
    "\n"
    "Tests:\n";

static int complain(int status)
{
    fprintf(stderr, "ferry_perf: %s\n", ferry_last_error()->text);
    return status;
}

static ferry_status_t listen_here(uint16_t port, int *fd_out, char host[INET6_ADDRSTRLEN],
                                  uint16_t *port_out)
{
    char interface[128];
    return socket_listen(perf_setting("FERRY_INTERFACE", interface, sizeof interface), port, fd_out,
                         host, port_out);
}

static int server_run(const struct perf_command_line *line)
{
    struct perf_control *control = NULL;
    char host[INET6_ADDRSTRLEN];
    int listen_fd = line->listen_fd;
    uint16_t port;
    ferry_status_t status = FERRY_OK;
    if (listen_fd < 0) {
        status = listen_here(line->port, &listen_fd, host, &port);
        if (status == FERRY_OK && line->format == PERF_TABLE) {
            fprintf(stderr, "ferry_perf: waiting for the client at %s port %u\n", host, port);
        }
    }
    if (status == FERRY_OK) {
        status = perf_control_accept(listen_fd, &control);
        close(listen_fd);
    }
    if (status == FERRY_OK) {
        status = perf_greet(control, false, line);
    }
    if (status == FERRY_OK) {
        status = perf_server_run(control);
    }
    int result = status == FERRY_OK ? 0 : PERF_EXIT_FAILED;
    if (status != FERRY_OK && (line->listen_fd < 0 || control == NULL)) {
        complain(result); /* --local's client says it for both */
    }
    perf_control_destroy(control);
    return result;
}

static int client_run(const struct perf_command_line *line, const char *host, uint16_t port)
{
    struct perf_control *control = NULL;
    ferry_status_t status = perf_control_connect(host, port, &control);
    if (status == FERRY_OK) {
        status = perf_greet(control, true, line);
    }
    if (status == FERRY_OK) {
        perf_report_begin(line);
        if (line->batch == NULL) {
            status = line->wish.test_count > 0 ? perf_client_run(control, line, &line->wish)
                                               : perf_overview_run(control, line);
        }
        for (size_t i = 0; status == FERRY_OK && i < line->wish_count; i++) {
            status = perf_client_run(control, line, &line->wishes[i]);
        }
    }
    if (status == FERRY_OK) {
        status = perf_client_end(control);
    }
    int result = status == FERRY_OK ? 0 : complain(PERF_EXIT_FAILED);
    perf_control_destroy(control);
    return result;
}

static int local_run(const struct perf_command_line *line)
{
    char host[INET6_ADDRSTRLEN];
    int listen_fd = -1, ended = 0;
    uint16_t port;
    pid_t child = -1;
    ferry_status_t status = listen_here(0, &listen_fd, host, &port);
    if (status == FERRY_OK) {
        status = perf_local_server(listen_fd, &child);
        close(listen_fd);
    }
    if (status != FERRY_OK) {
        return complain(PERF_EXIT_FAILED);
    }
    int result = client_run(line, host, port);
    while (waitpid(child, &ended, 0) < 0 && errno == EINTR) {
    }
    return result == 0 && ended != 0 ? PERF_EXIT_FAILED : result;
}

static int run(const struct perf_command_line *line)
{
    if (line->help) {
        fputs(HELP, stdout);
        perf_tests_print(stdout);
        return 0;
    }
    if (line->version) {
        printf("ferry_perf %s, UCX %s\n", ferry_version(), perf_ucx_version());
        return 0;
    }
    if (line->local) {
        return local_run(line);
    }
    return line->host == NULL ? server_run(line) : client_run(line, line->host, line->port);
}

int main(int argc, char **argv)
{
    struct perf_command_line line;
    setenv("FERRY_SIM_DEVICES", "1", 0);
    perf_command_line_init(&line);
    int result = perf_command_line_parse(&line, argc, argv) == FERRY_OK ? run(&line)
                                                                        : complain(PERF_EXIT_USAGE);
    perf_command_line_finish(&line);
    return result;
}
