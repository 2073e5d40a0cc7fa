/* The table of options: what each is called, what it is for, and what it may be. */
#include "core/config_table.h"

#define FIELD(field) offsetof(struct config_values, field)

#define KIB(n) ((int64_t)(n)*1024)
#define MIB(n) (KIB(n) * 1024)
#define GIB(n) (MIB(n) * 1024)
#define US(n) ((int64_t)(n)*1000)
#define MS(n) (US(n) * 1000)
#define SEC(n) (MS(n) * 1000)

#define TEXT(field) .kind = CONFIG_TEXT, .offset = FIELD(field), .unit = "text"
#define FLAG(field) .kind = CONFIG_FLAG, .offset = FIELD(field), .unit = "flag: 0|1"
#define CHOICES(list) .unit = "choice: " list, .choices = list
#define NUMBER(field, least, most)                                                                 \
    .kind = CONFIG_NUMBER, .offset = FIELD(field), .unit = "number", .min = (least), .max = (most)
#define BYTES(field, least, most)                                                                  \
    .kind = CONFIG_BYTES, .offset = FIELD(field), .unit = "bytes", .min = (least), .max = (most)
#define TIME(field, least, most)                                                                   \
    .kind = CONFIG_TIME, .offset = FIELD(field), .unit = "time", .min = (least), .max = (most)

const struct config_option CONFIG_OPTIONS[CONFIG_OPTION_COUNT] = {
    /* who and where */
    {"NAME", "", TEXT(name), .text = "this agent's name where the program gives none"},
    {"NAMING", "inproc://", TEXT(naming),
     .text = "where agents find each other: inproc:// (this process), tcp://host:port, "
             "file:///directory, or env:// (as torchrun sets it)"},
    {"NAMING_SERVE", "0", FLAG(naming_serve),
     .text = "serve the tcp:// naming store in this agent; exactly one agent of a job does"},
    {"PORT", "0", NUMBER(port, 0, 65535),
     .text = "port of the env:// naming store; 0 means MASTER_PORT + 1"},
    {"INTERFACE", "", TEXT(interface),
     .text = "network interface or IP address to listen on; unset means loopback only"},
    {"DEVICE_MAP", "", TEXT(device_map),
     .text = "on which device each tensor arrives, e.g. 'worker1: cuda:0<->cuda:1'; @file reads "
             "the map from a file"},
    {"LOG", "warn", CHOICES("off|error|warn|info|debug|trace"), .kind = CONFIG_CHOICE,
     .offset = FIELD(log), .text = "how much is logged to stderr or to the program's sink"},

    /* times */
    {"TIMEOUT", "60s", TIME(timeout_ns, 1, FERRY_FOREVER),
     .text = "a call's timeout where the call gives none"},
    {"CONNECT_TIMEOUT", "10s", TIME(connect_timeout_ns, 1, FERRY_FOREVER),
     .text = "name look-up, hello and warm-up of a connection together"},
    {"PEER_TIMEOUT", "5s", TIME(peer_timeout_ns, MS(10), FERRY_FOREVER),
     .text = "silence of a peer's machine on the network after which the peer is taken for lost "
             "(to the second); a stopped process is not noticed"},
    {"RELEASE_TIMEOUT", "5s", TIME(release_timeout_ns, 0, FERRY_FOREVER),
     .text = "after an error, how long the transport may hold a tensor's memory before its link "
             "is dropped"},
    {"SPIN", "100us", TIME(spin_ns, 0, SEC(10)),
     .text = "how long an idle engine polls before it sleeps"},

    /* engine and pool */
    {"PROGRESS", "adaptive", CHOICES("adaptive|spin|sleep|manual"), .kind = CONFIG_CHOICE,
     .offset = FIELD(progress),
     .text = "how the engine waits: spin while busy and sleep when idle, always spin, always "
             "sleep, or only when the program calls it"},
    {"POOL_THREADS", "4", NUMBER(pool_threads, 1, 1024), .text = "threads that run handlers"},
    {"POOL_MAX", "64", NUMBER(pool_max, 1, 4096),
     .text = "threads that run handlers, with those added for handlers that wait"},

    /* transport */
    {"TRANSPORT", "auto", .kind = CONFIG_TEXT, .offset = FIELD(transport),
     .unit = "name: auto, inproc, ucx, or one that the program registered",
     .text = "auto means inproc between agents of one process, ucx between processes"},
    {"UCX_PROTOCOL", "tag", CHOICES("tag|stream|am"), .kind = CONFIG_WORD,
     .offset = FIELD(ucx_protocol), .text = "how tensor segments travel over UCX"},
    {"PATHS", "", .unit = "list: ^own_ipc|^direct", .choices = "own_ipc|direct",
     .kind = CONFIG_PATHS, .offset = FIELD(paths),
     .text = "Ferry's own paths that are switched off, e.g. ^own_ipc,^direct"},
    {"CHUNK", "2MiB", BYTES(chunk_bytes, KIB(64), MIB(64)),
     .text = "host memory that one transport operation carries at most"},
    {"CHUNK_WINDOW", "4", NUMBER(chunk_window, 1, 64),
     .text = "transport operations in flight per tensor"},
    {"DIRECT_MIN", "64KiB", BYTES(direct_min_bytes, 0, INT64_MAX),
     .text = "device tensors from this size on go direct where they can; smaller ones are staged"},

    /* bounds */
    {"EAGER", "8KiB", BYTES(eager_bytes, KIB(1), KIB(8)), .text = "largest control message"},
    {"INLINE", "2KiB", BYTES(inline_bytes, 0, KIB(4)),
     .text = "cpu tensors up to this size ride inside the control message"},
    {"MAX_TENSORS", "4096", NUMBER(max_tensors, 1, 65536), .text = "tensors of one message"},
    {"MAX_MESSAGE", "64GiB", BYTES(max_message_bytes, KIB(1), INT64_MAX),
     .text = "body and tensors of one message together"},
    {"MAX_CALLS", "4096", NUMBER(max_calls, 1, 1048576), .text = "calls in flight per peer"},
    {"WHEN_FULL", "wait", CHOICES("wait|fail"), .kind = CONFIG_CHOICE, .offset = FIELD(when_full),
     .text = "what a call does when its peer has FERRY_MAX_CALLS calls in flight"},
    {"STAGING", "256MiB", BYTES(staging_bytes, MIB(1), INT64_MAX),
     .text = "pinned memory for staging per agent"},
    {"POOL_BYTES", "1GiB", BYTES(pool_bytes, 0, INT64_MAX),
     .text = "memory of received tensors kept for reuse per device"},

    /* simulated accelerator */
    {"SIM_DEVICES", "0", NUMBER(sim_devices, 0, 64),
     .text = "simulated devices sim:0, sim:1, ...; one number for the whole process"},
};
