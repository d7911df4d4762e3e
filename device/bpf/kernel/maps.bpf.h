/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Maps of the kernel's tracer. All are allocated beforehand: what fills them runs inside the allocators. */
#ifndef MEMLEAK_KERNEL_MAPS_BPF_H
#define MEMLEAK_KERNEL_MAPS_BPF_H

#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

#include "bpf/kernel/tables.h"

const volatile struct ml_kernel_options options SEC(ML_KERNEL_OPTIONS_SECTION) = { .page_bytes = 4096 };

#include "bpf/registers.bpf.h"

/* A program can be interrupted by an interrupt whose handler allocates: task, softirq, interrupt. */
#define ML_KERNEL_NESTING 4

struct ml_kernel_scratch {
	struct ml_kernel_stack stack;
	struct ml_regs regs;
	struct ml_kernel_block block;
	struct ml_kernel_where where;
	ml_u64 is_user; /* regs holds what the user's code had */
	ml_u64 is_call; /* … when it called the kernel */
};

struct ml_kernel_cpu {
	ml_u64 depth;
	ml_u64 allocations;
	struct ml_kernel_scratch scratch[ML_KERNEL_NESTING];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, ml_u32);
	__type(value, struct ml_kernel_cpu);
} cpus SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1000000);
	__type(key, struct ml_kernel_where);
	__type(value, struct ml_kernel_block);
} live SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, ML_KERNEL_STACKS);
	__type(key, ml_u64);
	__type(value, struct ml_kernel_stack);
} stacks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, ML_KERNEL_KEY_SLOTS);
	__type(key, ml_u32);
	__type(value, struct ml_kernel_key);
} keys SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, ML_KERNEL_COUNTERS);
	__type(key, ml_u32);
	__type(value, ml_u64);
} counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 16u << 20);
} evidence SEC(".maps");

static __always_inline ml_u64 ml_mix(ml_u64 hash, ml_u64 value)
{
	hash = (hash ^ value) * 0x9e3779b97f4a7c15ull;
	return hash ^ hash >> 29;
}

static __noinline int ml_count(ml_u32 which)
{
	ml_u64 *counter = bpf_map_lookup_elem(&counters, &which);

	if (counter)
		__sync_fetch_and_add(counter, 1);
	return 0;
}

#endif
