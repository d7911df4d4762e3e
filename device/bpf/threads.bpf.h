/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The state of threads: a table of our own, because a hash map's lookup costs more than the rest. */
#pragma once

#include "thread_start.bpf.h"

ML_MAP(ARRAY, threads, ml_u32, struct ml_thread, ML_BPF_THREADS, 0);

static __always_inline ml_u32 ml_thread_slot(ml_u32 tid, ml_u32 probe)
{
	return ((tid * 0x9e3779b1u >> 16) + probe) & (ML_BPF_THREADS - 1);
}

static __noinline struct ml_thread *ml_find_thread(ml_u32 tid)
{
	for (ml_u32 probe = 1; probe < ML_BPF_THREAD_PROBES; probe++) {
		ml_u32 slot = ml_thread_slot(tid, probe);
		struct ml_thread *thread = bpf_map_lookup_elem(&threads, &slot);

		if (thread && thread->tid == tid)
			return thread;
	}
	return NULL;
}

/* Makes the state of a thread at its first call; NULL if it is not traced or there is no room. */
static __noinline struct ml_thread *ml_make_thread(ml_u32 tid)
{
	ml_u64 process = ml_current_process();

	if (!process)
		return NULL;
	for (ml_u32 probe = 0; probe < ML_BPF_THREAD_PROBES; probe++) {
		ml_u32 slot = ml_thread_slot(tid, probe);
		struct ml_thread *thread = bpf_map_lookup_elem(&threads, &slot);

		if (!thread || thread->tid || __sync_val_compare_and_swap(&thread->tid, 0, tid))
			continue;
		ml_init_thread(thread, tid, process);
		return thread;
	}
	ml_count(ML_LOST_THREADS_FULL, 1);
	return NULL;
}

/* The state left by an earlier call; NULL if there is none. */
static __always_inline struct ml_thread *ml_known_thread(void)
{
	ml_u32 tid = (ml_u32)bpf_get_current_pid_tgid();
	ml_u32 slot = ml_thread_slot(tid, 0);
	struct ml_thread *thread = bpf_map_lookup_elem(&threads, &slot);

	return thread && thread->tid == tid ? thread : ml_find_thread(tid);
}

static __always_inline struct ml_thread *ml_this_thread(void)
{
	struct ml_thread *thread = ml_known_thread();

	return thread ? thread : ml_make_thread((ml_u32)bpf_get_current_pid_tgid());
}

static __always_inline void ml_forget_thread(ml_u32 tid)
{
	ml_u32 slot = ml_thread_slot(tid, 0);
	struct ml_thread *thread = bpf_map_lookup_elem(&threads, &slot);

	if (!thread || thread->tid != tid)
		thread = ml_find_thread(tid);
	if (thread)
		thread->tid = 0;
}
