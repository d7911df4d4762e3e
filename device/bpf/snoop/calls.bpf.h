/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Pairs entries and returns by the stack pointer, as the kernel does (cleanup_return_instances() and
 * arch_uretprobe_is_alive(), kernel/events/uprobes.c and arch/…). An entry ends all calls in progress whose frames are
 * at or below its own, except one that jumped to it (a tail call).
 */
#pragma once

#include "bpf/snoop/output.bpf.h"
#include "bpf/snoop/stacks.bpf.h"
#include "bpf/snoop/threads.bpf.h"

/* ---- statistics of each function, counted here, so that no event is sent for them ---- */

#define ML_RAISE_TRIES 8

/* Position of the highest bit of a value other than 0. */
static __always_inline ml_u32 ml_log2(ml_u64 value)
{
	ml_u32 result = 0;

	for (ml_u32 bits = 32; bits; bits /= 2) {
		if (value >> bits) {
			value >>= bits;
			result += bits;
		}
	}
	return result;
}

/* See ml_call_bucket in wire_calls.h. */
static __always_inline ml_u32 ml_bucket(ml_u64 duration_ns)
{
	ml_u32 power, bucket;

	if (duration_ns < ML_CALL_SUB_BUCKETS)
		return (ml_u32)duration_ns;
	power = ml_log2(duration_ns);
	bucket = (power - 3) * ML_CALL_SUB_BUCKETS + ((duration_ns >> (power - 4)) & (ML_CALL_SUB_BUCKETS - 1));
	return bucket < ML_CALL_BUCKETS ? bucket : ML_CALL_BUCKETS - 1;
}

#ifdef ML_SNOOP_OLD
/* Of two concurrent values one may be lost. */
static __always_inline void ml_raise(ml_u64 *number, ml_u64 value)
{
	if (*(volatile ml_u64 *)number < value)
		*(volatile ml_u64 *)number = value;
}
#else
static __always_inline void ml_raise(ml_u64 *number, ml_u64 value)
{
	for (int i = 0; i < ML_RAISE_TRIES; i++) {
		ml_u64 before = *(volatile ml_u64 *)number;

		if (before >= value || __sync_val_compare_and_swap(number, before, value) == before)
			return;
	}
}
#endif

static __noinline int ml_count_return(struct ml_snoop_statistics *counted, ml_u64 duration_ns)
{
	ml_u32 bucket = ml_bucket(duration_ns);

	if (!counted)
		return 0;
	ml_add(&counted->returns, 1);
	ml_add(&counted->total_ns, duration_ns);
	ml_raise(&counted->max_ns, duration_ns);
	ml_raise(&counted->max_inverted_ns, ~duration_ns);
	if (bucket < ML_CALL_BUCKETS)
		ml_add(&counted->buckets[bucket], 1);
	return 0;
}

/* ---- calls ---- */

#define ML_TOP(thread) (&(thread)->pending[((thread)->depth - 1) & (ML_SNOOP_PENDING - 1)])
/* The trampoline of return probes begins a page (get_trampoline_vaddr()); code after a call rarely does. */
#define ML_MAY_BE_TRAMPOLINE(address) (!((address) & 4095))

static __always_inline bool ml_find_function(struct ml_regs *regs, ml_u64 identity, ml_u32 *number)
{
	struct ml_snoop_address probe = { .address = ML_IP(regs), .tgid = identity >> 32 };
	ml_u32 *found;

	if (options.has_cookies) {
		*number = (ml_u32)bpf_get_attach_cookie(regs);
		return true;
	}
	found = bpf_map_lookup_elem(&addresses, &probe);
	if (!found) {
		ml_count(ML_LOST_MAPPINGS, 1);
		return false;
	}
	*number = *found;
	return true;
}

static __always_inline void ml_fill_event(struct ml_snoop_thread *thread, const struct ml_snoop_pending *pending, ml_u16 type,
					  ml_u64 now_ns)
{
	struct ml_call *event = &thread->event;
	ml_u64 identity = bpf_get_current_pid_tgid();

	event->type = type;
	event->n_captures = 0;
	event->timestamp_ns = now_ns;
	event->call = pending->call;
	event->function = pending->function;
	event->depth = thread->depth;
	event->tgid = (ml_u32)(identity >> 32);
	event->tid = (ml_u32)identity;
	event->duration_ns = now_ns - pending->begin_ns;
}

/* The thread's innermost call will never return. */
static __noinline int ml_drop_top(struct ml_snoop_thread *thread)
{
	struct ml_snoop_statistics *counted;
	struct ml_snoop_pending *top;

	if (!thread || !thread->depth)
		return 0;
	top = ML_TOP(thread);
	thread->depth--;
	if (top->flags & ML_SNOOP_REJECTED)
		return 0;
	counted = bpf_map_lookup_elem(&statistics, &top->function);
	if (counted)
		ml_add(&counted->unpaired, 1);
	if (!(top->flags & ML_SNOOP_SHOWN))
		return 0;
	ml_fill_event(thread, top, ML_CALL_UNPAIRED, bpf_ktime_get_ns());
	return ml_send(thread, 0);
}

/* Drops the calls that this entry proves to be over. */
static __always_inline void ml_drop_left(struct ml_snoop_thread *thread, ml_u64 sp, ml_u64 return_address)
{
	for (int i = 0; i < ML_SNOOP_PENDING && thread->depth; i++) {
		ml_u64 outer = ML_TOP(thread)->sp;

		if (outer > sp || (outer == sp && ML_MAY_BE_TRAMPOLINE(return_address)))
			return;
		ml_drop_top(thread);
	}
}

static __always_inline bool ml_compare(const struct ml_snoop_filter *filter, ml_u64 value)
{
	ml_u64 bound = filter->value, sign = 1ull << 63;
	ml_u32 bits = filter->bits ? filter->bits : value >> 32 ? 64 : 32, unused = (64 - bits) & 63;

	value <<= unused;
	if (filter->comparison & ML_SNOOP_SIGNED) {
		value = (ml_u64)((long long)value >> unused) ^ sign;
		bound ^= sign;
	} else {
		value >>= unused;
	}
	switch (filter->comparison & (ML_SNOOP_SIGNED - 1)) {
	case ML_SNOOP_AND: return value & bound;
	case ML_SNOOP_EQ: return value == bound;
	case ML_SNOOP_NE: return value != bound;
	case ML_SNOOP_LT: return value < bound;
	case ML_SNOOP_LE: return value <= bound;
	case ML_SNOOP_GT: return value > bound;
	default: return value >= bound;
	}
}

static __noinline int ml_passes(struct ml_snoop_thread *thread, const struct ml_snoop_function *function)
{
	if (!thread || !function)
		return 0;
	for (ml_u32 i = 0; i < ML_SNOOP_FILTERS && i < function->n_filters; i++)
		if (!ml_compare(&function->filters[i], thread->arguments[function->filters[i].argument & 7]))
			return 0;
	return 1;
}

static __always_inline void ml_keep_arguments(struct ml_snoop_thread *thread, struct ml_regs *regs)
{
	thread->arguments[0] = ML_ARG1(regs);
	thread->arguments[1] = ML_ARG2(regs);
	thread->arguments[2] = ML_ARG3(regs);
	thread->arguments[3] = ML_ARG4(regs);
	thread->arguments[4] = ML_ARG5(regs);
	thread->arguments[5] = ML_ARG6(regs);
}

/* Sends an entry within the limits; returns the flags of the pending call. */
static __noinline ml_u32 ml_send_entry(struct ml_regs *regs, struct ml_snoop_thread *thread, struct ml_snoop_function *function,
				       struct ml_snoop_statistics *counted, ml_u32 number)
{
	ml_u64 now_ns = bpf_ktime_get_ns();
	struct ml_snoop_pending pending = { .function = number, .begin_ns = now_ns };

	if (!thread || !function || !counted)
		return 0;
	pending.call = thread->sequence;
	if (!ml_is_within_rate(function, now_ns)) {
		ml_add(&counted->hidden, 1);
		return 0;
	}
	if (options.stack_bytes)
		ml_send_stack(regs, thread, number,
			      pending.call); /* before the call itself, so that a reader of that finds it */
	ml_fill_event(thread, &pending, ML_CALL_ENTRY, now_ns);
	for (int i = 0; i < ML_CALL_ARGUMENTS; i++)
		thread->event.values[i] = thread->arguments[i];
	ml_send_call(thread, function, 0);
	return ML_SNOOP_SHOWN; /* its end is sent even if the ring had no room for its entry */
}

static __always_inline void ml_begin(struct ml_snoop_thread *thread, struct ml_regs *regs, ml_u32 number, ml_u64 call,
				     ml_u32 flags, ml_u64 return_address)
{
	struct ml_snoop_pending *pending;

	if (thread->depth >= ML_SNOOP_PENDING) {
		struct ml_snoop_statistics *counted = bpf_map_lookup_elem(&statistics, &number);

		ml_count(ML_LOST_PENDING_FULL, 1);
		if (counted && !(flags & ML_SNOOP_REJECTED))
			ml_add(&counted->unpaired, 1);
		return;
	}
	pending = &thread->pending[thread->depth & (ML_SNOOP_PENDING - 1)];
	pending->sp = ML_SP(regs);
	pending->call = call;
	pending->function = number;
	pending->flags = flags;
	pending->return_address = return_address;
	thread->depth++;
	pending->begin_ns = bpf_ktime_get_ns(); /* last, so that the programs' time is not part of the call */
}

static __always_inline int ml_call_entry(struct ml_regs *regs)
{
	ml_u64 identity = bpf_get_current_pid_tgid(), return_address;
	struct ml_snoop_statistics *counted;
	struct ml_snoop_function *function;
	struct ml_snoop_thread *thread;
	ml_u32 number, flags = 0;

	if (!ml_is_followed(identity) || !ml_find_function(regs, identity, &number))
		return 0;
	function = bpf_map_lookup_elem(&functions, &number);
	counted = bpf_map_lookup_elem(&statistics, &number);
	if (!function || !counted)
		return 0;
	thread = ml_find_thread((ml_u32)identity) ?: ml_make_thread((ml_u32)identity);
	if (!thread) {
		ml_count(ML_LOST_THREADS_FULL, 1);
		return 0;
	}
	return_address = ml_return_address(regs);
	ml_drop_left(thread, ML_SP(regs), return_address);
	ml_keep_arguments(thread, regs);
	thread->sequence++;
	if (!ml_is_wanted(identity)) {
		flags = ML_SNOOP_REJECTED;
	} else if (function->n_filters && !ml_passes(thread, function)) {
		ml_add(&counted->filtered, 1);
		flags = ML_SNOOP_REJECTED;
	} else {
		ml_add(&counted->calls, 1);
		if (options.events)
			flags = ml_send_entry(regs, thread, function, counted, number);
	}
	if (function->has_return)
		ml_begin(thread, regs, number, thread->sequence, flags, return_address);
	return 0;
}

/* Pops the pending call that returns with this stack pointer; those above it never returned. */
static __always_inline struct ml_snoop_pending *ml_pop(struct ml_snoop_thread *thread, ml_u64 sp, ml_u32 number)
{
	for (int i = 0; i < ML_SNOOP_PENDING && thread->depth; i++) {
		struct ml_snoop_pending *top = ML_TOP(thread);

		if (top->sp > sp)
			return NULL;
		if (top->sp == sp && (!options.has_cookies || top->function == number)) {
			thread->depth--;
			return top;
		}
		ml_drop_top(thread);
	}
	return NULL;
}

static __always_inline void ml_end_call(struct ml_snoop_thread *thread, const struct ml_snoop_pending *pending, ml_u64 value,
					ml_u64 is_tail, ml_u64 now_ns)
{
	struct ml_snoop_statistics *counted = bpf_map_lookup_elem(&statistics, &pending->function);
	struct ml_snoop_function *function = bpf_map_lookup_elem(&functions, &pending->function);

	if (!counted || !function)
		return;
	ml_count_return(counted, now_ns - pending->begin_ns);
	if (!(pending->flags & ML_SNOOP_SHOWN))
		return;
	ml_fill_event(thread, pending, ML_CALL_EXIT, now_ns);
	thread->arguments[0] = value;
	thread->event.values[0] = value;
	thread->event.values[1] = is_tail;
	ml_send_call(thread, function, is_tail ? 2 : 1);
}

/* cookie: of the probe. sp: at the call's entry. */
static __always_inline int ml_leave(struct ml_regs *regs, ml_u64 identity, ml_u64 sp, ml_u32 cookie, ml_u64 now_ns)
{
	struct ml_snoop_thread *thread = ml_find_thread((ml_u32)identity);
	struct ml_snoop_pending *pending = thread ? ml_pop(thread, sp, cookie & ~ML_SNOOP_TAIL) : NULL;

	if (!pending)
		ml_count(ML_LOST_MISSED_ENTRY, 1);
	else if (!(pending->flags & ML_SNOOP_REJECTED))
		ml_end_call(thread, pending, ML_RETURN_VALUE(regs), cookie & ML_SNOOP_TAIL, now_ns);
	return 0;
}

/* Called from a return probe's trampoline. */
static __always_inline int ml_call_exit(struct ml_regs *regs)
{
	ml_u64 now_ns = bpf_ktime_get_ns(), identity = bpf_get_current_pid_tgid();
	ml_u32 cookie = 0;

	if (!ml_is_followed(identity))
		return 0;
	if (options.has_cookies)
		cookie = (ml_u32)bpf_get_attach_cookie(regs);
	return ml_leave(regs, identity, ML_SP(regs) - ML_RETURN_POPS, cookie, now_ns);
}

/* At an instruction that returns or jumps to another function, when the call's frame is gone. */
static __always_inline int ml_call_exit_at(struct ml_regs *regs)
{
	ml_u64 now_ns = bpf_ktime_get_ns(), identity = bpf_get_current_pid_tgid();
	ml_u32 cookie;

	if (!ml_is_followed(identity) || !ml_find_function(regs, identity, &cookie))
		return 0;
	return ml_leave(regs, identity, ML_SP(regs), cookie, now_ns);
}

/* At the thread's end or exec, by which it loses its tid if it is not the first of its process. */
static __always_inline int ml_thread_end(ml_u32 tid)
{
	struct ml_snoop_thread *thread = ml_find_thread(tid);

	if (!thread)
		return 0;
	for (int i = 0; i < ML_SNOOP_PENDING && thread->depth; i++)
		ml_drop_top(thread);
	ml_forget_thread(thread, tid);
	return 0;
}
