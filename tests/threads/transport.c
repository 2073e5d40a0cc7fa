/* The transports' promises with a thread for each instance, as agents have them, and with one
 * thread for both. A plain program: what two agents' threads share inside inproc is for the thread
 * sanitizer to see. UCX is not built with it, so its turn is without. Arguments pick a transport, a
 * check, and one thread. */
#include <stdlib.h>
#include <string.h>

#include <ferry/log.h>

#include "support/transport_checks.h"

static void run_all(const char *name, const char *tls, const char *only, bool threaded)
{
    if (tls != NULL) {
        setenv("UCX_TLS", tls, 1);
    }
    struct wire wire = wire_find(name);
    for (size_t check = 0; check < transport_check_count(); check++) {
        if (only == NULL || (size_t)atoi(only) == check) {
            transport_check_run(check, &wire, threaded);
        }
    }
}

static void run_ucx(const char *name)
{
    const char *version = getenv("TEST_UCX_VERSION");
    unsetenv("UCX_TLS");
    run_all(name, NULL, NULL, true);
    if (version == NULL || strncmp(version, "1.13", 4) != 0) {
        run_all(name, "tcp,self", NULL, true); /* 1.13 may crash when peers go there */
        run_all(name, "tcp,self", NULL, false);
    }
}

int main(int argc, char **argv)
{
    ferry_log_set_level(FERRY_LOG_OFF); /* peers that go away make UCX complain */
    if (argc > 2) {
        run_all(argv[1], NULL, argv[2], argc == 3);
        return 0;
    }
    const char *sanitizer = getenv("TEST_SANITIZE");
    run_all("inproc", NULL, NULL, true);
    if (sanitizer == NULL || strstr(sanitizer, "thread") == NULL) {
        run_all("inproc", NULL, NULL, false);
        run_ucx("ucx:tag");
        run_ucx("ucx:stream");
        run_ucx("ucx:am");
    }
    return 0;
}
