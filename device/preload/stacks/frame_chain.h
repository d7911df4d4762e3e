/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The way without unwind information: from frame record to frame record { caller's frame pointer, return address }, as
 * psABI x86-64 §3.2.2 and AAPCS64 §6.4.6 lay them out, and clang on 32-bit arm: r11 leads from ARM code, r7 from Thumb code,
 * and neither to the frames of the other. GCC's records on 32-bit arm are laid out otherwise and are not followed.
 *
 * A frame pointer is believed as long as it is a word's address above the frame that led to it and below the stack's end.
 * Code that keeps anything else in the register leads astray within those bounds; unwind/walk/fallback.py walks the same way.
 */
#pragma once

#include "preload/stacks/frame_walk.h"
#include "preload/segment/segment.h"

struct ml_chain {
	ml_u64 frame; /* the next record, if it is believed */
	ml_u64 low, high; /* it lies in between */
	ml_u64 from; /* the return address that led there */
	ml_u64 address_mask; /* what of a saved return address is the address */
	const struct ml_caller *caller;
	struct ml_memo *memo; /* gets the places of the words that are read, or NULL */
	ml_u32 n_frames;
	ml_u32 end; /* TraceEnd of unwind/trace.py, once there is no next */
};

/* frame_pointer: of the caller, as the register held it. */
struct ml_chain ml_chain_begin(const struct ml_caller *caller, ml_u64 frame_pointer, ml_u64 address_mask,
			       struct ml_memo *memo);

/* The next return address, innermost first: of caller->return_address's caller. 0: there is none. */
ml_u64 ml_chain_next(struct ml_chain *chain);

/* As ml_stack_key(), of the chain alone: it is all that the evidence will hold, so the key is exact. */
ml_u64 ml_chain_key(const struct ml_code_map *map, const struct ml_caller *caller, struct ml_memo *memo);
