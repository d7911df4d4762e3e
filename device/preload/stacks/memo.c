// SPDX-License-Identifier: Apache-2.0
#include "preload/stacks/memo.h"

#define WAYS 4u
#define FORGOTTEN_MAX 1000u /* more than a change of phase makes */
#define OFTEN 16u /* in blocks: making a memo costs as much as some finer outlines */

static struct ml_outline *outline_of(struct ml_thread *thread, ml_u64 return_address)
{
	return &thread->outlines[(return_address ^ return_address >> 9) % ML_THREAD_CALLERS];
}

/* Only possible return addresses count; other words at these offsets vary with other frames. */
static ml_u32 fine_signature(const struct ml_code_map *map, const struct ml_caller *caller, const struct ml_outline *outline)
{
	ml_u64 hash = 0;

	for (ml_u32 i = 0; i < outline->n_offsets && i < ML_OUTLINE_OFFSETS; i++) {
		ml_u64 word = ml_stack_word(caller, outline->offsets[i]);

		hash = hash * 0x9e3779b97f4a7c15ull + (ml_code_map_spans(map, word) ? word : 0);
	}
	return (ml_u32)(hash ^ hash >> 32);
}

static ml_u32 signature_of(const struct ml_code_map *map, const struct ml_caller *caller, const struct ml_outline *outline)
{
	if (outline->n_offsets > 1)
		return fine_signature(map, caller, outline);
	return (ml_u32)ml_stack_word(caller, outline->offsets[0]);
}

struct ml_memo *ml_memo_search(struct ml_memo *memos, struct ml_thread *thread, const struct ml_code_map *map,
			       const struct ml_caller *caller, ml_u32 rules_revision, int *is_same)
{
	ml_u32 signature = signature_of(map, caller, outline_of(thread, caller->return_address));
	ml_u64 hash =
		((caller->return_address + signature + caller->python) ^ caller->stack_pointer << 20) * 0x9e3779b97f4a7c15ull >>
		40;
	struct ml_memo *set = &memos[hash % ML_MEMOS / WAYS * WAYS];

	*is_same = 1;
	for (ml_u32 way = 0; way < WAYS; way++) {
		if (set[way].signature == signature && set[way].stack_pointer == caller->stack_pointer &&
		    ml_stack_is_same(&set[way], caller, map->revision, rules_revision))
			return &set[way];
	}
	*is_same = 0;
	set = &set[thread->next_way++ % WAYS];
	set->signature = signature;
	return set;
}

/* Evenly, from the innermost offset to the outermost. */
static void draw(struct ml_outline *outline, const struct ml_memo *memo, ml_u32 n)
{
	ml_u32 at = 0, rest = 0;

	for (ml_u32 i = 0; i < n; i++) {
		outline->offsets[i] = memo->offsets[at];
		/* at = i * (n_offsets - 1) / (n - 1): some 32-bit Arm processors cannot divide */
		for (rest += memo->n_offsets - 1u; n > 1 && rest >= n - 1; rest -= n - 1)
			at++;
	}
	outline->n_offsets = (ml_u16)n;
}

void ml_memo_draw_outline(struct ml_thread *thread, const struct ml_memo *memo, int was_forgotten)
{
	struct ml_outline *outline = outline_of(thread, memo->return_address);
	ml_u32 now = (ml_u32)thread->next_sequence;

	if (!memo->return_address || !memo->n_offsets)
		return;
	if (outline->n_offsets <=
	    1) /* the return address of the caller's caller, which nearly all of these stacks have at one offset */
		draw(outline, memo, 1);
	if (!was_forgotten)
		return;
	if (!outline->n_forgotten++)
		outline->since = now;
	if (outline->n_forgotten < FORGOTTEN_MAX)
		return;
	if (now - outline->since < FORGOTTEN_MAX * OFTEN)
		draw(outline, memo,
		     2u * outline->n_offsets < ML_OUTLINE_OFFSETS ? 2u * outline->n_offsets : ML_OUTLINE_OFFSETS);
	outline->n_forgotten = 0;
}
