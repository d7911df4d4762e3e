/* SPDX-License-Identifier: Apache-2.0 */
/* Walks the caller's stack by the rules that the agent published (frame_rule.h), by plain reads. */
#pragma once

#include "frame_rule.h"
#include "preload/segment/segment.h"

/* The caller of an allocation function, as it will find itself when the call has returned. */
struct ml_caller {
	ml_u64 return_address;
	ml_u64 stack_pointer;
	ml_u64 frame_pointer;
	ml_u64 readable_end; /* up to here the stack can be read without danger */
	ml_u64 stack_end;    /* 0 = not known */
};

/*
 * Which words of the stack decided over a key, by their distance from the caller's stack pointer in words: the same
 * values in them, the same key. More than fit: n_places stays above ML_MEMO_OFFSETS.
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
	ml_u64 hash;          /* in: where to begin; out: with every return address on the way */
	ml_u64 stack_pointer; /* of the frame where the rules ended */
	ml_u64 frame_pointer;
	ml_u64 without_rule; /* the return address for which there was none, 0 = it did not end for want of one */
};

/* Where a walk may write: all or nothing. */
struct ml_notes {
	struct ml_thread *thread; /* keeps the rules at hand */
	struct ml_memo *memo;     /* gets the places of the words that were read; uses_fp: the register took part */
	ml_u64 *unknown;          /* gets the address where it leads to no code of the map, else 0 */
	struct ml_frame_chain *chain; /* gets the return addresses on the way, and how it ended */
};

/* 1 when the outermost frame was reached. */
int ml_frame_walk(const struct ml_view *view, const struct ml_code_map *map, const struct ml_caller *caller,
		  struct ml_walk *walk, const struct ml_notes *notes);

static inline ml_u64 ml_stack_mix(ml_u64 hash, ml_u64 value)
{
	hash = (hash ^ value) * 0x9e3779b97f4a7c15ull; /* 2^64 / golden ratio */
	return hash ^ hash >> 29;
}
