/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stacks longer than their slices, completed from the target's memory after the call (--extend-stacks, BPF). The program
 * has told the rest by a digest while the thread stood still (struct ml_bpf_above): only words that are what they were
 * then are ever used, whatever the thread, or another one on the same stack, has done since.
 */
#ifndef MEMLEAK_LATE_STACK_H
#define MEMLEAK_LATE_STACK_H

#include "bpf/session.h"

#define ML_LATE_TOLD 256 /* rests whose evidence has not come yet; a power of two */

struct ml_late_stacks {
	struct ml_bpf_above told[ML_LATE_TOLD]; /* by sequence */
	ml_u8 *memory; /* as it was read; NULL = none is completed */
	ml_u8 *record; /* the completed one */
	ml_u64 code_mask;
	ml_u64 n_completed;
	ml_u64 n_changed;    /* were other ones by the time that they were read */
	ml_u64 n_unreadable; /* the process was gone, or may not be read */
	int error;           /* of the last one */
};

/* -1: out of memory. */
int ml_late_stacks_create(struct ml_late_stacks *late);
void ml_late_stacks_destroy(struct ml_late_stacks *late);

/* What a program told; it is used by the evidence of the same sequence number. */
void ml_late_stacks_told(struct ml_late_stacks *late, const struct ml_bpf_above *above);

/*
 * The record with the words above its slice (ML_EVIDENCE_ABOVE_LATE), which lives until the next call, or the record
 * itself where nothing was told, or nothing can be proved. as_sent: with its fixups; of `bytes` bytes, which hold it.
 */
const struct ml_evidence *ml_late_stacks_complete(struct ml_late_stacks *late, const struct ml_bpf_code *code,
						  const struct ml_evidence *as_sent, const struct ml_evidence *record,
						  ml_u64 bytes);

/* What became of them, for the user. */
void ml_late_stacks_log(const struct ml_late_stacks *late);

#endif
