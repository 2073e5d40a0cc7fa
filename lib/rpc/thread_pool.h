/* The threads that run pool methods' handlers. Tasks run first in, first out, at most `threads` at once;
 * one that waits does not count, so that another thread may take its place, up to `max` in all.
 * Threads start when there is work for them, block every signal and are named PREFIX-1, PREFIX-2,
 * ... */
#ifndef FERRY_RPC_THREAD_POOL_H
#define FERRY_RPC_THREAD_POOL_H

#include <ferry/status.h>

struct thread_pool;

/* Lives in its owner; borrowed by the pool from submit until `run` is called, which may free or submit
 * it again. */
struct thread_pool_task {
    void (*run)(void *context);
    void *context;
    struct thread_pool_task *next; /* the pool's */
};

/* threads 1 and more, max at least threads. spin_ns: how long one thread without work polls before it
 * sleeps; 0: not at all. prefix is copied; 15 characters with the number are seen. Starts no
 * thread.
 * FERRY_ERR_INVALID_ARGUMENT, FERRY_ERR_NO_MEMORY, FERRY_ERR_SYSTEM. */
ferry_status_t thread_pool_create(int64_t threads, int64_t max, int64_t spin_ns, const char *prefix,
                                  struct thread_pool **pool_out);
/* Returns when every task has run, those that tasks submit meanwhile included. Not from a thread of the
 * pool; no other thread may use the pool any more. NULL is taken. */
void thread_pool_destroy(struct thread_pool *pool);

/* Any thread. Never waits for a task and never allocates, though it may start a thread. The task runs
 * exactly once. FERRY_ERR_SYSTEM: not taken, no thread can run it and none can be started. */
ferry_status_t thread_pool_submit(struct thread_pool *pool, struct thread_pool_task *task);

/* Around a wait inside a task. FERRY_ERR_BUSY: not entered, since no thread would be left to run what it
 * waits for: `max` - 1 wait already, or no other thread can be started. After FERRY_OK leave is
 * owed;
 * leave never blocks. Pairs may nest, only the outer one counts; on a thread that is not the pool's
 * both
 * do nothing. */
ferry_status_t thread_pool_enter_wait(struct thread_pool *pool);
void thread_pool_leave_wait(struct thread_pool *pool);

/* The pool that this thread belongs to, or NULL. */
struct thread_pool *thread_pool_current(void);

/* How many threads there are now. */
int64_t thread_pool_size(struct thread_pool *pool);

#endif
