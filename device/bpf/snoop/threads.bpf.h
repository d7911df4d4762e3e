/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The traced processes and threads. The state of threads is in a table of our own, cheaper than a hash map. */
#pragma once

#include "bpf/snoop/maps.bpf.h"

static __always_inline bool ml_is_followed(ml_u64 identity)
{
	ml_u32 tgid = (ml_u32)(identity >> 32);

	return options.process ? tgid == options.process : bpf_map_lookup_elem(&processes, &tgid) != NULL;
}

#define ML_CLONE_THREAD 0x10000

/* A traced process forks: the child is traced from its first instruction. */
static __always_inline int ml_follow_fork(const void *event)
{
	ml_u64 flags = 0;
	ml_u32 child = 0, one = 1;

	if (!ml_is_followed(bpf_get_current_pid_tgid()) ||
	    bpf_probe_read_kernel(&flags, sizeof(flags), event + options.fork_flags) || flags & ML_CLONE_THREAD)
		return 0;
	bpf_probe_read_kernel(&child, sizeof(child), event + options.fork_pid);
	if (bpf_map_update_elem(&processes, &child, &one, BPF_ANY))
		ml_count(ML_LOST_PROGRAMS, 1);
	return 0;
}

/*
 * Whether its calls count. Calls of other threads and those made while probes are placed are still paired, so that a
 * return without an entry means a loss.
 */
static __always_inline bool ml_is_wanted(ml_u64 identity)
{
	ml_u32 tid = (ml_u32)identity, zero = 0;
	struct ml_snoop_control *now = bpf_map_lookup_elem(&control, &zero);

	return now && now->is_armed && (!options.has_threads || bpf_map_lookup_elem(&wanted_threads, &tid));
}

/* A later thread of the same tid begins above this one: a million calls take more than a millisecond. */
static __always_inline void ml_begin_thread(struct ml_snoop_thread *thread, ml_u32 tid)
{
	thread->depth = 0;
	thread->sequence = (ml_u64)tid << 40 | ((bpf_ktime_get_ns() >> 10) & ((1ull << 40) - 1));
}

#ifdef ML_SNOOP_OLD

static __always_inline struct ml_snoop_thread *ml_find_thread(ml_u32 tid)
{
	return bpf_map_lookup_elem(&threads, &tid);
}

static __noinline struct ml_snoop_thread *ml_make_thread(ml_u32 tid)
{
	ml_u32 zero = 0;
	struct ml_snoop_thread *empty = bpf_map_lookup_elem(&empty_thread, &zero), *thread;

	if (!empty || bpf_map_update_elem(&threads, &tid, empty, BPF_ANY))
		return NULL;
	thread = bpf_map_lookup_elem(&threads, &tid);
	if (thread)
		ml_begin_thread(thread, tid);
	return thread;
}

static __always_inline void ml_forget_thread(struct ml_snoop_thread *thread, ml_u32 tid)
{
	(void)thread;
	bpf_map_delete_elem(&threads, &tid);
}

#else

static __always_inline ml_u32 ml_thread_slot(ml_u32 tid, ml_u32 probe)
{
	return ((tid * 0x9e3779b1u >> 16) + probe) & (ML_SNOOP_THREADS - 1);
}

static __noinline struct ml_snoop_thread *ml_find_thread_beyond(ml_u32 tid)
{
	for (ml_u32 probe = 1; probe < ML_SNOOP_THREAD_PROBES; probe++) {
		ml_u32 slot = ml_thread_slot(tid, probe);
		struct ml_snoop_thread *thread = bpf_map_lookup_elem(&threads, &slot);

		if (thread && thread->tid == tid)
			return thread;
	}
	return NULL;
}

static __always_inline struct ml_snoop_thread *ml_find_thread(ml_u32 tid)
{
	ml_u32 slot = ml_thread_slot(tid, 0);
	struct ml_snoop_thread *thread = bpf_map_lookup_elem(&threads, &slot);

	return thread && thread->tid == tid ? thread : ml_find_thread_beyond(tid);
}

/* Makes the state of a thread at its first call; NULL if there is no room. */
static __noinline struct ml_snoop_thread *ml_make_thread(ml_u32 tid)
{
	for (ml_u32 probe = 0; probe < ML_SNOOP_THREAD_PROBES; probe++) {
		ml_u32 slot = ml_thread_slot(tid, probe);
		struct ml_snoop_thread *thread = bpf_map_lookup_elem(&threads, &slot);

		if (!thread || thread->tid || __sync_val_compare_and_swap(&thread->tid, 0, tid))
			continue;
		ml_begin_thread(thread, tid);
		return thread;
	}
	return NULL;
}

static __always_inline void ml_forget_thread(struct ml_snoop_thread *thread, ml_u32 tid)
{
	(void)tid;
	thread->tid = 0;
}

#endif
