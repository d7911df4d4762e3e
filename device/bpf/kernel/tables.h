/* SPDX-License-Identifier: Apache-2.0 OR BSD-2-Clause OR GPL-2.0-only */
/* What the programs that watch the kernel's own allocators share with the agent. */
#pragma once

#include "wire.h"

#define ML_KERNEL_OPTIONS_SECTION ".rodata.kernel"

/* kernel.perf_event_max_stack is 127 unless somebody changed it. */
#define ML_KERNEL_FRAMES 127
#define ML_KERNEL_STACKS 16384u /* kernel stacks that are told apart at a time, unless the configuration says else */
#define ML_KERNEL_KEY_SLOTS (1u << 18) /* a power of two */
#define ML_KERNEL_KEY_PROBES 8
#define ML_KERNEL_INNER 4 /* functions of the slab allocator that take pages */
#define ML_KERNEL_INNER_DEPTH 12 /* frames that are looked through for them */
/* What follows the kinds of enum ml_lost among the counters. */
#define ML_KERNEL_UNTRACKED_FREES ML_LOST_MAX
#define ML_KERNEL_NEW_STACKS (ML_LOST_MAX + 1)
#define ML_KERNEL_COUNTERS (ML_LOST_MAX + 2)

/* What an address means depends on who hands it out. */
enum ml_kernel_family {
	ML_KERNEL_SLAB = 0, /* kfree() takes what kmem_cache_alloc() gave */
	ML_KERNEL_PAGES = 1,
	ML_KERNEL_PERCPU = 2,
};

/* A field of an event: bytes from the context on. bytes 0: there is none. */
struct ml_kernel_field {
	ml_u32 offset;
	ml_u32 bytes;
};

struct ml_kernel_event {
	struct ml_kernel_field pointer;
	struct ml_kernel_field size;
	struct ml_kernel_field cache; /* struct kmem_cache *, in the place of a size */
};

/* Events that have fields; in this order also their names in kernel_layout.c. */
enum ml_kernel_event_number {
	ML_KERNEL_KMALLOC,
	ML_KERNEL_KMALLOC_NODE,
	ML_KERNEL_KFREE,
	ML_KERNEL_CACHE_ALLOC,
	ML_KERNEL_CACHE_ALLOC_NODE,
	ML_KERNEL_CACHE_FREE,
	ML_KERNEL_PAGE_ALLOC,
	ML_KERNEL_PAGE_FREE,
	ML_KERNEL_PERCPU_ALLOC,
	ML_KERNEL_PERCPU_FREE,
	ML_KERNEL_EVENTS,
};

struct ml_kernel_options {
	ml_u32 pid;         /* whose allocations count; 0 = everybody's, or of the processes in `tree`: */
	ml_u32 is_tree;
	ml_u32 fork_pid, fork_flags; /* where task_newtask's record has them */
	ml_u32 agent;       /* whose do not */
	ml_u32 stack_bytes; /* of the user's stack, at most; 0 = there is no way to the user's registers */
	ml_u32 page_bytes;
	ml_u32 cache_size;  /* where struct kmem_cache has its `size` */
	ml_u32 first_due;   /* so many blocks of a key are live before its first evidence */
	ml_u32 percpu_copies; /* of a per-CPU allocation, where its event does not tell all that it takes; else 1 */
	ml_u64 min_size;
	ml_u64 max_size;
	ml_u64 code_mask; /* for registers.bpf.h */
	ml_u64 inner[ML_KERNEL_INNER][2]; /* from, to: pages allocated from within are counted as what is made of them */
	struct ml_kernel_event events[ML_KERNEL_EVENTS];
};

struct ml_kernel_where {
	ml_u64 address;
	ml_u64 family; /* enum ml_kernel_family */
};

struct ml_kernel_block {
	ml_u64 size;
	ml_u64 timestamp_ns;
	ml_u64 sequence;
	ml_u64 key;
	ml_u32 pid;
	ml_u32 tid;
	ml_u64 function; /* enum ml_function */
};

/* A kernel stack with the process and the place in it whose call led there. */
struct ml_kernel_key {
	ml_u64 key; /* 0 = free */
	ml_u64 stack; /* hash of the kernel's part */
	ml_u64 alloc_objects, alloc_bytes;
	ml_u64 free_objects, free_bytes;
	ml_u64 next_due; /* evidence is due when so many blocks are live */
	ml_u64 owner; /* pid, enum ml_function << 32 */
};

#define ML_KERNEL_OWNER(pid, function) ((ml_u64)(function) << 32 | (ml_u32)(pid))

struct ml_kernel_stack {
	ml_u64 n;
	ml_u64 addresses[ML_KERNEL_FRAMES]; /* return addresses, innermost first */
};
