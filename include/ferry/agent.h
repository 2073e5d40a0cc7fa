/* An agent is this process's named participant. Several may live in one process; there is no global state.
 *
 *   create -> register methods -> start (publishes the name) -> calls, run/stop -> shutdown -> destroy
 *
 * Unless said otherwise a function may be called from any thread, also from handlers and callbacks.
 */
#ifndef FERRY_AGENT_H
#define FERRY_AGENT_H

#include <stdbool.h>

#include <ferry/config.h>
#include <ferry/device_map.h>
#include <ferry/error.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ferry_agent ferry_agent_t;
typedef struct ferry_request ferry_request_t;

/* Time for tests: replaces CLOCK_MONOTONIC for every deadline of an agent. */
typedef struct {
    int64_t (*now_ns)(void *context); /* any thread, under locks */
    void *context;
} ferry_clock_t;

typedef struct {
    size_t struct_bytes;
    const char
        *name; /* 1-127 of [A-Za-z0-9_.-]; NULL: FERRY_NAME, else what the launcher says (env://) */
    const char *
        naming; /* inproc:// | tcp://host:port | file:///dir | env://; NULL: FERRY_NAMING, else inproc:// */
    bool serve_naming;      /* also serve the tcp:// store at that address */
    const char *device_map; /* the text of device_map.h; NULL: FERRY_DEVICE_MAP, else empty */
    const ferry_device_rule_t *rules; /* the same as a struct array; not both */
    size_t rule_count;
    ferry_config_t *config; /* becomes the agent's if create succeeds; NULL: file and environment */
    const ferry_clock_t *clock; /* copied; NULL: the monotonic clock */
} ferry_agent_options_t;

/* Every default, struct_bytes filled. */
FERRY_API ferry_agent_options_t ferry_agent_options(void);

/* options NULL: every default. FERRY_ERR_INVALID_ARGUMENT (name), FERRY_ERR_CONFIG, FERRY_ERR_DEVICE_MAP, FERRY_ERR_NO_MEMORY,
 * FERRY_ERR_SYSTEM. No thread is started and nothing is published. */
FERRY_API ferry_status_t ferry_agent_create(const ferry_agent_options_t *options,
                                            ferry_agent_t **agent_out);

/* Answers a request, in a pool thread or inline. Returns
 *   FERRY_OK       after ferry_request_reply() or ferry_request_fail(); not answered: FERRY_ERR_UNANSWERED goes out
 *   FERRY_PENDING  the handler keeps the request: it is answered later, from any thread, and then
 *                  released with ferry_request_release()
 *   an error       and that is the answer, with the text of ferry_last_error() if it has the same status. */
typedef ferry_status_t ferry_method_fn(ferry_request_t *request, void *context);

/* Memory for received tensors from the user's own allocator (a framework's caching allocator). */
typedef struct {
    ferry_status_t (*allocate)(void *context, DLDevice device, size_t bytes, void **memory_out);
    void (*deallocate)(void *context, DLDevice device, void *memory);
    void *context;
} ferry_allocator_t;

typedef struct {
    size_t struct_bytes;
    bool
        run_inline; /* in the progress engine: for handlers that take microseconds and never wait */
    int32_t
        concurrency; /* how many may run at once, the rest queue; 0: as many as the pool has threads */
    const ferry_allocator_t *
        allocator; /* copied; NULL: the agent's memory pool. Called from any thread without locks. */
} ferry_method_options_t;

FERRY_API ferry_method_options_t ferry_method_options(void);

/* method: 1-127 bytes of printable text; "*" is the catch-all for names nobody registered. options NULL: every default. Before or after start.
 * FERRY_ERR_INVALID_ARGUMENT, FERRY_ERR_NAME_TAKEN (registered already), FERRY_ERR_NO_MEMORY. */
FERRY_API ferry_status_t ferry_agent_register(ferry_agent_t *agent, const char *method,
                                              ferry_method_fn *run, void *context);
FERRY_API ferry_status_t ferry_agent_register_with(ferry_agent_t *agent, const char *method,
                                                   ferry_method_fn *run, void *context,
                                                   const ferry_method_options_t *options);
/* New calls find no such method; waits until the running ones have been answered. FERRY_ERR_NOT_FOUND; FERRY_ERR_STATE: called from
 * a handler of that method, or in manual mode while one runs. */
FERRY_API ferry_status_t ferry_agent_unregister(ferry_agent_t *agent, const char *method);

/* Opens the transports, checks the map's own devices, publishes the name; serves from now on. Blocks at most
 * FERRY_CONNECT_TIMEOUT. FERRY_ERR_STATE (started already), FERRY_ERR_NAME_TAKEN, FERRY_ERR_NAMING,
 * FERRY_ERR_DEVICE_MAP, FERRY_ERR_CONFIG (no such transport), FERRY_ERR_TRANSPORT,
 * FERRY_ERR_FORKED, FERRY_ERR_SYSTEM. After a failure only shutdown and destroy are left. */
FERRY_API ferry_status_t ferry_agent_start(ferry_agent_t *agent);

/* Optional: waits until the peer is there, connects, and checks the map's clause for it against its devices. timeout_ns 0: FERRY_CONNECT_TIMEOUT.
 * FERRY_ERR_UNKNOWN_PEER (not there in time), FERRY_ERR_UNREACHABLE, FERRY_ERR_INCOMPATIBLE,
 * FERRY_ERR_REFUSED, FERRY_ERR_DEVICE_MAP (the link stays),
 * FERRY_ERR_NAMING, FERRY_ERR_STATE, FERRY_ERR_SHUTDOWN; FERRY_ERR_WOULD_BLOCK in manual mode and
 * in callbacks: the connection is under way, see ferry_agent_when_ready(). */
FERRY_API ferry_status_t ferry_agent_connect(ferry_agent_t *agent, const char *peer,
                                             int64_t timeout_ns);

/* After FERRY_ERR_WOULD_BLOCK: calls `ready` once when a call to the peer may be worth trying again (connected with room, or failed:
 * the status says which). FERRY_ERR_STATE, FERRY_ERR_INVALID_ARGUMENT, FERRY_ERR_NO_MEMORY. */
typedef void ferry_ready_fn(void *context, ferry_status_t status);
FERRY_API ferry_status_t ferry_agent_when_ready(ferry_agent_t *agent, const char *peer,
                                                ferry_ready_fn *ready, void *context);

/* Serves until ferry_agent_stop(); in manual mode it drives the agent itself. FERRY_ERR_STATE: not started. */
FERRY_API ferry_status_t ferry_agent_run(ferry_agent_t *agent);
/* Async-signal-safe; makes the present or the next run return. */
FERRY_API void ferry_agent_stop(ferry_agent_t *agent);

/* Withdraws the name, refuses new requests, waits up to drain_ns for those that run and for own calls, then cancels what is left and closes every link.
 * Safe in any state, also after a failed start and twice. FERRY_ERR_TIMEOUT: something was cut off.
 * FERRY_ERR_STATE: called from a handler or a callback. */
FERRY_API ferry_status_t ferry_agent_shutdown(ferry_agent_t *agent, int64_t drain_ns);
/* Shuts down without drain if that was not done. Futures that are still held stay valid (completed) until released. Not from a handler or callback.
 * NULL is taken. */
FERRY_API void ferry_agent_destroy(ferry_agent_t *agent);

/* The name, also when it came from the environment. Lives as long as the agent. */
FERRY_API const char *ferry_agent_name(const ferry_agent_t *agent);
/* The port of the naming store that this agent serves (tcp://host:0 picks one); 0: it serves none. */
FERRY_API uint16_t ferry_agent_naming_port(const ferry_agent_t *agent);

/* Replaces the map for calls made from now on; the map is copied. FERRY_ERR_DEVICE_MAP: a device on the left that this process does not have. */
FERRY_API ferry_status_t ferry_agent_set_device_map(ferry_agent_t *agent, const char *text);

/* Manual mode (FERRY_PROGRESS=manual): no thread of Ferry's drives the agent; handlers registered for the pool still run in pool threads.
 * One descriptor, level-triggered, for poll/epoll; lives as long as the agent. -1 before start. */
FERRY_API int ferry_agent_fd(const ferry_agent_t *agent);
/* Moves everything on that is ready and runs inline handlers and callbacks; returns how many things happened. Never blocks. In the other modes it may be
 * called too. */
FERRY_API unsigned ferry_agent_progress(ferry_agent_t *agent);
/* Before sleeping on the descriptor: FERRY_OK, sleep for at most *timeout_ns_out (FERRY_FOREVER: no bound); FERRY_PENDING, there is work: progress first. */
FERRY_API ferry_status_t ferry_agent_prepare_wait(ferry_agent_t *agent, int64_t *timeout_ns_out);

#ifdef __cplusplus
}
#endif

#endif
