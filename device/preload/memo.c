// SPDX-License-Identifier: Apache-2.0
#include "memo.h"

#define FORGOTTEN_MAX 1000u /* more than a change of phase makes */
#define OFTEN 16u /* one of so many blocks: to make a memo anew costs as much as some finer outlines */

/* Only what may be a return address counts: the other words at these places are of other stacks' frames. */
ml_u32 ml_memo_fine_signature(const struct ml_code_map *map, const struct ml_caller *caller,
			      const struct ml_outline *outline)
{
	ml_u64 hash = 0;

	for (ml_u32 i = 0; i < outline->n_places && i < ML_OUTLINE_PLACES; i++) {
		ml_u64 word = ml_stack_word(caller, outline->places[i]);

		hash = hash * 0x9e3779b97f4a7c15ull + (ml_code_map_spans(map, word) ? word : 0);
	}
	return (ml_u32)(hash ^ hash >> 32);
}

/* From the innermost place to the outermost, evenly. */
static void draw(struct ml_outline *outline, const struct ml_memo *memo, ml_u32 n)
{
	ml_u32 at = 0, rest = 0;

	for (ml_u32 i = 0; i < n; i++) {
		outline->places[i] = memo->places[at];
		/* at = i * (n_places - 1) / (n - 1): 32-bit Arm has no instruction for that, and there is no library */
		for (rest += memo->n_places - 1u; n > 1 && rest >= n - 1; rest -= n - 1)
			at++;
	}
	outline->n_places = (ml_u16)n;
}

void ml_memo_draw_outline(struct ml_thread *thread, const struct ml_memo *memo, int was_forgotten)
{
	struct ml_outline *outline = ml_memo_outline(thread, memo->return_address);
	ml_u32 now = (ml_u32)thread->next_sequence;

	if (!memo->return_address || !memo->n_places)
		return;
	if (outline->n_places <= 1) /* who called that caller: it stands in the same place of nearly all of them */
		draw(outline, memo, 1);
	if (!was_forgotten)
		return;
	if (!outline->n_forgotten++)
		outline->since = now;
	if (outline->n_forgotten < FORGOTTEN_MAX)
		return;
	if (now - outline->since < FORGOTTEN_MAX * OFTEN)
		draw(outline, memo, 2u * outline->n_places < ML_OUTLINE_PLACES ? 2u * outline->n_places : ML_OUTLINE_PLACES);
	outline->n_forgotten = 0;
}
