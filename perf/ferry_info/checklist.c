/* The checklist: one line a check, with its verdict and remedy. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "ferry_info/info.h"

void text_add(char *text, size_t capacity, const char *format, ...)
{
    size_t length = strlen(text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + length, capacity - length, format, arguments);
    va_end(arguments);
}

void finding_set(struct finding *finding, enum verdict verdict, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    finding->verdict = verdict;
    vsnprintf(finding->text, sizeof finding->text, format, arguments);
    va_end(arguments);
}

void finding_add(struct finding *finding, const char *format, ...)
{
    size_t length = strlen(finding->text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(finding->text + length, sizeof finding->text - length, format, arguments);
    va_end(arguments);
}

void finding_remedy(struct finding *finding, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(finding->remedy, sizeof finding->remedy, format, arguments);
    va_end(arguments);
}

void machine_path(const struct machine *machine, const char *path, char *full, size_t capacity)
{
    snprintf(full, capacity, "%s%s", machine->root, path);
}

bool machine_read(const struct machine *machine, const char *path, char *text, size_t capacity)
{
    char full[1024];
    machine_path(machine, path, full, sizeof full);
    FILE *file = fopen(full, "re");
    if (file == NULL) {
        return false;
    }
    size_t length = fread(text, 1, capacity - 1, file);
    fclose(file);
    while (length > 0 && text[length - 1] == '\n') {
        length--;
    }
    text[length] = '\0';
    return true;
}

static const struct {
    const char *name;
    check_fn *run;
} CHECKS[] = {
    {"ferry", check_ferry},
    {"configuration", check_configuration},
    {"device map", check_device_map},
    {"interface", check_interface},
    {"ucx", check_ucx},
    {"transports", check_transports},
    {"cma", check_cma},
    {"/dev/shm", check_shared_memory},
    {"verbs", check_verbs},
    {"cuda", check_cuda},
    {"p2p", check_p2p},
    {"mps", check_mps},
    {"gpudirect rdma", check_gpudirect},
    {"locked memory", check_locked_memory},
    {"open files", check_open_files},
};

int info_checklist(const char *root)
{
    static const char *const words[] = {"ok", "note", "problem"};
    struct machine machine = {.root = root};
    int counts[3] = {0, 0, 0};
    info_log_keep();
    ucx_facts_find(&machine.ucx);
    driver_facts_find(&machine.driver);
    verbs_facts_find(&machine);
    machine.cuda_count = ferry_device_count(kDLCUDA);
    for (size_t i = 0; i < sizeof CHECKS / sizeof CHECKS[0]; i++) {
        struct finding finding = {.verdict = VERDICT_OK};
        CHECKS[i].run(&machine, &finding);
        counts[finding.verdict]++;
        printf("%-8s %-15s %s%s%s\n", words[finding.verdict], CHECKS[i].name, finding.text,
               finding.remedy[0] == '\0' ? "" : " => ", finding.remedy);
    }
    printf("%d ok, %d notes, %d problems\n", counts[VERDICT_OK], counts[VERDICT_NOTE],
           counts[VERDICT_PROBLEM]);
    return counts[VERDICT_PROBLEM] > 0 ? INFO_PROBLEM : INFO_OK;
}
