/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tables of ended processes: rows replace the shared memory, which is megabytes of mostly empty tables. Bounded: what does not fit is
 * logged, or counted as lost.
 */
#pragma once

#include "agent/shim/rows.h"

/* Counters by process and key; 112 MiB. */
#ifndef ML_ENDED_KEYS_MAX
#define ML_ENDED_KEYS_MAX (2u << 20)
#endif

struct ml_held_key {
	ml_u64 key; /* 0 = empty */
	ml_u64 objects;
};

/* All zero but live_max: empty. */
struct ml_preload_ended {
	struct ml_live_row *live; /* blocks and regions */
	size_t n_live, live_room, live_max;
	struct ml_key_row *keys;
	size_t n_keys, keys_room;
	struct ml_held_key *held; /* by key, over all processes: a hash table of a power of two */
	size_t n_held, held_slots;
	ml_u64 seed; /* of the hash */
	bool has_dropped_keys, is_full;
	struct ml_status totals; /* counters and losses */
};

/* Copies the tables of the target, and moves its regions out of the ledger. Its memory is not needed any more. */
void ml_preload_ended_add(struct ml_preload_ended *ended, const struct ml_preload_target *target, struct ml_regions *regions);

/* Live blocks of the key in ended processes. *is_counted: one of them had the key. */
ml_u64 ml_preload_ended_objects(const struct ml_preload_ended *ended, ml_u64 key, bool *is_counted);

void ml_preload_ended_destroy(struct ml_preload_ended *ended);
