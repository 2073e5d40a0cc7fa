/* How the CUDA module is found and what is said when it is of no use: this program starts itself
 * under a name beside which a module lies that was made for the purpose. A plain program, since
 * what
 * is loaded stays loaded to the process's end. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ferry/error.h>

#include "device/registry.h"

#define THREADS 8
#define SKIPPED 77

static const struct {
    const char *name;
    const char *source;  /* NULL: no module; "": a file that is no module */
    int32_t count;       /* of devices that are seen then */
    const char *missing; /* words of the reason, NULL: none */
} cases[] = {
    {"nothing", NULL, 0, "libferry_cuda.so"},
    {"rubbish", "", 0, "/ferry/libferry_cuda.so: "},
    {"no symbol", "int other;\n", 0, "has no ferry_device_backend()"},
    {"refusal",
     "{ host->raise(FERRY_ERR_DEVICE, \"the %s is out\", \"sun\"); return 0; }\n"
     "\n",
     0, "the sun is out"},
    {"other interface",
     "{ host->log(4, \"hello\"); static ferry_device_backend_t backend; backend.abi = 9;\n"
     "  backend.struct_bytes = sizeof backend; return &backend; }\n",
     0, "speaks device interface 9"},
    {"no device",
     "{ static ferry_device_backend_t backend; backend.abi = FERRY_DEVICE_BACKEND_ABI;\n"
     "  backend.struct_bytes = sizeof backend; backend.count = none; (void)host;\n"
     "  return &backend; }\n",
     0, "no CUDA device"},
    {"three devices",
     "{ static ferry_device_backend_t backend; static int calls; calls++;\n"
     "  backend.abi = FERRY_DEVICE_BACKEND_ABI; backend.struct_bytes = sizeof backend;\n"
     "  backend.count = calls == 1 ? three : none; (void)host; return &backend; }\n",
     3, NULL},
};

static void must(bool condition, const char *what)
{
    if (!condition) {
        fprintf(stderr, "%s: %s\n", what, strerror(errno));
        exit(1);
    }
}

static void *ask(void *context)
{
    *(int32_t *)context = ferry_device_count(kDLCUDA);
    return NULL;
}

/* In the program that was started beside the module: several threads ask first at the same time. */
static int child_main(size_t number)
{
    pthread_t threads[THREADS];
    int32_t counts[THREADS];
    const ferry_device_backend_t *backend;
    DLDevice device = {.device_type = kDLCUDA, .device_id = 0};
    for (int i = 0; i < THREADS; i++) {
        must(pthread_create(&threads[i], NULL, ask, &counts[i]) == 0, "pthread_create");
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        if (counts[i] != cases[number].count) {
            fprintf(stderr, "%s: %d devices\n", cases[number].name, (int)counts[i]);
            return 1;
        }
    }
    const char *missing = device_missing(kDLCUDA);
    const char *wanted = cases[number].missing;
    if (wanted == NULL ? missing[0] != '\0' : strstr(missing, wanted) == NULL) {
        fprintf(stderr, "%s: device_missing says '%s'\n", cases[number].name, missing);
        return 1;
    }
    if (ferry_last_error()->status != FERRY_OK) {
        fprintf(stderr, "%s: looking for it left an error\n", cases[number].name);
        return 1;
    }
    ferry_status_t status = device_check(device, &backend);
    bool told = wanted == NULL ? status == FERRY_OK
                               : status == FERRY_ERR_UNKNOWN_DEVICE &&
                                     strstr(ferry_last_error()->text, wanted) != NULL;
    if (!told) {
        fprintf(stderr, "%s: device_check: %s\n", cases[number].name, ferry_last_error()->text);
        return 1;
    }
    return 0;
}

static void source_write(const char *path, const char *body)
{
    FILE *file = fopen(path, "w");
    must(file != NULL, path);
    fprintf(file, "#include <ferry/device_backend.h>\n"
                  "static int32_t none(void) { return 0; }\n"
                  "static int32_t three(void) { return 3; }\n"
                  "void *used[2] = {(void *)none, (void *)three};\n");
    if (body[0] == '{') {
        fprintf(
            file,
            "FERRY_API ferry_device_backend_fn ferry_device_backend;\n"
            "const ferry_device_backend_t *ferry_device_backend(const ferry_device_host_t *host)"
            "\n%s",
            body);
    } else {
        fprintf(file, "%s", body);
    }
    must(fclose(file) == 0, path);
}

static void module_make(const char *folder, size_t number)
{
    char source[300], module[300], command[2000];
    snprintf(source, sizeof source, "%s/module.c", folder);
    snprintf(module, sizeof module, "%s/ferry/libferry_cuda.so", folder);
    if (cases[number].source == NULL) {
        return;
    }
    if (cases[number].source[0] == '\0') {
        FILE *file = fopen(module, "w");
        must(file != NULL && fputs("rubbish\n", file) >= 0 && fclose(file) == 0, module);
        return;
    }
    source_write(source, cases[number].source);
    snprintf(command, sizeof command, "\"%s\" -shared -fPIC -I\"%s/include\" -I\"%s\" -o %s %s",
             getenv("CC"), getenv("TEST_SOURCE"), getenv("TEST_DLPACK_INCLUDE"), module, source);
    must(system(command) == 0, command);
}

static int run_case(const char *folder, size_t number)
{
    char name[300], index[16];
    snprintf(name, sizeof name, "%s/program", folder);
    snprintf(index, sizeof index, "%zu", number);
    module_make(folder, number);
    pid_t child = fork();
    must(child >= 0, "fork");
    if (child == 0) {
        execl("/proc/self/exe", name, "beside a module", index, (char *)NULL);
        _exit(127);
    }
    int status;
    must(waitpid(child, &status, 0) == child, "waitpid");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

int main(int argc, char **argv)
{
    if (argc == 3) {
        return child_main((size_t)atoi(argv[2]));
    }
    if (getenv("CC") == NULL || getenv("TEST_SOURCE") == NULL ||
        getenv("TEST_DLPACK_INCLUDE") == NULL) {
        fprintf(stderr,
                "skipped: run by ctest, which says where the compiler and the headers are\n");
        return SKIPPED;
    }
    int failed = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char folder[] = "/tmp/ferry-module-XXXXXX", path[300];
        must(mkdtemp(folder) != NULL, folder);
        snprintf(path, sizeof path, "%s/ferry", folder);
        must(mkdir(path, 0700) == 0, path);
        failed += run_case(folder, i) != 0;
        snprintf(path, sizeof path, "rm -rf %s", folder);
        must(system(path) == 0, path);
    }
    return failed > 0;
}
