/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Evidence comes in, and leaves as EVIDENCE blocks if a block of its stack key lives for --older: most allocations die young.
 * Evidence of keys that hold nothing is dropped and requested again. That of busy keys (many short-lived blocks) is written once,
 * because --sort churn needs their stacks. Liveness is counted per key, because evidence represents every block of its key.
 */
#pragma once

#include "wire.h"

struct ml_nursery_source {
	/* Live blocks of the key. allocated: all its blocks so far, 0: unknown. */
	ml_u64 (*live_objects)(void *context, ml_u64 key, ml_u64 *allocated);
	/* The next allocation of the key brings evidence again. */
	void (*ask_again)(void *context, ml_u64 key);
	/* Whether the key held much at the high-water mark: then its evidence is written once. NULL: never. */
	bool (*was_in_peak)(void *context, ml_u64 key);
	void *context;
};

struct ml_nursery;

struct ml_nursery *ml_nursery_create(ml_u64 limit_bytes, ml_u64 older_ns, struct ml_nursery_source source);
void ml_nursery_destroy(struct ml_nursery *nursery);

/* Copies the used part of the record. -1: out of memory or inconsistent sizes, and the record is lost. */
int ml_nursery_add(struct ml_nursery *nursery, const struct ml_evidence *record);

/*
 * Writes evidence that is old enough, drops that of keys without blocks, and writes early what exceeds the limit.
 * -1: the host is gone.
 */
int ml_nursery_age(struct ml_nursery *nursery, ml_u64 now_ns);

/* Before a snapshot: writes the evidence of keys that hold blocks, of any age. -1: the host is gone. */
int ml_nursery_flush(struct ml_nursery *nursery);
