/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which of a thread's memos (struct ml_memo) may be of the stack at hand. Stacks of one depth below one call are
 * alternatives of each other: an outline of some of their words, chosen by the return address, tells them apart well
 * enough to look in the right place; ml_stack_is_same() decides.
 */
#ifndef MEMLEAK_MEMO_H
#define MEMLEAK_MEMO_H

#include "stack_key.h"

#define ML_MEMO_WAYS 4u

static inline struct ml_outline *ml_memo_outline(struct ml_thread *thread, ml_u64 return_address)
{
	return &thread->outlines[(return_address ^ return_address >> 9) % ML_THREAD_CALLERS];
}

/* The signature of the stack at hand by an outline of more than one place. */
ml_u32 ml_memo_fine_signature(const struct ml_code_map *map, const struct ml_caller *caller,
			      const struct ml_outline *outline);

static inline ml_u32 ml_memo_signature(const struct ml_code_map *map, const struct ml_caller *caller,
				       const struct ml_outline *outline)
{
	if (__builtin_expect(outline->n_places > 1, 0))
		return ml_memo_fine_signature(map, caller, outline);
	return (ml_u32)ml_stack_word(caller, outline->places[0]);
}

/* The stack's memo, or *is_same = 0 and the one to be overwritten. */
static inline struct ml_memo *ml_memo_find(const struct ml_view *view, struct ml_thread *thread,
					   const struct ml_code_map *map, const struct ml_caller *caller, int *is_same)
{
	ml_u32 rules_revision = __atomic_load_n(&view->segment->rules_revision, __ATOMIC_ACQUIRE);
	struct ml_outline *outline = ml_memo_outline(thread, caller->return_address);
	ml_u32 signature = ml_memo_signature(map, caller, outline);
	ml_u64 hash = ((caller->return_address + signature) ^ caller->stack_pointer << 20) * 0x9e3779b97f4a7c15ull >> 40;
	struct ml_memo *set = &view->memos[(ml_u64)(thread - view->threads) * ML_MEMOS +
					   hash % ML_MEMOS / ML_MEMO_WAYS * ML_MEMO_WAYS];

	*is_same = 1;
	for (ml_u32 way = 0; way < ML_MEMO_WAYS; way++) {
		if (set[way].signature == signature && set[way].stack_pointer == caller->stack_pointer &&
		    ml_stack_is_same(&set[way], caller, map->revision, rules_revision))
			return &set[way];
	}
	*is_same = 0;
	set = &set[thread->next_way++ % ML_MEMO_WAYS];
	set->signature = signature;
	return set;
}

/*
 * After a memo was made; was_forgotten: of a stack that had one before. Where that happens often, more stacks alternate
 * than the ways of one set can hold, and the outline below that caller is drawn finer.
 */
void ml_memo_draw_outline(struct ml_thread *thread, const struct ml_memo *memo, int was_forgotten);

#endif
