/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Images (struct ml_bpf_process): numbers for the code of a process, and the events that change it. Two tests of
 * addresses: a quick one with false positives (struct ml_bpf_code), and the spans.
 */
#pragma once

#include "maps.bpf.h"

/* Granule → code in it, of any process. LRU, so that ended processes are evicted first. */
ML_MAP(LRU_HASH, spans, ml_u64, struct ml_bpf_span, 65536, 0);

ml_u64 last_image = ML_BPF_FIRST_IMAGE;

#define ML_GRANULE_BYTES (1ull << ML_BPF_GRANULE_SHIFT)
/* Loops over granules are nested in steps, each a global function that the verifier checks once. */
#define ML_STEP_GRANULES 64ull
#define ML_STEP_BYTES (ML_STEP_GRANULES * ML_GRANULE_BYTES)
#define ML_STRIDE_STEPS 32ull
#define ML_STRIDE_BYTES (ML_STRIDE_STEPS * ML_STEP_BYTES)
#define ML_STRIDES 32

#define ML_PROT_EXEC 4
#define ML_MAP_FIXED 0x10
#define ML_MAP_FIXED_NOREPLACE 0x100000
#define ML_CLONE_VM 0x100
#define ML_CLONE_THREAD 0x10000

static __always_inline ml_u64 ml_new_image(void)
{
#ifdef ML_OLD_KERNEL /* atomic operations return nothing, but there are no rules that could be confused either */
	__sync_fetch_and_add(&last_image, 1);
	return last_image;
#else
	return __sync_fetch_and_add(&last_image, 1) + 1;
#endif
}

#ifndef ML_OLD_KERNEL
ml_u32 last_epoch;

/* With --all the agent removes ended processes; a reused process number must not have an old epoch. */
static __always_inline void ml_next_epoch(struct ml_bpf_process *process)
{
	process->epoch = options.is_system_wide ? __sync_fetch_and_add(&last_epoch, 1) + 1 : process->epoch + 1;
}
#else
static __always_inline void ml_next_epoch(struct ml_bpf_process *process)
{
	process->epoch++;
}
#endif

static __always_inline void ml_change_image(struct ml_bpf_process *process)
{
	struct ml_bpf_code *shared = ml_code();

	process->image = ml_new_image();
	process->is_borrowed = 0;
	if (shared)
		__sync_fetch_and_add(&shared->images_changed, 1);
}

static __noinline void ml_update_image(struct ml_thread *thread, const struct ml_bpf_code *shared)
{
	ml_u32 tgid = (ml_u32)thread->process;
	struct ml_bpf_process *process;

	if (!shared)
		return;
	thread->images_seen = *(const volatile ml_u64 *)&shared->images_changed;
	process = bpf_map_lookup_elem(&processes, &tgid);
	thread->image = (process ? process->image : 0) + (shared->generation << ML_BPF_GENERATION_SHIFT);
	thread->seed = ml_mix(thread->process, thread->image);
}

/* The number of this thread's image. */
static __always_inline ml_u64 ml_image(struct ml_thread *thread, const struct ml_bpf_code *shared)
{
	if (thread->images_seen != shared->images_changed)
		ml_update_image(thread, shared);
	return thread->image;
}

static __always_inline bool ml_is_code(const struct ml_bpf_code *shared, ml_u64 address)
{
	ml_u32 granule = ml_bpf_granule(address);

	return shared->granules[granule >> 3 & (sizeof(shared->granules) - 1)] >> (granule & 7) & 1;
}

static __always_inline void ml_mark_code(struct ml_bpf_code *shared, ml_u64 address)
{
	ml_u32 granule = ml_bpf_granule(address);

	shared->high_bytes[address >> 32 & 0xff] = 1;
	shared->granules[granule >> 3 & (sizeof(shared->granules) - 1)] |= (ml_u8)(1u << (granule & 7));
}

/* The part of start … end - 1 within the granule. */
static __always_inline struct ml_bpf_span ml_part(ml_u64 granule, ml_u64 start, ml_u64 end)
{
	ml_u64 base = granule << ML_BPF_GRANULE_SHIFT;

	return (struct ml_bpf_span){
		.low = start > base ? (ml_u32)(start - base) : 0,
		.high = end < base + ML_GRANULE_BYTES ? (ml_u32)(end - base) : (ml_u32)ML_GRANULE_BYTES,
	};
}

/* Adds the code of start … end - 1 within one granule. Global, so that the verifier checks it once. */
__noinline int ml_add_span(ml_u64 granule, ml_u64 start, ml_u64 end)
{
	struct ml_bpf_span part = ml_part(granule, start, end);
	struct ml_bpf_span *known = bpf_map_lookup_elem(&spans, &granule);
	struct ml_bpf_code *shared = ml_code();

	if (known && known->low < part.low)
		part.low = known->low;
	if (known && known->high > part.high)
		part.high = known->high;
	if (shared)
		ml_mark_code(shared, granule << ML_BPF_GRANULE_SHIFT);
	return (int)bpf_map_update_elem(&spans, &granule, &part, BPF_ANY);
}

/* Removes the code of start … end - 1 within one granule. Returns 1 if there was any. */
__noinline int ml_remove_span(ml_u64 granule, ml_u64 start, ml_u64 end)
{
	struct ml_bpf_span part = ml_part(granule, start, end);
	struct ml_bpf_span *known = bpf_map_lookup_elem(&spans, &granule);

	if (!known || known->low >= part.high || part.low >= known->high)
		return 0;
	if (known->low >= part.low && known->high <= part.high)
		bpf_map_delete_elem(&spans, &granule);
	else if (known->low >= part.low)
		known->low = part.high;
	else if (known->high <= part.high)
		known->high = part.low;
	return 1;
}

/* For the next ML_STEP_GRANULES. */
__noinline int ml_remove_step(ml_u64 start, ml_u64 end)
{
	struct ml_bpf_code *shared = ml_code();
	ml_u64 first = start >> ML_BPF_GRANULE_SHIFT;
	int n = 0;

	if (!shared)
		return 0;
	for (ml_u64 i = 0; i < ML_STEP_GRANULES && (first + i) << ML_BPF_GRANULE_SHIFT < end; i++)
		if (ml_is_code(shared, (first + i) << ML_BPF_GRANULE_SHIFT))
			n |= ml_remove_span(first + i, start, end);
	return n;
}

/* For the next ML_STRIDE_STEPS steps: 128 MiB. */
__noinline int ml_remove_stride(ml_u64 start, ml_u64 end)
{
	int n = 0;

	for (ml_u64 i = 0; i < ML_STRIDE_STEPS && start < end; i++) {
		n |= ml_remove_step(start, end);
		start = (start & ~(ML_GRANULE_BYTES - 1)) + ML_STEP_BYTES;
	}
	return n;
}

/* Adds the code of the next ML_STEP_GRANULES. */
__noinline int ml_add_step(ml_u64 start, ml_u64 end)
{
	ml_u64 first = start >> ML_BPF_GRANULE_SHIFT;

	for (ml_u64 i = 0; i < ML_STEP_GRANULES && (first + i) << ML_BPF_GRANULE_SHIFT < end; i++)
		ml_add_span(first + i, start, end);
	return 0;
}

/*
 * In a new program, of whose code the agent knows nothing yet, the surroundings of a caller of malloc are taken for
 * code. That splits keys and merges none.
 */
static __noinline void ml_learn_code(ml_u64 address)
{
	struct ml_bpf_code *shared = ml_code();
	ml_u64 page = address & ~4095ull;

	if (!shared)
		return;
	for (int i = -ML_CODE_AROUND; i <= ML_CODE_AROUND; i++)
		ml_mark_code(shared, address + ((ml_u64)i << ML_BPF_GRANULE_SHIFT));
	ml_add_span(address >> ML_BPF_GRANULE_SHIFT, page, page + 4096);
}

static __always_inline ml_u64 ml_field(void *event, ml_u32 offset)
{
	ml_u64 value = 0;

	bpf_probe_read_kernel(&value, sizeof(value), event + offset);
	return value;
}

/* NULL: it is not traced. */
static __always_inline struct ml_bpf_process *ml_process_of(const ml_u32 *tgid)
{
	struct ml_bpf_process *process = bpf_map_lookup_elem(&processes, tgid);

	return process && !process->has_ended ? process : NULL;
}

/* The entry of the process in whose memory *tgid runs. Sets *tgid to its number. */
static __always_inline struct ml_bpf_process *ml_memory_of(ml_u32 *tgid)
{
	struct ml_bpf_process *process = ml_process_of(tgid);

	if (!process || !process->lender)
		return process;
	*tgid = process->lender;
	return bpf_map_lookup_elem(&processes, tgid);
}

static __always_inline struct ml_bpf_process *ml_current_memory(void)
{
	ml_u32 tgid = (ml_u32)(bpf_get_current_pid_tgid() >> 32);

	return ml_memory_of(&tgid);
}

/* Unmapped code may be followed by other code at the address. event: struct syscall_trace_enter of munmap. */
static __always_inline int ml_code_unmapped(void *event)
{
	struct ml_bpf_process *process = ml_current_memory();
	ml_u64 start, end;
	int n = 0;

	if (!process)
		return 0;
	start = ml_field(event, options.munmap_addr);
	end = (start + ml_field(event, options.munmap_len) + 4095) & ~4095ull;
	for (ml_u64 i = 0; i < ML_STRIDES && start < end; i++) {
		n |= ml_remove_stride(start, end);
		start = (start & ~(ML_GRANULE_BYTES - 1)) + ML_STRIDE_BYTES;
	}
	if (n || start < end)
		ml_change_image(process);
	return 0;
}

/* New code is known before it runs. event: struct syscall_trace_enter of mmap. */
static __always_inline int ml_code_mapped(void *event)
{
	struct ml_bpf_process *process;
	ml_u64 start, end;
	bool is_fixed;

	if (!(ml_field(event, options.mmap_prot) & ML_PROT_EXEC))
		return 0;
	process = ml_current_memory();
	if (!process)
		return 0;
	is_fixed = ml_field(event, options.mmap_flags) & (ML_MAP_FIXED | ML_MAP_FIXED_NOREPLACE);
	start = ml_field(event, options.mmap_addr);
	end = (start + ml_field(event, options.mmap_len) + 4095) & ~4095ull;
	if (process->is_borrowed || (is_fixed && ml_remove_stride(start, end)))
		ml_change_image(process);
	for (ml_u64 i = 0; is_fixed && i < ML_STRIDE_STEPS && start < end; i++) {
		ml_add_step(start, end);
		start = (start & ~(ML_GRANULE_BYTES - 1)) + ML_STEP_BYTES;
	}
	return 0;
}

/* From execve on the agent might read the memory of the next program. */
static __always_inline int ml_exec_begins(void)
{
	ml_u32 tgid = (ml_u32)(bpf_get_current_pid_tgid() >> 32);
	struct ml_bpf_process *process = bpf_map_lookup_elem(&processes, &tgid);

	if (process && !process->lender)
		ml_change_image(process);
	return 0;
}

/*
 * event: task_newtask, in the parent, before the child runs. If only one process is measured, the children are kept that run in its
 * memory.
 */
static __always_inline int ml_process_fork(void *event)
{
	ml_u32 tgid = (ml_u32)(bpf_get_current_pid_tgid() >> 32), lender = tgid, child = 0;
	struct ml_bpf_process *process = ml_memory_of(&lender);
	ml_u64 flags = ml_field(event, options.fork_flags);
	struct ml_bpf_process copy;

	if (flags & ML_CLONE_THREAD)
		return 0;
	if (!options.follow && !(flags & ML_CLONE_VM)) {
		if (process && lender != tgid)
			ml_count(ML_BPF_CHILDREN_OF_BORROWERS, 1);
		return 0;
	}
	bpf_probe_read_kernel(&child, sizeof(child), event + options.fork_pid);
	if (!process) { /* an entry of this number is an ended process's; without --all the agent needs its epoch in the end */
		struct ml_bpf_process *ended = bpf_map_lookup_elem(&processes, &child);

		if (ended && !options.is_system_wide)
			ended->has_ended = 1;
		else if (ended)
			bpf_map_delete_elem(&processes, &child);
		return 0;
	}
	copy = *process;
	copy.is_borrowed = 1;
	copy.is_nested = lender != tgid;
	if (flags & ML_CLONE_VM)
		copy.lender = lender;
	else if (!options.sees_mappings)
		copy.image = ml_new_image();
	if (options.is_system_wide)
		ml_next_epoch(&copy);
	bpf_map_update_elem(&processes, &child, &copy, BPF_ANY);
	return 0;
}
