/* SPDX-License-Identifier: Apache-2.0 */
/* Evidence of the kernel's blocks: the kernel's stack of a key, and the user's code that made the call. */
#pragma once

#include "agent/kernel/object.h"
#include "agent/kernel/symbols.h"
#include "agent/evidence/nursery.h"

/* The evidence that was sent for a key. */
enum ml_kernel_told {
	ML_KERNEL_SENT_STACK = 1, /* its kernel stack has been written */
	ML_KERNEL_SENT_USER = 2,  /* a record with the user's part is in the nursery, or written */
};

struct ml_kernel_evidence {
	const struct ml_kernel *kernel;
	struct ml_kernel_symbols *symbols;
	struct ml_nursery *nursery;
	ml_u64 n_alone; /* records without a user's part so far */
	struct ml_kernel_key swept; /* sums of keys that have been given up */
	ml_u64 last_objects[ML_KERNEL_KEY_SLOTS]; /* allocations of the key at the last sweep */
	ml_u8 sent[ML_KERNEL_KEY_SLOTS];
};

/* Takes a record of the ring. 1: it is kept; 0: it says nothing of the user's code; -1: it is lost. */
int ml_kernel_evidence_add(struct ml_kernel_evidence *evidence, const struct ml_evidence *record, size_t bytes);

/* Writes the kernel stacks of keys that hold something and have nothing else. -1: the host is gone. */
int ml_kernel_evidence_complete(struct ml_kernel_evidence *evidence);

/*
 * Gives the places of keys that hold nothing, and have had no block since the last time, to others. Their
 * counters go into `swept`. Does nothing where there is room enough.
 */
void ml_kernel_evidence_sweep(struct ml_kernel_evidence *evidence);

/* For the nursery: struct ml_nursery_source. */
ml_u64 ml_kernel_live_objects(void *context, ml_u64 key, ml_u64 *allocated);
void ml_kernel_ask_again(void *context, ml_u64 key);

/* -1: the host is gone, or out of memory. */
int ml_kernel_snapshot(const struct ml_kernel *kernel, const struct ml_kernel_evidence *evidence, ml_u64 number);

/* lost: counted by the agent, ML_LOST_MAX of them, added to those of the programs. -1: the host is gone. */
int ml_kernel_status(const struct ml_kernel *kernel, const struct ml_kernel_evidence *evidence, ml_u64 evidence_records,
		     const ml_u64 *lost);
