/* What connected idle peers cost an agent. Memory, for each peer: what is resident, the part of it
 * that UCX has for its endpoint, and the part that Ferry adds. Time: what the agent's threads use
 * of a CPU. The peers live in a process of their own and are reached over UCX; none is ever called.
 */
#include <ferry/ferry.h>
#include <ftw.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "idle_peers/heap.h"

#define SECOND INT64_C(1000000000)
#define WARM_UP 8 /* peers before the first measurement: what is there once has come */
#define BAR_KIB 16.0
#define BAR_PERCENT 1.0
#define IDLE_SECONDS 2
#define QUIET_MS 300 /* for what follows a connection, at both ends */

static const char USAGE[] =
    "usage: idle_peers [--peers N] [--bar]\n"
    "  --peers N   connected idle peers to measure, 1 to 1000 (64)\n"
    "  --bar       exit 1 if Ferry adds more than 16 KiB a peer or uses 1 % of a CPU\n"
    "  --help      this text\n";

struct measure {
    struct heap_use heap;
    size_t resident;
};

static void give_up(const char *what)
{
    fprintf(stderr, "idle_peers: %s: %s\n", what, ferry_last_error()->text);
    exit(1);
}

static ferry_agent_t *agent_make(const char *name, const char *naming)
{
    ferry_agent_options_t options = ferry_agent_options();
    ferry_agent_t *agent = NULL;
    options.name = name;
    options.naming = naming;
    if (ferry_config_create(&options.config) != FERRY_OK ||
        ferry_config_set(options.config, "FERRY_TRANSPORT", "ucx") != FERRY_OK ||
        ferry_agent_create(&options, &agent) != FERRY_OK || ferry_agent_start(agent) != FERRY_OK) {
        give_up(name);
    }
    return agent;
}

/* ---- the peers ---- */

static void peer_name(char name[24], size_t index)
{
    snprintf(name, 24, "peer-%zu", index);
}

/* Tells when they are there, and lives until the other end of `stay` closes. */
static int peers_run(const char *naming, size_t count, int ready, int stay)
{
    ferry_agent_t **agents = calloc(count, sizeof(ferry_agent_t *));
    char name[24], byte = 0;
    for (size_t i = 0; agents != NULL && i < count; i++) {
        peer_name(name, i);
        agents[i] = agent_make(name, naming);
    }
    bool told = agents != NULL && write(ready, &byte, 1) == 1;
    while (told && read(stay, &byte, 1) > 0) {
        /* nothing is ever written */
    }
    for (size_t i = 0; agents != NULL && i < count; i++) {
        ferry_agent_destroy(agents[i]);
    }
    free(agents);
    return !told;
}

/* ---- measuring ---- */

/* Rss of /proc/self/smaps_rollup. */
static size_t resident_bytes(void)
{
    char line[128];
    size_t kib = 0;
    FILE *file = fopen("/proc/self/smaps_rollup", "re");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        if (sscanf(line, "Rss: %zu kB", &kib) == 1) {
            break;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    return kib * 1024;
}

static void connect_peers(ferry_agent_t *hub, size_t first, size_t last)
{
    char name[24];
    for (size_t i = first; i < last; i++) {
        peer_name(name, i);
        if (ferry_agent_connect(hub, name, 30 * SECOND) != FERRY_OK) {
            give_up(name);
        }
    }
    nanosleep(&(struct timespec){.tv_nsec = QUIET_MS * 1000000L}, NULL);
}

static struct measure measure_now(void)
{
    return (struct measure){.heap = heap_measure(), .resident = resident_bytes()};
}

static double kib_each(size_t before, size_t after, size_t count)
{
    return ((double)after - (double)before) / 1024 / (double)count;
}

static double cpu_seconds(void)
{
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return (double)used.tv_sec + (double)used.tv_nsec / 1e9;
}

/* Of one CPU, by all threads of this process. */
static double idle_percent(void)
{
    double before = cpu_seconds();
    nanosleep(&(struct timespec){.tv_sec = IDLE_SECONDS}, NULL);
    return (cpu_seconds() - before) / IDLE_SECONDS * 100;
}

static const char *verdict(bool met)
{
    return met ? "met" : "missed";
}

static int hub_run(const char *naming, size_t count, bool bar)
{
    heap_prepare();
    ferry_agent_t *hub = agent_make("hub", naming);
    connect_peers(hub, 0, WARM_UP);
    struct measure before = measure_now();
    connect_peers(hub, WARM_UP, WARM_UP + count);
    struct measure after = measure_now();
    double ferry_kib = kib_each(before.heap.other, after.heap.other, count);
    double percent = idle_percent();
    bool small = ferry_kib <= BAR_KIB && after.heap.lost == 0, quiet = percent < BAR_PERCENT;
    printf("%zu idle peers, KiB each: %.1f resident in all; on the heap %.1f for UCX's endpoint, "
           "%.2f of Ferry's (bar %.0f: %s)\n",
           count, kib_each(before.resident, after.resident, count),
           kib_each(before.heap.ucx, after.heap.ucx, count), ferry_kib, BAR_KIB, verdict(small));
    printf("%zu idle peers: %.2f %% of a CPU (bar %.0f %%: %s)\n", WARM_UP + count, percent,
           BAR_PERCENT, verdict(quiet));
    if (after.heap.lost > 0) {
        fprintf(stderr, "idle_peers: %zu blocks were not counted; give fewer peers\n",
                after.heap.lost);
    }
    ferry_agent_destroy(hub);
    return bar && !(small && quiet);
}

static int remove_entry(const char *path, const struct stat *status, int kind, struct FTW *where)
{
    (void)status;
    (void)kind;
    (void)where;
    return remove(path);
}

static int run(size_t count, bool bar)
{
    char folder[] = "/tmp/idle_peers.XXXXXX", naming[64], byte;
    int ready[2], stay[2];
    if (mkdtemp(folder) == NULL || pipe(ready) != 0 || pipe(stay) != 0) {
        perror("idle_peers");
        return 1;
    }
    snprintf(naming, sizeof(naming), "file://%s", folder);
    pid_t child = fork(); /* before there is any agent */
    if (child == 0) {
        close(ready[0]);
        close(stay[1]);
        exit(peers_run(naming, WARM_UP + count, ready[1], stay[0]));
    }
    close(ready[1]);
    close(stay[0]);
    bool started = child > 0 && read(ready[0], &byte, 1) == 1;
    int failed = started ? hub_run(naming, count, bar) : 1;
    if (!started) {
        fprintf(stderr, "idle_peers: the peers did not start\n");
    }
    close(stay[1]);
    int status = 1;
    if (child > 0) {
        waitpid(child, &status, 0);
    }
    nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
    return failed != 0 || status != 0;
}

/* ---- the command line ---- */

static bool read_count(const char *text, size_t *count_out)
{
    char *end;
    unsigned long value = strtoul(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || value < 1 || value > 1000) {
        fprintf(stderr, "idle_peers: --peers %s: give a number from 1 to 1000\n", text);
        return false;
    }
    *count_out = value;
    return true;
}

int main(int argc, char **argv)
{
    static const struct option known[] = {
        {"peers", required_argument, NULL, 'p'},
        {"bar", no_argument, NULL, 'b'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    size_t count = 64;
    bool bar = false;
    int choice;
    opterr = 0;
    while ((choice = getopt_long(argc, argv, ":h", known, NULL)) != -1) {
        if (choice == 'h') {
            fputs(USAGE, stdout);
            return 0;
        }
        if (choice == '?' || choice == ':') {
            fprintf(stderr, "idle_peers: %s %s; --help lists the options\n", argv[optind - 1],
                    choice == ':' ? "wants a number" : "is no option");
            return 2;
        }
        if (choice == 'p' && !read_count(optarg, &count)) {
            return 2;
        }
        bar = bar || choice == 'b';
    }
    if (optind < argc) {
        fprintf(stderr, "idle_peers: '%s' is too much; --help lists the options\n", argv[optind]);
        return 2;
    }
    return run(count, bar);
}
