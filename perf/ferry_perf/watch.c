/* Ends this process when the other end is gone and nothing else noticed: a test may be inside a
 * library that waits for ever. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "core/error.h"
#include "ferry_perf/frame.h"

#define GRACE_MS 3000

static struct {
    pthread_t thread;
    int socket; /* a duplicate, owned; -1: no thread runs */
    int stop;   /* an eventfd, owned */
    const char *other;
} watch = {.socket = -1};

static void *watch_run(void *unused)
{
    (void)unused;
    struct pollfd sources[2] = {{.fd = watch.stop, .events = POLLIN},
                                {.fd = watch.socket, .events = POLLRDHUP}};
    while (poll(sources, 2, -1) < 0 && errno == EINTR) {
    }
    if (sources[0].revents == 0 && poll(sources, 1, GRACE_MS) == 0) {
        fprintf(stderr, "ferry_perf: the %s is gone\n", watch.other);
        _exit(1);
    }
    return NULL;
}

ferry_status_t perf_watch_start(int fd, const char *other)
{
    watch.other = other;
    watch.stop = eventfd(0, EFD_CLOEXEC);
    watch.socket = dup(fd);
    int failed = watch.stop < 0 || watch.socket < 0
                     ? errno
                     : pthread_create(&watch.thread, NULL, watch_run, NULL);
    if (failed != 0) {
        close(watch.stop);
        close(watch.socket);
        watch.socket = -1;
        return error_raise_errno(failed, "cannot watch the control connection");
    }
    return FERRY_OK;
}

void perf_watch_stop(void)
{
    if (watch.socket >= 0) {
        eventfd_write(watch.stop, 1);
        pthread_join(watch.thread, NULL);
        close(watch.stop);
        close(watch.socket);
        watch.socket = -1;
    }
}
