/* What docs/device-maps.md shows is what the library does: its table of arrows and its errors. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ferry/error.h>

#include "rpc/device_map.h"

#define LINE_BYTES 1024

static FILE *docs_open(void)
{
    char path[1024];
    const char *source = getenv("TEST_SOURCE");
    snprintf(path, sizeof path, "%s/docs/device-maps.md", source == NULL ? "." : source);
    FILE *file = fopen(path, "r");
    cr_assert_not_null(file, "%s cannot be read; TEST_SOURCE names the source tree", path);
    return file;
}

static bool line_read(FILE *file, char line[LINE_BYTES])
{
    if (fgets(line, LINE_BYTES, file) == NULL) {
        return false;
    }
    line[strcspn(line, "\n")] = '\0';
    return true;
}

Test(device_map_docs, the_errors_are_the_real_ones)
{
    FILE *file = docs_open();
    char line[LINE_BYTES], before[LINE_BYTES] = "";
    int shown = 0;
    while (line_read(file, line)) {
        if (strncmp(line, "=> ", 3) == 0) {
            ferry_device_map_t *map;
            cr_assert_eq(ferry_device_map_parse(before, &map), FERRY_ERR_DEVICE_MAP, "%s", before);
            cr_assert_str_eq(ferry_last_error()->text, line + 3);
            shown++;
        }
        if (strncmp(line, "argument '", 10) == 0) {
            DLDevice target, cuda = {.device_type = kDLCUDA, .device_id = 0};
            cr_assert_eq(device_map_target(NULL, NULL, "ps", false, cuda, FERRY_ARGUMENTS,
                                           "gradient", 0, &target, NULL),
                         FERRY_ERR_UNMAPPED_DEVICE);
            cr_assert_str_eq(ferry_last_error()->text, line);
            shown++;
        }
        memcpy(before, line, sizeof before);
    }
    fclose(file);
    cr_assert_geq(shown, 11, "only %d errors were found in the text", shown);
}

/* The next cell of a table's row, without its spaces and quotes. */
static bool cell_next(char **row, char cell[64])
{
    char *end = **row == '|' ? strchr(*row + 1, '|') : NULL;
    if (end == NULL) {
        return false;
    }
    size_t bytes = 0;
    for (char *at = *row + 1; at < end; at++) {
        if (*at != ' ' && *at != '`' && bytes < 63) {
            cell[bytes++] = *at;
        }
    }
    cell[bytes] = '\0';
    *row = end;
    return true;
}

static void expect_cell(const ferry_device_map_t *map, const char *device_text,
                        ferry_direction_t direction, const char *shown, const char *row)
{
    DLDevice device, target;
    char text[FERRY_DEVICE_TEXT_BYTES] = "error";
    cr_assert_eq(ferry_device_parse(device_text, &device), FERRY_OK);
    if (ferry_device_map_explain(map, "worker1", device, direction, &target, NULL, 0) == FERRY_OK) {
        ferry_device_print(target, text);
    }
    cr_assert_str_eq(text, shown, "%s: %s arrives on %s", row, device_text, text);
}

Test(device_map_docs, the_table_of_arrows_is_true)
{
    static const struct {
        const char *device;
        ferry_direction_t direction;
    } columns[] = {{"cuda:0", FERRY_ARGUMENTS},
                   {"cpu", FERRY_ARGUMENTS},
                   {"cuda:1", FERRY_RESULTS},
                   {"cpu", FERRY_RESULTS}};
    FILE *file = docs_open();
    char line[LINE_BYTES], rule[64], cell[64], text[128];
    int rows = 0;
    while (line_read(file, line) && strncmp(line, "| rule |", 8) != 0) {
    }
    cr_assert(line_read(file, line), "the table was not found");
    while (line_read(file, line) && line[0] == '|') {
        char *at = line;
        cr_assert(cell_next(&at, rule));
        snprintf(text, sizeof text, "worker1: %s", strcmp(rule, "norule") == 0 ? "" : rule);
        ferry_device_map_t *map = NULL;
        cr_assert_eq(ferry_device_map_parse(text, &map), FERRY_OK, "%s", text);
        for (size_t i = 0; i < 4; i++) {
            cr_assert(cell_next(&at, cell), "%s lacks a column", line);
            expect_cell(map, columns[i].device, columns[i].direction, cell, rule);
        }
        ferry_device_map_destroy(map);
        rows++;
    }
    fclose(file);
    cr_assert_geq(rows, 14);
}

/* The two answers at the top: FERRY_DEVICE_MAP='...' lines that must be maps. */
Test(device_map_docs, the_maps_at_the_top_are_maps)
{
    FILE *file = docs_open();
    char line[LINE_BYTES];
    int shown = 0;
    while (line_read(file, line)) {
        char *start = strstr(line, "FERRY_DEVICE_MAP='");
        if (start == NULL) {
            continue;
        }
        start += strlen("FERRY_DEVICE_MAP='");
        start[strcspn(start, "'")] = '\0';
        ferry_device_map_t *map = NULL;
        cr_assert_eq(ferry_device_map_parse(start, &map), FERRY_OK, "%s", start);
        ferry_device_map_destroy(map);
        shown++;
    }
    fclose(file);
    cr_assert_eq(shown, 2);
}
