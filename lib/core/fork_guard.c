/* Guarded descriptors, replaced in every forked child. */
#include "core/fork_guard.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/log.h"

static struct {
    pthread_mutex_t mutex;
    pthread_once_t once;
    int *fds; /* owned, for the life of the process */
    size_t count;
    size_t capacity;
} guard = {.mutex = PTHREAD_MUTEX_INITIALIZER, .once = PTHREAD_ONCE_INIT};

static void fork_prepare(void)
{
    pthread_mutex_lock(&guard.mutex);
}

static void fork_parent(void)
{
    pthread_mutex_unlock(&guard.mutex);
}

/* Only what is safe in the child of a process with threads. */
static void fork_child(void)
{
    int null_fd = guard.count > 0 ? open("/dev/null", O_RDWR | O_CLOEXEC) : -1;
    for (size_t i = 0; i < guard.count && null_fd >= 0; i++) {
        dup3(null_fd, guard.fds[i], O_CLOEXEC);
    }
    if (null_fd >= 0) {
        close(null_fd);
    }
    guard.count = 0;
    pthread_mutex_unlock(&guard.mutex);
}

static void guard_prepare(void)
{
    pthread_atfork(fork_prepare, fork_parent, fork_child);
}

void fork_guard_add(int fd)
{
    pthread_once(&guard.once, guard_prepare);
    pthread_mutex_lock(&guard.mutex);
    if (guard.count == guard.capacity) {
        size_t capacity = guard.capacity == 0 ? 64 : 2 * guard.capacity;
        int *fds = realloc(guard.fds, capacity * sizeof *fds);
        if (fds != NULL) {
            guard.fds = fds;
            guard.capacity = capacity;
        }
    }
    if (guard.count < guard.capacity) {
        guard.fds[guard.count++] = fd;
    } else {
        log_write(FERRY_LOG_WARN, "no memory to keep descriptor %d from forked children", fd);
    }
    pthread_mutex_unlock(&guard.mutex);
}

void fork_guard_remove(int fd)
{
    pthread_mutex_lock(&guard.mutex);
    for (size_t i = guard.count; i > 0; i--) {
        if (guard.fds[i - 1] == fd) {
            guard.fds[i - 1] = guard.fds[--guard.count];
            break;
        }
    }
    pthread_mutex_unlock(&guard.mutex);
}
