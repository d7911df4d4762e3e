/* SPDX-License-Identifier: Apache-2.0 */
/* Writers of LIVE, KEYS, HIGH_WATER and STATUS blocks: rows come in, chunks of columns go to the host. */
#pragma once

#include "agent/evidence/regions.h"
#include "wire.h"

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

/*
 * One snapshot: all keys, then all live blocks. A block that is allocated in between has no key yet, never a key too many.
 * All functions return -1 if the host is gone. Those that add a row serve as callbacks.
 */
struct ml_snapshot;

struct ml_snapshot *ml_snapshot_begin(ml_u64 number, ml_u64 taken_ns); /* NULL: out of memory */
int ml_snapshot_add_key(void *snapshot, const struct ml_key_row *row);
int ml_snapshot_end_keys(struct ml_snapshot *snapshot);
int ml_snapshot_add_live(void *snapshot, const struct ml_live_row *row);
int ml_snapshot_add_regions(struct ml_snapshot *snapshot, const struct ml_regions *regions);
/* Writes the last chunk unless `result`, that of the calls before, is an error. Frees the snapshot, which may be NULL. */
int ml_snapshot_end(struct ml_snapshot *snapshot, int result);

struct ml_live_row ml_region_row(const struct ml_region *region);

#define ML_PEAK_ROWS 32768u

struct ml_peak_rows {
	struct ml_high_water head; /* count: rows that are not written yet */
	ml_u64 key[ML_PEAK_ROWS], bytes[ML_PEAK_ROWS];
};

/* Skips a key that held nothing. -1: the host is gone. */
int ml_peak_rows_add(struct ml_peak_rows *rows, ml_u64 key, ml_u64 bytes);
int ml_peak_rows_end(struct ml_peak_rows *rows);

/* A key that held more than this share of the peak is worth its stack, though it holds nothing now. */
#define ML_PEAK_PART_SHIFT 8 /* 1/256 */

/* Adds the counters of one key to the totals. */
static inline void ml_status_add(struct ml_status *status, ml_u64 alloc_objects, ml_u64 alloc_bytes, ml_u64 free_objects,
				 ml_u64 free_bytes)
{
	status->alloc_objects += alloc_objects;
	status->alloc_bytes += alloc_bytes;
	status->free_objects += free_objects;
	status->free_bytes += free_bytes;
}

/* Fills in the time and the agent's CPU time, and writes the block. -1: the host is gone. */
int ml_status_write(struct ml_status *status);
