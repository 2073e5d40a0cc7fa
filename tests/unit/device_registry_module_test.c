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
#define PATH_BYTES 300

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

/* The program's exit status; a NULL path starts this program itself, under the name of argv[0]. */
static int run(const char *path, char *const argv[])
{
    int status;
    pid_t child = fork();
    must(child >= 0, "fork");
    if (child == 0) {
        path == NULL ? execv("/proc/self/exe", argv) : execvp(path, argv);
        _exit(127);
    }
    must(waitpid(child, &status, 0) == child, "waitpid");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

static void module_make(const char *folder, size_t number)
{
    char source[PATH_BYTES], module[PATH_BYTES], headers[PATH_BYTES], dlpack[PATH_BYTES];
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
    snprintf(headers, sizeof headers, "-I%s/include", getenv("TEST_SOURCE"));
    snprintf(dlpack, sizeof dlpack, "-I%s", getenv("TEST_DLPACK_INCLUDE"));
    char *compiler = getenv("CC");
    char *argv[] = {compiler, "-shared", "-fPIC", headers, dlpack, "-o", module, source, NULL};
    must(run(compiler, argv) == 0, compiler);
    must(unlink(source) == 0, source);
}

/* A folder with the module in it, the program as if it lay there, and nothing left of it. */
static int run_case(size_t number)
{
    char folder[] = "/tmp/ferry-module-XXXXXX";
    char name[PATH_BYTES], modules[PATH_BYTES], module[PATH_BYTES], text[16];
    must(mkdtemp(folder) != NULL, folder);
    snprintf(name, sizeof name, "%s/program", folder);
    snprintf(modules, sizeof modules, "%s/ferry", folder);
    snprintf(module, sizeof module, "%s/ferry/libferry_cuda.so", folder);
    snprintf(text, sizeof text, "%zu", number);
    must(mkdir(modules, 0700) == 0, modules);
    module_make(folder, number);
    int status = run(NULL, (char *[]){name, "beside a module", text, NULL});
    unlink(module);
    must(rmdir(modules) == 0, modules);
    must(rmdir(folder) == 0, folder);
    return status;
}

int main(int argc, char **argv)
{
    if (argc == 3) {
        return child_main(strtoul(argv[2], NULL, 10));
    }
    if (getenv("CC") == NULL || getenv("TEST_SOURCE") == NULL ||
        getenv("TEST_DLPACK_INCLUDE") == NULL) {
        fprintf(stderr,
                "skipped: run by ctest, which says where the compiler and the headers are\n");
        return SKIPPED;
    }
    int failed = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        failed += run_case(i) != 0;
    }
    return failed > 0;
}
