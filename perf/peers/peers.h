/* What the peers' programs share: the sizes, how often each is moved, and the rows of CSV. Latency
 * is half a round trip; bandwidth counts until the receiver said that it has everything. */
#ifndef PERF_PEERS_PEERS_H
#define PERF_PEERS_PEERS_H

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define PEERS_WINDOW 32
#define PEERS_SIZES_MAX 32

/* Ends the process, with a line on stderr. */
static inline void peers_give_up(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

static inline double peers_now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

/* Both ends know it from the size alone. */
static inline uint64_t peers_operations(size_t bytes)
{
    uint64_t fit = (UINT64_C(512) << 20) / (bytes + 1);
    return fit < 10 ? 10 : fit > 5000 ? 5000 : fit;
}

static inline uint64_t peers_warm_up(size_t bytes)
{
    return peers_operations(bytes) / 10 + 1;
}

static inline void peers_latency(const char *test, size_t bytes, double elapsed_us)
{
    uint64_t operations = peers_operations(bytes);
    printf("%s,%zu,%llu,%.3f,,\n", test, bytes, (unsigned long long)operations,
           elapsed_us / 2 / (double)operations);
    fflush(stdout);
}

static inline void peers_bandwidth(const char *test, size_t bytes, double elapsed_us)
{
    uint64_t operations = peers_operations(bytes);
    printf("%s,%zu,%llu,,%.3f,%.0f\n", test, bytes, (unsigned long long)operations,
           (double)bytes * (double)operations / elapsed_us, (double)operations * 1e6 / elapsed_us);
    fflush(stdout);
}

/* The sizes that the arguments from the third on name, else the usual ones. */
static inline size_t peers_sizes(int argc, char **argv, size_t sizes[PEERS_SIZES_MAX])
{
    static const size_t usual[] = {8, 64, 512, 4096, 32768, 262144, 2097152, 16777216, 67108864};
    size_t count = 0;
    for (int i = 2; i < argc && count < PEERS_SIZES_MAX; i++) {
        char *end;
        errno = 0;
        unsigned long long size = strtoull(argv[i], &end, 10);
        if (errno != 0 || end == argv[i] || *end != '\0' || argv[i][0] == '-' || size == 0 ||
            size > UINT64_C(1) << 32) {
            peers_give_up(argv[i], "a size is a number of bytes from 1 to 4294967296");
        }
        sizes[count++] = (size_t)size;
    }
    for (size_t i = 0; argc <= 2 && i < sizeof(usual) / sizeof(usual[0]); i++) {
        sizes[count++] = usual[i];
    }
    return count;
}

#endif
