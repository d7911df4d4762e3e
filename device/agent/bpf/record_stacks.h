/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stacks that are longer than a slice, or have pages that were never touched, as inside a large frame. The programs send all pages
 * that are present (struct ml_bpf_pages); the host gets the slice up to the first hole, and the words above it that matter.
 */
#pragma once

#include "bpf/session.h"

struct ml_long_stacks {
	ml_u8 *joined; /* a record with one slice of any length, holes filled with 0 */
	ml_u8 *packed; /* for the host */
	ml_u8 is_present[ML_BPF_PAGES_MAX]; /* of the joined record */
	ml_u64 signature_mask;
};

/* -1: out of memory. */
int ml_long_stacks_create(struct ml_long_stacks *stacks);
void ml_long_stacks_destroy(struct ml_long_stacks *stacks);

/*
 * Returns a paged record of `bytes` bytes with its stack as one slice, valid until the next call. NULL: it is inconsistent. *bytes
 * becomes that of the result.
 */
const struct ml_evidence *ml_long_stacks_join(struct ml_long_stacks *stacks, const struct ml_evidence *record, ml_u64 *bytes);

/* The last joined record, or a copy with original return addresses, as the host gets it: valid until the next call. */
const struct ml_evidence *ml_long_stacks_pack(struct ml_long_stacks *stacks, const struct ml_bpf_code *code,
					      const struct ml_evidence *joined);

#define ML_INTERRUPTED_KEPT 8 /* threads on several processors send at once; a power of two */

/* Stacks that signal handlers have interrupted: each arrives before the handler's evidence, of which it becomes a part. */
struct ml_interrupted_stacks {
	struct {
		ml_u64 sequence; /* of the evidence that is to come */
		struct ml_interrupted_stack head;
		ml_u8 stack[ML_STACK_BYTES_MAX];
	} kept[ML_INTERRUPTED_KEPT];
	_Alignas(8) ml_u8
		joined[sizeof(struct ml_evidence) + 64 * 8 + 2 * ML_STACK_BYTES_MAX + sizeof(struct ml_interrupted_stack)];
};

/* record: with ML_BPF_EVIDENCE_INTERRUPTED, and its stack in one slice. */
void ml_interrupted_stacks_keep(struct ml_interrupted_stacks *stacks, const struct ml_evidence *record);

/*
 * A copy of the record, which has its stack in one slice and nothing behind it, with the stack that was kept for it. Valid until the
 * next call. Without ML_EVIDENCE_INTERRUPTED if none was kept. NULL: the record is inconsistent.
 */
const struct ml_evidence *ml_interrupted_stacks_join(struct ml_interrupted_stacks *stacks, const struct ml_evidence *record);
