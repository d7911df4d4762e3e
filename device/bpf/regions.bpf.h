/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The mmap family for the agent's ledger, in the order of calls. Seen as the system calls return, so also those that a program makes
 * without its libc. What an allocator maps within its own calls holds its blocks, and is left out.
 */
#pragma once

#include "recorder.bpf.h"

#ifndef ML_OLD_KERNEL

#define ML_MREMAP_DONTUNMAP 4
/* Until the agent has sent the rules of a program's files, callers share a key. So many calls of such a key have keys of their own. */
#define ML_REGION_EACH 16

/* Stack key → its number of calls. */
ML_MAP(LRU_HASH, region_calls, ml_u64, ml_u64, 16384, 0);

/* A returned system call of a traced thread. */
struct ml_region_call {
	struct ml_thread *thread;
	struct ml_regs *regs; /* the user's, whose ip is behind the instruction: as if a function had returned */
	ml_u64 first;         /* its first argument */
	ml_u64 value;
};

/* Whether a call of the heap is in progress on this stack. */
static __always_inline bool ml_is_of_heap(struct ml_thread *thread, ml_u64 sp)
{
	ml_u64 outer = 0;

	if (options.n_pairs)
		outer = ml_outer_sp(thread, 0);
	else if (thread->depth)
		outer = thread->pending[(thread->depth - 1) & (ML_PENDING - 1)].sp;
	return outer >= sp;
}

/* event: struct syscall_trace_exit. False: the call failed, or does not count. */
static __always_inline bool ml_read_region_call(void *event, struct ml_region_call *call)
{
	call->value = ml_field(event, options.syscall_ret);
	if (call->value >= -4095ull || ml_is_over() || !ml_current_memory())
		return false;
	call->thread = ml_this_thread();
	if (!call->thread)
		return false;
	call->regs = &call->thread->returned;
	return ml_read_syscall(call->regs, &call->first);
}

/* Whether evidence is due: for a key's 1st, 2nd, 4th, 8th … call. Gives a call whose stack the key does not tell a key of its own. */
static __always_inline bool ml_region_is_due(ml_u64 *key, bool is_exact)
{
	ml_u64 one = 1, n = 1, *calls = bpf_map_lookup_elem(&region_calls, key);

	if (calls)
		n = __sync_fetch_and_add(calls, 1) + 1;
	else
		bpf_map_update_elem(&region_calls, key, &one, BPF_ANY);
	if (!is_exact && n <= ML_REGION_EACH)
		*key = ml_mix(*key, n) | 1;
	return !(n & (n - 1)) || (!is_exact && n <= ML_REGION_EACH + 1) || options.every_stack;
}

static __always_inline void ml_record_region(const struct ml_region_call *call, ml_u32 function, ml_u64 size,
					     ml_u64 old_address)
{
	struct ml_thread *thread = call->thread;
	struct ml_bpf_block block = { .process = thread->process,
				      .size = size,
				      .timestamp_ns = bpf_ktime_get_ns(),
				      .sequence = ++thread->sequence,
				      .function = function };
	ml_u64 flags, key;
	bool is_due;

	ml_follow_stack(thread, ML_SP(call->regs));
	key = ml_mix(ml_stack_key(thread, call->regs, &flags), function) | 1;
	is_due = ml_region_is_due(&key, flags & ML_BPF_KEY_EXACT);
	ml_send_region(call->regs, thread, function, call->value, size, old_address, key);
	if (options.stack_bytes && options.left_out != ML_BPF_KNOWN_LEFT_OUT && is_due &&
	    ml_send_evidence(call->regs, thread, &block, call->value, key, 0, options.stack_bytes))
		ml_count(ML_LOST_RING_FULL, 1);
}

static __always_inline bool ml_is_unmapping(const struct ml_region_call *call, ml_u64 number)
{
	if (number == ML_NR_MREMAP) /* an old size of 0 doubles a shared region */
		return ML_SYSCALL_ARG2(call->regs) && !(ML_SYSCALL_ARG4(call->regs) & ML_MREMAP_DONTUNMAP);
	return number == ML_NR_MUNMAP || number == ML_NR_SHMDT;
}

static __always_inline ml_u32 ml_region_function(ml_u64 number)
{
	switch (number) {
	case ML_NR_MMAP: return ML_FN_MMAP;
	case ML_NR_MREMAP: return ML_FN_MREMAP;
	case ML_NR_SHMAT: return ML_FN_SHMAT;
	case ML_NR_BRK: return ML_FN_SBRK;
	default: return 0;
	}
}

/* event: struct syscall_trace_exit of a call of the family. Sizes that the call does not tell are 0: the agent finds them. */
static __always_inline int ml_region_changed(void *event)
{
	struct ml_region_call call;
	bool is_of_heap;
	ml_u64 number;
	ml_u32 function;

	if (!ml_read_region_call(event, &call))
		return 0;
	number = ML_SYSCALL_NUMBER(call.regs);
	is_of_heap = ml_is_of_heap(call.thread, ML_SP(call.regs));
	if (number == ML_NR_BRK && (is_of_heap || !call.first)) /* brk(0) asks where it is */
		ml_send_region(call.regs, call.thread, ML_FN_SBRK, call.value, 0, ML_BREAK_IS_NO_REGION, 0);
	else if (!is_of_heap && ml_is_unmapping(&call, number))
		ml_send_region(call.regs, call.thread, ML_FN_MUNMAP, call.first,
			       number == ML_NR_SHMDT ? 0 : ML_SYSCALL_ARG2(call.regs), 0, 0);
	function = ml_region_function(number);
	if (is_of_heap || !function || (function == ML_FN_SBRK && !call.first))
		return 0;
	ml_record_region(&call, function,
			 function == ML_FN_MMAP   ? ML_SYSCALL_ARG2(call.regs) :
			 function == ML_FN_MREMAP ? ML_SYSCALL_ARG3(call.regs) :
						    0,
			 function == ML_FN_MREMAP ? call.first : 0);
	return 0;
}
#endif
