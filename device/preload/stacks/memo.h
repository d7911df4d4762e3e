/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which of a thread's memos (struct ml_memo) may be of the stack at hand; ml_stack_is_same() decides. A caller's last one
 * at this depth nearly always is. Else stacks of one depth below one call are alternatives of each other: an outline of
 * some of their words, chosen by the return address, tells them apart well enough to look in the right place.
 */
#pragma once

#include "preload/stacks/stack_key.h"

/* The number of the caller's last memo at this depth. */
static inline ml_u16 *ml_memo_hint(struct ml_thread *thread, const struct ml_caller *caller)
{
	ml_u64 address = caller->return_address;

	return &thread->hints[(address ^ address >> 9 ^ caller->stack_pointer >> 4) % ML_THREAD_HINTS];
}

/* ml_memo_find() where the hint is wrong. */
struct ml_memo *ml_memo_search(struct ml_memo *memos, struct ml_thread *thread, const struct ml_code_map *map,
			       const struct ml_caller *caller, ml_u32 rules_revision, int *is_same);

/* The stack's memo, or *is_same = 0 and the one to be overwritten. */
static inline struct ml_memo *ml_memo_find(const struct ml_view *view, struct ml_thread *thread,
					   const struct ml_code_map *map, const struct ml_caller *caller, int *is_same)
{
	ml_u32 rules_revision = __atomic_load_n(&view->segment->rules_revision, __ATOMIC_ACQUIRE);
	struct ml_memo *memos = &view->memos[(ml_u64)(thread - view->threads) * ML_MEMOS], *memo;
	ml_u16 *hint = ml_memo_hint(thread, caller);

	*is_same = 1;
	memo = &memos[*hint % ML_MEMOS];
	if (__builtin_expect(ml_stack_is_same(memo, caller, map->revision, rules_revision), 1))
		return memo;
	memo = ml_memo_search(memos, thread, map, caller, rules_revision, is_same);
	*hint = (ml_u16)(memo - memos);
	return memo;
}

/*
 * After a memo was made; was_forgotten: of a stack that had one before. Where that happens often, more stacks alternate
 * than the ways of one set can hold, and the outline below that caller is drawn finer.
 */
void ml_memo_draw_outline(struct ml_thread *thread, const struct ml_memo *memo, int was_forgotten);
