/* Descriptors that a forked child must not keep. A connection or a lock whose end is a sign of death stays open as long as any
 * copy of it is, so a child that outlives its parent would keep the parent alive in the eyes of
 * its peers; and an epoll set that both share would let the child take the parent's descriptors
 * out. In the child each guarded descriptor is replaced by /dev/null: its number stays taken,
 * whatever held it may close it. */
#ifndef FERRY_CORE_FORK_GUARD_H
#define FERRY_CORE_FORK_GUARD_H

/* Any thread. Without memory the descriptor is not guarded, which is logged. */
void fork_guard_add(int fd);
/* Before the descriptor is closed. Not guarded: nothing. */
void fork_guard_remove(int fd);

#endif
