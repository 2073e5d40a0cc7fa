/* docs/configuration.md, from the table. */
#include <stdio.h>
#include <string.h>

#include "core/config_table.h"

static const char INTRODUCTION[] =
    "# Configuration\n"
    "\n"
    "<!-- Generated from the option table by `ferry_info -c --markdown`; do not edit. -->\n"
    "\n"
    "Every option can be set in four places. What the program sets (`ferry_config_set`, or an\n"
    "agent's own option) beats the environment variable, which beats the file that\n"
    "`FERRY_CONFIG` names, which beats the default. An empty value is unset. `ferry_info -c`\n"
    "shows each value in force and where it came from.\n"
    "\n"
    "The file has one `NAME = value` a line, with or without the `FERRY_`; a `#` at the\n"
    "beginning of a line or after a space starts a comment. A name that does not exist is an\n"
    "error there; in the environment it is a warning, with the nearest name.\n"
    "\n"
    "Sizes are bytes with an optional binary unit: `64`, `64K`, `2MiB`, `1.5g`. Times carry\n"
    "their unit: `10us`, `500ms`, `5s`, `2m`, or `infinite`. Flags are `0` or `1`.\n"
    "\n"
    "| option | default | values | what it is for |\n"
    "|---|---|---|---|\n";

/* A '|' would end the table's cell. */
static void cell_print(FILE *out, const char *text)
{
    for (; *text != '\0'; text++) {
        if (*text == '|') {
            fputc('\\', out);
        }
        fputc(*text, out);
    }
}

static void row_print(FILE *out, const struct config_option *option)
{
    char range[CONFIG_RANGE_BYTES];
    config_option_range(option, range);
    fprintf(out, "| `" CONFIG_PREFIX "%s` | ", option->name);
    if (*option->fallback != '\0') {
        fprintf(out, "`%s`", option->fallback);
    }
    fputs(" | ", out);
    cell_print(out, option->unit);
    if (range[0] != '\0') {
        fprintf(out, ", %s", range);
    }
    fputs(" | ", out);
    cell_print(out, option->text);
    fputs(" |\n", out);
}

void config_document(FILE *out)
{
    fputs(INTRODUCTION, out);
    for (size_t i = 0; i < CONFIG_OPTION_COUNT; i++) {
        row_print(out, &CONFIG_OPTIONS[i]);
    }
}
