/* The configuration table: the only file that reads the environment. Each option is one row: name, field,
 * default, unit, parser, text. */
#ifndef FERRY_CORE_CONFIG_H
#define FERRY_CORE_CONFIG_H

#include <stdbool.h>
#include <stdio.h>

#include <ferry/config.h>
#include <ferry/log.h>

enum config_progress { PROGRESS_ADAPTIVE, PROGRESS_SPIN, PROGRESS_SLEEP, PROGRESS_MANUAL };
enum config_full { FULL_WAIT, FULL_FAIL }; /* a full peer: ferry_call waits or fails */

/* Typed values; times in nanoseconds (FERRY_FOREVER for "infinite"), sizes in bytes. Text is owned by the
 * config and "" when unset. */
struct config_values {
    /* who and where */
    const char *name; /* FERRY_NAME: this agent's name where the program gives none */
    const char *
        naming; /* FERRY_NAMING: inproc:// | tcp://host:port | file:///dir | env://; default inproc:// */
    bool naming_serve; /* FERRY_NAMING_SERVE=0|1: serve the tcp:// naming store in this agent */
    int64_t port;      /* FERRY_PORT: env:// store's port; 0 = MASTER_PORT + 1 */
    const char *
        interface; /* FERRY_INTERFACE: network interface or IP address to listen on; "" = loopback */
    const char *device_map; /* FERRY_DEVICE_MAP */
    ferry_log_level_t log;  /* FERRY_LOG: off|error|warn|info|debug|trace; default warn */

    /* times */
    int64_t timeout_ns; /* FERRY_TIMEOUT: a call's timeout where it gives none; default 60 s */
    int64_t
        connect_timeout_ns; /* FERRY_CONNECT_TIMEOUT: name look-up, hello and warm-up together; default 10 s */
    int64_t
        peer_timeout_ns; /* FERRY_PEER_TIMEOUT: silence after which a peer is lost; default 5 s */
    int64_t
        release_timeout_ns; /* FERRY_RELEASE_TIMEOUT: after an error, how long the transport may hold memory; default 5 s */
    int64_t
        spin_ns; /* FERRY_SPIN: how long an idle engine polls before it sleeps; default 100 us */

    /* engine and pool */
    enum config_progress progress; /* FERRY_PROGRESS=adaptive|spin|sleep|manual */
    int64_t pool_threads;          /* FERRY_POOL_THREADS: handler threads; default 4, 1-1024 */
    int64_t
        pool_max; /* FERRY_POOL_MAX: with those added for waiting handlers; default 64, 1-4096 */

    /* transport */
    const char *transport;    /* FERRY_TRANSPORT: auto or a transport's name */
    const char *ucx_protocol; /* FERRY_UCX_PROTOCOL: choice tag */
    const char *paths;        /* FERRY_PATHS: "^own_ipc,^direct" */
    int64_t
        chunk_bytes; /* FERRY_CHUNK: one transport operation on host memory; default 2 MiB, 64 KiB-64 MiB */
    int64_t chunk_window; /* FERRY_CHUNK_WINDOW: operations in flight per tensor; default 4, 1-64 */
    int64_t
        direct_min_bytes; /* FERRY_DIRECT_MIN: device tensors from this size on go direct where they can; default 64 KiB */

    /* bounds */
    int64_t eager_bytes; /* FERRY_EAGER: largest control message; default 8 KiB, 1 KiB-8 KiB */
    int64_t
        inline_bytes; /* FERRY_INLINE: cpu tensors up to this size ride inside it; default 2 KiB, 0-4 KiB */
    int64_t max_tensors; /* FERRY_MAX_TENSORS a message; default 4096, 1-65536 */
    int64_t
        max_message_bytes; /* FERRY_MAX_MESSAGE: body and tensors of one message; default 64 GiB */
    int64_t max_calls;     /* FERRY_MAX_CALLS: calls in flight per peer; default 4096, 1-1048576 */
    enum config_full when_full; /* FERRY_WHEN_FULL=wait|fail */
    int64_t staging_bytes; /* FERRY_STAGING: pinned memory for staging per agent; default 256 MiB */
    int64_t
        pool_bytes; /* FERRY_POOL_BYTES: received-tensor memory kept for reuse per device; default 1 GiB */

    /* simulated accelerator (process-wide: the first agent's or the environment's) */
    int64_t sim_devices; /* FERRY_SIM_DEVICES; default 0, 0-64 */
};

const struct config_values *config_values(const ferry_config_t *config);

/* The process's own: file and environment, read once at first use; an unusable value is logged and its default
 * used. For what is asked before any agent exists (devices, log). */
const struct config_values *config_process(void);

/* The raw environment for variables that are not Ferry's own (MASTER_ADDR, RANK, ...): NULL when unset or empty. */
const char *config_environment(const char *name);

/* Parsers, also for other texts: "64", "64K", "2MiB", "1.5g" (binary multiples); "10us", "5s", "2m", "infinite". Raise FERRY_ERR_CONFIG. */
ferry_status_t config_parse_bytes(const char *text, int64_t *bytes_out);
ferry_status_t config_parse_time(const char *text, int64_t *ns_out);

/* The candidate nearest to text by edit distance, or NULL when none is near (more than a third of the length away). */
const char *config_nearest(const char *text, const char *const *candidates, size_t count);

/* Writes docs/configuration.md, which is generated from the table. */
void config_document(FILE *out);

#endif
