/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Calls in progress: their rules, and which of them are part of another. */
#pragma once

#include "evidence.bpf.h"

/* Consecutive calls inside a full set of pending ones, after which those are taken for stale. */
#define ML_TOO_DEEP 1024

/* The rule of a function. Looked up where it is needed: ml_record() has no stack to keep it. */
static __always_inline const volatile struct ml_pair *ml_rule_of(ml_u32 function)
{
	return &options.rules[function & (ML_FN_MAX - 1)];
}

static __always_inline const volatile struct ml_pair *ml_rule(const struct ml_pending *pending)
{
	return ml_rule_of(pending->function);
}

/* Whether the function's returns are seen at the instructions that leave it. */
static __always_inline bool ml_has_exits(ml_u32 function)
{
	return options.n_exited && ml_rule_of(function)->has_exits;
}

/* An address of the live table: without tags, with the function's family. */
static __always_inline ml_u64 ml_address(ml_u32 function, ml_u64 value)
{
	return ml_pair_short_handle(value) | (ml_u64)ml_rule_of(function)->family << ML_PAIR_FAMILY_SHIFT;
}

/* The index of the probed file. */
static __always_inline ml_u32 ml_file(struct ml_regs *regs)
{
#ifdef ML_OLD_KERNEL /* without cookies */
	(void)regs;
	return 0;
#else
	return options.n_files > 1 ? bpf_get_attach_cookie(regs) >> ML_BPF_FILE_SHIFT & (ML_BPF_FILES - 1) : 0;
#endif
}

/* Whether a return address is the allocator's own code. ip: of the entry probe of `function` in the file. */
static __always_inline bool ml_is_own_code(ml_u32 file, ml_u64 ip, ml_u64 return_address, ml_u32 function)
{
	const volatile struct ml_bpf_function *probed =
		&options.functions[file & (ML_BPF_FILES - 1)][function & (ML_FN_MAX - 1)];
	ml_u64 offset = return_address - (ip - probed->entry_offset);

	return offset >= probed->text_low && offset < probed->text_high;
}

/* sp of the innermost pending call of a family, 0 if there is none. */
static __noinline ml_u64 ml_outer_sp(struct ml_thread *thread, ml_u32 family)
{
	for (ml_u32 i = 1; i <= ML_PENDING && i <= thread->depth; i++) {
		const struct ml_pending *pending = &thread->pending[(thread->depth - i) & (ML_PENDING - 1)];

		if (ml_rule(pending)->family == family)
			return pending->sp;
	}
	return 0;
}

/*
 * Whether a call with this return address and sp is part of another of its family: inside another pending call on the
 * same stack, and from the allocator's own code (ML_PAIR_OWN_CODE). A signal handler's malloc is called from elsewhere.
 * After a tail call from one probed function to another, the return address is the trampoline of the first.
 */
static __always_inline bool ml_is_internal(struct ml_thread *thread, struct ml_regs *regs, ml_u64 return_address,
					   ml_u32 function, ml_u32 nesting)
{
	ml_u64 outer_sp, sp = ML_SP(regs);

	if (!thread->depth || nesting == ML_PAIR_ALL)
		return false;
	outer_sp = options.n_pairs ? ml_outer_sp(thread, ml_rule_of(function)->family) :
				     thread->pending[(thread->depth - 1) & (ML_PENDING - 1)].sp;
	if (outer_sp == sp)
		return true;
	return outer_sp > sp &&
	       (nesting == ML_PAIR_OUTER || ml_is_own_code(ml_file(regs), ML_IP(regs), return_address, function));
}

/* Whether the call goes deeper into a recursion that counts as one call. Such calls need not be kept. */
static __always_inline bool ml_recurses(const struct ml_thread *thread, ml_u32 function, ml_u64 sp)
{
	const struct ml_pending *innermost = &thread->pending[(thread->depth - 1) & (ML_PENDING - 1)];
	const volatile struct ml_pair *rule = ml_rule_of(function);

	return rule->nesting == ML_PAIR_OUTER && ml_rule(innermost)->family == rule->family && innermost->sp > sp;
}

/* Whether the call is inside the innermost kept one. After many calls that were not kept, the kept ones are stale. */
static __always_inline bool ml_is_too_deep(struct ml_thread *thread, ml_u64 sp)
{
	ml_u64 innermost = thread->pending[(thread->depth - 1) & (ML_PENDING - 1)].sp;

	return innermost > sp && ++thread->too_deep <= ML_TOO_DEEP;
}

/*
 * Drops calls that an exception or a cancellation left: functions with exits have no return probe that would tell. A call at the same sp
 * goes on by a tail call of another function only, with its return address. Below sp nothing is pending, if sp is on the thread's own
 * stack. Above it, the return address is still in its slot (x86; on arm64 it may be anywhere in the frame, and the call is kept).
 */
static __noinline void ml_drop_left(struct ml_thread *thread, ml_u64 sp, ml_u64 return_address, ml_u32 function)
{
	ml_u64 is_own_stack = ml_stack_above(thread, sp), dropped = 0;

	for (ml_u32 i = 1; i <= ML_PENDING && i <= thread->depth; i++) {
		const struct ml_pending *pending = &thread->pending[(thread->depth - i) & (ML_PENDING - 1)];

		if (!ml_rule(pending)->has_exits || (pending->sp > sp && ml_is_in_slot(pending->sp, pending->return_address)))
			break;
		if (pending->sp == sp ? pending->return_address != return_address || pending->function == function :
					pending->sp > sp || is_own_stack)
			dropped = i;
	}
	thread->depth -= dropped;
}

/* The next level of the thread's pending calls, not yet counted in its depth; NULL: the call is not kept. */
static __always_inline struct ml_pending *ml_next_pending(struct ml_thread *thread, ml_u32 function, ml_u64 sp)
{
	if (thread->depth >= ML_FIXUPS)
		ml_forget_stack(thread); /* see ml_find_slice() */
	if (thread->depth >= ML_PENDING) {
		if (ml_recurses(thread, function, sp))
			return NULL;
		if (ml_is_too_deep(thread, sp)) {
			ml_count(ML_LOST_PENDING_FULL, 1);
			return NULL;
		}
		/* Returns that were not seen have filled it: all but the newest levels are stale. */
		thread->too_deep = 0;
		ml_count(ML_LOST_MISSED_RETURN, thread->depth);
		thread->depth = 0;
	}
	return &thread->pending[thread->depth & (ML_PENDING - 1)];
}

/* A return without its entry counts as lost, but for the one call that a thread was in when the probes were placed. */
static __always_inline void ml_miss_entry(struct ml_thread *thread)
{
	const struct ml_bpf_code *shared = ml_code();

	if (shared && shared->is_attached && thread->images_seen == ~0ull && !thread->has_left)
		thread->has_left = 1;
	else
		ml_count(ML_LOST_MISSED_ENTRY, 1);
}

/* Pops the pending call that returns with this sp, seen by its return probe. Those above it never returned. */
static __always_inline struct ml_pending *ml_pop(struct ml_thread *thread, ml_u64 entry_sp)
{
	for (int i = 0; i < ML_PENDING && thread->depth; i++) {
		struct ml_pending *pending;

		thread->depth--;
		pending = &thread->pending[thread->depth & (ML_PENDING - 1)];
		if (pending->sp == entry_sp) {
			thread->too_deep = 0;
			return pending;
		}
		if (pending->sp > entry_sp) { /* an outer call: the entry of the returning one was not seen */
			thread->depth++;
			if (thread->depth >= ML_PENDING)
				return NULL; /* or it was not kept: ml_next_pending() */
			break;
		}
		if (!ml_rule(pending)->has_exits)
			ml_count(ML_LOST_MISSED_RETURN, 1);
	}
	ml_miss_entry(thread);
	return NULL;
}

/*
 * The same at an instruction that leaves a function. Calls whose entry no probe saw pass there, too; none of those is pending. One
 * exit ends all calls with its sp, since each jumped to the next (a tail call): the outermost is popped. One of them that has a return
 * probe is left to that. Calls below sp were left by an exception, if they are on the same stack.
 */
static __always_inline struct ml_pending *ml_pop_exit(struct ml_thread *thread, ml_u64 sp)
{
	bool is_other_stack = thread->stack.end && !ml_stack_above(thread, sp);
	struct ml_pending *popped = NULL;

	for (int i = 0; i < ML_PENDING && thread->depth; i++) {
		struct ml_pending *pending = &thread->pending[(thread->depth - 1) & (ML_PENDING - 1)];
		bool has_exits = ml_rule(pending)->has_exits;

		if (pending->sp == sp ? !has_exits : popped || pending->sp > sp || is_other_stack)
			break;
		thread->depth--;
		if (pending->sp == sp)
			popped = pending;
		else if (!has_exits)
			ml_count(ML_LOST_MISSED_RETURN, 1);
	}
	if (popped)
		thread->too_deep = 0;
	return popped;
}
