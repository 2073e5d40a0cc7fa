/* inproc://: names within this process. Agents of several threads meet in one directory; whoever changes it signals the
 * others, and each looks for its own news from its own poller. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <utlist.h>

#include "naming/naming_backend.h"

struct inproc {
    struct naming common;
    pid_t process; /* which process's directory it is in */
    bool live;     /* its name is in the directory; under the mutex, as the copies below */
    char name[NAMING_NAME_BYTES_MAX + 1];
    void *address; /* owned */
    size_t bytes;
    uint64_t stamp;
    uint64_t seen; /* directory version when it last looked; its own thread's */
    struct inproc *prev, *next;
};

static struct {
    pthread_mutex_t mutex;
    struct inproc *all; /* borrowed: every open inproc naming */
    uint64_t version;
    size_t live_count;
} directory = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* The agents of the parent do not exist in a child, and another thread may have held the mutex. */
static void directory_forget(void)
{
    pthread_mutex_init(&directory.mutex, NULL);
    directory.all = NULL;
    directory.live_count = 0;
}

static void directory_prepare(void)
{
    pthread_atfork(NULL, NULL, directory_forget);
}

static struct inproc *inproc_of(struct naming *naming)
{
    return (struct inproc *)(void *)naming;
}

static ferry_status_t inproc_open(struct naming *naming, const struct naming_options *options,
                                  const char *rest)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct inproc *self = inproc_of(naming);
    (void)options;
    if (*rest != '\0') {
        return error_raise(FERRY_ERR_CONFIG, "inproc://%s: nothing follows inproc://", rest);
    }
    pthread_once(&once, directory_prepare);
    self->process = getpid();
    pthread_mutex_lock(&directory.mutex);
    DL_APPEND(directory.all, self);
    pthread_mutex_unlock(&directory.mutex);
    naming_signal(naming); /* who is there already is news too */
    return FERRY_OK;
}

/* With the mutex held. */
static struct inproc *live_find(const char *name)
{
    struct inproc *other;
    DL_FOREACH(directory.all, other)
    {
        if (other->live && strcmp(other->name, name) == 0) {
            return other;
        }
    }
    return NULL;
}

/* With the mutex held. */
static void directory_changed(void)
{
    struct inproc *other;
    directory.version++;
    DL_FOREACH(directory.all, other)
    {
        naming_signal(&other->common);
    }
}

static ferry_status_t inproc_publish(struct naming *naming)
{
    struct inproc *self = inproc_of(naming);
    struct error_record error;
    void *copy = malloc(naming->address_bytes + 1);
    if (copy == NULL) {
        return error_raise(FERRY_ERR_NO_MEMORY, "no memory to publish '%s'", naming->name);
    }
    pthread_mutex_lock(&directory.mutex);
    const struct inproc *holder = live_find(naming->name);
    bool is_full = directory.live_count >= NAMING_MEMBERS_MAX;
    if (holder != NULL) {
        naming_taken_error(&error, naming->name, holder->address, holder->bytes);
    } else if (is_full) {
        error_record_set(&error, FERRY_ERR_LIMIT, FERRY_NOT_RUN,
                         "cannot publish '%s': this process has %d names", naming->name,
                         NAMING_MEMBERS_MAX);
    } else {
        memcpy(copy, naming->address, naming->address_bytes);
        self->address = copy;
        self->bytes = naming->address_bytes;
        strcpy(self->name, naming->name);
        self->live = true;
        directory.live_count++;
        directory_changed();
        self->stamp = directory.version;
    }
    pthread_mutex_unlock(&directory.mutex);
    if (holder != NULL || is_full) {
        free(copy);
        naming_published(naming, &error);
    } else {
        naming_published(naming, NULL);
    }
    return FERRY_OK;
}

static void inproc_withdraw(struct naming *naming)
{
    struct inproc *self = inproc_of(naming);
    if (self->process != getpid()) {
        return; /* a copy in a forked child: the name is the parent's */
    }
    pthread_mutex_lock(&directory.mutex);
    if (self->live) {
        self->live = false;
        directory.live_count--;
        directory_changed();
    }
    pthread_mutex_unlock(&directory.mutex);
    free(self->address);
    self->address = NULL;
}

static void inproc_close(struct naming *naming)
{
    struct inproc *self = inproc_of(naming);
    if (self->process == getpid()) {
        pthread_mutex_lock(&directory.mutex);
        DL_DELETE(directory.all, self);
        pthread_mutex_unlock(&directory.mutex);
    }
    free(self->address);
    self->address = NULL;
}

/* With the mutex held. Answers the query if it can be answered now. */
static void query_look_up(struct naming *naming, struct naming_query *query)
{
    const struct inproc *holder = live_find(query->name);
    if (holder != NULL) {
        naming_answer(naming, query, holder->address, holder->bytes);
        return;
    }
    if (query->wait) {
        return;
    }
    const char *nearest = NULL;
    struct inproc *other;
    DL_FOREACH(directory.all, other)
    {
        if (other->live) {
            const char *pair[2] = {nearest, other->name};
            nearest = nearest == NULL ? config_nearest(query->name, pair + 1, 1)
                                      : config_nearest(query->name, pair, 2);
        }
    }
    naming_fail_unknown(naming, query, nearest);
}

static void inproc_resolve(struct naming *naming, struct naming_query *query)
{
    pthread_mutex_lock(&directory.mutex);
    query_look_up(naming, query);
    pthread_mutex_unlock(&directory.mutex);
}

/* With the mutex held. */
static void members_look_up(struct naming *naming)
{
    struct naming_presence *present = calloc(directory.live_count + 1, sizeof *present);
    struct inproc *other;
    size_t count = 0;
    if (present == NULL) {
        return;
    }
    DL_FOREACH(directory.all, other)
    {
        if (other->live) {
            strcpy(present[count].name, other->name);
            present[count].stamp = other->stamp;
            count++;
        }
    }
    naming_members_apply(naming, present, count, directory.version);
    free(present);
}

static void inproc_poll(struct naming *naming)
{
    struct inproc *self = inproc_of(naming);
    struct naming_query *query;
    struct naming_query *next;
    if (self->process != getpid()) {
        return;
    }
    pthread_mutex_lock(&directory.mutex);
    if (self->seen != directory.version) {
        self->seen = directory.version;
        if (naming->tracks_members) {
            members_look_up(naming);
        }
        DL_FOREACH_SAFE(naming->pending, query, next)
        {
            query_look_up(naming, query);
        }
    }
    pthread_mutex_unlock(&directory.mutex);
}

const struct naming_backend NAMING_INPROC = {
    .scheme = "inproc",
    .form = "inproc://",
    .bytes = sizeof(struct inproc),
    .open = inproc_open,
    .close = inproc_close,
    .publish = inproc_publish,
    .withdraw = inproc_withdraw,
    .resolve = inproc_resolve,
    .poll = inproc_poll,
};
