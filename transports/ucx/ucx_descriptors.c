#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "core/clock.h"
#include "transports/ucx/ucx_internal.h"

#define BITS_A_WORD 64
#define SWEEP_GAP_FIRST_NS INT64_C(1000000)
#define SWEEP_GAP_LAST_NS INT64_C(5000000000)

typedef void (*descriptor_fn)(int fd, void *context);

static void each_descriptor(descriptor_fn visit, void *context)
{
    DIR *directory = opendir("/proc/self/fd");
    struct dirent *entry;
    while (directory != NULL && (entry = readdir(directory)) != NULL) {
        int fd = atoi(entry->d_name); /* of "." and "..": 0, which is not UCX's */
        if (fd > 0 && fd != dirfd(directory)) {
            visit(fd, context);
        }
    }
    if (directory != NULL) {
        closedir(directory);
    }
}

static uint64_t *word_of(const struct ucx_descriptors *set, int fd)
{
    size_t word = (size_t)fd / BITS_A_WORD;
    return word < sizeof(set->open) / sizeof(set->open[0]) ? (uint64_t *)&set->open[word] : NULL;
}

static uint64_t bit_of(int fd)
{
    return UINT64_C(1) << (fd % BITS_A_WORD);
}

static void mark(int fd)
{
    int flags = fcntl(fd, F_GETFD);
    if (flags >= 0 && (flags & FD_CLOEXEC) == 0) {
        fcntl(fd, F_SETFD, flags | FD_CLOEXEC);
    }
}

static void note(int fd, void *context)
{
    uint64_t *word = word_of(context, fd);
    if (word != NULL) {
        *word |= bit_of(fd);
    }
}

static void mark_new(int fd, void *context)
{
    const uint64_t *word = word_of(context, fd);
    if (word != NULL && (*word & bit_of(fd)) == 0) {
        mark(fd);
    }
}

void ucx_descriptors_note(struct ucx_descriptors *before)
{
    *before = (struct ucx_descriptors){.open = {0}};
    each_descriptor(note, before);
}

void ucx_descriptors_mark_new(const struct ucx_descriptors *before)
{
    each_descriptor(mark_new, (void *)(uintptr_t)before);
}

/* A TCP connection as UCX sets them up. One of the program's own may look the same; then its
 * children get it only if they are given it on purpose. */
static void mark_connection(int fd, void *context)
{
    (void)context;
    int type, at_once, flags = fcntl(fd, F_GETFL);
    socklen_t bytes = sizeof(int);
    if (flags >= 0 && (flags & O_NONBLOCK) != 0 &&
        getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &bytes) == 0 && type == SOCK_STREAM &&
        getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &at_once, &bytes) == 0 && at_once != 0) {
        mark(fd);
    }
}

/* What the worker waits for, its keepalive timer among them: UCX makes that one with the first
 * connection. The kernel lists an event set's descriptors as "tfd: NUMBER ...", proc(5). */
static void mark_watched(int event_set)
{
    char path[64], line[256];
    snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", event_set);
    FILE *list = fopen(path, "re");
    while (list != NULL && fgets(line, sizeof(line), list) != NULL) {
        int fd;
        if (sscanf(line, "tfd: %d", &fd) == 1) {
            mark(fd);
        }
    }
    if (list != NULL) {
        fclose(list);
    }
}

void ucx_descriptors_expect(struct ucx *ucx)
{
    ucx->sweep_at_ns = 0;
    ucx->sweep_gap_ns = SWEEP_GAP_FIRST_NS;
}

void ucx_descriptors_sweep(struct ucx *ucx)
{
    int64_t now_ns = clock_monotonic_ns();
    if (now_ns < ucx->sweep_at_ns) {
        return;
    }
    each_descriptor(mark_connection, NULL);
    mark_watched(ucx->wait_fd);
    ucx->sweep_at_ns = now_ns + ucx->sweep_gap_ns;
    ucx->sweep_gap_ns = ucx->sweep_gap_ns > SWEEP_GAP_LAST_NS ? 0 : ucx->sweep_gap_ns * 4;
}
