/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Remembered walks. The location of each return address follows from the inner return addresses, and from frame
 * pointers where rules use them. By induction, a stack with the same words at the same offsets is the same stack, and
 * comparing them costs a fraction of looking up each rule.
 */
#pragma once

#include "frame_walk.bpf.h"

#define ML_MEMO_SETS 1024 /* power of two */
#define ML_MEMO_WAYS 4

struct ml_memo {
	ml_u64 version;   /* odd while being written */
	ml_u64 seed;      /* ml_walk_seed() of the stack */
	ml_u64 key;       /* of the stack */
	ml_u64 fp;        /* register - sp, if uses_fp */
	ml_u32 uses_fp;
	ml_u32 state;     /* enum ml_walk_state at the end of the walk */
	ml_u32 n_offsets;
	ml_u32 n_words;   /* of the stack, up to the last offset */
	ml_u64 read[ML_WALK_WORDS]; /* the words at the offsets; for stack addresses their distance from sp */
	ml_u16 offsets[ML_WALK_WORDS];
};

ML_MAP(ARRAY, memos, ml_u32, struct ml_memo, ML_MEMO_SETS *ML_MEMO_WAYS, 0);

/*
 * This CPU's copy of the current stack from sp on. One read of the target's memory costs as much as copying some
 * kilobytes. A copy in each thread would make its table large. Programs are preempted, but do not migrate.
 */
struct ml_stack_copy {
	ml_u64 is_locked;
	ml_u64 words[ML_COPY_WORDS];
};

ML_MAP(PERCPU_ARRAY, stack_copies, ml_u32, struct ml_stack_copy, 1, 0);

/* Words between sp at a function's entry and sp after its return, from which offsets count. */
#define ML_POPPED_WORDS (ML_RETURN_POPS / 8)

/* Index of a set's first memo. The seed is well mixed. */
static __always_inline ml_u32 ml_memo_set(ml_u64 seed, ml_u64 above)
{
	return (ml_u32)(ml_mix(seed, above) >> 32) % ML_MEMO_SETS * ML_MEMO_WAYS;
}

/* Number of words of the last stack with about this sp. */
static __always_inline ml_u16 *ml_expected_words(struct ml_thread *thread, ml_u64 entry_sp)
{
	return &thread->expected_words[entry_sp >> 4 & (ML_EXPECTATIONS - 1)];
}

/*
 * A word as memos store it: a stack address as its distance from sp. Without a branch, since the verifier follows
 * loops.
 */
static __always_inline ml_u64 ml_memo_word(ml_u32 offset, ml_u64 word, ml_u64 begin)
{
	return ml_strip_signature(word, ML_SIGNATURE_MASK) - (offset / ML_BPF_OFFSET_OF_ADDRESS) * begin;
}

/*
 * Whether the copied stack differs from the memo. begin: sp after the return. Global, so that the verifier checks it
 * once.
 */
__noinline int ml_memo_differs(const struct ml_stack_copy *copy, const struct ml_memo *memo, ml_u64 begin)
{
	if (!copy || !memo)
		return 1;
	for (ml_u32 i = 0; i < ML_WALK_WORDS && i < memo->n_offsets; i++) {
		ml_u32 offset = memo->offsets[i];

		if (ml_memo_word(offset, copy->words[(offset + ML_POPPED_WORDS) & (ML_COPY_WORDS - 1)], begin) != memo->read[i])
			return 1;
	}
	return 0;
}

/* Copies n words of the stack from sp on. */
static __always_inline bool ml_copy_stack(struct ml_stack_copy *copy, ml_u32 n, ml_u64 sp)
{
	return n <= ML_COPY_WORDS && !bpf_probe_read_user(copy->words, n * 8, (const void *)sp);
}

/* Whether the copied stack is the memo's. If so, the pending call gets its key. */
static __always_inline bool ml_memo_fits(struct ml_pending *pending, const struct ml_stack_copy *copy,
					 const struct ml_memo *memo, ml_u64 begin, ml_u64 fp, ml_u64 above)
{
	ml_u64 version = *(volatile const ml_u64 *)&memo->version;
	ml_u64 key = *(volatile const ml_u64 *)&memo->key;
	ml_u32 state = *(volatile const ml_u32 *)&memo->state;

	if (version & 1 || state == ML_WALK_ON || (memo->uses_fp && fp - begin != memo->fp) ||
	    ml_memo_differs(copy, memo, begin) || *(volatile const ml_u64 *)&memo->version != version)
		return false;
	pending->key = ml_key_of_walk(key, state, above ? above : begin);
	pending->key_flags = ml_flags_of_walk(state);
	pending->has_key = 1;
	return true;
}

/* ml_recall() with this CPU's copy locked. Returns false if the stack cannot be read. */
static __always_inline bool ml_recall_from(struct ml_stack_copy *copy, struct ml_thread *thread, struct ml_regs *regs,
					   struct ml_pending *pending)
{
	ml_u64 begin = ML_SP(regs) + ML_RETURN_POPS;
	ml_u64 above = ml_stack_above(thread, begin);
	ml_u16 *expected = ml_expected_words(thread, ML_SP(regs));
	struct ml_bpf_code *shared = ml_code();
	ml_u32 number, n = *expected;
	ml_u64 seed;

	if (!shared || !ml_copy_stack(copy, n ? n : ML_COPY_LEAST, ML_SP(regs)))
		return false;
	pending->return_address = ML_POPPED_WORDS ? copy->words[0] : ml_return_address(regs);
	ml_image(thread, shared);
	seed = ml_walk_seed(thread, pending->return_address);
	number = ml_memo_set(seed, above);
	for (ml_u32 way = 0; way < ML_MEMO_WAYS; way++, number++) {
		const struct ml_memo *memo = bpf_map_lookup_elem(&memos, &number);

		if (!memo || *(volatile const ml_u64 *)&memo->seed != seed)
			continue;
		if (n < memo->n_words) {
			n = memo->n_words;
			*expected = (ml_u16)n;
			if (!ml_copy_stack(copy, n, ML_SP(regs)))
				break;
		}
		if (ml_memo_fits(pending, copy, memo, begin, ML_FP(regs), above)) {
			*expected = (ml_u16)memo->n_words;
			return true;
		}
	}
	return true;
}

/* At the entry of an outermost call: its return address, and its key if the stack was walked before. */
static __always_inline void ml_recall(struct ml_thread *thread, struct ml_regs *regs, struct ml_pending *pending)
{
	ml_u32 zero = 0;
	struct ml_stack_copy *copy = bpf_map_lookup_elem(&stack_copies, &zero);
	bool is_seen = false;

	if (copy && !__sync_lock_test_and_set(&copy->is_locked, 1)) {
		is_seen = ml_recall_from(copy, thread, regs, pending);
		*(volatile ml_u64 *)&copy->is_locked = 0;
	}
	if (!is_seen) {
		*ml_expected_words(thread, ML_SP(regs)) = 0;
		pending->return_address = ml_return_address(regs);
	}
}

static __always_inline bool ml_can_remember(const struct ml_walk *walk)
{
	return !walk->n_pending && walk->n_offsets <= ML_WALK_WORDS && walk->n_words + ML_POPPED_WORDS <= ML_COPY_WORDS;
}

/* Copies the words that the walk has read. Global, so that the verifier checks it once. */
__noinline int ml_copy_words(struct ml_memo *memo, const struct ml_walk *walk)
{
	if (!memo || !walk)
		return 0;
	for (ml_u32 i = 0; i < ML_WALK_WORDS && i < walk->n_offsets; i++) {
		ml_u16 offset = walk->offsets[i];

		memo->offsets[i] = offset;
		memo->read[i] = ml_memo_word(offset, walk->read[i], walk->begin);
	}
	return 0;
}

/* Stores a walk in a set. number: of the set's first memo. fp: the frame pointer at the beginning. */
static __noinline int ml_remember(struct ml_walk *walk, ml_u64 seed, ml_u64 fp, ml_u32 number, ml_u32 state)
{
	struct ml_memo *memo;
	ml_u64 version;

	number += (ml_u32)(walk->key >> 8) % ML_MEMO_WAYS;
	memo = bpf_map_lookup_elem(&memos, &number);
	if (!memo || !ml_can_remember(walk))
		return 0;
	version = memo->version & ~1ull;
	if (__sync_val_compare_and_swap(&memo->version, version, version + 1) != version)
		return 0;
	memo->seed = seed;
	memo->key = walk->key;
	memo->state = state;
	memo->n_offsets = (ml_u32)walk->n_offsets;
	memo->n_words = (ml_u32)walk->n_words + ML_POPPED_WORDS;
	memo->uses_fp = walk->uses_fp;
	memo->fp = fp - walk->begin;
	ml_copy_words(memo, walk);
	__sync_fetch_and_add(&memo->version, 1);
	return 0;
}

/* Walks and remembers the walk if it ended; then walk->key covers all return addresses. Else as ml_walk(). */
static __always_inline enum ml_walk_state ml_walk_and_remember(struct ml_walk *walk, ml_u64 above)
{
	ml_u64 seed = walk->key, fp = walk->fp;
	enum ml_walk_state state = ml_walk(walk);

	if (state == ML_WALK_ENDED || state == ML_WALK_LIMIT)
		ml_remember(walk, seed, fp, ml_memo_set(seed, above), state);
	return state;
}
