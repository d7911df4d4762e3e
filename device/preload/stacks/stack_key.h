/* SPDX-License-Identifier: Apache-2.0 */
/* A 64-bit name for a call stack that is computed without unwinding it. */
#pragma once

#include "preload/stacks/frame_walk.h"
#include "preload/segment/segment.h"

/*
 * Same stack, same key. Where the frame rules lead to the outermost frame the key is made of the return addresses
 * alone (ML_KEY_IS_EXACT). Where they end earlier, the rest is told apart by its depth, by a frame-pointer chain, and
 * by any word that points to code among the next key_bytes of the stack; such words may be leftovers of finished
 * calls, which then split one stack into several keys: that costs evidence, not truth.
 */
ml_u64 ml_stack_key(const struct ml_view *view, const struct ml_code_map *map, const struct ml_caller *caller,
		    const struct ml_notes *notes);

/* struct ml_ring_evidence.stack_hash of a slice. */
ml_u64 ml_stack_hash(const struct ml_code_map *map, const void *slice, ml_u32 bytes);

/* The word at a place of a memo; 0 beyond what can be read. */
static inline ml_u64 ml_stack_word(const struct ml_caller *caller, ml_u32 offset)
{
	const unsigned long *stack = (const unsigned long *)(unsigned long)caller->stack_pointer;

	return caller->readable_end - caller->stack_pointer > offset * sizeof(*stack) ? stack[offset] : 0;
}

/* Whether the memo was made of this very stack. */
int ml_stack_is_same(const struct ml_memo *memo, const struct ml_caller *caller, ml_u32 revision,
		     ml_u32 rules_revision);

/* Completes a memo that ml_stack_key() has filled; it stays empty when it had more words than fit. */
void ml_stack_remember(struct ml_memo *memo, const struct ml_caller *caller, ml_u64 key, ml_u32 key_number);
