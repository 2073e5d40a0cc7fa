#include "support/kept.h"

ferry_status_t kept_handler(ferry_request_t *request, void *context)
{
    struct kept *kept = context;
    pthread_mutex_lock(&kept->lock);
    kept->request = request;
    pthread_cond_signal(&kept->changed);
    pthread_mutex_unlock(&kept->lock);
    return FERRY_PENDING;
}

ferry_request_t *kept_wait(struct kept *kept)
{
    pthread_mutex_lock(&kept->lock);
    while (kept->request == NULL) {
        pthread_cond_wait(&kept->changed, &kept->lock);
    }
    ferry_request_t *request = kept->request;
    kept->request = NULL;
    pthread_mutex_unlock(&kept->lock);
    return request;
}
