/* SPDX-License-Identifier: Apache-2.0 */
/*
 * --adaptive: which stack keys are worth evidence. The programs send it for a key that holds hot_bytes or more as it
 * allocates; the agent looks at the whole key table now and then and says which others are hot:
 *   - those among the largest holders, which together hold all but 1/32 of what is outstanding, two looks in a row;
 *   - those that were seen to grow, again and again, and not to shrink meanwhile.
 * For as long as that is so.
 */
#ifndef MEMLEAK_HOT_KEYS_H
#define MEMLEAK_HOT_KEYS_H

#include "agent/bpf/object.h"

struct ml_key_history {
	ml_u64 held;   /* bytes at the last look */
	ml_u32 rises;  /* looks that saw more than the one before, since the last that saw less */
	ml_u32 is_large;
};

struct ml_hot_keys {
	struct ml_key_history *history; /* by slot of the key table; NULL: not made yet */
	ml_u64 next_ns, pause_ns;
	ml_u64 large; /* bytes from which on a key was among the largest holders, at the last look */
};

/* A look, where it is time for one. -1: out of memory; what is hot stays as it is. */
int ml_hot_keys_look(struct ml_hot_keys *hot, struct ml_bpf *bpf, ml_u64 now_ns);

void ml_hot_keys_destroy(struct ml_hot_keys *hot);

#endif
