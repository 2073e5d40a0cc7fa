/* Between the files of ferry_info: what its checks share, and its modes. */
#ifndef FERRY_INFO_H
#define FERRY_INFO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <ferry/ferry.h>

#define INFO_OK 0
#define INFO_PROBLEM 1
#define INFO_USAGE 2

enum verdict { VERDICT_OK, VERDICT_NOTE, VERDICT_PROBLEM };

/* What one check found. A remedy goes with every verdict but ok. */
struct finding {
    enum verdict verdict;
    char text[1024];
    char remedy[512];
};

void finding_set(struct finding *finding, enum verdict verdict, const char *format, ...)
    FERRY_PRINTF(3, 4);
void finding_add(struct finding *finding, const char *format, ...) FERRY_PRINTF(2, 3);
void finding_remedy(struct finding *finding, const char *format, ...) FERRY_PRINTF(2, 3);

/* Appends to text at length, which never passes capacity - 1. */
void text_add(char *text, size_t capacity, const char *format, ...) FERRY_PRINTF(3, 4);

/* The UCX that this process runs with. */
struct ucx_facts {
    unsigned major, minor;
    char version[32];
    char library[1024], folder[1024]; /* libucp's file, and where modules lie; "" when unknown */
    char knows[256];                  /* "cma cuda posix self sysv tcp" */
    char transports[512];             /* "tcp (eth0, lo), posix, sysv"; what it finds usable here */
    char error[512];                  /* why it cannot start, or "" */
};

/* The CUDA driver, asked without CUDA's headers and without making a context. */
#define DRIVER_DEVICES_MAX 32
struct driver_facts {
    bool loaded;     /* libcuda.so.1 is there */
    char error[256]; /* what the driver says when it is there and does not start */
    int count;
    bool dmabuf;         /* every device exports its memory as dmabuf */
    int exclusive;       /* devices that only one process may use */
    int prohibited;      /* devices that none may use */
    char no_access[256]; /* "cuda:0 and cuda:3, ...", pairs that cannot reach each other */
};

struct verbs_facts {
    int count;
    bool active;       /* a port is */
    bool reachable;    /* this user may open a device */
    char devices[512]; /* "mlx5_0:1 ACTIVE 400 Gb/sec InfiniBand, ..." */
};

/* What several checks look at, found once. */
struct machine {
    const char *root; /* in front of /proc, /sys and /dev; "" is this machine */
    struct ucx_facts ucx;
    struct driver_facts driver;
    struct verbs_facts verbs;
    int32_t cuda_count; /* devices of Ferry's own back end */
};

/* The version alone: nothing is opened. */
void ucx_facts_version(struct ucx_facts *facts);
void ucx_facts_find(struct ucx_facts *facts);
void driver_facts_find(struct driver_facts *facts);
void verbs_facts_find(struct machine *machine);
/* Whether a word stands in such a list. */
bool text_lists(const char *list, const char *word);

/* A file below the root, NUL-terminated and without the last newline; false when unreadable. */
bool machine_read(const struct machine *machine, const char *path, char *text, size_t capacity);
void machine_path(const struct machine *machine, const char *path, char *full, size_t capacity);

typedef void check_fn(const struct machine *machine, struct finding *finding);

check_fn check_ferry, check_configuration, check_device_map, check_interface;   /* settings.c */
check_fn check_ucx, check_transports;                                           /* ucx.c */
check_fn check_cuda, check_p2p, check_mps;                                      /* cuda.c */
check_fn check_verbs, check_gpudirect;                                          /* verbs.c */
check_fn check_shared_memory, check_cma, check_locked_memory, check_open_files; /* host.c */

/* The modes; each returns the exit status. */
int info_checklist(const char *root);
int info_version(void);
int info_config(bool markdown);
/* map_text NULL: FERRY_DEVICE_MAP, as environment and file have it. */
int info_map(const char *map_text, const char *peer);

/* Keeps log lines of the library instead of printing them, and hands them out. */
void info_log_keep(void);
const char *info_log_kept(void);

#endif
