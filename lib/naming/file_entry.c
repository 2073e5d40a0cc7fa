/* Creating, reading and taking over a name's file. */
#include "naming/file_entry.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "naming/fields.h"

#define FILE_FORMAT_VERSION 1
#define FILE_BYTES_MAX (NAMING_ADDRESS_BYTES_MAX + 256)
#define TAKE_OVER_TRIES 1000

/* The owner's lock is on the first byte; the second is for whoever removes a dead owner's file, so
 * that two who find it dead do not remove each other's new one. Locks of open file descriptions are
 * used, because they can be asked about without being taken. */
enum lock_byte { LOCK_OWNER = 0, LOCK_REMOVER = 1 };

static struct flock lock_of(enum lock_byte byte)
{
    return (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
}

static bool lock_take(int fd, enum lock_byte byte)
{
    struct flock lock = lock_of(byte);
    return fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

static bool lock_is_held(int fd, enum lock_byte byte)
{
    struct flock lock = lock_of(byte);
    return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

static bool path_make(char path[PATH_MAX], const char *directory, const char *name)
{
    int length = snprintf(path, PATH_MAX, "%s/%s" FILE_ENTRY_SUFFIX, directory, name);
    return length > 0 && length < PATH_MAX;
}

/* ---- reading ---- */

static enum file_entry_state entry_broken(const char *path, const char *reason)
{
    error_raise(FERRY_ERR_NAMING, "%s: %s", path, reason);
    return ENTRY_BROKEN;
}

static enum file_entry_state entry_parse(const char *path, int fd, struct file_entry *entry_out)
{
    uint8_t content[FILE_BYTES_MAX];
    struct fields fields;
    const void *address = NULL;
    size_t bytes = 0;
    ssize_t got = pread(fd, content, sizeof content, 0);
    if (got < 0) {
        return entry_broken(path, strerror(errno));
    }
    if (!fields_open(&fields, content, (size_t)got)) {
        return entry_broken(path, "this is not the file of an agent's name");
    }
    bool is_good =
        fields_bytes(&fields, "address", &address, &bytes) && bytes <= NAMING_ADDRESS_BYTES_MAX;
    if (is_good) {
        memcpy(entry_out->address, address, bytes);
        entry_out->bytes = bytes;
    }
    fields_close(&fields);
    return is_good ? ENTRY_LIVE : entry_broken(path, "it has no usable address");
}

enum file_entry_state file_entry_read(const char *directory, const char *name,
                                      struct file_entry *entry_out)
{
    char path[PATH_MAX];
    struct stat info;
    enum file_entry_state state = ENTRY_ABSENT;
    if (!path_make(path, directory, name)) {
        return ENTRY_ABSENT;
    }
    /* Not blocking, in case somebody put a pipe there. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    if (fd < 0) {
        return errno == ENOENT ? ENTRY_ABSENT : entry_broken(path, strerror(errno));
    }
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        state = entry_broken(path, "this is not the file of an agent's name");
    } else if (lock_is_held(fd, LOCK_OWNER)) {
        state = entry_parse(path, fd, entry_out);
        entry_out->stamp = (uint64_t)info.st_ino * 1000003 + (uint64_t)info.st_mtim.tv_sec * 1009 +
                           (uint64_t)info.st_mtim.tv_nsec;
    }
    close(fd);
    return state;
}

/* ---- creating ---- */

static ferry_status_t content_write(int fd, const char *path, const char *name, const void *address,
                                    size_t bytes)
{
    struct fields_writer writer;
    fields_write(&writer, 4);
    fields_write_number(&writer, "version", FILE_FORMAT_VERSION);
    fields_write_text(&writer, "name", name);
    fields_write_number(&writer, "pid", (uint64_t)getpid());
    fields_write_bytes(&writer, "address", address, bytes);
    ferry_status_t status = FERRY_OK;
    if (writer.failed) {
        status = error_raise(FERRY_ERR_NO_MEMORY, "no memory to publish '%s'", name);
    } else {
        ssize_t put = write(fd, writer.buffer.data, writer.buffer.size);
        if (put != (ssize_t)writer.buffer.size) {
            status = error_raise_errno(put < 0 ? errno : ENOSPC, "cannot write %s", path);
        }
    }
    fields_write_finish(&writer);
    return status;
}

/* A file that nobody sees yet, locked and complete. */
static ferry_status_t draft_create(const char *directory, const char *name, const void *address,
                                   size_t bytes, char path[PATH_MAX], int *fd_out)
{
    uint64_t random = 0;
    if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random) {
        return error_raise_errno(errno, "cannot get random bytes");
    }
    int length = snprintf(path, PATH_MAX, "%s/.%016llx.new", directory, (unsigned long long)random);
    if (length >= PATH_MAX) {
        return error_raise(FERRY_ERR_CONFIG, "the directory's path is too long: %s", directory);
    }
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0) {
        return error_raise_errno(errno, "cannot create a file in %s", directory);
    }
    ferry_status_t status;
    if (!lock_take(fd, LOCK_OWNER)) {
        status = error_raise_errno(errno, "cannot lock a file in %s", directory);
        goto unlink_draft;
    }
    status = content_write(fd, path, name, address, bytes);
    if (status != FERRY_OK) {
        goto unlink_draft;
    }
    *fd_out = fd;
    return FERRY_OK;

unlink_draft:
    unlink(path);
    close(fd);
    return status;
}

static bool is_same_file(const char *path, int fd)
{
    struct stat here;
    struct stat there;
    return fstat(fd, &here) == 0 && stat(path, &there) == 0 && here.st_ino == there.st_ino &&
           here.st_dev == there.st_dev;
}

/* Removes the file of that path if its owner is dead. True: something changed, try again. False: the
 * owner lives, or (errno set) the file cannot be opened. */
static bool dead_remove(const char *path)
{
    bool is_changed = true;
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    if (fd < 0) {
        return errno == ENOENT;
    }
    if (lock_is_held(fd, LOCK_OWNER)) {
        is_changed = false;
        errno = 0;
    } else if (!lock_take(fd, LOCK_REMOVER)) {
        sched_yield(); /* another process removes it just now */
    } else if (is_same_file(path, fd)) {
        unlink(path);
    }
    close(fd);
    return is_changed;
}

static ferry_status_t taken_raise(const char *directory, const char *path, const char *name)
{
    struct file_entry entry;
    struct error_record error;
    if (file_entry_read(directory, name, &entry) == ENTRY_LIVE) {
        naming_taken_error(&error, name, entry.address, entry.bytes);
        return error_raise_record(&error);
    }
    return error_raise(FERRY_ERR_NAME_TAKEN, "the name '%s' is taken: %s exists", name, path);
}

ferry_status_t file_entry_create(const char *directory, const char *name, const void *address,
                                 size_t bytes, int *fd_out)
{
    char path[PATH_MAX];
    char draft[PATH_MAX];
    int fd = -1;
    if (!path_make(path, directory, name)) {
        return error_raise(FERRY_ERR_CONFIG, "the directory's path is too long: %s", directory);
    }
    ferry_status_t status = draft_create(directory, name, address, bytes, draft, &fd);
    if (status != FERRY_OK) {
        return status;
    }
    /* link() fails where the name exists, on every file system; the name appears complete. */
    int tries = 0;
    while (link(draft, path) != 0) {
        if (errno != EEXIST) {
            status = error_raise_errno(errno, "cannot create %s", path);
            break;
        }
        if (!dead_remove(path)) {
            status = errno == 0 ? taken_raise(directory, path, name)
                                : error_raise_errno(errno, "cannot open %s", path);
            break;
        }
        if (++tries == TAKE_OVER_TRIES) {
            status = taken_raise(directory, path, name);
            break;
        }
    }
    unlink(draft);
    if (status != FERRY_OK) {
        close(fd);
        return status;
    }
    *fd_out = fd;
    return FERRY_OK;
}

void file_entry_remove(const char *directory, const char *name, int fd)
{
    char path[PATH_MAX];
    /* Unlinked before the lock goes, so that nobody takes the file for a dead owner's meanwhile. */
    if (path_make(path, directory, name) && is_same_file(path, fd)) {
        unlink(path);
    }
    close(fd);
}
