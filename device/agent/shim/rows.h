/* SPDX-License-Identifier: Apache-2.0 */
/* What stands in a target's shared tables, row by row, while the target may go on changing them. */
#ifndef MEMLEAK_PRELOAD_ROWS_H
#define MEMLEAK_PRELOAD_ROWS_H

#include "agent/shim/target.h"
#include "agent/evidence/regions.h"

/* The columns of ML_BLOCK_LIVE. */
struct ml_live_row {
	ml_u64 address, size, timestamp_ns, sequence, key;
	ml_u32 pid, tid, function, sample_bytes;
};

/* The columns of ML_BLOCK_KEYS. */
struct ml_key_row {
	ml_u64 key, alloc_objects, alloc_bytes, free_objects, free_bytes, flags;
	ml_u64 pid;
};

typedef int ml_take_live(void *context, const struct ml_live_row *row);
typedef int ml_take_key(void *context, const struct ml_key_row *row);

/* Both end early, with its result, when `take` returns other than 0. */
int ml_preload_rows_live(const struct ml_preload_target *target, ml_take_live *take, void *context);
int ml_preload_rows_keys(const struct ml_preload_target *target, ml_take_key *take, void *context);

struct ml_live_row ml_preload_region_row(const struct ml_region *region);

/* Adds the target's counters and losses. */
void ml_preload_rows_count(const struct ml_preload_target *target, struct ml_status *status);

#endif
