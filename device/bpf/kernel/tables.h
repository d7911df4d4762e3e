/* SPDX-License-Identifier: Apache-2.0 OR BSD-2-Clause OR GPL-2.0-only */
/*
 * The kernel tracer: allocation events of the kernel come in; live blocks, kernel stacks and users' stacks go out. This
 * header: what the programs share with the agent.
 */
#pragma once

#include "wire.h"

#define ML_KERNEL_OPTIONS_SECTION ".rodata.kernel"

/* The default of kernel.perf_event_max_stack. */
#define ML_KERNEL_FRAMES 127
#define ML_KERNEL_STACKS 16384u /* kernel stacks at a time, by default */
#define ML_KERNEL_KEY_SLOTS (1u << 18) /* a power of two */
#define ML_KERNEL_KEY_PROBES 8
#define ML_KERNEL_INNER 4 /* functions of the slab allocator that take pages */
#define ML_KERNEL_INNER_DEPTH 12 /* frames searched for them */
/* Counters that follow enum ml_lost. */
#define ML_KERNEL_UNTRACKED_FREES ML_LOST_MAX
#define ML_KERNEL_NEW_STACKS (ML_LOST_MAX + 1)
#define ML_KERNEL_COUNTERS (ML_LOST_MAX + 2)

/* Addresses are unique within a family. */
enum ml_kernel_family {
	ML_KERNEL_SLAB = 0, /* kfree() frees blocks of kmem_cache_alloc() */
	ML_KERNEL_PAGES = 1,
	ML_KERNEL_PERCPU = 2,
};

/* A field of an event, as an offset from the context. bytes 0: there is none. */
struct ml_kernel_field {
	ml_u32 offset;
	ml_u32 bytes;
};

struct ml_kernel_event {
	struct ml_kernel_field pointer;
	struct ml_kernel_field size;
	struct ml_kernel_field cache; /* struct kmem_cache *, in place of a size */
};

/* Events that have fields, in the order of their names in kernel/layout.c. */
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
	ml_u32 pid;         /* the traced process; 0 = all, or those in `tree`: */
	ml_u32 is_tree;
	ml_u32 fork_pid, fork_flags; /* their offsets in task_newtask's record */
	ml_u32 agent;       /* not traced */
	ml_u32 stack_bytes; /* maximum of the user's stack; 0 = the user's registers are not available */
	ml_u32 page_bytes;
	ml_u32 cache_size;  /* offset of `size` in struct kmem_cache */
	ml_u32 first_due;   /* number of a key's live blocks at its first evidence */
	ml_u32 percpu_copies; /* of a per-CPU allocation, if its event has the size of one copy only; else 1 */
	ml_u64 min_size;
	ml_u64 max_size;
	ml_u64 signature_mask; /* signature.h */
	ml_u64 inner[ML_KERNEL_INNER][2]; /* from, to: pages allocated from these functions are counted as the slab's blocks */
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

/* A kernel stack with the process and the user's call that led there. */
struct ml_kernel_key {
	ml_u64 key; /* 0 = free */
	ml_u64 stack; /* hash of the kernel stack */
	ml_u64 alloc_objects, alloc_bytes;
	ml_u64 free_objects, free_bytes;
	ml_u64 next_due; /* number of live blocks at which evidence is due */
	ml_u64 owner; /* pid, enum ml_function << 32 */
};

#define ML_KERNEL_OWNER(pid, function) ((ml_u64)(function) << 32 | (ml_u32)(pid))

struct ml_kernel_stack {
	ml_u64 n;
	ml_u64 addresses[ML_KERNEL_FRAMES]; /* return addresses, innermost first */
};
