/* ferry_info: what Ferry finds on this machine, and what its settings and device maps mean. */
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/config.h"
#include "ferry_info/info.h"

static const char HELP[] =
    "ferry_info: what Ferry finds on this machine, and what its settings and device maps mean\n"
    "\n"
    "  ferry_info                    a checklist: ok, note or problem, the remedy behind =>\n"
    "  ferry_info -c [--markdown]    every option: value, origin, default, unit and meaning, as a\n"
    "                                file for FERRY_CONFIG (--markdown: as docs/configuration.md)\n"
    "  ferry_info [-m MAP] -p PEER   what a device map does in calls to PEER; without -m the map "
    "in\n"
    "                                force (FERRY_DEVICE_MAP); -m @FILE reads one from a file\n"
    "  ferry_info -V                 the versions of Ferry and UCX\n"
    "  ferry_info -h                 this text\n"
    "\n"
    "Long forms: --config, --map, --peer, --version, --help. The checklist takes --sysroot DIR "
    "and\n"
    "reads /proc, /sys and /dev below it. Quote a map: a shell takes > and < for itself.\n"
    "Exit status: 0 all is well (notes too), 1 a problem, 2 a wrong command line or map.\n";

enum { OPTION_MARKDOWN = 256, OPTION_SYSROOT };

struct command {
    const char *map, *peer, *sysroot; /* borrowed from argv; NULL: not given */
    bool config, markdown, version, help;
};

static int usage(const char *format, ...) FERRY_PRINTF(1, 2);

static int usage(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("ferry_info: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    return INFO_USAGE;
}

/* The nearest long option, for a word that is none. */
static int usage_unknown(const char *word)
{
    static const char *const names[] = {"--config", "--markdown", "--map",    "--peer",
                                        "--help",   "--version",  "--sysroot"};
    const char *nearest = config_nearest(word, names, sizeof names / sizeof names[0]);
    if (nearest != NULL) {
        return usage("there is no option %s; did you mean %s? ferry_info -h shows all", word,
                     nearest);
    }
    return usage("there is no option %s; use -c, -m MAP -p PEER, -V or none; ferry_info -h shows "
                 "all",
                 word);
}

static int usage_no_value(const char *word)
{
    if (strcmp(word, "-p") == 0 || strcmp(word, "--peer") == 0) {
        return usage("%s needs a peer's name: ferry_info -p worker1", word);
    }
    if (strcmp(word, "--sysroot") == 0) {
        return usage("--sysroot needs a folder that holds proc, sys and dev: ferry_info --sysroot "
                     "DIR");
    }
    return usage("%s needs a map: ferry_info -m 'worker1: cuda:0<->cuda:1' -p worker1", word);
}

/* Returns INFO_OK, or says what is wrong and returns INFO_USAGE. */
static int command_parse(int argc, char **argv, struct command *command)
{
    static const struct option options[] = {
        {"config", no_argument, NULL, 'c'},
        {"markdown", no_argument, NULL, OPTION_MARKDOWN},
        {"map", required_argument, NULL, 'm'},
        {"peer", required_argument, NULL, 'p'},
        {"sysroot", required_argument, NULL, OPTION_SYSROOT},
        {"version", no_argument, NULL, 'V'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    opterr = 0;
    for (;;) {
        int before = optind;
        int option = getopt_long(argc, argv, "+:cm:p:Vh", options, NULL);
        char letter[3] = {'-', (char)optopt, '\0'};
        const char *word =
            argv[before] != NULL && strncmp(argv[before], "--", 2) == 0 ? argv[before] : letter;
        switch (option) {
        case 'c':
            command->config = true;
            break;
        case OPTION_MARKDOWN:
            command->markdown = true;
            break;
        case 'm':
            command->map = optarg;
            break;
        case 'p':
            command->peer = optarg;
            break;
        case OPTION_SYSROOT:
            command->sysroot = optarg;
            break;
        case 'V':
            command->version = true;
            break;
        case 'h':
            command->help = true;
            break;
        case ':':
            return usage_no_value(word);
        case '?':
            return usage_unknown(word);
        default:
            return optind == argc ? INFO_OK
                                  : usage("'%s' is no option; ferry_info -h shows what there is",
                                          argv[optind]);
        }
    }
}

/* Which of the options do not go together. */
static int command_check(const struct command *command)
{
    bool map = command->map != NULL || command->peer != NULL;
    int modes = (map ? 1 : 0) + (command->config ? 1 : 0) + (command->version ? 1 : 0) +
                (command->sysroot != NULL ? 1 : 0);
    if (command->markdown && !command->config) {
        return usage("--markdown goes with -c: ferry_info -c --markdown");
    }
    if (modes > 1) {
        return usage("one thing at a time: -c, or -m MAP -p PEER, or -V, or --sysroot DIR");
    }
    if (command->map != NULL && command->peer == NULL) {
        return usage("-m needs the peer whose calls are meant: ferry_info -m MAP -p worker1");
    }
    return INFO_OK;
}

static int command_run(const struct command *command)
{
    if (command->version) {
        return info_version();
    }
    if (command->config) {
        return info_config(command->markdown);
    }
    if (command->peer != NULL) {
        return info_map(command->map, command->peer);
    }
    return info_checklist(command->sysroot == NULL ? "" : command->sysroot);
}

int main(int argc, char **argv)
{
    struct command command = {.map = NULL};
    int status = command_parse(argc, argv, &command);
    if (status != INFO_OK) {
        return status;
    }
    if (command.help) {
        fputs(HELP, stdout);
    } else {
        status = command_check(&command);
        status = status == INFO_OK ? command_run(&command) : status;
    }
    if (fflush(stdout) != 0 || ferror(stdout) != 0) {
        perror("ferry_info: cannot write what was found");
        return INFO_PROBLEM;
    }
    return status;
}
