/* SPDX-License-Identifier: Apache-2.0 */
/* Which stacks of which keys were kept already: a key that names one stack only needs one piece of evidence. */
#ifndef MEMLEAK_PRELOAD_SEEN_H
#define MEMLEAK_PRELOAD_SEEN_H

#include <stdbool.h>

#include "preload/segment/segment.h"

struct ml_preload_seen {
	ml_u64 *stacks; /* direct-mapped, by a hash of key, epoch and stack; forgetting costs a repetition only */
	ml_u32 n_places, n_used; /* of stacks */
	ml_u32 *epochs; /* by key: what is forgotten is what an older epoch put in */
};

int ml_preload_seen_create(struct ml_preload_seen *seen);
void ml_preload_seen_destroy(struct ml_preload_seen *seen);

/* True when the same stack was tested before; it is remembered from now on. */
bool ml_preload_seen_test(struct ml_preload_seen *seen, ml_u64 key, ml_u64 stack_hash);

/* The key's evidence was dropped: the next one counts as new. */
void ml_preload_seen_forget(struct ml_preload_seen *seen, ml_u64 key);

#endif
