/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Records an allocator's entries, returns and releases. */
#pragma once

#include "pending.bpf.h"

static __always_inline void ml_release_key(const struct ml_bpf_block *block)
{
	ml_u32 slot = block->key_slot;
	struct ml_bpf_key *entry = bpf_map_lookup_elem(&keys, &slot);

	if (entry)
		ml_count_free(slot, entry, block->size);
}

/* Whether to look for the stack's key at the entry, where the stack above is the same as at the return. */
static __always_inline bool ml_will_record(const struct ml_thread *thread, ml_u64 size)
{
	return !thread->depth && size >= options.min_size && size <= options.max_size;
}

/* The return address of the call, and its stack's key if it is remembered. */
static __always_inline void ml_find_caller(struct ml_thread *thread, struct ml_regs *regs, struct ml_pending *pending)
{
	pending->has_key = 0;
	if (ml_will_record(thread, pending->size))
		ml_recall(thread, regs, pending);
	else
		pending->return_address = ml_return_address(regs);
}

/* Probes are removed one by one. Without this, blocks freed after free's probe is gone would count as live. */
static __always_inline bool ml_is_over(void)
{
	const struct ml_bpf_code *shared = ml_code();

	return shared && *(const volatile ml_u64 *)&shared->over_ns;
}

/* pointer: the old block if has_old, else where the result is stored, or unused. */
static __always_inline int ml_enter(struct ml_regs *regs, ml_u32 function, ml_u32 nesting, ml_u64 size, ml_u64 pointer,
				    bool has_old)
{
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
	pending->size = size;
	pending->pointer = pointer;
	pending->function = function;
	pending->has_old = 0;
	ml_find_caller(thread, regs, pending);
	pending->is_internal = ml_is_internal(thread, regs, pending->return_address, function, nesting);
	thread->depth++;
	if (has_old && pointer && !pending->is_internal) {
		pending->has_old = ml_claim(ml_address(function, pointer), thread->process, &pending->old);
		if (!pending->has_old)
			ml_count(ML_BPF_UNTRACKED_FREES, 1);
	}
	return 0;
}

/*
 * Inserts a block. If the address is live, the old block is replaced: its free was missed, unless the call replaces it
 * by its rule.
 */
static __always_inline bool ml_insert(ml_u64 address, const struct ml_bpf_block *block, const struct ml_pending *call)
{
	struct ml_bpf_block old;
	bool had_old;
	bool is_in = ml_put(address, block, &old, &had_old, call && ml_pair_counts_references(ml_rule(call)));

	if (had_old) {
		if (!call || !ml_rule(call)->replaces)
			ml_count(ML_LOST_MISSED_FREE, 1);
		ml_release_key(&old);
	}
	if (!is_in)
		ml_count(ML_LOST_TABLE_FULL, 1);
	return is_in;
}

/* The key found at the call's entry, or else now. */
static __always_inline ml_u64 ml_key_of_call(struct ml_regs *regs, struct ml_thread *thread, const struct ml_pending *pending,
					     ml_u64 *flags)
{
	thread->is_recalled = pending->has_key;
	if (pending->has_key) {
		thread->walk.is_unknown = 0;
		thread->walk.wakeup = options.quiet_flags;
		*flags = pending->key_flags;
		return pending->key;
	}
	return ml_stack_key(thread, regs, flags);
}

/* Keys of --pairs include the function. */
static __always_inline void ml_record(struct ml_regs *regs, struct ml_thread *thread, const struct ml_pending *pending,
				      ml_u64 address)
{
	ml_u64 size = pending->size;
	struct ml_bpf_block block = {};
	struct ml_bpf_key *entry;
	ml_u64 key, flags, live_objects;
	ml_u32 cap;

	if (size < options.min_size || size > options.max_size)
		return;
	address = ml_pair_short_handle(address);
	block.process = thread->process;
	block.size = size;
	block.timestamp_ns = bpf_ktime_get_ns();
	block.sequence = ++thread->sequence;
	block.function = pending->function;
	key = ml_key_of_call(regs, thread, pending, &flags);
	if (pending->function >= ML_FN_PAIR)
		key = ml_mix(key, pending->function) | 1;
	if (options.events)
		ml_trace_alloc(regs, thread, pending, address, key);
	address = ml_address(pending->function, address);
	block.key_slot = ml_key_slot(key, thread->process, flags);
	if (!ml_insert(address, &block, pending))
		return;
	entry = bpf_map_lookup_elem(&keys, &block.key_slot);
	if (!entry) {
		ml_count(ML_LOST_KEYS_FULL, 1);
		return;
	}
	live_objects = ml_count_alloc(block.key_slot, entry, size);
	if (options.left_out && ml_is_left_out(regs, thread, &block, address, entry, live_objects))
		return;
	if ((cap = options.stack_bytes))
		ml_bring_evidence(regs, thread, &block, address, entry, live_objects, cap);
}

/* The block that a call has made; 0 if it failed. */
static __always_inline ml_u64 ml_result(struct ml_regs *regs, const struct ml_pending *pending)
{
	ml_u64 value = ML_RETURN_VALUE(regs);
	ml_u64 address = 0;

	if (!ml_rule(pending)->is_indirect)
		return value;
	if ((ml_s32)value == 0)
		bpf_probe_read_user(&address, sizeof(address), (const void *)ML_UNTAG(pending->pointer));
	return address;
}

/* A failed call leaves the old block live, except for realloc(…, 0). */
static __always_inline void ml_settle_old(struct ml_pending *pending, ml_u64 address)
{
	if (address || (!pending->size && ml_rule(pending)->zero_frees))
		ml_release_key(&pending->old);
	else
		ml_insert(ml_address(pending->function, pending->pointer), &pending->old, NULL);
}

/*
 * The thread whose call returns. NULL if its entry was not seen, which counts as lost if the process is traced. Up to
 * Linux 6.12 a return also runs programs whose probes are for other processes (kernel/events/uprobes.c,
 * handle_uretprobe_chain).
 */
static __always_inline struct ml_thread *ml_returning_thread(bool at_exit)
{
	struct ml_thread *thread;

	if (ml_is_over())
		return NULL;
	thread = ml_known_thread();
	if (thread || at_exit || (ml_u32)ml_current_process() != (ml_u32)(bpf_get_current_pid_tgid() >> 32))
		return thread;
	thread = ml_this_thread();
	if (thread)
		ml_miss_entry(thread);
	return NULL;
}

/*
 * Pops the call that returns here. at_exit: before the instruction that leaves it; then *regs become those behind it, as a return probe
 * has them.
 */
static __always_inline struct ml_pending *ml_pop_returning(struct ml_thread *thread, struct ml_regs **regs, bool at_exit)
{
	struct ml_pending *pending;

	if (!at_exit)
		return ml_pop(thread, ML_SP(*regs) - ML_RETURN_POPS);
	pending = ml_pop_exit(thread, ML_SP(*regs));
	if (!pending)
		return NULL;
	bpf_probe_read_kernel(&thread->returned, sizeof(thread->returned), *regs);
	ml_execute_return(&thread->returned, pending->return_address);
	*regs = &thread->returned;
	return pending;
}

static __always_inline int ml_return(struct ml_regs *regs, bool at_exit)
{
	struct ml_thread *thread = ml_returning_thread(at_exit);
	struct ml_pending *pending;
	ml_u64 address;

	if (!thread)
		return 0;
	pending = ml_pop_returning(thread, &regs, at_exit);
	if (!pending || pending->is_internal)
		return 0;
	address = ml_result(regs, pending);
	if (pending->has_old)
		ml_settle_old(pending, address);
	if (address) {
		ml_follow_stack(thread, ML_SP(regs));
		ml_record(regs, thread, pending, address);
	} else if (options.events && pending->function < ML_FN_PAIR)
		ml_trace_alloc(regs, thread, pending, 0, 0);
	return 0;
}

/*
 * A free of an unknown block: older than the session, or not made by the program. glibc empties a thread's cache of
 * freed chunks through free() (malloc/malloc.c, tcache_thread_shutdown).
 */
static __noinline void ml_count_untracked(ml_u32 file, ml_u64 ip, ml_u64 return_address, ml_u32 function)
{
	if (ml_rule_of(function)->nesting != ML_PAIR_OWN_CODE || !ml_is_own_code(file, ip, return_address, function))
		ml_count(ML_BPF_UNTRACKED_FREES, 1);
}

static __always_inline int ml_release(struct ml_regs *regs, ml_u32 function, ml_u64 pointer)
{
	/* free(NULL); but a handle of a pair may be 0 */
	ml_u64 process = (pointer || function >= ML_FN_PAIR) && !ml_is_over() ? ml_current_process() : 0;
	struct ml_bpf_block block;

	if (!process)
		return 0;
	block.size = 0;
	if (ml_claim(ml_address(function, pointer), process, &block))
		ml_release_key(&block);
	else if (pointer)
		ml_count_untracked(ml_file(regs), ML_IP(regs), ml_return_address(regs), function);
	if (options.events)
		ml_trace_free(regs, process, function, ml_pair_short_handle(pointer), block.size);
	return 0;
}

/* ---- the life of threads and processes ------------------------------------------------- */

/* Forgets a process that ran in another's memory. Returns whether it did. */
static __always_inline bool ml_forget_borrower(ml_u32 tgid, bool has_ended)
{
	const struct ml_bpf_process *process = bpf_map_lookup_elem(&processes, &tgid);
	bool is_nested;

	if (!process || !process->lender)
		return false;
	is_nested = process->is_nested;
	bpf_map_delete_elem(&processes, &tgid);
	if (has_ended)
		ml_count(ML_BPF_BORROWERS, 1);
	if (has_ended && !is_nested)
		ml_count(ML_BPF_BORROWING_CHILDREN, 1);
	if (!has_ended && is_nested)
		ml_count(ML_BPF_CHILDREN_OF_BORROWERS, 1);
	return true;
}

static __always_inline void ml_forget(ml_u32 tid)
{
	ml_forget_thread(tid);
	bpf_map_delete_elem(&stacks, &tid);
}

static __always_inline int ml_thread_exit(void)
{
	ml_u64 id = bpf_get_current_pid_tgid();
	ml_u32 tid = (ml_u32)id;

	ml_forget(tid);
	if (tid == (ml_u32)(id >> 32))
		ml_forget_borrower(tid, true);
	return 0; /* other processes keep their entry: the agent reads its epoch at the final snapshot */
}

/*
 * Blocks of the old program have another epoch. What a child leaves in its parent's memory is the parent's. A thread that is not the
 * first has lost its tid to the exec (fs/exec.c, de_thread()), which another thread may get. event: task, old tid, program.
 */
static __always_inline int ml_process_exec(const ml_u64 *event)
{
	ml_u32 tgid = (ml_u32)(bpf_get_current_pid_tgid() >> 32);
	struct ml_bpf_process *process = ml_process_of(&tgid);
	struct ml_bpf_code *shared = ml_code();

	if (!process)
		return 0;
	ml_forget((ml_u32)event[1]);
	if (!options.follow && ml_forget_borrower(tgid, false))
		return 0;
	process->lender = 0;
	ml_next_epoch(process); /* no other thread of this process runs now */
	if (shared && (ml_u32)shared->process == tgid)
		shared->process = (ml_u64)process->epoch << 32 | tgid;
#ifndef ML_OLD_KERNEL
	ml_peak_forget();
#endif
	ml_change_image(process);
	return 0;
}
