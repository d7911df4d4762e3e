/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Walks frame records { caller's frame pointer, return address }, without unwind information: psABI x86-64 §3.2.2,
 * AAPCS64 §6.4.6, and clang on 32-bit arm, where r11 leads from ARM code and r7 from Thumb code, never to the other's
 * frames. GCC's records on 32-bit arm have another layout and are not followed.
 *
 * A frame pointer is valid if it is aligned, above the previous frame and below the stack's end. Other values of the
 * register may mislead within these bounds. unwind/walk/frame_chain.py walks the same way.
 */
#pragma once

#include "preload/stacks/frame_walk.h"
#include "preload/segment/segment.h"

struct ml_chain {
	ml_u64 frame; /* the next record, to be checked */
	ml_u64 low, high; /* its bounds */
	ml_u64 from; /* the previous return address */
	ml_u64 signature_mask;
	const struct ml_caller *caller;
	struct ml_memo *memo; /* gets the offsets of the words read, or NULL */
	ml_u32 n_frames;
	ml_u32 end; /* TraceEnd of unwind/trace.py, after the last record */
};

/* frame_pointer: the caller's register. */
struct ml_chain ml_chain_begin(const struct ml_caller *caller, ml_u64 frame_pointer, ml_u64 signature_mask,
			       struct ml_memo *memo);

/* The next return address, beginning with that of caller->return_address's caller. 0: no more. */
ml_u64 ml_chain_next(struct ml_chain *chain);

/* ml_stack_key() by the chain alone. The key is exact, since evidence holds no more than the chain. */
ml_u64 ml_chain_key(const struct ml_code_map *map, const struct ml_caller *caller, struct ml_memo *memo);
