/* What every transport promises: one list of checks over two instances of it. A check that does not hold stops the process with its place. */
#ifndef TESTS_SUPPORT_TRANSPORT_CHECKS_H
#define TESTS_SUPPORT_TRANSPORT_CHECKS_H

#include "support/transport_ends.h"

size_t transport_check_count(void);
const char *transport_check_name(size_t check);
/* threaded: each instance in the hands of its own thread, as agents have it. Without it the test's thread drives both. */
void transport_check_run(size_t check, const struct wire *wire, bool threaded);

/* Those about links that end, in transport_checks_end.c. */
void check_posted_receives_end(struct ends *ends);
void check_matched_segments_end(struct ends *ends);
void check_sessions_start_afresh(struct ends *ends);
void check_peer_goes(struct ends *ends);
void check_unreceived_is_dropped(struct ends *ends);
void check_links_come_and_go(struct ends *ends);

#endif
