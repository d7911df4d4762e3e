/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The stack key, computed at every allocation. It rather splits a stack into several keys than merges two. It covers
 * the process, its image and, with rules for the whole stack, the return addresses alone. Otherwise it also covers the
 * depth and words of the rest that may be return addresses: of a whole slice if the thread allocates rarely enough,
 * else ML_KEY_WORDS of them.
 */
#pragma once

#include "images.bpf.h"

/* Our own tables need atomic operations that return a value (kernel commit 5ffa25502b5a, in v5.12). */
#ifdef ML_OLD_KERNEL
#include "old_tables.bpf.h"

/* No walks are remembered. */
static __always_inline void ml_recall(const struct ml_thread *thread, struct ml_regs *regs, struct ml_pending *pending)
{
	(void)thread;
	pending->return_address = ml_return_address(regs);
}

static __always_inline bool ml_find_mapping(struct ml_thread *thread, ml_u64 sp)
{
	(void)thread, (void)sp;
	return false;
}
#else
#include "key_table.bpf.h"
#include "live_table.bpf.h"
#include "threads.bpf.h"
#include "frame_memo.bpf.h"

/* A mapping begins with its bounds (struct vm_area_struct), as the verifier confirms. */
static long ml_copy_bounds(void *task, const struct ml_bpf_bounds *mapping, struct ml_bpf_bounds *bounds)
{
	(void)task;
	*bounds = *mapping;
	return 0;
}

/* True: the kernel can tell. It cannot while the mappings change: then the next call asks again. */
static __always_inline bool ml_find_mapping(struct ml_thread *thread, ml_u64 sp)
{
	struct ml_bpf_bounds bounds = {};

	if (!options.finds_mappings)
		return false;
	if (!bpf_find_vma(bpf_get_current_task_btf(), sp, ml_copy_bounds, &bounds, 0))
		thread->stack = bounds;
	return true;
}
#endif

#include "interrupted.bpf.h"

/*
 * Finds the mapping that holds sp, or forgets that of another stack. Pages inside a large frame that were never touched cannot be read: the first of them is not
 * the stack's end.
 */
static __noinline void ml_learn_stack(struct ml_thread *thread, ml_u64 sp)
{
	ml_u32 tid = (ml_u32)bpf_get_current_pid_tgid();
	struct ml_bpf_bounds *taught;

	if (!thread)
		return;
	ml_forget_stack(thread);
	if (ml_find_alternate_stack(&thread->stack, sp) || ml_find_mapping(thread, sp))
		return;
	taught = bpf_map_lookup_elem(&stacks, &tid);
	if (taught && sp - taught->low < taught->end - taught->low)
		thread->stack = *taught;
}

/* Before evidence: the thread's stack becomes that of sp, or unknown. In deep nesting see ml_find_slice(). */
static __always_inline void ml_follow_stack(struct ml_thread *thread, ml_u64 sp)
{
	if (!ml_stack_above(thread, sp) && thread->depth <= ML_FIXUPS)
		ml_learn_stack(thread, sp);
}

/* Mixes those of n words that may be return addresses into the key. */
static __always_inline ml_u64 ml_mix_words(ml_u64 key, const struct ml_thread *thread, const struct ml_bpf_code *ranges,
					   ml_u32 n)
{
	const ml_u64 mask = ML_SIGNATURE_MASK; /* read once: the verifier unrolls the loop */

	for (ml_u32 i = 0; i < ML_KEY_WORDS; i++) {
		ml_u64 word;
		ml_u32 granule;

#ifdef ML_OLD_KERNEL
		barrier_var(i); /* keeps the check before it: the verifier of Linux 5.10 does not find the loop's end by n */
#endif
		if (i >= n)
			break;
		word = ml_strip_signature(thread->walk.words[i], mask);
		if (!ranges->high_bytes[word >> 32 & 0xff])
			continue;
		granule = ml_bpf_granule(word);
		if (ranges->granules[granule >> 3 & (sizeof(ranges->granules) - 1)] >> (granule & 7) & 1)
			key = ml_mix(key, word);
	}
	return key;
}

/*
 * Mixes in the next ML_KEY_WORDS from an address; returns the old key if they cannot be read. Global, so that the
 * verifier checks it once and not for each iteration of its caller.
 */
__noinline ml_u64 ml_key_of_words(ml_u64 key, ml_u64 address)
{
	struct ml_thread *thread = ml_this_thread();
	struct ml_bpf_code *ranges = ml_code();

	if (!thread || !ranges || bpf_probe_read_user(thread->walk.words, ML_KEY_BYTES, (const void *)address))
		return key;
	return ml_mix_words(key, thread, ranges, ML_KEY_WORDS);
}

/* The innermost words, fewer than ML_KEY_WORDS near the end of the stack. */
static __always_inline ml_u64 ml_key_of_top(ml_u64 key, struct ml_thread *thread, const struct ml_bpf_code *ranges, ml_u64 sp,
					    ml_u64 above)
{
	ml_u32 bytes = ML_KEY_BYTES;

	if (above && above < bytes) {
		bytes = (ml_u32)above;
		barrier_var(bytes); /* keeps the compiler from removing the mask, which the verifier needs */
		bytes &= ML_KEY_BYTES - 1;
	}
	if (bpf_probe_read_user(thread->walk.words, bytes, (const void *)sp))
		return key;
	return ml_mix_words(key, thread, ranges, bytes / 8);
}

/* Every ML_RATE_CALLS calls: narrows the keys of a thread that allocates too often. */
static __noinline void ml_adapt_key(struct ml_thread *thread)
{
	ml_u64 now = bpf_ktime_get_ns();

	thread->key_words = now - thread->rate_time_ns < ML_RATE_NS ? ML_KEY_WORDS_NARROW : ML_KEY_WORDS_WIDE;
	thread->rate_time_ns = now;
}

/*
 * Mixes in the stack from walk->sp on, as far as the thread's rate allows and a slice goes. *is_partial: there is more.
 */
static __always_inline ml_u64 ml_scan_rest(struct ml_thread *thread, const struct ml_bpf_code *ranges, ml_u64 key,
					   bool *is_partial)
{
	ml_u64 sp = thread->walk.sp;
	ml_u64 above = ml_stack_above(thread, sp);
	ml_u64 bytes = thread->key_words * 8;

	key = ml_mix(key ^ thread->key_words, above ? above : sp);
	/*
	 * With --all, processes share the granules, which mark code nearly everywhere: words that may be return
	 * addresses would split keys at each call. The depth must do where rules are missing.
	 */
	if (options.is_system_wide || sp >= thread->walk.limit)
		return key;
	if (bytes > thread->walk.limit - sp)
		bytes = thread->walk.limit - sp;
	key = ml_key_of_top(key, thread, ranges, sp, above);
	*is_partial = !above || above - 1 >= bytes;
	if (bytes > above)
		bytes = above & ~(ML_KEY_BYTES - 1); /* the last few belong to the thread's start */
	for (ml_u32 i = 1; i < ML_KEY_WORDS_WIDE / ML_KEY_WORDS && i * ML_KEY_BYTES < bytes; i++)
		key = ml_key_of_words(key, sp + i * ML_KEY_BYTES);
	return key;
}

/* Begins at the caller, as it is after the return. */
static __always_inline void ml_begin_walk(struct ml_thread *thread, struct ml_regs *regs, const struct ml_bpf_code *ranges)
{
	struct ml_walk *walk = &thread->walk;

	walk->limit = ML_SP(regs) + options.walk_bytes;
	walk->image = ml_image(thread, ranges);
	walk->n_pending = thread->depth;
	walk->sp = ML_SP(regs);
	walk->fp = ML_FP(regs);
	walk->return_address = ML_IP(regs);
	walk->key = ml_mix(thread->seed, walk->return_address);
}

#ifndef ML_OLD_KERNEL
/* For an exact key: makes sure that its words are in the walk. A remembered key comes without. */
static __noinline bool ml_has_words(struct ml_thread *thread, struct ml_regs *regs, ml_u64 key)
{
	const struct ml_bpf_code *ranges = ml_code();

	if (!thread || !regs || !ranges || ml_is_handler(thread))
		return false;
	if (thread->is_recalled) {
		ml_begin_walk(thread, regs, ranges);
		if (ml_walk(&thread->walk) != ML_WALK_ENDED || thread->walk.key != key)
			return false;
	}
	return thread->walk.n_offsets <= ML_WALK_WORDS;
}
#endif

#ifndef ML_OLD_KERNEL
/*
 * For a stack whose walk has ended: whether it is that of a signal handler on the thread's alternate stack. Then
 * thread->interrupted is set, and a walk of the interrupted stack has begun, unless the signal's frame is not found. Global, like the next
 * two, so that the verifier checks it once, and apart from a walk, which needs much stack.
 */
__noinline int ml_enter_handler(ml_u64 sp)
{
	struct ml_thread *thread = ml_known_thread();
	struct ml_bpf_code *ranges = ml_code();
	struct ml_bpf_bounds stack;
	bool is_partial;
	ml_u64 frame;

	if (!thread || !ranges || !ml_find_alternate_stack(&stack, sp))
		return 0;
	frame = ml_find_signal_frame(stack.low, stack.end);
	thread->interrupted_flags = ML_BPF_KEY_EXACT;
	if (!frame || thread->walk.sp != frame - 8 * ML_SIGNAL_BEGIN) {
		thread->interrupted_flags = ML_KEY_PARTIAL;
		thread->walk.key = ml_scan_rest(thread, ranges, thread->walk.key, &is_partial);
	}
	if (frame)
		ml_begin_interrupted(thread, frame);
	return 1;
}

/* The key of handler and interrupted stack. state: of that walk. */
__noinline ml_u64 ml_leave_handler(int state)
{
	struct ml_thread *thread = ml_known_thread();
	struct ml_bpf_code *ranges = ml_code();
	bool is_partial;

	if (!thread || !ranges)
		return 1;
	ml_forget_stack(thread); /* see ml_send_evidence() */
	if (state == ML_WALK_ENDED)
		return ml_key_of_walk(thread->walk.key, state, 0);
	thread->interrupted_flags = ML_KEY_PARTIAL;
	if (!ML_SP(&thread->interrupted))
		return thread->walk.key | 1;
	if (state == ML_WALK_UNKNOWN) {
		thread->walk.is_unknown = 1;
		thread->walk.wakeup = ranges->wants_wakeup ? options.wakeup_flags : options.quiet_flags;
	}
	return ml_scan_rest(thread, ranges, thread->walk.key, &is_partial) | 1;
}

/* 0: not of such a handler. */
__noinline ml_u64 ml_key_of_handler(ml_u64 sp)
{
	struct ml_thread *thread = ml_known_thread();

	if (!thread || !ml_enter_handler(sp))
		return 0;
	return ml_leave_handler(ML_SP(&thread->interrupted) ? (int)ml_walk(&thread->walk) : ML_WALK_STUCK);
}
#endif

/* *flags: ML_KEY_PARTIAL, ML_BPF_KEY_EXACT or neither. */
static __always_inline ml_u64 ml_stack_key(struct ml_thread *thread, struct ml_regs *regs, ml_u64 *flags)
{
	struct ml_walk *walk = &thread->walk;
	struct ml_bpf_code *ranges = ml_code();
	bool is_partial = true;
	ml_u64 key;
#ifndef ML_OLD_KERNEL
	enum ml_walk_state state;
	ml_u64 above;
#endif

	*flags = ML_KEY_PARTIAL;
	if (!ranges)
		return 1;
	ml_begin_walk(thread, regs, ranges);
	ML_SP(&thread->interrupted) = 0;
	ML_COPY_LINK(&thread->interrupted, regs);
	if (!ml_is_code(ranges, walk->return_address))
		ml_learn_code(walk->return_address);
#ifndef ML_OLD_KERNEL
	above = ml_stack_above(thread, walk->sp);
	state = ml_walk_and_remember(walk, above);
	walk->is_unknown = state == ML_WALK_UNKNOWN;
	walk->wakeup = walk->is_unknown && ranges->wants_wakeup ? options.wakeup_flags : options.quiet_flags;
	if (state == ML_WALK_ENDED || state == ML_WALK_LIMIT) {
		*flags = ml_flags_of_walk(state);
		return ml_key_of_walk(walk->key, state, above ? above : ML_SP(regs));
	}
	key = options.alternate_stack ? ml_key_of_handler(ML_SP(regs)) : 0;
	if (key) {
		*flags = thread->interrupted_flags;
		return key;
	}
#endif
	if (thread->sequence % ML_RATE_CALLS == 0)
		ml_adapt_key(thread);
	key = ml_scan_rest(thread, ranges, walk->key, &is_partial);
	if (!is_partial)
		*flags = 0;
	return key ? key : 1;
}
