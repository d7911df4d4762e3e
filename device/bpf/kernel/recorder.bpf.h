/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Accounts the kernel's live blocks by kernel stack and by the process for which they were allocated. */
#pragma once

#include "bpf/kernel/user.bpf.h"

#define ML_SEQUENCE_SHIFT 40 /* above: the CPU's number + 1 */

/* linux/errno.h, as BPF helpers return them */
#define ML_EEXIST 17
#define ML_E2BIG 7

/* ---- the processes whose allocations count: all, one, or those of a command and of all that it starts ---- */

#define ML_CLONE_THREAD 0x10000 /* include/uapi/linux/sched.h */

/* One entry if no command is started. */
ML_MAP(HASH, tree, ml_u32, ml_u32, 1, 0); /* tgid */

/* Options are constants at load time, so the verifier removes the branches of disabled features. */
static __always_inline int ml_is_of_target(ml_u32 pid)
{
	if (options.is_tree)
		return bpf_map_lookup_elem(&tree, &pid) != 0;
	return !options.pid || pid == options.pid;
}

/* event: task_newtask, in the parent, before the child runs. */
static __always_inline int ml_follow_fork(const char *event)
{
	ml_u32 parent = (ml_u32)(bpf_get_current_pid_tgid() >> 32), child = 0, one = 1;
	ml_u64 flags = 0;

	if (bpf_probe_read_kernel(&flags, sizeof(flags), event + options.fork_flags) || flags & ML_CLONE_THREAD ||
	    bpf_probe_read_kernel(&child, sizeof(child), event + options.fork_pid))
		return 0;
	if (!bpf_map_lookup_elem(&tree, &parent))
		bpf_map_delete_elem(&tree, &child); /* an entry of this number is an ended process's */
	else if (bpf_map_update_elem(&tree, &child, &one, BPF_ANY))
		ml_count(ML_LOST_PROGRAMS);
	return 0;
}

/* ---- blocks ---- */

/* A field of the event, located by the agent in the kernel's BTF or in tracefs; 0 if there is none. */
static __always_inline ml_u64 ml_field(const void *context, const volatile struct ml_kernel_field *field)
{
	ml_u64 value = 0;
	ml_u32 narrow = 0;

	if (field->bytes == 8)
		bpf_probe_read_kernel(&value, 8, (const char *)context + field->offset);
	else if (field->bytes == 4 && !bpf_probe_read_kernel(&narrow, 4, (const char *)context + field->offset))
		value = narrow;
	return value;
}

/* NULL if programs are nested too deep. */
static __always_inline struct ml_kernel_scratch *ml_begin(struct ml_kernel_cpu *cpu)
{
	ml_u64 depth = cpu->depth;

	if (depth >= ML_KERNEL_NESTING) {
		ml_count(ML_LOST_RECURSION);
		return 0;
	}
	cpu->depth = depth + 1;
	return &cpu->scratch[depth & (ML_KERNEL_NESTING - 1)];
}

/* Hash of the kernel stack, which is stored if it is new. 0: there was no room for it. */
static __always_inline ml_u64 ml_kernel_stack(void *context, struct ml_kernel_stack *stack)
{
	long bytes = bpf_get_stack(context, stack->addresses, sizeof(stack->addresses), 0);
	ml_u64 hash = 0x6b65726e656cull;

	stack->n = bytes > 0 ? (ml_u64)bytes / 8 : 0;
	for (ml_u32 i = 0; i < ML_KERNEL_FRAMES; i++) {
		if (i >= stack->n)
			break;
		hash = ml_mix(hash, stack->addresses[i]);
	}
	if (bpf_map_lookup_elem(&stacks, &hash))
		return hash;
	if (!bpf_map_update_elem(&stacks, &hash, stack, BPF_NOEXIST)) {
		ml_count(ML_KERNEL_NEW_STACKS);
		return hash;
	}
	/* Another CPU may have stored it. */
	return bpf_map_lookup_elem(&stacks, &hash) ? hash : 0;
}

/* stack 0: only looks the key up. ML_KERNEL_KEY_SLOTS: it is not there, or all its slots are taken. */
static __noinline ml_u32 ml_key_slot(ml_u64 key, ml_u64 stack, ml_u64 owner)
{
	/* The agent empties slots, so the key may follow an empty one. */
	for (ml_u32 i = 0; i < 2 * ML_KERNEL_KEY_PROBES; i++) {
		ml_u32 slot = ((ml_u32)(key >> 20) + i % ML_KERNEL_KEY_PROBES) & (ML_KERNEL_KEY_SLOTS - 1);
		struct ml_kernel_key *entry = bpf_map_lookup_elem(&keys, &slot);
		ml_u64 found;

		if (!entry)
			break;
		found = entry->key;
		if (!found && stack && i >= ML_KERNEL_KEY_PROBES) {
			found = __sync_val_compare_and_swap(&entry->key, 0, key);
			if (!found) {
				entry->stack = stack;
				entry->owner = owner;
				found = key;
			}
		}
		if (found == key)
			return slot;
	}
	return ML_KERNEL_KEY_SLOTS;
}

static __always_inline void ml_count_free(const struct ml_kernel_block *block)
{
	ml_u32 slot = ml_key_slot(block->key, 0, 0);
	struct ml_kernel_key *entry = bpf_map_lookup_elem(&keys, &slot);

	if (!entry)
		return;
	__sync_fetch_and_add(&entry->free_objects, 1);
	__sync_fetch_and_add(&entry->free_bytes, block->size);
}

/* Inserts a block. A live block at the address is replaced: its free was missed. Returns not 0 if there is no room. */
static __noinline int ml_enter_live(struct ml_kernel_scratch *scratch)
{
	const struct ml_kernel_block *old;
	long error;

	if (!scratch)
		return -1;
	error = bpf_map_update_elem(&live, &scratch->where, &scratch->block, BPF_NOEXIST);
	if (error == -ML_EEXIST) {
		old = bpf_map_lookup_elem(&live, &scratch->where);
		if (old)
			ml_count_free(old);
		ml_count(ML_LOST_MISSED_FREE);
		error = bpf_map_update_elem(&live, &scratch->where, &scratch->block, BPF_ANY);
	}
	if (error)
		ml_count(error == -ML_E2BIG ? ML_LOST_TABLE_FULL : ML_LOST_RECURSION);
	return (int)error;
}

/* Whether these are pages for the slab allocator, whose blocks are counted themselves. */
static __noinline int ml_is_inner(const struct ml_kernel_stack *stack)
{
	if (!stack)
		return 0;
	for (ml_u32 i = 0; i < ML_KERNEL_INNER_DEPTH && i < stack->n; i++)
		for (ml_u32 one = 0; one < ML_KERNEL_INNER; one++)
			if (stack->addresses[i] - options.inner[one][0] < options.inner[one][1] - options.inner[one][0])
				return 1;
	return 0;
}

static __always_inline void ml_record(void *context, struct ml_kernel_cpu *cpu, struct ml_kernel_scratch *scratch)
{
	struct ml_kernel_block *block = &scratch->block;
	ml_u64 stack = ml_kernel_stack(context, &scratch->stack), live_objects;
	ml_u64 owner = ML_KERNEL_OWNER(block->pid, block->function);
	struct ml_kernel_key *entry;
	ml_u32 slot;

	if (block->function == ML_FN_MM_PAGE_ALLOC && ml_is_inner(&scratch->stack))
		return;
	if (!stack)
		ml_count(ML_LOST_KEYS_FULL);
	ml_find_user(scratch);
	block->key = ml_mix(ml_mix(stack, owner), scratch->is_call ? ML_IP(&scratch->regs) ^ ML_SP(&scratch->regs) << 1 : 0);
	block->timestamp_ns = bpf_ktime_get_ns();
	block->sequence =
		((ml_u64)bpf_get_smp_processor_id() + 1) << ML_SEQUENCE_SHIFT | __sync_fetch_and_add(&cpu->allocations, 1);
	slot = ml_key_slot(block->key, stack, owner);
	entry = bpf_map_lookup_elem(&keys, &slot);
	if (!entry && stack)
		ml_count(ML_LOST_KEYS_FULL);
	if (ml_enter_live(scratch) || !entry)
		return;
	__sync_fetch_and_add(&entry->alloc_bytes, block->size);
	live_objects = __sync_fetch_and_add(&entry->alloc_objects, 1) + 1 - entry->free_objects;
	ml_bring_user(scratch, entry, live_objects);
}

static __always_inline int ml_allocated(void *context, ml_u32 function, ml_u64 family, ml_u64 address, ml_u64 size)
{
	ml_u64 identity = bpf_get_current_pid_tgid();
	ml_u32 pid = identity >> 32, zero = 0;
	struct ml_kernel_scratch *scratch;
	struct ml_kernel_cpu *cpu;

	if (!address || size < options.min_size || size > options.max_size || pid == options.agent || !ml_is_of_target(pid))
		return 0;
	cpu = bpf_map_lookup_elem(&cpus, &zero);
	scratch = cpu ? ml_begin(cpu) : 0;
	if (!scratch)
		return 0;
	scratch->where.address = address;
	scratch->where.family = family;
	scratch->block.size = size;
	scratch->block.pid = pid;
	scratch->block.tid = (ml_u32)identity;
	scratch->block.function = function;
	ml_record(context, cpu, scratch);
	cpu->depth--;
	return 0;
}

static __noinline int ml_freed(ml_u64 family, ml_u64 address)
{
	struct ml_kernel_where where = { address, family };
	const struct ml_kernel_block *found;
	struct ml_kernel_block block;

	if (!address)
		return 0;
	found = bpf_map_lookup_elem(&live, &where);
	if (!found) {
		/* The owner is unknown: it counts for the process that frees it. */
		if (ml_is_of_target((ml_u32)(bpf_get_current_pid_tgid() >> 32)))
			ml_count(ML_KERNEL_UNTRACKED_FREES);
		return 0;
	}
	block = *found;
	if (bpf_map_delete_elem(&live, &where))
		ml_count(ML_LOST_RECURSION);
	else
		ml_count_free(&block);
	return 0;
}
