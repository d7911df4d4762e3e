/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What to record when an allocator is entered, returns, or takes a block back. */
#ifndef MEMLEAK_RECORDER_BPF_H
#define MEMLEAK_RECORDER_BPF_H

#include <stdbool.h>

#include "events.bpf.h"

/* calloc's product; an overflow makes the call fail, so the value does not matter then. */
static __always_inline ml_u64 ml_product(ml_u64 count, ml_u64 size)
{
	return count * size;
}

/* Is a return address the allocator's own code? ip: of the probe at the entry of `function`. */
static __always_inline bool ml_is_own_code(ml_u64 ip, ml_u64 return_address, ml_u32 function)
{
	ml_u64 offset = return_address - (ip - options.functions[function].entry_offset);

	return offset >= options.functions[function].text_low && offset < options.functions[function].text_high;
}

/*
 * Is a call with this return address and sp the allocator calling itself? Only inside another pending call
 * on the same stack, and from the allocator's own code: a signal handler's malloc comes from elsewhere.
 * A tail call from one probed function to another finds the trampoline of the first in its place.
 */
static __always_inline bool ml_is_internal(struct ml_thread *thread, ml_u64 ip, ml_u64 sp, ml_u64 return_address,
					   ml_u32 function)
{
	ml_u64 outer_sp;

	if (!thread->depth)
		return false;
	outer_sp = thread->pending[(thread->depth - 1) & (ML_PENDING - 1)].sp;
	if (outer_sp == sp)
		return true;
	return outer_sp > sp && ml_is_own_code(ip, return_address, function);
}

static __always_inline void ml_release_key(const struct ml_bpf_block *block)
{
	ml_u32 slot = block->key_slot;
	struct ml_bpf_key *entry = bpf_map_lookup_elem(&keys, &slot);

	if (!entry)
		return;
	__sync_fetch_and_add(&entry->free_objects, 1);
	__sync_fetch_and_add(&entry->free_bytes, block->size);
}

/* Is it worth while to look for the stack's key already? The stack above us is the same now and at the return. */
static __always_inline bool ml_will_record(const struct ml_thread *thread, ml_u32 function, ml_u64 size)
{
	return !thread->depth && function < ML_FN_MMAP && size >= options.min_size && size <= options.max_size;
}

/* The return address of the call, and its stack's key where that is at hand. */
static __always_inline void ml_look_back(struct ml_thread *thread, struct ml_regs *regs, struct ml_pending *pending)
{
	pending->has_key = 0;
	if (ml_will_record(thread, pending->function, pending->size))
		ml_recall(thread, regs, pending);
	else
		pending->return_address = ml_return_address(regs);
}

static __always_inline int ml_enter(struct ml_regs *regs, ml_u32 function, ml_u64 size, ml_u64 pointer, ml_u64 old_size)
{
	struct ml_thread *thread = ml_this_thread();
	struct ml_pending *pending;

	if (!thread)
		return 0;
	if (thread->depth >= ML_PENDING) {
		/* Only returns that were never seen fill it: all but the newest levels are stale. */
		ml_count(ML_LOST_MISSED_RETURN, thread->depth);
		thread->depth = 0;
	}
	pending = &thread->pending[thread->depth & (ML_PENDING - 1)];
	pending->sp = ML_SP(regs);
	pending->size = size;
	pending->pointer = pointer;
	pending->old_size = old_size;
	pending->function = function;
	pending->has_old = 0;
	ml_look_back(thread, regs, pending);
	pending->is_internal = ml_is_internal(thread, ML_IP(regs), ML_SP(regs), pending->return_address, function);
	thread->depth++;
	if ((function == ML_FN_REALLOC || function == ML_FN_REALLOCARRAY) && pointer && !pending->is_internal) {
		pending->has_old = ml_claim(ML_UNTAG(pointer), thread->process, &pending->old);
		if (!pending->has_old)
			ml_count(ML_BPF_UNTRACKED_FREES, 1);
	}
	return 0;
}

/* An address that is live already: its free was not seen. The old block gives way. */
static __always_inline bool ml_insert(ml_u64 address, const struct ml_bpf_block *block)
{
	struct ml_bpf_block old;
	bool had_old;
	bool is_in = ml_put(address, block, &old, &had_old);

	if (had_old) {
		ml_count(ML_LOST_MISSED_FREE, 1);
		ml_release_key(&old);
	}
	if (!is_in)
		ml_count(ML_LOST_TABLE_FULL, 1);
	return is_in;
}

/* The key of a call that returns, as it was found at its entry or is found now. */
static __always_inline ml_u64 ml_key_of_call(struct ml_regs *regs, struct ml_thread *thread, const struct ml_pending *pending,
					     ml_u64 *flags)
{
	thread->is_recalled = pending->has_key;
	if (pending->has_key) {
		thread->walk.is_unknown = 0;
		thread->walk.wakeup = BPF_RB_NO_WAKEUP;
		*flags = pending->key_flags;
		return pending->key;
	}
	return ml_stack_key(thread, regs, flags);
}

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
	if (!thread->is_placed) {
		thread->is_placed = 1;
		ml_learn_stack_end(thread, ML_SP(regs));
	}
	address = ML_UNTAG(address);
	block.process = thread->process;
	block.size = size;
	block.timestamp_ns = bpf_ktime_get_ns();
	block.sequence = ++thread->sequence;
	block.function = pending->function;
	key = ml_key_of_call(regs, thread, pending, &flags);
	if (options.events)
		ml_trace_alloc(regs, thread, pending, address, key);
	block.key_slot = ml_key_slot(key, thread->process, flags);
	if (!ml_insert(address, &block))
		return;
	entry = bpf_map_lookup_elem(&keys, &block.key_slot);
	if (!entry) {
		ml_count(ML_LOST_KEYS_FULL, 1);
		return;
	}
	live_objects = ml_count_alloc(entry, size);
	if (options.rules_only)
		ml_bring_unknown(regs, thread, &block, address, entry);
	else if ((cap = options.stack_bytes))
		ml_bring_evidence(regs, thread, &block, address, entry, live_objects, cap);
}

/* Pops the pending call that returns with this sp; entries above it never returned. */
static __always_inline struct ml_pending *ml_pop(struct ml_thread *thread, ml_u64 entry_sp)
{
	for (int i = 0; i < ML_PENDING && thread->depth; i++) {
		struct ml_pending *pending;

		thread->depth--;
		pending = &thread->pending[thread->depth & (ML_PENDING - 1)];
		if (pending->sp == entry_sp)
			return pending;
		if (pending->sp > entry_sp) { /* an outer call: the one that returns was never entered */
			thread->depth++;
			break;
		}
		ml_count(ML_LOST_MISSED_RETURN, 1);
	}
	ml_count(ML_LOST_MISSED_ENTRY, 1);
	return NULL;
}

/* The block that a call made: 0 when it failed. */
static __always_inline ml_u64 ml_result(struct ml_regs *regs, const struct ml_pending *pending)
{
	ml_u64 value = ML_RETURN_VALUE(regs);
	ml_u64 address = 0;

	if (pending->function != ML_FN_POSIX_MEMALIGN)
		return value;
	if ((ml_s32)value == 0)
		bpf_probe_read_user(&address, sizeof(address), (const void *)ML_UNTAG(pending->pointer));
	return address;
}

/* realloc that gave nothing back: with size 0 the old block is gone, else it is still there. */
static __always_inline void ml_settle_old(struct ml_pending *pending, ml_u64 address)
{
	if (address || pending->size == 0)
		ml_release_key(&pending->old);
	else
		ml_insert(ML_UNTAG(pending->pointer), &pending->old);
}

/* mmap, munmap or mremap that succeeded: the agent's ledger is told, in the order of the calls. */
static __always_inline void ml_record_region(struct ml_regs *regs, struct ml_thread *thread, struct ml_pending *pending,
					ml_u64 value)
{
	struct ml_bpf_block *block = &pending->old; /* of realloc only */
	ml_u64 key, flags;

	if (value >= -4095ull) /* MAP_FAILED; munmap's -1 */
		return;
	if (pending->function == ML_FN_MUNMAP) {
		ml_send_region(regs, thread, ML_FN_MUNMAP, pending->pointer, pending->size, 0, 0);
		return;
	}
	if (pending->function == ML_FN_MREMAP)
		ml_send_region(regs, thread, ML_FN_MUNMAP, pending->pointer, pending->old_size, 0, 0);
	*block = (struct ml_bpf_block){
		.process = thread->process, .size = pending->size, .timestamp_ns = bpf_ktime_get_ns(),
		.sequence = ++thread->sequence, .function = pending->function,
	};
	key = ml_stack_key(thread, regs, &flags);
	ml_send_region(regs, thread, pending->function, value, pending->size,
		       pending->function == ML_FN_MREMAP ? pending->pointer : 0, key);
	if (options.stack_bytes && !options.rules_only &&
	    ml_send_evidence(regs, thread, block, value, key, 0, options.stack_bytes))
		ml_count(ML_LOST_RING_FULL, 1);
}

static __always_inline int ml_region_return(struct ml_regs *regs)
{
	struct ml_thread *thread = ml_this_thread();
	struct ml_pending *pending = thread ? ml_pop(thread, ML_SP(regs) - ML_RETURN_POPS) : NULL;

	if (pending && !pending->is_internal)
		ml_record_region(regs, thread, pending, ML_RETURN_VALUE(regs));
	return 0;
}

static __always_inline int ml_return(struct ml_regs *regs)
{
	struct ml_thread *thread = ml_this_thread();
	struct ml_pending *pending;
	ml_u64 address;

	if (!thread)
		return 0;
	pending = ml_pop(thread, ML_SP(regs) - ML_RETURN_POPS);
	if (!pending || pending->is_internal)
		return 0;
	address = ml_result(regs, pending);
	if (pending->has_old)
		ml_settle_old(pending, address);
	if (address)
		ml_record(regs, thread, pending, address);
	else if (options.events)
		ml_trace_alloc(regs, thread, pending, 0, 0);
	return 0;
}

/*
 * A free that finds no block: of one that is older than the session, or no free of the program's at all.
 * glibc empties a thread's cache of freed chunks through free() (malloc/malloc.c, tcache_thread_shutdown).
 */
static __noinline void ml_count_untracked(ml_u64 ip, ml_u64 return_address, ml_u32 function)
{
	if (!ml_is_own_code(ip, return_address, function & (ML_FN_MAX - 1)))
		ml_count(ML_BPF_UNTRACKED_FREES, 1);
}

static __always_inline int ml_release(struct ml_regs *regs, ml_u32 function, ml_u64 pointer)
{
	ml_u64 process = pointer ? ml_current_process() : 0;
	struct ml_bpf_block block;

	if (!process)
		return 0;
	block.size = 0;
	if (ml_claim(ML_UNTAG(pointer), process, &block))
		ml_release_key(&block);
	else
		ml_count_untracked(ML_IP(regs), ml_return_address(regs), function);
	if (options.events)
		ml_trace_free(regs, process, function, ML_UNTAG(pointer), block.size);
	return 0;
}

/* ---- the life of threads and processes ------------------------------------------------- */

static __always_inline int ml_thread_exit(void)
{
	ml_u64 id = bpf_get_current_pid_tgid();
	ml_u32 tid = (ml_u32)id;

	ml_forget_thread(tid);
	bpf_map_delete_elem(&stack_ends, &tid);
	return 0; /* a process keeps its entry: the agent reads its epoch at the final snapshot */
}

/* What the old program held is another epoch's. */
static __always_inline int ml_process_exec(void)
{
	ml_u64 id = bpf_get_current_pid_tgid();
	ml_u32 tgid = (ml_u32)(id >> 32);
	struct ml_bpf_process *process = bpf_map_lookup_elem(&processes, &tgid);
	struct ml_bpf_code *shared = ml_code();

	if (!process)
		return 0;
	ml_forget_thread((ml_u32)id);
	process->epoch++; /* nothing else of this process runs now */
	if (shared && (ml_u32)shared->process == tgid)
		shared->process = (ml_u64)process->epoch << 32 | tgid;
	ml_take_new_image(process);
	return 0;
}

#endif
