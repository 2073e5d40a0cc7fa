/* A handler that keeps its request, and a test that takes it from there. */
#ifndef TESTS_SUPPORT_KEPT_H
#define TESTS_SUPPORT_KEPT_H

#include <pthread.h>

#include <ferry/request.h>

struct kept {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    ferry_request_t *request;
};

#define KEPT_INIT                                                                                  \
    {                                                                                              \
        .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER                     \
    }

/* To be registered with a struct kept for its context. */
ferry_status_t kept_handler(ferry_request_t *request, void *context);
/* Waits for the request, which is the caller's then. */
ferry_request_t *kept_wait(struct kept *kept);

#endif
