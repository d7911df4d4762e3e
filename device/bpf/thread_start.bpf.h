/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The process of a thread, and the initial state of a thread. */
#pragma once

#include "images.bpf.h"

#ifndef ML_OLD_KERNEL
/*
 * With --all a process is registered at its first call. NULL if the table is full or the process is the tracer itself.
 */
static __noinline struct ml_bpf_process *ml_add_process(ml_u32 tgid)
{
	struct ml_bpf_process process = {};

	if (tgid == options.tracer_tgid)
		return NULL;
	ml_next_epoch(&process);
	process.image = ml_new_image();
	bpf_map_update_elem(&processes, &tgid, &process, BPF_NOEXIST); /* another thread may have added it */
	return bpf_map_lookup_elem(&processes, &tgid);
}
#endif

/* The traced process in whose memory this thread runs as `exec epoch << 32 | tgid`, 0 if it is not traced. */
static __always_inline ml_u64 ml_current_process(void)
{
	struct ml_bpf_process *process;
	ml_u32 tgid, zero = 0;

	if (!options.follow) {
		struct ml_bpf_code *shared = bpf_map_lookup_elem(&code, &zero);

		return shared ? shared->process : 0;
	}
	tgid = (ml_u32)(bpf_get_current_pid_tgid() >> 32);
	process = ml_memory_of(&tgid);
#ifndef ML_OLD_KERNEL
	if (!process && options.is_system_wide)
		process = ml_add_process(tgid);
#endif
	return process ? (ml_u64)process->epoch << 32 | tgid : 0;
}

static __always_inline void ml_init_thread(struct ml_thread *thread, ml_u32 tid, ml_u64 process)
{
	thread->process = process;
	thread->identity = (ml_u32)process | (ml_u64)tid << 32;
	ml_forget_stack(thread);
	thread->depth = 0;
	thread->has_left = 0;
	thread->key_words = ML_KEY_WORDS_WIDE;
	thread->rate_time_ns = 0;
	thread->images_seen = ~0ull;
	/*
	 * A thread's sequence begins at its first call's microsecond. No thread makes a million recorded calls in a
	 * second, so a later thread of the same tid begins above it.
	 */
	thread->sequence =
		(ml_u64)tid << ML_BPF_SEQUENCE_SHIFT | ((bpf_ktime_get_ns() >> 10) & ((1ull << ML_BPF_SEQUENCE_SHIFT) - 1));
}
