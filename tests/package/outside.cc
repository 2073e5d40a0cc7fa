/* A user's program: prints Ferry's version and a device map as Ferry read it. */
#include <cstdio>
#include <cstring>
#include <ferry/ferry.h>

int main(void)
{
    char text[128];
    ferry_device_map_t *map = nullptr;
    if (ferry_device_map_parse("worker1: cuda:0 -> cuda:1", &map) != FERRY_OK) {
        std::fprintf(stderr, "%s\n", ferry_last_error()->text);
        return 1;
    }
    ferry_device_map_print(map, text, sizeof(text));
    ferry_device_map_destroy(map);
    std::printf("ferry %s; %s\n", ferry_version(), text);
    return std::strstr(text, "cuda:0->cuda:1") == nullptr;
}
