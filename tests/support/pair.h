/* Two agents of one process over a transport that the test names, and handlers that many tests want. */
#ifndef TEST_SUPPORT_PAIR_H
#define TEST_SUPPORT_PAIR_H

#include <ferry/testing.h>

#define TEST_SECONDS(n) ((int64_t)(n)*1000000000)

extern const DLDataType test_f32, test_u8;
extern const DLDevice test_cpu;

/* Starts a pair over the transport ("inproc" or "ucx") with up to three more settings, NULL-terminated names and values; fails the process with the
 * error's text when it cannot. The right agent answers "echo" (everything back), "sum" (a float32
 * tensor "x" on cpu: its sum in field "sum"), "nothing",
 * "fail" (code 7, "on purpose"), "forget" (no answer), "where" (field "where": the devices of all
 * tensors). */
ferry_testing_pair_t test_pair(const char *transport, const char *left_map,
                               const char *const *settings);

/* Registers the same handlers on any agent. */
void test_register(ferry_agent_t *agent);

/* A C-order cpu tensor over the caller's memory and shape. */
ferry_tensor_t test_tensor(const char *name, void *data, DLDataType dtype, int32_t ndim,
                           int64_t *shape);

/* Calls and waits; fails the process unless it succeeds. The future is the caller's. */
ferry_future_t *test_call(ferry_agent_t *agent, const char *peer, const char *method,
                          const ferry_message_t *message, const ferry_call_options_t *options);
/* Calls and waits for an error; returns the future (NULL when ferry_call itself failed) and leaves the error as the thread's last. */
ferry_status_t test_call_fails(ferry_agent_t *agent, const char *peer, const char *method,
                               const ferry_message_t *message, const ferry_call_options_t *options,
                               ferry_future_t **future_out);

/* Fresh bytes every run: the seed is printed by test_check() when something differs. */
void test_random(void *data, size_t bytes);

/* Stops with the file, the line and ferry_last_error() unless the condition holds. */
#define TEST_CHECK(condition) test_check((condition), #condition, __FILE__, __LINE__)
void test_check(bool condition, const char *text, const char *file, int line);

#endif
