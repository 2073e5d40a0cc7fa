/* Who is there: the members that a naming service has told us of, and what follows from them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

/* A member that does not fit into memory is left out rather than ending the process. */
#define HASH_NONFATAL_OOM 1

#include "core/log.h"
#include "naming/naming_backend.h"

struct naming_change {
    char name[NAMING_NAME_BYTES_MAX + 1];
    bool joined;
    uint64_t version;
    struct naming_change *prev, *next;
};

void naming_hand_out_changes(struct naming *naming)
{
    while (!naming->closed && naming->changes != NULL) {
        struct naming_change *change = naming->changes;
        DL_DELETE(naming->changes, change);
        naming->events.member(naming->events.context, change->name, change->joined,
                              change->version);
        free(change);
    }
}

void naming_changes_drop(struct naming *naming)
{
    struct naming_change *change;
    struct naming_change *next;
    DL_FOREACH_SAFE(naming->changes, change, next)
    {
        free(change);
    }
    naming->changes = NULL;
}

void naming_members_drop(struct naming *naming)
{
    struct naming_member *member;
    struct naming_member *next;
    HASH_ITER(hh, naming->members, member, next)
    {
        HASH_DEL(naming->members, member);
        free(member);
    }
}

/* version: the service's own where it has one; events never repeat or go back, also when a service
 * was restarted and counts from 1 again. */
static void change_note(struct naming *naming, const char *name, bool joined, uint64_t version)
{
    naming->version = version > naming->version ? version : naming->version + 1;
    if (naming->events.member == NULL) {
        return;
    }
    struct naming_change *change = calloc(1, sizeof *change);
    if (change == NULL) {
        log_write(FERRY_LOG_ERROR, "no memory to report that '%s' %s", name,
                  joined ? "joined" : "left");
        return;
    }
    strcpy(change->name, name);
    change->joined = joined;
    change->version = naming->version;
    DL_APPEND(naming->changes, change);
    naming_signal(naming);
}

static void member_remove(struct naming *naming, struct naming_member *member, uint64_t version)
{
    HASH_DEL(naming->members, member);
    change_note(naming, member->name, false, version);
    free(member);
}

static void member_add(struct naming *naming, const char *name, uint64_t stamp, uint64_t version)
{
    struct naming_member *member = calloc(1, sizeof *member);
    if (member != NULL) {
        strcpy(member->name, name);
        member->stamp = stamp;
        member->present = true;
        HASH_ADD_STR(naming->members, name, member);
    }
    if (member == NULL || member->hh.tbl == NULL) {
        log_write(FERRY_LOG_ERROR, "no memory to remember the member '%s'", name);
        free(member);
        return;
    }
    change_note(naming, name, true, version);
}

/* In a fixed group a change may have made it clear that nobody will ever have a name that is waited
 * for. */
static void pending_review(struct naming *naming)
{
    struct naming_query *query;
    struct naming_query *next;
    struct error_record before;
    struct error_record error;
    if (naming->group_size == 0) {
        return;
    }
    error_record_take(&before);
    DL_FOREACH_SAFE(naming->pending, query, next)
    {
        if (query->wait && naming_check_member(naming, query->name) != FERRY_OK) {
            error_record_take(&error);
            if (naming->backend->forget != NULL) {
                naming->backend->forget(naming, query);
            }
            naming_fail(naming, query, &error);
        }
    }
    error_raise_record(&before);
}

void naming_member_change(struct naming *naming, const char *name, bool joined, uint64_t stamp,
                          uint64_t version)
{
    struct naming_member *member;
    HASH_FIND_STR(naming->members, name, member);
    if (member != NULL && (!joined || member->stamp != stamp)) {
        member_remove(naming, member, version);
        member = NULL;
    }
    if (joined && member == NULL) {
        member_add(naming, name, stamp, version);
        pending_review(naming);
    }
}

void naming_members_apply(struct naming *naming, const struct naming_presence *present,
                          size_t count, uint64_t version)
{
    struct naming_member *member;
    struct naming_member *next;
    for (member = naming->members; member != NULL; member = member->hh.next) {
        member->present = false;
    }
    for (size_t i = 0; i < count; i++) {
        HASH_FIND_STR(naming->members, present[i].name, member);
        if (member != NULL && member->stamp == present[i].stamp) {
            member->present = true;
        }
    }
    HASH_ITER(hh, naming->members, member, next)
    {
        if (!member->present) {
            member_remove(naming, member, 0);
        }
    }
    for (size_t i = 0; i < count; i++) {
        HASH_FIND_STR(naming->members, present[i].name, member);
        if (member == NULL) {
            member_add(naming, present[i].name, present[i].stamp, 0);
        }
    }
    if (version > naming->version) {
        naming->version = version;
    }
    pending_review(naming);
}

/* ---- fixed groups ---- */

/* N of "workerN", or -1. */
static int64_t worker_number(const char *name)
{
    static const char prefix[] = "worker";
    size_t prefix_bytes = sizeof prefix - 1;
    if (strncmp(name, prefix, prefix_bytes) != 0) {
        return -1;
    }
    const char *digits = name + prefix_bytes;
    size_t count = strspn(digits, "0123456789");
    if (count == 0 || count > 18 || digits[count] != '\0') {
        return -1;
    }
    return strtoll(digits, NULL, 10);
}

/* The nearest of the members, else of worker0 .. workerN-1; in buffer, or NULL. */
static const char *group_nearest(const struct naming *naming, const char *name,
                                 char buffer[NAMING_NAME_BYTES_MAX + 1])
{
    const char *best = NULL;
    for (const struct naming_member *m = naming->members; m != NULL; m = m->hh.next) {
        const char *pair[2] = {best, m->name};
        best = best == NULL ? config_nearest(name, pair + 1, 1) : config_nearest(name, pair, 2);
    }
    if (best != NULL) {
        return best;
    }
    for (int64_t i = naming->group_size - 1; i >= 0 && i >= naming->group_size - 64; i--) {
        const char *candidate = buffer;
        snprintf(buffer, NAMING_NAME_BYTES_MAX + 1, "worker%lld", (long long)i);
        if (config_nearest(name, &candidate, 1) != NULL) {
            return buffer;
        }
    }
    return NULL;
}

ferry_status_t naming_check_member(const struct naming *naming, const char *name)
{
    struct naming_member *member;
    char buffer[NAMING_NAME_BYTES_MAX + 1];
    if (naming->group_size == 0 || (naming->publishing && strcmp(naming->name, name) == 0)) {
        return FERRY_OK;
    }
    HASH_FIND_STR(naming->members, name, member);
    if (member != NULL) {
        return FERRY_OK;
    }
    bool is_outside = worker_number(name) >= naming->group_size;
    bool is_complete = (int64_t)HASH_COUNT(naming->members) >= naming->group_size;
    if (!is_outside && !is_complete) {
        return FERRY_OK;
    }
    const char *nearest = group_nearest(naming, name, buffer);
    return error_raise(FERRY_ERR_UNKNOWN_PEER,
                       "no agent of this group of %lld (WORLD_SIZE) %s called '%s'%s%s%s",
                       (long long)naming->group_size, is_complete ? "is" : "can be", name,
                       nearest != NULL ? "; did you mean '" : "", nearest != NULL ? nearest : "",
                       nearest != NULL ? "'?" : "");
}
