/* Between the files of ferry_perf's frame: the command line, the two ends' conversation, the
 * table. Tests see perf.h alone. */
#ifndef FERRY_PERF_FRAME_H
#define FERRY_PERF_FRAME_H

#include <stdio.h>
#include <sys/types.h>

#include "ferry_perf/perf.h"

#define PERF_EXIT_FAILED 1
#define PERF_EXIT_USAGE 2

#define PERF_PORT 13337
#define PERF_TESTS_MAX 64
#define PERF_SIZES_MAX 64
#define PERF_RANKS_MAX 16
#define PERF_GIVEN_BYTES 2048

/* A range of CPUs; first < 0: as started. */
struct perf_cpus {
    int first, last;
};

/* What is to be measured: the flags of one line. */
struct perf_wish {
    const struct perf_test *tests[PERF_TESTS_MAX];
    size_t test_count;
    size_t sizes[PERF_SIZES_MAX];
    size_t size_count;   /* 0: each test's usual one */
    uint64_t iterations; /* 0: as many as fit into `seconds` */
    uint64_t warm_up;    /* operations; 0: chosen */
    double seconds;
    uint32_t rounds; /* with --ratio */
    bool ratio;
    struct perf_options options;
};

enum perf_format { PERF_TABLE, PERF_CSV, PERF_JSON };

struct perf_command_line {
    struct perf_wish wish;
    const char *host; /* NULL: this is the server; borrowed from argv */
    bool local, help, version;
    char asks[16]; /* the last flag that --local alone decides itself; "": none was given */
    uint16_t port;
    struct perf_cpus cpus[2];
    const char *batch;        /* borrowed */
    struct perf_wish *wishes; /* owned: of the batch file */
    size_t wish_count;
    double ranks[PERF_RANKS_MAX];
    size_t rank_count;
    enum perf_format format;
    bool final;                   /* the rows alone */
    int listen_fd;                /* inherited from --local's parent; -1 */
    char given[PERF_GIVEN_BYTES]; /* "-s=4K\n-O=8\n": flags that both ends must agree on */
};

/* options.c. Raise FERRY_ERR_INVALID_ARGUMENT, whose text is the one line to show. */
void perf_command_line_init(struct perf_command_line *line);
void perf_command_line_finish(struct perf_command_line *line);
ferry_status_t perf_command_line_parse(struct perf_command_line *line, int argc, char **argv);
/* One line of a batch file over what the command line said. */
ferry_status_t perf_wish_parse(struct perf_command_line *line, int argc, char **argv);
const struct perf_test *perf_test_find(const char *name);
void perf_tests_print(FILE *out);

/* parse.c: the values of flags; `flag` is for the error. */
ferry_status_t perf_parse_count(const char *flag, const char *text, uint64_t least, uint64_t most,
                                uint64_t *count_out);
ferry_status_t perf_parse_sizes(const char *text, size_t sizes[PERF_SIZES_MAX], size_t *count_out);
ferry_status_t perf_parse_memory(const char *text, DLDevice memory_out[2]);
ferry_status_t perf_parse_cpus(const char *text, struct perf_cpus cpus_out[2]);
ferry_status_t perf_parse_ranks(const char *text, double ranks[PERF_RANKS_MAX], size_t *count_out);
ferry_status_t perf_parse_seconds(const char *text, double *seconds_out);
/* Copies the next part of a list with commas; false at its end or when it is too long. */
bool perf_list_next(const char **list, char *part, size_t capacity);

/* control.c */
ferry_status_t perf_control_accept(int listen_fd, struct perf_control **control_out);
ferry_status_t perf_control_connect(const char *host, uint16_t port,
                                    struct perf_control **control_out);
/* Flushes and closes; NULL is taken. */
void perf_control_destroy(struct perf_control *control);
ferry_status_t perf_control_send(struct perf_control *control, const void *data, size_t bytes);
ferry_status_t perf_control_receive(struct perf_control *control, void *data, size_t capacity,
                                    size_t *bytes_out);
/* Gives this thread's last error to the other end, which then fails with it. */
void perf_control_tell_error(struct perf_control *control);

/* watch.c: a thread that ends the process a few seconds after the other end of the socket is gone,
 * unless it is stopped first. */
ferry_status_t perf_watch_start(int fd, const char *other);
void perf_watch_stop(void);

/* greeting.c: both ends tell what they are; FERRY_ERR_INCOMPATIBLE names what differs. The server
 * learns its CPUs. */
ferry_status_t perf_greet(struct perf_control *control, bool client,
                          const struct perf_command_line *line);
const char *perf_ucx_version(void);
/* The value in force of a FERRY_ option, e.g. "FERRY_UCX_PROTOCOL". */
const char *perf_setting(const char *name, char *text, size_t capacity);

/* run.c: what was measured in one row. */
struct perf_row {
    const struct perf_test *test;
    const struct perf_options *options;
    size_t bytes;
    uint64_t operations;
    double seconds;
    double latency_us; /* 0: operations overlap */
    double bandwidth;  /* payload, 1e6 bytes a second */
    double rate;       /* operations a second */
    double value;      /* the one in the test's unit; the median over the rounds */
    double ranks_us[PERF_RANKS_MAX];
    bool timed; /* each operation was: the percentiles, over all rounds, are there */
    uint32_t window;
    uint64_t least_share, most_share; /* operations of the threads that did least and most */
    char path[PERF_PATH_BYTES];
    char raw_name[32]; /* "": no ratio */
    double raw_value, ratio;
};
ferry_status_t perf_client_run(struct perf_control *control, const struct perf_command_line *line,
                               const struct perf_wish *wish);
ferry_status_t perf_client_end(struct perf_control *control);
ferry_status_t perf_server_run(struct perf_control *control);

/* raw.c: whether UCX alone can take the memory of both ends. */
bool perf_raw_takes(const DLDevice memory[2]);

/* batch.c: the lines of -b's file, into line->wishes. */
ferry_status_t perf_batch_read(struct perf_command_line *line);

/* report.c */
void perf_report_begin(const struct perf_command_line *line);
void perf_report_row(const struct perf_command_line *line, const struct perf_row *row);
void perf_progress(const struct perf_test *test, size_t bytes, double done);

/* local.c. The server as a process of its own, which takes the listening socket. */
ferry_status_t perf_local_server(int listen_fd, pid_t *child_out);
/* The table that --local alone shows. */
ferry_status_t perf_overview_run(struct perf_control *control,
                                 const struct perf_command_line *line);
ferry_status_t perf_pin(struct perf_cpus cpus);

#endif
