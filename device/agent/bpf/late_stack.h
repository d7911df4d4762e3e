/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Completes stacks that are longer than their slices, from the target's memory after the call (--extend-stacks, BPF). The program
 * sent a digest of the rest while the thread was in the call (struct ml_bpf_above). Only words that match the digest are used,
 * whatever the thread, or another one on the same stack, has done since.
 */
#pragma once

#include "bpf/session.h"

#define ML_LATE_ANNOUNCED 256 /* digests whose evidence has not come yet; a power of two */

struct ml_late_stacks {
	struct ml_bpf_above announced[ML_LATE_ANNOUNCED]; /* by sequence */
	ml_u8 *memory; /* as read; NULL: no stack is completed */
	ml_u8 *record; /* the completed record */
	ml_u64 signature_mask;
	ml_u64 n_completed;
	ml_u64 n_changed;    /* did not match the digest any more */
	ml_u64 n_unreadable; /* the process had ended, or may not be read */
	int error;           /* of the last of these */
};

/* -1: out of memory. */
int ml_late_stacks_create(struct ml_late_stacks *late);
void ml_late_stacks_destroy(struct ml_late_stacks *late);

/* A digest from a program, for the evidence of the same sequence number. */
void ml_late_stacks_announce(struct ml_late_stacks *late, const struct ml_bpf_above *above);

/*
 * Returns the record with the words above its slice (ML_EVIDENCE_ABOVE_LATE), valid until the next call, or `record` itself without
 * a matching digest. as_sent: the record with its fixups; it lies within `bytes` bytes.
 */
const struct ml_evidence *ml_late_stacks_complete(struct ml_late_stacks *late, const struct ml_bpf_code *code,
						  const struct ml_evidence *as_sent, const struct ml_evidence *record,
						  ml_u64 bytes);

/* Logs how many were completed, and why others were not. */
void ml_late_stacks_log(const struct ml_late_stacks *late);
