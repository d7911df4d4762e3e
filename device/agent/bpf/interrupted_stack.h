/* SPDX-License-Identifier: Apache-2.0 */
/* Stacks that signal handlers have interrupted: each arrives before the handler's evidence, of which it becomes a part. */
#pragma once

#include "bpf/session.h"

#define ML_INTERRUPTED_KEPT 8 /* threads on several processors send at once; a power of two */

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
