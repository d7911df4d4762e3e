/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Calls that acquire and release by any rule, where recorder.bpf.h has no shorter program. Table, keys and evidence are
 * the same.
 */
#pragma once

#include "recorder.bpf.h"

#define ML_PAIR_RECEIVED_TRACED 4u /* with --trace, whose code comes on top */
#define ML_PAIR_RECEIVED 8u /* descriptors of a message; the verifier follows the code for each */
#define ML_PAIR_STEP 64u    /* handles of a range for each call of a function that is verified once */
#define ML_PAIR_STEPS 1024u

/*
 * Argument n of a call, counted from 1; 0 for any other n. Reads all at constant offsets: the verifier accepts no
 * computed ones into a context.
 */
static __noinline ml_u64 ml_argument(struct ml_regs *regs, ml_u32 n)
{
	const ml_u64 values[8] = { 0, ML_ARG1(regs), ML_ARG2(regs), ML_ARG3(regs), ML_ARG4(regs), ML_ARG5(regs), ML_ARG6(regs),
				   0 };

	return values[n & 7];
}

static __always_inline ml_u64 ml_pair_size(struct ml_regs *regs, const volatile struct ml_pair *pair)
{
	ml_u64 size = pair->factor;

	if (pair->size_a)
		size *= ml_argument(regs, pair->size_a);
	if (pair->size_b)
		size *= ml_argument(regs, pair->size_b);
	return size;
}

/* A call that makes one block by any rule. calloc's product may overflow: then the call fails and the size does not matter. */
static __always_inline int ml_enter_by_rule(struct ml_regs *regs, ml_u32 function, const volatile struct ml_pair *rule)
{
	return ml_enter(regs, function, rule->nesting, ml_pair_size(regs, rule),
			ml_argument(regs, rule->old ? rule->old : rule->handle), rule->old);
}

static __always_inline bool ml_pair_succeeded(const volatile struct ml_pair *pair, ml_u64 value)
{
	switch (pair->success) {
	case ML_PAIR_NOT_ZERO: return value != 0;
	case ML_PAIR_ZERO: return (ml_u32)value == 0;
	case ML_PAIR_NOT_NEGATIVE: return (ml_s32)value >= 0;
	case ML_PAIR_NOT_MINUS_1: return value != ~0ull;
	default: return true;
	}
}

/* A handle as in the live table, at its own width. */
static __always_inline ml_u64 ml_pair_handle(const volatile struct ml_pair *pair, ml_u64 value)
{
	return pair->handle_bytes == 4 ? (ml_u32)value : ml_pair_short_handle(value);
}

/* Handle number i at a pointer; false if it cannot be read. */
static __always_inline bool ml_pair_stored(const volatile struct ml_pair *pair, ml_u64 pointer, ml_u32 i, ml_u64 *value)
{
	ml_u64 bytes = pair->handle_bytes == 4 ? 4 : 8;

	*value = 0; /* little endian: the low half alone */
	pointer = ML_UNTAG(pointer) + pair->handle_offset;
	return !bpf_probe_read_user(value, (ml_u32)bytes, (const void *)(pointer + i * bytes));
}

/* Descriptor number i that came with a message; false if there is none. */
static __noinline bool ml_pair_received(ml_u64 message, ml_u32 i, ml_u64 *value)
{
	struct ml_message_part part;
	ml_u64 control[2], at;

	if (bpf_probe_read_user(control, sizeof(control), (const void *)(ML_UNTAG(message) + ML_MESSAGE_CONTROL)))
		return false;
	at = ML_UNTAG(control[0]);
	for (ml_u32 n = 0; n < ML_MESSAGE_PARTS && control[1] > sizeof(part); n++) {
		ml_u64 bytes;

		if (bpf_probe_read_user(&part, sizeof(part), (const void *)at) || part.bytes < sizeof(part))
			return false;
		if (part.kind == ML_MESSAGE_RIGHTS) {
			if (part.bytes > control[1] || part.bytes - sizeof(part) < (i + 1ull) * sizeof(ml_u32))
				return false;
			*value = 0;
			return !bpf_probe_read_user(value, sizeof(ml_u32),
						    (const void *)(at + sizeof(part) + i * sizeof(ml_u32)));
		}
		bytes = (part.bytes + 7) & ~7ull;
		if (bytes > control[1])
			return false;
		at += bytes;
		control[1] -= bytes;
	}
	return false;
}

/* Times of releases that preceded the acquisition of what they release. */
ML_MAP(HASH, early, struct ml_bpf_address, ml_u64, 4096, BPF_F_NO_PREALLOC);

/*
 * A release that found nothing. A block that is inserted meanwhile is released by this function or by
 * ml_pair_settle_early(), whichever comes later.
 */
static __noinline void ml_pair_release_early(ml_u64 address, ml_u64 process)
{
	struct ml_bpf_address where = { .address = address, .process = process };
	ml_u64 now = bpf_ktime_get_ns();
	struct ml_bpf_block block;

	bpf_map_update_elem(&early, &where, &now, BPF_ANY);
	if (!ml_claim(address, process, &block))
		return;
	bpf_map_delete_elem(&early, &where);
	ml_release_key(&block);
}

/* Releases a new block that was released after the entry of its call, at old.timestamp_ns. */
static __noinline void ml_pair_settle_early(struct ml_pending *pending, ml_u64 process)
{
	struct ml_bpf_address where = { .address = ml_address(pending->function, pending->old_address), .process = process };
	ml_u64 *when = bpf_map_lookup_elem(&early, &where);
	struct ml_bpf_block block;

	if (!when)
		return;
	if (*when > pending->old.timestamp_ns && ml_claim(where.address, process, &block))
		ml_release_key(&block);
	bpf_map_delete_elem(&early, &where);
}

/* Whether a call in this process with these arguments counts. */
static __noinline bool ml_pair_applies(struct ml_regs *regs, const volatile struct ml_pair *pair, ml_u64 process)
{
	ml_u32 value, argument = pair->when.argument;
	ml_u64 given;

	if (pair->is_of_process && (ml_u32)process != (ml_u32)(bpf_get_current_pid_tgid() >> 32))
		return false;
	if (!argument)
		return true;
	given = ml_argument(regs, argument);
	value = (ml_u32)given;
	if (pair->when.is_indirect) {
		const void *address = (const void *)(ML_UNTAG(given) + pair->when.offset);

		value = 0;
		if (given && bpf_probe_read_user(&value, sizeof(value), address))
			value = 0; /* the function cannot read it either */
	}
	value &= pair->when.mask;
	for (ml_u32 i = 0; i < ML_PAIR_VALUES; i++)
		if (value == pair->when.values[i])
			return true;
	return false;
}

/* An address of the live table. */
static __always_inline ml_u64 ml_pair_address(const volatile struct ml_pair *pair, ml_u64 handle)
{
	return handle | (ml_u64)pair->family << ML_PAIR_FAMILY_SHIFT;
}

/*
 * As for realloc: the handle that the call may release is out of the table meanwhile, since it could be given out
 * again.
 */
static __always_inline void ml_pair_claim_old(struct ml_regs *regs, const volatile struct ml_pair *pair,
					      const struct ml_thread *thread, struct ml_pending *pending)
{
	ml_u64 handle = pair->old ? ml_pair_handle(pair, ml_argument(regs, pair->old)) : 0;

	pending->has_old = 0;
	pending->old_address = 0;
	if (!pair->old || pending->is_internal || (!handle && pair->handle_bytes != 4))
		return;
	pending->old_address = ml_pair_address(pair, handle);
	pending->has_old = ml_claim(pending->old_address, thread->process, &pending->old);
	if (!pending->has_old && !pair->is_early)
		ml_count(ML_BPF_UNTRACKED_FREES, 1);
}

static __always_inline int ml_acquire(struct ml_regs *regs, ml_u32 function)
{
	const volatile struct ml_pair *pair = ml_rule_of(function);
	struct ml_thread *thread = ml_is_over() ? NULL : ml_this_thread();
	struct ml_pending *pending;

	if (!thread)
		return 0;
	if (ml_has_exits(function))
		ml_drop_left(thread, ML_SP(regs), ml_return_address(regs), function);
	pending = ml_next_pending(thread, function, ML_SP(regs));
	if (!pending)
		return 0;
	pending->sp = ML_SP(regs);
	pending->size = ml_pair_size(regs, pair);
	pending->pointer = ml_argument(regs, pair->handle);
	pending->function = function;
	pending->has_key = 0;
	pending->return_address = ml_return_address(regs);
	/* A call that does not count is pending like an internal one, because its return is seen, too. */
	pending->is_internal = !ml_pair_applies(regs, pair, thread->process) ||
			       ml_is_internal(thread, regs, pending->return_address, function, pair->nesting);
	thread->depth++;
	if (pair->is_early)
		pending->old.timestamp_ns = bpf_ktime_get_ns();
	ml_pair_claim_old(regs, pair, thread, pending);
	return 0;
}

/* The block that the call was to release. A failed call leaves it live, except for realloc(…, 0). */
static __noinline void ml_pair_settle_old(struct ml_pending *pending, bool succeeded)
{
	if (succeeded || (!pending->size && ml_rule(pending)->zero_frees))
		ml_release_key(&pending->old);
	else
		ml_insert(pending->old_address, &pending->old, NULL);
}

/* Whether the call succeeded; if so, pending->pointer is its handle or its address. */
static __noinline bool ml_pair_settle(struct ml_pending *pending, ml_u64 returned, ml_u64 process)
{
	const volatile struct ml_pair *pair = ml_rule(pending);
	bool succeeded = ml_pair_succeeded(pair, returned);

	if (pending->has_old)
		ml_pair_settle_old(pending, succeeded);
	else if (pair->is_early && succeeded && pending->old_address)
		ml_pair_release_early(pending->old_address, process);
	if (!pair->handle)
		pending->pointer = returned;
	return succeeded;
}

/* The end of released ranges. Other CPUs may raise it meanwhile. */
static __always_inline void ml_pair_note_highest(ml_u64 handle)
{
	struct ml_bpf_code *shared = ml_code();

	for (ml_u32 attempt = 0; shared && attempt < 8; attempt++) {
		ml_u64 highest = *(const volatile ml_u64 *)&shared->highest_handle;

		if (handle <= highest || __sync_val_compare_and_swap(&shared->highest_handle, highest, handle) == highest)
			return;
	}
}

/* Puts handle number i into pending->old_address, since the caller's stack is full; false if there is none. */
static __noinline bool ml_pair_find_handle(struct ml_pending *pending, ml_u32 i)
{
	const volatile struct ml_pair *pair = ml_rule(pending);
	ml_u64 value = pending->pointer;

	if (i >= pair->n_handles)
		return false;
	if (pair->is_indirect == ML_PAIR_IN_MESSAGE ? !ml_pair_received(value, i, &value) :
						      pair->is_indirect && !ml_pair_stored(pair, value, i, &value))
		return false;
	pending->old_address = ml_pair_handle(pair, value);
	if (pair->handle_bytes == 4)
		ml_pair_note_highest(pending->old_address);
	return true;
}

/* At most n handles; more are counted as lost. */
static __always_inline int ml_acquired(struct ml_regs *regs, ml_u32 n, bool at_exit)
{
	struct ml_thread *thread = ml_returning_thread(at_exit);
	struct ml_pending *pending = thread ? ml_pop_returning(thread, &regs, at_exit) : NULL;

	if (!pending)
		return 0;
	/* Read again, so that the verifier follows one path, not ML_PENDING. */
	pending = &thread->pending[*(const volatile ml_u64 *)&thread->depth & (ML_PENDING - 1)];
	if (pending->is_internal || pending->function < ML_FN_PAIR)
		return 0;
	if (!ml_pair_settle(pending, ML_RETURN_VALUE(regs), thread->process))
		return 0;
	/*
	 * Stack: 216 bytes, like ml_return(). With 272, its deepest call would exceed the 512 of kernels before 6.13.
	 */
	ml_follow_stack(thread, ML_SP(regs)); /* once: the verifier follows the loop's code for each handle */
	for (ml_u32 i = 0; i < n && (i < ML_PAIR_RECEIVED_TRACED || !options.events); i++) {
		__asm__ volatile("" : "+r"(thread), "+r"(pending) : : "memory"); /* forgets values between iterations */
		if (!ml_pair_find_handle(pending, i))
			return 0;
		ml_record(regs, thread, pending, pending->old_address);
		if (ml_rule(pending)->is_early)
			ml_pair_settle_early(pending, thread->process);
	}
	if (ml_pair_find_handle(pending, options.events && n > ML_PAIR_RECEIVED_TRACED ? ML_PAIR_RECEIVED_TRACED : n))
		ml_count(ML_LOST_HANDLES, 1);
	return 0;
}

/*
 * Releases the live ones of n handles from an address on, at most ML_PAIR_STEP. Global, so that the verifier checks it
 * once.
 */
__noinline int ml_pair_release_some(ml_u64 address, ml_u64 n, ml_u64 process)
{
	struct ml_bpf_block block;

	for (ml_u32 i = 0; i < ML_PAIR_STEP && i < n; i++)
		if (ml_claim(address + i, process, &block))
			ml_release_key(&block);
	return 0;
}

/* A whole range: close_range(). Handles that are not live are not lost, since ranges have gaps. */
static __noinline void ml_pair_release_range(ml_u64 address, ml_u64 n, ml_u64 process)
{
	for (ml_u32 i = 0; i < ML_PAIR_STEPS && n > (ml_u64)i * ML_PAIR_STEP; i++)
		ml_pair_release_some(address + i * ML_PAIR_STEP, n - (ml_u64)i * ML_PAIR_STEP, process);
}

/* Number of handles that a call may release from one on, none beyond the highest ever seen. */
static __always_inline ml_u64 ml_pair_range(struct ml_regs *regs, const volatile struct ml_pair *pair, ml_u64 first)
{
	const struct ml_bpf_code *shared = ml_code();
	ml_u64 end = shared ? *(const volatile ml_u64 *)&shared->highest_handle : 0;

	if (pair->through != ML_PAIR_THROUGH_END) {
		ml_u64 last = ml_pair_handle(pair, ml_argument(regs, pair->through));

		end = last < end ? last : end;
	}
	return first <= end ? end - first + 1 : 0;
}

static __always_inline int ml_pair_release(struct ml_regs *regs, ml_u32 function)
{
	const volatile struct ml_pair *pair = ml_rule_of(function);
	ml_u64 process = ml_is_over() ? 0 : ml_current_process();
	struct ml_bpf_block block;
	ml_u64 handle;

	if (!process || !ml_pair_applies(regs, pair, process))
		return 0;
	handle = ml_argument(regs, pair->handle);
	if (pair->is_indirect && !ml_pair_stored(pair, handle, 0, &handle))
		return 0;
	handle = ml_pair_handle(pair, handle);
	block.size = 0;
	if (pair->through)
		ml_pair_release_range(ml_pair_address(pair, handle), ml_pair_range(regs, pair, handle), process);
	else if (ml_claim(ml_pair_address(pair, handle), process, &block))
		ml_release_key(&block);
	else if (pair->is_early)
		ml_pair_release_early(ml_pair_address(pair, handle), process);
	else if (handle || pair->handle_bytes == 4)
		ml_count(ML_BPF_UNTRACKED_FREES, 1);
	if (options.events)
		ml_trace_free(regs, process, function, handle, block.size);
	return 0;
}
