/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Most allocations die young. The nursery holds new evidence until a block of its stack key has lived
 * long enough (--older); evidence of keys that hold nothing is dropped and asked for again. Of busy keys, which
 * allocate again and again and give all back, it is written once: who they are is asked too (--sort churn).
 *
 * Liveness is asked per key, not per block: evidence speaks for every block of its key.
 */
#ifndef MEMLEAK_NURSERY_H
#define MEMLEAK_NURSERY_H

#include <stdbool.h>
#include <stddef.h>

#include "wire.h"

struct ml_nursery_source {
	/* Blocks of the key that are live now, and (0 = nobody knows) all that there were. */
	ml_u64 (*live_objects)(void *context, ml_u64 key, ml_u64 *allocated);
	/* From now on the next allocation of the key brings evidence again. */
	void (*ask_again)(void *context, ml_u64 key);
	/*
	 * When a block of the key will have lived so long that its evidence is wanted; 0 = it has, or that is not to be
	 * known. NULL: whatever lives is wanted.
	 */
	ml_u64 (*wanted_from)(void *context, ml_u64 key, ml_u64 now_ns);
	/* The key held much when the process held most: its evidence is written once, though it holds nothing now. NULL: none does. */
	bool (*was_in_peak)(void *context, ml_u64 key);
	void *context;
};

struct ml_nursery;

struct ml_nursery *ml_nursery_create(ml_u64 limit_bytes, ml_u64 older_ns, struct ml_nursery_source source);
void ml_nursery_destroy(struct ml_nursery *nursery);

/* Copies the used part of the record. -1: out of memory, or sizes that contradict: the record is lost. */
int ml_nursery_add(struct ml_nursery *nursery, const struct ml_evidence *record);

/*
 * Writes what has come of age, drops what is dead, and writes early what exceeds the limit.
 * -1: the host is gone.
 */
int ml_nursery_age(struct ml_nursery *nursery, ml_u64 now_ns);

/* Writes all evidence of keys that hold something, and is wanted, of any age: before a snapshot. -1: the host is gone. */
int ml_nursery_flush(struct ml_nursery *nursery, ml_u64 now_ns);

size_t ml_nursery_bytes(const struct ml_nursery *nursery);

#endif
