// SPDX-License-Identifier: Apache-2.0
#include "preload/stacks/frame_chain.h"

typedef unsigned long word; /* of the architecture */

/* TraceEnd of unwind/trace.py. */
enum { END_ROOT = 0, END_NO_UNWIND_ROW = 2, END_STACK_TRUNCATED = 3, END_NO_PROGRESS = 4, END_MAX_FRAMES = 6 };

struct ml_chain ml_chain_begin(const struct ml_caller *caller, ml_u64 frame_pointer, ml_u64 signature_mask,
			       struct ml_memo *memo)
{
	return (struct ml_chain){ .frame = frame_pointer,
				  .low = caller->stack_pointer,
				  .high = caller->readable_end,
				  .from = caller->return_address,
				  .signature_mask = signature_mask,
				  .caller = caller,
				  .memo = memo };
}

/* Thumb code keeps its frame record in another register than ARM code. */
static int changes_register(ml_u64 from, ml_u64 to)
{
	return sizeof(word) == 4 && ((from ^ to) & 1);
}

/* Why the record at chain->frame must not be read, or -1. */
static int find_end(const struct ml_chain *chain)
{
	ml_u64 frame = chain->frame;

	if (!frame)
		return END_ROOT;
	if (chain->n_frames == ML_FRAME_CHAIN_MAX)
		return END_MAX_FRAMES;
	if (frame < chain->low || frame % sizeof(word))
		return END_NO_PROGRESS;
	return frame > chain->high || chain->high - frame < 2 * sizeof(word) ? END_STACK_TRUNCATED : -1;
}

static void note_record(const struct ml_chain *chain)
{
	ml_u64 offset = (chain->frame - chain->caller->stack_pointer) / sizeof(word);

	ml_memo_add_offset(chain->memo, offset);
	ml_memo_add_offset(chain->memo, offset + 1);
}

ml_u64 ml_chain_next(struct ml_chain *chain)
{
	const word *record = (const word *)(word)chain->frame;
	int end = changes_register(chain->caller->return_address, chain->from) ? END_NO_UNWIND_ROW : find_end(chain);

	chain->end = end < 0 ? END_ROOT : (ml_u32)end;
	if (end >= 0)
		return 0;
	note_record(chain);
	chain->from = ml_strip_signature(record[1], chain->signature_mask);
	if (!chain->from)
		return 0;
	chain->low = chain->frame + 2 * sizeof(word);
	chain->frame = record[0];
	chain->n_frames++;
	return chain->from;
}

ml_u64 ml_chain_key(const struct ml_code_map *map, const struct ml_caller *caller, struct ml_memo *memo)
{
	struct ml_chain chain = ml_chain_begin(caller, caller->frame_pointer, map->signature_mask, memo);
	ml_u64 hash = ml_stack_mix(ml_strip_signature(caller->return_address, map->signature_mask) ^ caller->python,
				   (ml_u64)map->generation << 48),
	       address;

	while ((address = ml_chain_next(&chain)))
		hash = ml_stack_mix(hash, address);
	if (memo)
		memo->is_exact = memo->uses_fp = 1;
	hash = ml_stack_mix(hash, chain.end + 1);
	return (hash & ~(ml_u64)(ML_KEY_SAW_PART | ML_KEY_IS_EXACT)) | ML_KEY_IS_EXACT;
}
