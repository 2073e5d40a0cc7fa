/* The inside of an agent, shared by the files of lib/rpc. One lock guards everything here: transports, transfers, peers, links, calls and requests.
 * User code never runs under it: what must run outside is queued as an action. */
#ifndef FERRY_RPC_AGENT_H
#define FERRY_RPC_AGENT_H

#include <pthread.h>
#include <stdatomic.h>
#include <uthash.h>

#include <ferry/agent.h>
#include <ferry/metrics.h>
#include <ferry/transport.h>

#include "core/channel.h"
#include "core/config.h"
#include "core/error.h"
#include "core/local_channel.h"
#include "core/poller.h"
#include "device/memory_pool.h"
#include "device/registry.h"
#include "naming/naming.h"
#include "rpc/device_map.h"
#include "rpc/hello.h"
#include "rpc/peer_table.h"
#include "rpc/thread_pool.h"
#include "rpc/transfer.h"
#include "rpc/wire.h"

#define AGENT_TRANSPORTS_MAX 2
#define AGENT_STREAMS_MAX 8 /* streams that one request or future may name */

/* What user code is on this thread's stack: nested waits then run no other handler, and callbacks must not block. */
enum user_scope { USER_NONE, USER_HANDLER, USER_CALLBACK };

/* Work that waits to run without the lock, in the order it came; intrusive. */
struct action {
    struct action *next;
    void (*run)(struct action *action); /* called without the lock, returns with it */
    struct thread_pool_task task;
    struct ferry_agent *agent; /* borrowed */
    enum user_scope scope;     /* what runs is this */
};

struct action_queue {
    struct action *head, *tail;
};

enum agent_state {
    AGENT_CREATED,
    AGENT_STARTING,
    AGENT_RUNNING,
    AGENT_DRAINING, /* no new calls or requests */
    AGENT_STOPPED
};

struct agent_transport {
    ferry_transport_t *instance; /* owned */
    uint32_t capabilities;
};

struct method {
    char name[WIRE_METHOD_BYTES_MAX + 1];
    ferry_method_fn *run;
    void *context;
    bool run_inline, has_allocator;
    int32_t concurrency;
    ferry_allocator_t allocator;
    int32_t active; /* handlers under way in the pool or inline */
    int32_t open;   /* requests that name this method and are not finished */
    struct request_queue {
        struct ferry_request *head, *tail;
    } waiting; /* for concurrency */
    UT_hash_handle hh;
};

/* The agent's device map, kept while a pending call may still ask it where a result goes. Under the lock. */
struct shared_map {
    ferry_device_map_t *map; /* owned */
    size_t references;
};

enum peer_state { PEER_IDLE, PEER_RESOLVING, PEER_DIALLING, PEER_EXPECTING, PEER_UP };

struct ready_waiter {
    struct ready_waiter *next;
    struct action action;
    ferry_ready_fn *ready;
    void *context;
    ferry_status_t status;
};

/* Another agent by name; lives as long as this agent. What every call looks at lies together, at the end: hundreds of peers do
 * not fit into a cache. */
struct peer {
    struct ready_waiter *waiters; /* owned */
    uint64_t attempts;            /* grows when an attempt to connect ends, well or not */
    uint64_t epoch;               /* links dialled so far */
    struct error_reason error;    /* why the last attempt failed */
    struct poller_timer timer;    /* ends an attempt */

    struct ferry_agent *agent; /* borrowed */
    enum peer_state state;
    bool self;
    struct link *link;           /* retained; in PEER_DIALLING and PEER_UP */
    size_t calls;                /* in flight */
    struct shared_map *view_map; /* whose view this is; compared only */
    struct device_map_view view;
    char name[];
};

enum link_state {
    LINK_DIALLING,   /* dialler: hello sent or about to be */
    LINK_ACCEPTING,  /* acceptor: waits for the hello */
    LINK_ACCEPTED,   /* acceptor: answered, waits for READY */
    LINK_CONFIRMING, /* dialler: READY sent, waits for READY */
    LINK_UP,
    LINK_DOWN
};

/* A connection to one peer: Ferry's own channel, the transport's link and what hangs on them. What every call looks at comes
 * first. */
struct link {
    struct ferry_agent *agent; /* borrowed */
    int32_t references;        /* under the lock */
    enum link_state state;
    ferry_link_t *wire;                /* owned: disconnect; NULL before and after */
    struct agent_transport *transport; /* borrowed; NULL before the choice */
    struct ferry_future *calls;        /* list: waiting for a reply over this link */
    struct ferry_request *requests;    /* list: came over this link, not finished */
    uint32_t next_segment;             /* of what is sent here */
    bool dying;                        /* queued for link_bury() */
    struct wire_limits send_limits;    /* the smaller of both sides' */
    uint64_t peer_operation_bytes;     /* largest operation the peer takes; 0: any */

    char *remote_name;          /* owned; NULL before it is known */
    struct peer *peer;          /* borrowed; whose attempt or link this is; NULL before */
    struct peer *accepted_peer; /* borrowed; acceptor: who dialled, once its hello is accepted */
    struct hello_transport *remote_transport; /* owned; acceptor: until READY */
    struct channel *channel;                  /* owned; to another process, else NULL */
    struct local_channel *local; /* owned; inside this one, but to oneself there is neither */
    uint32_t local_session, remote_session;
    DLDevice *devices; /* the peer's; owned */
    size_t device_count;
    uint8_t remote_agent[16];
    int64_t remote_pid;
    struct poller_timer timer; /* bounds the handshake */
    struct error_reason down;  /* why, once LINK_DOWN */
    char *text;                /* owned: how its bytes travel; NULL before it comes up */
    struct link *next_dying;
    struct link *prev, *next; /* agent->links */
    struct link *twin;        /* the other end of a link to oneself; borrowed */
};

struct call_slot {
    struct ferry_future *future; /* retained while pending; NULL: free */
    uint32_t generation;
    uint32_t next_free;
};

/* A thread that sleeps on the agent's descriptors, and one of its own by which it is woken: a shared one could be drained by another
 * thread before this one has looked. */
struct sleeper {
    int fd; /* eventfd; owned */
    struct sleeper *next;
};

struct ferry_agent {
    pthread_mutex_t lock;
    enum agent_state state;
    bool published, naming_failed;
    struct error_record start_error;
    char name[NAMING_NAME_BYTES_MAX + 1];
    uint8_t id[16];
    ferry_config_t *config;             /* owned */
    const struct config_values *values; /* of config */
    struct clock clock;
    ferry_clock_t user_clock;
    struct shared_map *map; /* retained; never NULL */
    char *naming_url;       /* owned */
    bool serve_naming;

    struct poller *poller;         /* owned */
    struct naming *naming;         /* owned; NULL before start */
    struct poller_source listener; /* accepts links */
    struct local_port *port;       /* owned; accepts those from this process; NULL before start */
    uint32_t links_made;           /* their session numbers come of it */
    struct hello_address address;
    struct agent_transport transports[AGENT_TRANSPORTS_MAX];
    size_t transport_count;
    const struct agent_transport *named; /* the only one to use, but to oneself; NULL: any */
    struct memory_pool *memory;          /* owned */
    struct transfer_engine *transfers;   /* owned; NULL before start */
    struct thread_pool *pool;            /* owned; NULL before start */
    struct wire_limits receive_limits;   /* what this agent accepts */
    DLDevice devices[DEVICE_LIST_MAX];
    size_t device_count;

    struct method *methods;  /* hash by name; owned */
    struct peer_table peers; /* owned */
    struct link *links;      /* list; retained */
    struct link *dying;      /* torn down after progress returned */
    struct call_slot *slots;
    uint32_t slot_count, free_slot;

    struct action_queue actions;       /* user code, run by whoever steps, without the lock */
    struct action_queue pool_actions;  /* user code, for the pool when the lock is let go */
    struct ferry_future *free_futures; /* recycled */
    size_t free_future_count;
    struct ferry_request *free_requests; /* recycled */
    size_t free_request_count;

    /* Who drives: all under the lock but the atomics. */
    struct waiter *waiters;         /* list: threads in engine_wait_locked() */
    struct sleeper *sleeping;       /* threads asleep on sleep_fd and their own descriptor */
    struct sleeper *spare_sleepers; /* owned; for the next ones */
    const void *driver;             /* who is stepping: an address on its stack; NULL: nobody */
    bool standby;                   /* the own thread stands back behind a waiter */
    bool standby_long;              /* for so long that it must be woken when the waiter leaves */
    uint32_t busy_arms;             /* times in a row that a transport would not be armed */
    uint32_t progress_calls;
    int64_t step_ns;    /* when the present step saw its first message; 0: not yet */
    bool prepared;      /* manual: prepare_wait() came since the last progress */
    atomic_int waiting; /* how many there are in `waiters`; written under the lock, as `waits` */
    atomic_uint waits;  /* how many there have been */
    unsigned waits_at_call; /* as many at the last call that had to be kicked for */
    atomic_int contenders;  /* threads that wait for the lock */
    atomic_bool stop_requested;
    atomic_bool thread_quit;
    pthread_t thread; /* the engine's own */
    bool thread_running;
    int sleep_fd; /* an epoll set over poller and transports; -1 before start */

    size_t actions_open;      /* posted and not finished: user code that may still run */
    size_t futures, requests; /* objects in somebody's hands; the agent's memory outlives them */
    bool destroyed;
    ferry_counters_t counters;
};

/* agent.c */
void shared_map_release(struct shared_map *map); /* NULL is taken */
/* Destroyed, and nobody holds a future or a request of it any more: agent_free() is due, without the lock. */
bool agent_is_unused(const struct ferry_agent *agent);
void agent_free(struct ferry_agent *agent);
bool agent_manual(const struct ferry_agent *agent);
int64_t agent_now_ns(const struct ferry_agent *agent);

/* Returns the scope before, for user_scope_leave(). */
enum user_scope user_scope_enter(enum user_scope scope);
void user_scope_leave(enum user_scope before);
enum user_scope user_scope_now(void);

#endif
