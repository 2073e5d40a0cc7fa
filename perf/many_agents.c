/* Many agents in one process: what an empty call costs when hundreds of them call one another, beside
 * the same among a few. Inproc, manual progress, two threads; every agent calls every other in
 * turn.
 * Both groups are connected first and measured in turn; the figures are medians. */
#include <ferry/ferry.h>
#include <getopt.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define THREADS 2
#define GROUPS 2
#define WINDOW_MAX 64
#define ROUNDS_MAX 99
#define DIALS 8 /* an agent has under way at once */
#define NAME_BYTES 24
#define RATIO_BAR 4.0

static const char USAGE[] =
    "usage: many_agents [--agents N] [--few N] [--calls N] [--window N] [--rounds N] [--bar]\n"
    "  --agents N   agents of the large group, 2 to 4000 (512)\n"
    "  --few N      agents of the small group beside it, 2 to 4000 (8)\n"
    "  --calls N    calls in one measurement of a group, 1000 to 100000000 (1000000)\n"
    "  --window N   calls that an agent has in flight, 1 to 64 (4)\n"
    "  --rounds N   measurements of each group, in turn; medians are shown, 1 to 99 (5)\n"
    "  --bar        exit 1 if a call costs more than 4 times as much in the large group\n"
    "  --help       this text\n";

struct options {
    size_t count[GROUPS]; /* of agents: few, many */
    size_t calls, window, rounds;
    bool bar;
};

/* One agent and what its thread has under way for it. */
struct member {
    ferry_agent_t *agent;
    struct group *group;
    size_t index;
    size_t next;                         /* whom it dials or calls next, counted from itself */
    size_t dialling;                     /* connections under way */
    ferry_future_t *futures[WINDOW_MAX]; /* NULL: free */
    char name[NAME_BYTES];
};

struct group {
    size_t count;
    struct member *members;
    size_t window;
    double connect_us; /* a link */
    double call_us[ROUNDS_MAX];
};

/* A thread and its share of a group's agents. On lines of their own: the other reads finished. */
struct worker {
    _Alignas(128) atomic_size_t finished; /* links made or calls answered */
    struct group *group;
    const struct worker *other;
    pthread_t thread;
    int cpu;
    size_t first, last; /* members [first, last) */
    size_t quota, goal; /* things to do for this thread, and for both */
    size_t started;
};

static double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static void give_up(const char *what)
{
    fprintf(stderr, "many_agents: %s: %s\n", what, ferry_last_error()->text);
    exit(1);
}

/* ---- agents ---- */

static ferry_status_t answer_nothing(ferry_request_t *request, void *context)
{
    (void)context;
    return ferry_request_reply(request, NULL);
}

static ferry_agent_t *agent_make(const char *name)
{
    ferry_agent_options_t options = ferry_agent_options();
    ferry_method_options_t quick = ferry_method_options();
    options.name = name;
    options.naming = "inproc://";
    quick.run_inline = true;
    ferry_agent_t *agent = NULL;
    if (ferry_config_create(&options.config) != FERRY_OK ||
        ferry_config_set(options.config, "FERRY_TRANSPORT", "inproc") != FERRY_OK ||
        ferry_config_set(options.config, "FERRY_PROGRESS", "manual") != FERRY_OK ||
        ferry_agent_create(&options, &agent) != FERRY_OK ||
        ferry_agent_register_with(agent, "nothing", answer_nothing, NULL, &quick) != FERRY_OK ||
        ferry_agent_start(agent) != FERRY_OK) {
        give_up(name);
    }
    return agent;
}

static void group_make(struct group *group, size_t count, size_t window)
{
    *group = (struct group){.count = count, .window = window};
    group->members = calloc(count, sizeof(*group->members));
    if (group->members == NULL) {
        fprintf(stderr, "many_agents: no memory for %zu agents\n", count);
        exit(1);
    }
    for (size_t i = 0; i < count; i++) {
        struct member *member = &group->members[i];
        member->group = group;
        member->index = i;
        snprintf(member->name, sizeof(member->name), "agent-%zu-%zu", count, i);
        member->agent = agent_make(member->name);
    }
}

static void group_free(struct group *group)
{
    for (size_t i = 0; i < group->count; i++) {
        ferry_agent_destroy(group->members[i].agent);
    }
    free(group->members);
}

/* ---- connecting ---- */

static _Thread_local struct worker *current; /* whose callbacks run on this thread */

static void on_ready(void *context, ferry_status_t status)
{
    struct member *member = context;
    if (status != FERRY_OK) {
        fprintf(stderr, "many_agents: %s has no link: %s\n", member->name,
                ferry_status_text(status));
        exit(1);
    }
    member->dialling--;
    atomic_store_explicit(&current->finished, current->finished + 1, memory_order_release);
}

/* Every pair once: the first of two dials. */
static void member_dial(struct member *member)
{
    struct group *group = member->group;
    while (member->dialling < DIALS && member->index + member->next < group->count) {
        const char *name = group->members[member->index + member->next].name;
        ferry_status_t status = ferry_agent_connect(member->agent, name, 0);
        if (status != FERRY_ERR_WOULD_BLOCK ||
            ferry_agent_when_ready(member->agent, name, on_ready, member) != FERRY_OK) {
            give_up(member->name);
        }
        member->next++;
        member->dialling++;
    }
}

/* ---- calling ---- */

static void member_start(struct member *member, ferry_future_t **future)
{
    struct group *group = member->group;
    size_t other = member->index + member->next;
    other = other < group->count ? other : other - group->count;
    member->next = member->next + 1 < group->count ? member->next + 1 : 1;
    if (ferry_call(member->agent, group->members[other].name, "nothing", NULL, NULL, future) !=
        FERRY_OK) {
        give_up(member->name);
    }
}

static void member_call(struct member *member, struct worker *worker)
{
    size_t finished = 0;
    for (size_t i = 0; i < member->group->window; i++) {
        ferry_future_t **future = &member->futures[i];
        if (*future != NULL && ferry_future_done(*future)) {
            const ferry_error_t *error = ferry_future_error(*future);
            if (error != NULL) {
                fprintf(stderr, "many_agents: %s\n", error->text);
                exit(1);
            }
            ferry_future_release(*future);
            *future = NULL;
            finished++;
        }
        if (*future == NULL && worker->started < worker->quota) {
            worker->started++;
            member_start(member, future);
        }
    }
    if (finished > 0) {
        atomic_store_explicit(&worker->finished, worker->finished + finished, memory_order_release);
    }
}

/* ---- threads ---- */

static size_t finished_by(const struct worker *worker)
{
    return atomic_load_explicit(&worker->finished, memory_order_acquire);
}

/* Its agents serve until the other thread's have what they want, too. */
static void worker_drive(struct worker *worker, bool calls)
{
    while (finished_by(worker) + finished_by(worker->other) < worker->goal) {
        for (size_t i = worker->first; i < worker->last; i++) {
            struct member *member = &worker->group->members[i];
            if (calls) {
                member_call(member, worker);
            } else {
                member_dial(member);
            }
            ferry_agent_progress(member->agent);
        }
    }
}

static void *worker_connect(void *context)
{
    current = context;
    worker_drive(context, false);
    return NULL;
}

static void *worker_call(void *context)
{
    worker_drive(context, true);
    return NULL;
}

/* A core for each thread, where there are as many. */
static void worker_pin(const struct worker *worker)
{
    cpu_set_t allowed, one;
    CPU_ZERO(&one);
    if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0 || CPU_COUNT(&allowed) < THREADS) {
        return;
    }
    int left = worker->cpu;
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, &allowed) && left-- == 0) {
            CPU_SET(cpu, &one);
        }
    }
    pthread_setaffinity_np(worker->thread, sizeof(one), &one);
}

/* Both threads once over the whole group; returns how long it took. */
static double group_drive(struct group *group, void *(*run)(void *), size_t goal)
{
    struct worker workers[THREADS];
    memset(workers, 0, sizeof(workers));
    double start = now_us();
    for (size_t i = 0; i < group->count; i++) {
        group->members[i].next = 1;
    }
    for (int i = 0; i < THREADS; i++) {
        struct worker *worker = &workers[i];
        worker->group = group;
        worker->other = &workers[1 - i];
        worker->cpu = i;
        worker->first = group->count * (size_t)i / THREADS;
        worker->last = group->count * (size_t)(i + 1) / THREADS;
        worker->goal = goal;
        worker->quota = goal * (size_t)(i + 1) / THREADS - goal * (size_t)i / THREADS;
    }
    for (int i = 0; i < THREADS; i++) {
        if (pthread_create(&workers[i].thread, NULL, run, &workers[i]) != 0) {
            fprintf(stderr, "many_agents: no thread\n");
            exit(1);
        }
        worker_pin(&workers[i]);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
    }
    return now_us() - start;
}

/* ---- measuring ---- */

static int compare(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double median(double *values, size_t count)
{
    qsort(values, count, sizeof(*values), compare);
    return values[count / 2];
}

static int measure(const struct options *options)
{
    struct group groups[GROUPS];
    for (int i = 0; i < GROUPS; i++) {
        size_t count = options->count[i], links = count * (count - 1) / 2;
        group_make(&groups[i], count, options->window);
        groups[i].connect_us = group_drive(&groups[i], worker_connect, links) / (double)links;
    }
    for (size_t round = 0; round < options->rounds; round++) {
        for (int i = 0; i < GROUPS; i++) {
            groups[i].call_us[round] =
                group_drive(&groups[i], worker_call, options->calls) / (double)options->calls;
        }
    }
    printf("empty calls, all to all, over inproc: manual progress, %d threads, %zu in flight an "
           "agent\n  agents     links   us a link    calls/s   us a call\n",
           THREADS, options->window);
    double call_us[GROUPS];
    for (int i = 0; i < GROUPS; i++) {
        call_us[i] = median(groups[i].call_us, options->rounds);
        printf("%8zu  %8zu  %10.2f  %9.0f  %10.3f\n", groups[i].count,
               groups[i].count * (groups[i].count - 1) / 2, groups[i].connect_us, 1e6 / call_us[i],
               call_us[i]);
    }
    double ratio = call_us[1] / call_us[0];
    bool met = ratio <= RATIO_BAR;
    printf("a call costs %.2f times as much among %zu agents (bar %.1f: %s)\n", ratio,
           groups[1].count, RATIO_BAR, met ? "met" : "missed");
    for (int i = 0; i < GROUPS; i++) {
        group_free(&groups[i]);
    }
    return options->bar && !met;
}

/* ---- the command line ---- */

static bool read_number(const char *option, const char *text, size_t least, size_t most,
                        size_t *value_out)
{
    char *end;
    unsigned long long value = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || value < least || value > most) {
        fprintf(stderr, "many_agents: --%s %s: give a number from %zu to %zu\n", option, text,
                least, most);
        return false;
    }
    *value_out = (size_t)value;
    return true;
}

enum choice { CHOICE_AGENTS, CHOICE_FEW, CHOICE_CALLS, CHOICE_WINDOW, CHOICE_ROUNDS, CHOICE_BAR };

static bool take_option(enum choice choice, const char *value, struct options *options)
{
    switch (choice) {
    case CHOICE_AGENTS:
        return read_number("agents", value, 2, 4000, &options->count[1]);
    case CHOICE_FEW:
        return read_number("few", value, 2, 4000, &options->count[0]);
    case CHOICE_CALLS:
        return read_number("calls", value, 1000, 100000000, &options->calls);
    case CHOICE_WINDOW:
        return read_number("window", value, 1, WINDOW_MAX, &options->window);
    case CHOICE_ROUNDS:
        return read_number("rounds", value, 1, ROUNDS_MAX, &options->rounds);
    case CHOICE_BAR:
        options->bar = true;
        return true;
    }
    return false;
}

/* 0: go on; otherwise the exit status is one less. */
static int read_options(int argc, char **argv, struct options *options)
{
    static const struct option known[] = {
        {"agents", required_argument, NULL, CHOICE_AGENTS},
        {"few", required_argument, NULL, CHOICE_FEW},
        {"calls", required_argument, NULL, CHOICE_CALLS},
        {"window", required_argument, NULL, CHOICE_WINDOW},
        {"rounds", required_argument, NULL, CHOICE_ROUNDS},
        {"bar", no_argument, NULL, CHOICE_BAR},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    opterr = 0;
    int choice;
    while ((choice = getopt_long(argc, argv, ":h", known, NULL)) != -1) {
        if (choice == 'h') {
            fputs(USAGE, stdout);
            return 1;
        }
        if (choice == '?' || choice == ':') {
            fprintf(stderr, "many_agents: %s %s; --help lists the options\n", argv[optind - 1],
                    choice == ':' ? "wants a number" : "is no option");
            return 3;
        }
        if (!take_option((enum choice)choice, optarg, options)) {
            return 3;
        }
    }
    if (optind < argc) {
        fprintf(stderr, "many_agents: '%s' is too much; --help lists the options\n", argv[optind]);
        return 3;
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct options options = {.count = {8, 512}, .calls = 1000000, .window = 4, .rounds = 5};
    int done = read_options(argc, argv, &options);
    return done != 0 ? done - 1 : measure(&options);
}
