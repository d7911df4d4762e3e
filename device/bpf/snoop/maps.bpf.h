/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The maps of snoop, whose sizes the agent sets, and the state of a thread. */
#pragma once

#include "bpf/define_map.bpf.h"
#include "bpf/snoop/tables.h"

const volatile struct ml_snoop_options options SEC(ML_SNOOP_OPTIONS_SECTION) = { .events = 1 };

#include "bpf/registers.bpf.h"

/*
 * Calls in progress on a thread. The kernel sees the return of at most 64 (MAX_URETPROBE_DEPTH,
 * kernel/events/uprobes.c); further entries are reported as unpaired. A power of two.
 */
#define ML_SNOOP_PENDING 128
/* A power of two, and the slots searched for a thread. */
#define ML_SNOOP_THREADS 2048
#define ML_SNOOP_THREAD_PROBES 16

enum ml_snoop_pending_flag {
	ML_SNOOP_SHOWN = 1,    /* its entry was sent */
	ML_SNOOP_REJECTED = 2, /* rejected by a filter; kept to match its return */
};

struct ml_snoop_pending {
	ml_u64 sp; /* at entry, which identifies the return */
	ml_u64 begin_ns;
	ml_u64 call;
	ml_u32 function;
	ml_u32 flags; /* enum ml_snoop_pending_flag */
	ml_u64 return_address; /* before a return probe replaced it */
};

struct ml_snoop_thread {
	ml_u32 tid; /* 0 = free */
	ml_u32 depth;
	ml_u64 sequence;
	struct ml_snoop_pending pending[ML_SNOOP_PENDING];
	ml_u64 arguments[8]; /* of the call that begins; copied, since a context cannot be indexed */
	struct ml_call event;
	ml_u8 data[2 * ML_SNOOP_DATA];
};

ML_MAP(ARRAY, functions, ml_u32, struct ml_snoop_function, 1, 0);
ML_MAP(ARRAY, statistics, ml_u32, struct ml_snoop_statistics, 1, BPF_F_MMAPABLE);
ML_MAP(ARRAY, control, ml_u32, struct ml_snoop_control, 1, BPF_F_MMAPABLE);
#ifdef ML_SNOOP_OLD
ML_MAP(HASH, threads, ml_u32, struct ml_snoop_thread, ML_SNOOP_THREADS, 0);
ML_MAP(ARRAY, empty_thread, ml_u32, struct ml_snoop_thread, 1, 0);
#else
ML_MAP(ARRAY, threads, ml_u32, struct ml_snoop_thread, ML_SNOOP_THREADS, 0);
#endif
ML_MAP(HASH, processes, ml_u32, ml_u32, 1024, 0);
ML_MAP(HASH, wanted_threads, ml_u32, ml_u32, 1024, 0);
ML_MAP(HASH, addresses, struct ml_snoop_address, ml_u32, 1, 0); /* without cookies: function by address */
ML_MAP(PERCPU_ARRAY, counters, ml_u32, ml_u64, ML_LOST_MAX, 0);
ML_RING(calls, 16u << 20);
ML_RING(stacks, 4096);

/* Atomic, because another uprobe program may preempt this one on its CPU. */
static __always_inline void ml_add(ml_u64 *number, ml_u64 value)
{
	__sync_fetch_and_add(number, value);
}

static __always_inline void ml_count(ml_u32 cause, ml_u64 n)
{
	ml_u64 *counter = bpf_map_lookup_elem(&counters, &cause);

	if (counter)
		ml_add(counter, n);
}
