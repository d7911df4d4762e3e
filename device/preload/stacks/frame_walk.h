/* SPDX-License-Identifier: Apache-2.0 */
/* Walks the caller's stack by frame rules (frame_rule.h) and plain reads. */
#pragma once

#include "frame_rule.h"
#include "preload/segment/segment.h"

/* The caller of an allocation function, after the call has returned. */
struct ml_caller {
	ml_u64 return_address;
	ml_u64 stack_pointer;
	ml_u64 frame_pointer;
	ml_u64 readable_end; /* the stack can be read safely up to here */
	ml_u64 stack_end;    /* 0 = unknown */
	ml_u64 python; /* hash of the frames in Python; 0 = none */
	const struct ml_interrupted *interrupted; /* NULL: not in a handler on an alternate stack */
};

/* The code and the stack that a signal handler on the thread's alternate stack interrupted. */
struct ml_interrupted {
	struct ml_caller caller; /* return_address: pc + 1, whose rule is that of pc. Without a stack pointer: unknown */
	ml_u64 begin; /* the stack pointer when the handler has returned to the code that restores the registers; 0 = unknown */
	ml_u64 stack_low; /* the alternate stack's */
};

/*
 * Notes a word that went into the key, as an offset in words from the caller's stack pointer. If there are more than
 * fit, n_offsets stays above ML_MEMO_OFFSETS.
 */
static inline void ml_memo_add_offset(struct ml_memo *memo, ml_u64 offset)
{
	if (!memo)
		return;
	if (offset > 0xffff)
		memo->n_offsets = ML_MEMO_OFFSETS;
	if (memo->n_offsets < ML_MEMO_OFFSETS)
		memo->offsets[memo->n_offsets] = (ml_u16)offset;
	if (memo->n_offsets <= ML_MEMO_OFFSETS)
		memo->n_offsets++;
}

struct ml_walk {
	ml_u64 hash; /* in: initial value; out: with every return address mixed in */
	const struct ml_caller *caller; /* on whose stack the rules ended: the given one's, or what it has interrupted */
	ml_u64 stack_pointer; /* of the frame where the rules ended */
	ml_u64 frame_pointer;
	ml_u64 without_rule; /* the return address without a rule, 0 = the walk did not end for that reason */
};

/* Optional outputs of a walk. */
struct ml_notes {
	struct ml_thread *thread; /* caches rules */
	struct ml_memo *memo; /* gets the offsets of the words read, and uses_fp */
	ml_u64 *unknown; /* gets the address without code in the map, else 0 */
	struct ml_frame_chain *chain; /* gets the return addresses and the reason for the end */
};

/* Returns 1 if the outermost frame was reached. */
int ml_frame_walk(const struct ml_view *view, const struct ml_code_map *map, const struct ml_caller *caller,
		  struct ml_walk *walk, const struct ml_notes *notes);

static inline ml_u64 ml_stack_mix(ml_u64 hash, ml_u64 value)
{
	hash = (hash ^ value) * 0x9e3779b97f4a7c15ull; /* 2^64 / golden ratio */
	return hash ^ hash >> 29;
}
