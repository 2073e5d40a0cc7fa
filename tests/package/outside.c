/* A user's program: prints Ferry's version and a device map as Ferry read it. */
#include <ferry/ferry.h>
#include <stdio.h>
#include <string.h>

int main(void)
{
    char text[128];
    ferry_device_map_t *map = NULL;
    if (ferry_device_map_parse("worker1: cuda:0 -> cuda:1", &map) != FERRY_OK) {
        fprintf(stderr, "%s\n", ferry_last_error()->text);
        return 1;
    }
    ferry_device_map_print(map, text, sizeof(text));
    ferry_device_map_destroy(map);
    printf("ferry %s; %s\n", ferry_version(), text);
    return strstr(text, "cuda:0->cuda:1") == NULL;
}
