/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the memo (struct ml_memo) of the current stack; ml_stack_is_same() verifies it. Nearly always it is the
 * caller's last one at this depth. Else an outline, a few words of the stack chosen by the return address, selects a
 * set of memos.
 */
#pragma once

#include "preload/stacks/stack_key.h"

/* The caller's last memo at this depth. */
static inline ml_u16 *ml_memo_hint(struct ml_thread *thread, const struct ml_caller *caller)
{
	ml_u64 address = caller->return_address;

	return &thread->hints[(address ^ address >> 9 ^ caller->stack_pointer >> 4 ^ caller->python) % ML_THREAD_HINTS];
}

/* For ml_memo_find(), if the hint is wrong. */
struct ml_memo *ml_memo_search(struct ml_memo *memos, struct ml_thread *thread, const struct ml_code_map *map,
			       const struct ml_caller *caller, ml_u32 rules_revision, int *is_same);

/* The stack's memo; or *is_same = 0 and the memo to overwrite. */
static inline struct ml_memo *ml_memo_find(const struct ml_view *view, struct ml_thread *thread, const struct ml_code_map *map,
					   const struct ml_caller *caller, int *is_same)
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
 * To be called after a memo was made. was_forgotten: the stack had one before. If that happens often, more stacks
 * alternate than a set has ways, and the caller's outline gets more words.
 */
void ml_memo_draw_outline(struct ml_thread *thread, const struct ml_memo *memo, int was_forgotten);
