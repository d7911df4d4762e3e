/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stack identification without unwinding: a call's registers and stack come in, a 64-bit key and a memo of the words
 * that decided it go out.
 */
#pragma once

#include "preload/stacks/frame_walk.h"
#include "preload/segment/segment.h"

/*
 * The same stack has the same key. If frame rules lead to the outermost frame, the key covers the return addresses
 * alone (ML_KEY_IS_EXACT). If they end earlier, it also covers the depth, a frame-pointer chain, and words that point
 * to code among the next key_bytes of the stack. Leftovers of finished calls among these may split one stack into
 * several keys. That costs evidence, not correctness.
 */
ml_u64 ml_stack_key(const struct ml_view *view, const struct ml_code_map *map, const struct ml_caller *caller,
		    const struct ml_notes *notes);

/* struct ml_ring_evidence.stack_hash of a slice. */
ml_u64 ml_stack_hash(const struct ml_code_map *map, const void *slice, ml_u32 bytes);

/* The word at an offset of a memo; 0 beyond the readable stack. */
static inline ml_u64 ml_stack_word(const struct ml_caller *caller, ml_u32 offset)
{
	const unsigned long *stack = (const unsigned long *)(unsigned long)caller->stack_pointer;

	return caller->readable_end - caller->stack_pointer > offset * sizeof(*stack) ? stack[offset] : 0;
}

/* Whether the memo is of this very stack. */
int ml_stack_is_same(const struct ml_memo *memo, const struct ml_caller *caller, ml_u32 revision, ml_u32 rules_revision);

/* Completes a memo that ml_stack_key() has filled. It stays empty if it had too many words. */
void ml_stack_remember(struct ml_memo *memo, const struct ml_caller *caller, ml_u64 key, ml_u32 key_number);
