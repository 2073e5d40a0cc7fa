/* file://: names in a shared directory, of processes that live, die, race and leave rubbish. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/naming_party.h"

static char directory[64];
static char url[128];

static void setup(void)
{
    strcpy(directory, "/tmp/ferry-names-XXXXXX");
    cr_assert_not_null(mkdtemp(directory));
    snprintf(url, sizeof url, "file://%s", directory);
}

static unsigned directory_entries(const char *path, bool remove)
{
    unsigned count = 0;
    DIR *open_directory = opendir(path);
    for (struct dirent *e = readdir(open_directory); e != NULL; e = readdir(open_directory)) {
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) {
            count++;
            if (remove) {
                unlinkat(dirfd(open_directory), e->d_name, 0);
            }
        }
    }
    closedir(open_directory);
    return count;
}

static void teardown(void)
{
    directory_entries(directory, true);
    rmdir(directory);
}

TestSuite(naming_file, .init = setup, .fini = teardown, .timeout = 60);

static void expect_text(const char *text, const char *part)
{
    cr_assert_not_null(strstr(text, part), "'%s' lacks '%s'", text, part);
}

static struct party *party_new(void)
{
    struct party *party = calloc(1, sizeof *party);
    cr_assert_not_null(party);
    cr_assert(party_open(party, url, false, NULL), "%s", ferry_last_error()->text);
    return party;
}

static void party_free(struct party *party)
{
    party_close(party);
    free(party);
}

static void publish(struct party *party, const char *name, const char *address)
{
    unsigned before = party->published;
    cr_assert_eq(party_publish(party, name, address), FERRY_OK);
    cr_assert(party_await_published(party, before + 1));
}

static const struct party_answer *resolve(struct party *party, const char *name, bool wait)
{
    unsigned before = party->answered;
    cr_assert_eq(party_resolve(party, name, wait), FERRY_OK);
    cr_assert(party_await_answers(party, before + 1));
    return &party->answers[before];
}

Test(naming_file, publish_resolve_withdraw)
{
    struct party *a = party_new();
    struct party *b = party_new();
    publish(a, "ps", "ps:1");
    cr_assert_eq(a->published_error.status, FERRY_OK);
    cr_assert_str_eq(resolve(b, "ps", false)->address, "ps:1");
    cr_assert_str_eq(resolve(a, "ps", true)->address, "ps:1");
    cr_assert_eq(directory_entries(directory, false), 1, "one file a name, no drafts left");

    const struct party_answer *unknown = resolve(b, "sp", false);
    cr_assert_eq(unknown->error.status, FERRY_ERR_UNKNOWN_PEER);
    naming_withdraw(a->naming);
    cr_assert_eq(directory_entries(directory, false), 0);
    cr_assert_eq(resolve(b, "ps", false)->error.status, FERRY_ERR_UNKNOWN_PEER);
    cr_assert_not(a->was_inside || b->was_inside);
    party_free(a);
    party_free(b);
}

Test(naming_file, odd_names_are_just_names)
{
    struct party *a = party_new();
    publish(a, "..", "dots");
    cr_assert_eq(a->published_error.status, FERRY_OK);
    cr_assert_str_eq(resolve(a, "..", false)->address, "dots");
    naming_withdraw(a->naming);
    publish(a, ".ferry.ferry", "x");
    cr_assert_str_eq(resolve(a, ".ferry.ferry", false)->address, "x");
    party_free(a);
    cr_assert_eq(directory_entries(directory, false), 0);
}

Test(naming_file, name_taken_names_the_holder)
{
    struct party *a = party_new();
    struct party *b = party_new();
    publish(a, "ps", "holder:1");
    publish(b, "ps", "other:2");
    cr_assert_eq(b->published_error.status, FERRY_ERR_NAME_TAKEN);
    expect_text(b->published_error.text, "'ps'");
    expect_text(b->published_error.text, "holder:1");
    cr_assert_eq(directory_entries(directory, false), 1);
    cr_assert_str_eq(resolve(b, "ps", false)->address, "holder:1");
    party_free(a);
    publish(b, "ps", "other:2");
    cr_assert_eq(b->published_error.status, FERRY_OK);
    party_free(b);
}

Test(naming_file, nearest_of_the_living)
{
    struct party *a = party_new();
    struct party *b = party_new();
    publish(a, "parameter_server", "x");
    const struct party_answer *answer = resolve(b, "parameter-server", false);
    cr_assert_eq(answer->error.status, FERRY_ERR_UNKNOWN_PEER);
    expect_text(answer->error.text, "did you mean 'parameter_server'?");
    party_free(a);
    answer = resolve(b, "parameter-server", false);
    cr_assert_null(strstr(answer->error.text, "mean"));
    party_free(b);
}

/* A process that holds a name until it is killed. */
static pid_t holder_fork(const char *name)
{
    int ready[2];
    char byte;
    cr_assert_eq(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        struct party *self = calloc(1, sizeof *self);
        if (self == NULL || !party_open(self, url, false, NULL)) {
            _exit(1);
        }
        party_publish(self, name, name);
        if (!party_await_published(self, 1) || self->published_error.status != FERRY_OK ||
            write(ready[1], "x", 1) != 1) {
            _exit(1);
        }
        for (;;) {
            pause();
        }
    }
    close(ready[1]);
    cr_assert_eq(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    return child;
}

Test(naming_file, a_dead_process_leaves_and_its_name_is_free)
{
    struct party *a = party_new();
    pid_t child = holder_fork("ps");
    cr_assert_str_eq(resolve(a, "ps", false)->address, "ps");
    cr_assert(party_await_members(a, "+ps"), "%s", a->members);
    publish(a, "ps", "too early");
    cr_assert_eq(a->published_error.status, FERRY_ERR_NAME_TAKEN);

    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    cr_assert_eq(directory_entries(directory, false), 1, "its file is still there");
    cr_assert_eq(resolve(a, "ps", false)->error.status, FERRY_ERR_UNKNOWN_PEER);
    cr_assert(party_await_members(a, "+ps -ps"), "%s", a->members);
    publish(a, "ps", "heir");
    cr_assert_eq(a->published_error.status, FERRY_OK);
    cr_assert_str_eq(resolve(a, "ps", false)->address, "heir");
    cr_assert(party_await_members(a, "+ps -ps +ps"), "%s", a->members);
    cr_assert(a->version_grew);
    party_free(a);
}

/* Of several that find a dead one's file at the same time exactly one takes the name over. */
Test(naming_file, heirs_race_and_one_wins)
{
    for (int round = 0; round < 10; round++) {
        enum { HEIRS = 6 };
        pid_t dead = holder_fork("ps");
        kill(dead, SIGKILL);
        waitpid(dead, NULL, 0);
        int go[2];
        int hold[2];
        pid_t heirs[HEIRS];
        unsigned won = 0;
        cr_assert_eq(pipe(go), 0);
        cr_assert_eq(pipe(hold), 0);
        for (int i = 0; i < HEIRS; i++) {
            heirs[i] = fork();
            if (heirs[i] == 0) {
                char byte;
                struct party *self = calloc(1, sizeof *self);
                close(go[1]);
                close(hold[1]);
                if (self == NULL || !party_open(self, url, false, NULL) ||
                    read(go[0], &byte, 1) != 0) {
                    _exit(9);
                }
                party_publish(self, "ps", "heir");
                party_await_published(self, 1);
                bool is_ours = self->published_error.status == FERRY_OK;
                if (!is_ours && self->published_error.status != FERRY_ERR_NAME_TAKEN) {
                    _exit(8);
                }
                if (is_ours && read(hold[0], &byte, 1) != 0) {
                    _exit(7);
                }
                party_close(self);
                _exit(is_ours ? 1 : 0);
            }
        }
        close(go[0]);
        close(hold[0]);
        close(go[1]);
        /* The losers end; then the winner is let go. */
        for (int ended = 0; ended < HEIRS; ended++) {
            int result = -1;
            if (ended == HEIRS - 1) {
                close(hold[1]);
            }
            cr_assert_gt(waitpid(-1, &result, 0), 0);
            cr_assert(WIFEXITED(result) && WEXITSTATUS(result) <= 1, "%x", result);
            won += (unsigned)WEXITSTATUS(result);
        }
        cr_assert_eq(won, 1);
        cr_assert_eq(directory_entries(directory, false), 0);
    }
}

Test(naming_file, waits_end_when_another_process_publishes)
{
    struct party *a = party_new();
    party_resolve(a, "late", true);
    party_resolve(a, "never", true);
    party_serve_for(a, 1000000);
    cr_assert_eq(a->answered, 0);
    pid_t child = holder_fork("late");
    cr_assert(party_await_answers(a, 1));
    cr_assert_str_eq(a->answers[0].address, "late");
    naming_resolve_cancel(a->naming, "never");
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    party_free(a);
}

Test(naming_file, a_name_does_not_outlive_its_process_in_a_forked_child)
{
    int hold[2];
    cr_assert_eq(pipe(hold), 0);
    struct party *a = party_new();
    pid_t child = fork();
    if (child == 0) {
        struct party *self = calloc(1, sizeof *self);
        if (self != NULL && party_open(self, url, false, NULL)) {
            party_publish(self, "parent", "x");
            party_await_published(self, 1);
        }
        if (fork() == 0) { /* lives on, with copies of every descriptor */
            char byte;
            close(hold[1]);
            ssize_t got = read(hold[0], &byte, 1);
            (void)got;
            party_close(self);
        }
        _exit(0);
    }
    waitpid(child, NULL, 0);
    /* The grandchild lets go as soon as it runs at all. */
    int64_t end_ns = clock_monotonic_ns() + 15000000000;
    while (resolve(a, "parent", false)->error.status != FERRY_ERR_UNKNOWN_PEER) {
        cr_assert_lt(clock_monotonic_ns(), end_ns);
        a->answered = 0;
    }
    publish(a, "parent", "heir");
    cr_assert_eq(a->published_error.status, FERRY_OK);
    close(hold[0]);
    close(hold[1]); /* the grandchild closes its copy, which must not take the heir's file away */
    cr_assert_str_eq(resolve(a, "parent", false)->address, "heir");
    party_free(a);
}

Test(naming_file, directories_of_no_use)
{
    struct party *party = calloc(1, sizeof *party);
    static const struct {
        const char *url, *part;
    } cases[] = {
        {"file:///nonexistent/deep/dir", "No such file"},
        {"file:///dev/null", "Not a directory"},
        {"file:///proc", "proc"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (strcmp(cases[i].url, "file:///proc") == 0) {
            /* Nobody can create files there, root included; that shows when publishing. */
            if (party_open(party, cases[i].url, false, NULL)) {
                party_publish(party, "x", "x");
                cr_assert(party_await_published(party, 1));
                cr_assert_eq(party->published_error.status, FERRY_ERR_SYSTEM);
                expect_text(party->published_error.text, cases[i].part);
                party_close(party);
            }
            continue;
        }
        cr_assert_not(party_open(party, cases[i].url, false, NULL), "%s", cases[i].url);
        cr_assert_eq(ferry_last_error()->status, FERRY_ERR_SYSTEM);
        expect_text(ferry_last_error()->text, cases[i].url);
        expect_text(ferry_last_error()->text, cases[i].part);
    }
    free(party);
}

Test(naming_file, a_missing_directory_is_made)
{
    char inner[96];
    snprintf(inner, sizeof inner, "%s/run7", directory);
    snprintf(url, sizeof url, "file://%s", inner);
    struct party *a = party_new();
    publish(a, "ps", "x");
    cr_assert_eq(a->published_error.status, FERRY_OK);
    party_free(a);
    cr_assert_eq(rmdir(inner), 0);
}

/* Other things in the directory are not names, and a locked file of nonsense is an error that shows it. */
Test(naming_file, rubbish)
{
    char path[128];
    static const char content[] = "\xdf\xff\xff\xff\xff this is no agent's file";
    snprintf(path, sizeof path, "%s/rubbish.ferry", directory);
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    cr_assert_eq(write(fd, content, sizeof content), (ssize_t)sizeof content);
    snprintf(path, sizeof path, "%s/pipe.ferry", directory);
    cr_assert_eq(mkfifo(path, 0600), 0);
    snprintf(path, sizeof path, "%s/link.ferry", directory);
    cr_assert_eq(symlink("/dev/zero", path), 0);
    snprintf(path, sizeof path, "%s/notes.txt", directory);
    close(open(path, O_RDWR | O_CREAT, 0600));

    struct party *a = party_new();
    cr_assert_eq(resolve(a, "rubbish", false)->error.status, FERRY_ERR_UNKNOWN_PEER);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
    cr_assert_eq(fcntl(fd, F_OFD_SETLK, &lock), 0);
    error_raise(FERRY_ERR_BUSY, "untouched");
    const struct party_answer *answer = resolve(a, "rubbish", true);
    cr_assert_eq(answer->error.status, FERRY_ERR_NAMING);
    expect_text(answer->error.text, "rubbish.ferry");
    cr_assert_eq(resolve(a, "pipe", false)->error.status, FERRY_ERR_NAMING);
    cr_assert_eq(resolve(a, "link", false)->error.status, FERRY_ERR_NAMING);
    cr_assert_str_eq(ferry_last_error()->text, "untouched");
    publish(a, "rubbish", "x");
    cr_assert_eq(a->published_error.status, FERRY_ERR_NAME_TAKEN);
    close(fd); /* now it is what a dead process left */
    publish(a, "rubbish", "x");
    cr_assert_eq(a->published_error.status, FERRY_OK);
    cr_assert_str_eq(resolve(a, "rubbish", false)->address, "x");
    cr_assert(party_await_members(a, "+rubbish"), "%s", a->members);
    party_free(a);
}

/* A network file system's changes are not told to inotify; a scan is set as long as somebody waits. */
Test(naming_file, a_scan_backs_inotify_up)
{
    struct party *a = calloc(1, sizeof *a);
    cr_assert(party_open_without_members(a, url, false));
    cr_assert_eq(poller_next_deadline_ns(a->poller), FERRY_FOREVER);
    party_resolve(a, "ps", true);
    cr_assert_neq(poller_next_deadline_ns(a->poller), FERRY_FOREVER);
    party_free(a);
}
