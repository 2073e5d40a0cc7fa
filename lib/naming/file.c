/* file:///directory: a shared directory as the naming service. inotify tells of changes at once; a slow scan finds what it cannot
 * see, such as another machine's change on a network file system. */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utlist.h>

#include "core/fork_guard.h"
#include "core/log.h"
#include "naming/file_entry.h"

#define SCAN_NS 500000000

struct file {
    struct naming common;
    char *directory;             /* owned */
    int lock_fd;                 /* owned: the name we hold; -1 when none */
    pid_t process;               /* which process holds it */
    struct poller_source notify; /* owns its fd; -1 where inotify is not to be had */
    struct poller_timer scan;
};

static struct file *file_of(struct naming *naming)
{
    return (struct file *)(void *)naming;
}

/* ---- looking ---- */

/* Calls visit for every name whose file is there, live or not, until it returns false. */
static void names_visit(const char *directory, bool (*visit)(void *context, const char *name),
                        void *context)
{
    static const size_t suffix = sizeof FILE_ENTRY_SUFFIX - 1;
    DIR *open_directory = opendir(directory);
    if (open_directory == NULL) {
        return;
    }
    for (const struct dirent *e = readdir(open_directory); e != NULL; e = readdir(open_directory)) {
        char name[NAMING_NAME_BYTES_MAX + 1];
        size_t length = strlen(e->d_name);
        if (length <= suffix || length - suffix > NAMING_NAME_BYTES_MAX ||
            strcmp(e->d_name + length - suffix, FILE_ENTRY_SUFFIX) != 0) {
            continue;
        }
        memcpy(name, e->d_name, length - suffix);
        name[length - suffix] = '\0';
        if (!visit(context, name)) {
            break;
        }
    }
    closedir(open_directory);
}

struct nearest_search {
    const char *directory;
    const char *wanted;
    char nearest[NAMING_NAME_BYTES_MAX + 1];
    bool found;
};

static bool nearest_visit(void *context, const char *name)
{
    struct nearest_search *search = context;
    struct file_entry entry;
    const char *pair[2] = {search->nearest, name};
    const char *better = search->found ? config_nearest(search->wanted, pair, 2)
                                       : config_nearest(search->wanted, pair + 1, 1);
    if (better == name && file_entry_read(search->directory, name, &entry) == ENTRY_LIVE) {
        strcpy(search->nearest, name);
        search->found = true;
    }
    return true;
}

static void query_look_up(struct file *file, struct naming_query *query)
{
    struct file_entry entry;
    struct error_record error;
    struct error_record before;
    error_record_take(&before);
    switch (file_entry_read(file->directory, query->name, &entry)) {
    case ENTRY_LIVE:
        naming_answer(&file->common, query, entry.address, entry.bytes);
        break;
    case ENTRY_BROKEN:
        error_record_take(&error);
        error_raise_record(&before); /* it comes by event; the thread's own stays */
        naming_fail(&file->common, query, &error);
        break;
    case ENTRY_ABSENT:
        if (!query->wait) {
            struct nearest_search search = {.directory = file->directory, .wanted = query->name};
            names_visit(file->directory, nearest_visit, &search);
            naming_fail_unknown(&file->common, query, search.found ? search.nearest : NULL);
        }
        break;
    }
}

struct members_search {
    struct file *file;
    struct naming_presence *present; /* NAMING_MEMBERS_MAX of them */
    size_t count;
};

static bool member_visit(void *context, const char *name)
{
    struct members_search *search = context;
    struct file_entry entry;
    if (file_entry_read(search->file->directory, name, &entry) == ENTRY_LIVE) {
        struct naming_presence *presence = &search->present[search->count++];
        strcpy(presence->name, name);
        presence->stamp = entry.stamp;
    }
    return search->count < NAMING_MEMBERS_MAX;
}

static void members_look_up(struct file *file)
{
    struct members_search search = {.file = file};
    search.present = calloc(NAMING_MEMBERS_MAX, sizeof *search.present);
    if (search.present == NULL) {
        return;
    }
    names_visit(file->directory, member_visit, &search);
    naming_members_apply(&file->common, search.present, search.count, 0);
    free(search.present);
}

/* The scan runs only while somebody would hear of what it finds. */
static void scan_set(struct file *file)
{
    if (file->scan.slot != 0 || (file->common.pending == NULL && !file->common.tracks_members)) {
        return;
    }
    int64_t now_ns = clock_now_ns(&file->common.clock);
    if (poller_timer_set(file->common.poller, &file->scan, clock_deadline_ns(now_ns, SCAN_NS)) !=
        FERRY_OK) {
        log_write(FERRY_LOG_ERROR, "%s: %s", file->directory, ferry_last_error()->text);
    }
    poller_wake(file->common.poller); /* whoever sleeps must learn of the timer */
}

static void review(struct file *file)
{
    struct naming_query *query;
    struct naming_query *next;
    struct error_record before;
    error_record_take(&before); /* whoever drives the poller did not fail */
    DL_FOREACH_SAFE(file->common.pending, query, next)
    {
        query_look_up(file, query);
    }
    if (file->common.tracks_members) {
        members_look_up(file);
    }
    scan_set(file);
    error_raise_record(&before);
}

static void scan_fire(void *context)
{
    review(context);
}

static void notify_ready(void *context, uint32_t events)
{
    struct file *file = context;
    char buffer[4096];
    (void)events;
    /* Which file it was does not matter: looking at all costs little and misses nothing. */
    while (read(file->notify.fd, buffer, sizeof buffer) > 0) {
    }
    review(file);
}

/* ---- life ---- */

static void notify_open(struct file *file)
{
    file->notify =
        (struct poller_source){.events = EPOLLIN, .ready = notify_ready, .context = file};
    file->notify.fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    /* A process that dies closes the file that it holds, which is what IN_CLOSE_WRITE tells. */
    if (file->notify.fd < 0 ||
        inotify_add_watch(file->notify.fd, file->directory,
                          IN_CREATE | IN_DELETE | IN_MOVED_TO | IN_CLOSE_WRITE) < 0 ||
        poller_add(file->common.poller, &file->notify) != FERRY_OK) {
        log_write(FERRY_LOG_INFO, "file://%s: no inotify (%s); scanning instead", file->directory,
                  strerror(errno));
        if (file->notify.fd >= 0) {
            close(file->notify.fd);
            file->notify.fd = -1;
        }
    }
}

static ferry_status_t directory_check(const char *directory)
{
    struct stat info;
    if (mkdir(directory, 0777) != 0 && errno != EEXIST) {
        return error_raise_errno(errno, "file://%s: cannot create the directory", directory);
    }
    if (stat(directory, &info) != 0) {
        return error_raise_errno(errno, "file://%s", directory);
    }
    if (!S_ISDIR(info.st_mode)) {
        return error_raise_errno(ENOTDIR, "file://%s", directory);
    }
    if (access(directory, R_OK | W_OK | X_OK) != 0) {
        return error_raise_errno(errno, "file://%s: names cannot be written there", directory);
    }
    return FERRY_OK;
}

static ferry_status_t file_open(struct naming *naming, const struct naming_options *options,
                                const char *rest)
{
    struct file *file = file_of(naming);
    (void)options;
    file->lock_fd = -1;
    file->notify.fd = -1;
    file->scan.fire = scan_fire;
    file->scan.context = file;
    if (*rest != '/') {
        return error_raise(FERRY_ERR_CONFIG,
                           "file://%s: the directory must be absolute; write file:///dir, with "
                           "three slashes",
                           rest);
    }
    ferry_status_t status = directory_check(rest);
    if (status != FERRY_OK) {
        return status;
    }
    file->directory = strdup(rest);
    if (file->directory == NULL) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory to open file://%s", rest);
    }
    notify_open(file);
    naming_signal(naming); /* who is there already is news too */
    return FERRY_OK;
}

static void file_withdraw(struct naming *naming)
{
    struct file *file = file_of(naming);
    if (file->lock_fd < 0) {
        return;
    }
    fork_guard_remove(file->lock_fd);
    if (file->process == getpid()) {
        file_entry_remove(file->directory, naming->name, file->lock_fd);
    } else {
        close(file->lock_fd); /* a copy in a forked child: the name is the parent's */
    }
    file->lock_fd = -1;
}

static void file_close(struct naming *naming)
{
    struct file *file = file_of(naming);
    poller_timer_clear(naming->poller, &file->scan);
    poller_remove(naming->poller, &file->notify);
    if (file->notify.fd >= 0) {
        close(file->notify.fd);
    }
    free(file->directory);
    file->directory = NULL;
}

static ferry_status_t file_publish(struct naming *naming)
{
    struct file *file = file_of(naming);
    struct error_record before;
    struct error_record error;
    error_record_take(&before);
    if (file_entry_create(file->directory, naming->name, naming->address, naming->address_bytes,
                          &file->lock_fd) != FERRY_OK) {
        error_record_take(&error);
        error_raise_record(&before); /* it comes by event; the thread's own stays */
        file->lock_fd = -1;
        naming_published(naming, &error);
        return FERRY_OK;
    }
    file->process = getpid();
    fork_guard_add(file->lock_fd);
    naming_published(naming, NULL);
    return FERRY_OK;
}

static void file_resolve(struct naming *naming, struct naming_query *query)
{
    query_look_up(file_of(naming), query);
    scan_set(file_of(naming));
}

static void file_poll(struct naming *naming)
{
    struct file *file = file_of(naming);
    if (naming->tracks_members && file->scan.slot == 0) {
        review(file); /* the first look; from here on the scan and inotify do it */
    }
}

const struct naming_backend NAMING_FILE = {
    .scheme = "file",
    .form = "file:///directory",
    .bytes = sizeof(struct file),
    .open = file_open,
    .close = file_close,
    .publish = file_publish,
    .withdraw = file_withdraw,
    .resolve = file_resolve,
    .poll = file_poll,
};
