/* One name in a file:// directory: a file DIR/NAME.ferry whose first byte its owner holds locked as long as it lives. The
 * lock, not the file, says that the name is live, so what a killed process left behind is taken
 * over. */
#ifndef FERRY_NAMING_FILE_ENTRY_H
#define FERRY_NAMING_FILE_ENTRY_H

#include "naming/naming_backend.h"

#define FILE_ENTRY_SUFFIX ".ferry"

enum file_entry_state {
    ENTRY_ABSENT, /* or left behind by a dead process */
    ENTRY_LIVE,
    ENTRY_BROKEN /* live, but its content is not an agent's; the error is raised */
};

struct file_entry {
    uint64_t stamp; /* differs between two holders of one name */
    size_t bytes;
    uint8_t address[NAMING_ADDRESS_BYTES_MAX];
};

enum file_entry_state file_entry_read(const char *directory, const char *name,
                                      struct file_entry *entry_out);

/* Creates the name's file. fd_out holds the lock; closing it gives the name up. FERRY_ERR_NAME_TAKEN, FERRY_ERR_SYSTEM. */
ferry_status_t file_entry_create(const char *directory, const char *name, const void *address,
                                 size_t bytes, int *fd_out);
/* Unlinks the file if it is still the one behind fd, and closes fd. */
void file_entry_remove(const char *directory, const char *name, int fd);

#endif
