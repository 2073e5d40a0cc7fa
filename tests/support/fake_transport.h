/* A transport whose moments a test chooses: it matches sends with receives and completes them when
 * it is told to, fails the operation that it is told to, and counts what is in flight. One fake is
 * one link with both its ends; end 0 and end 1 are the ferry_link_t of either side. */
#ifndef TESTS_SUPPORT_FAKE_TRANSPORT_H
#define TESTS_SUPPORT_FAKE_TRANSPORT_H

#include <stdbool.h>

#include <ferry/transport.h>

enum fake_kind { FAKE_SEND, FAKE_RECEIVE, FAKE_DECLINE, FAKE_KINDS };

struct fake_post;

struct fake_end {
    ferry_link_t link; /* first */
    struct fake_transport *fake;
    bool down;                 /* posts are refused with FERRY_ERR_PEER_LOST */
    bool gone;                 /* disconnected: any use counts as misuse */
    size_t posted[FAKE_KINDS]; /* ever */
    size_t in_flight[FAKE_KINDS], most_in_flight[FAKE_KINDS];
};

struct fake_transport {
    ferry_transport_t base; /* first */
    uint32_t capabilities;
    struct fake_end ends[2];
    struct fake_post *posts; /* owned */

    bool hold;      /* progress() completes nothing */
    bool reversed;  /* the newest pair completes first */
    bool at_once;   /* who posts second is finished within the slot */
    int64_t budget; /* pairs that progress() may still complete; below 0: any number */

    /* The nth operation (from 1) of that kind at that end fails; 0: none. */
    struct {
        int end;
        enum fake_kind kind;
        size_t nth;
        ferry_status_t status;
    } fail_post, fail_completion;

    size_t misused; /* slots called on an end that is gone; the test wants 0 */
    size_t direct;  /* operations on device memory */
};

struct fake_transport *fake_create(uint32_t capabilities);
void fake_destroy(struct fake_transport *fake); /* nothing may be in flight */
ferry_link_t *fake_link(struct fake_transport *fake, int end);
unsigned fake_progress(struct fake_transport *fake);
/* The link fails at both ends: posts are refused; what is posted ends in disconnect. */
void fake_drop(struct fake_transport *fake);
void fake_disconnect(struct fake_transport *fake, int end);

#endif
