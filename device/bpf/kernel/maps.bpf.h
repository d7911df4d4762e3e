/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Maps of the kernel tracer. All are preallocated, because the programs run inside the allocators. */
#pragma once

#include "bpf/define_map.bpf.h"
#include "bpf/kernel/tables.h"

const volatile struct ml_kernel_options options SEC(ML_KERNEL_OPTIONS_SECTION) = { .page_bytes = 4096 };

#include "bpf/registers.bpf.h"

/* An interrupt whose handler allocates can interrupt a program: task, softirq, interrupt. */
#define ML_KERNEL_NESTING 4

struct ml_kernel_scratch {
	struct ml_kernel_stack stack;
	struct ml_regs regs;
	struct ml_kernel_block block;
	struct ml_kernel_where where;
	ml_u64 is_user; /* regs are the user's */
	ml_u64 is_call; /* … at a system call */
};

struct ml_kernel_cpu {
	ml_u64 depth;
	ml_u64 allocations;
	struct ml_kernel_scratch scratch[ML_KERNEL_NESTING];
};

ML_MAP(PERCPU_ARRAY, cpus, ml_u32, struct ml_kernel_cpu, 1, 0);
ML_MAP(HASH, live, struct ml_kernel_where, struct ml_kernel_block, 1000000, 0);
ML_MAP(HASH, stacks, ml_u64, struct ml_kernel_stack, ML_KERNEL_STACKS, 0);
ML_MAP(ARRAY, keys, ml_u32, struct ml_kernel_key, ML_KERNEL_KEY_SLOTS, BPF_F_MMAPABLE);
ML_MAP(PERCPU_ARRAY, counters, ml_u32, ml_u64, ML_KERNEL_COUNTERS, 0);
ML_RING(evidence, 16u << 20);

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
