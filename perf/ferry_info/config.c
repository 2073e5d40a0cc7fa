/* Every option, in the form that FERRY_CONFIG reads: what is printed is a file with these settings. */
#include <stdio.h>
#include <string.h>

#include "core/config.h"
#include "core/config_table.h"
#include "ferry_info/info.h"

/* A value on one line: a map may have been set with line ends, which mean the same as spaces. */
static void value_print(const char *value)
{
    for (; *value != '\0'; value++) {
        putchar(*value == '\n' || *value == '\r' ? ' ' : *value);
    }
}

static void entry_print(const ferry_config_entry_t *entry)
{
    char range[CONFIG_RANGE_BYTES];
    const struct config_option *option = config_option_find(entry->name);
    config_option_range(option, range);
    printf("# %s\n", entry->text);
    printf("# %s%s%s; default %s\n", entry->unit, range[0] == '\0' ? "" : ", ", range,
           *entry->fallback == '\0' ? "unset" : entry->fallback);
    printf("%s =%s", entry->name, *entry->value == '\0' ? "" : " ");
    value_print(entry->value);
    printf("  # %s\n", entry->origin);
}

int info_config(bool markdown)
{
    ferry_config_t *config;
    ferry_config_entry_t entry;
    if (markdown) {
        config_document(stdout);
        return INFO_OK;
    }
    if (ferry_config_create(&config) != FERRY_OK) {
        fprintf(stderr, "ferry_info: %s\n", ferry_last_error()->text);
        return INFO_PROBLEM;
    }
    for (size_t i = 0; ferry_config_entry(config, i, &entry) == FERRY_OK; i++) {
        fputs(i == 0 ? "" : "\n", stdout);
        entry_print(&entry);
    }
    ferry_config_destroy(config);
    return INFO_OK;
}
