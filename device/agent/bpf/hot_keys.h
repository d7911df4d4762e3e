/* SPDX-License-Identifier: Apache-2.0 */
/*
 * --adaptive: selects the stack keys that send evidence. The programs send it for a key that holds hot_bytes or more as it
 * allocates. The agent scans the key table at intervals and marks as hot, while it lasts:
 *   - the largest holders, which together hold all but 1/32 of the heap, in two updates in a row;
 *   - keys that grew in several updates and did not shrink.
 */
#ifndef MEMLEAK_HOT_KEYS_H
#define MEMLEAK_HOT_KEYS_H

#include "agent/bpf/object.h"

struct ml_key_history {
	ml_u64 held;   /* bytes at the last update */
	ml_u32 rises;  /* updates that found more than the one before, since the last that found less */
	ml_u32 is_large;
};

struct ml_hot_keys {
	struct ml_key_history *history; /* by slot of the key table; NULL: not made yet */
	ml_u64 next_ns, pause_ns;
	ml_u64 large; /* bytes from which on a key was among the largest holders, at the last update */
};

/* Updates the marks if it is due. -1: out of memory; the marks stay as they are. */
int ml_hot_keys_update(struct ml_hot_keys *hot, struct ml_bpf *bpf, ml_u64 now_ns);

void ml_hot_keys_destroy(struct ml_hot_keys *hot);

#endif
