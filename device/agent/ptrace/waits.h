/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waits with a time limit that a stop ends with EINTR. Repeated, they would begin anew. So when they began is noted before the stop, by
 * the time at which the scheduler took the thread from its processor (exec_start in /proc/PID/task/TID/sched).
 */
#pragma once

#include <sys/types.h>

#include "wire.h"

#define ML_PTRACE_WAITS_MAX 64 /* of one process; others begin anew */

struct ml_ptrace_waits {
	struct ml_ptrace_wait {
		pid_t tid;
		ml_u64 end_ns;
		ml_u64 n_switches; /* how often the thread has left its processor by itself */
	} waits[ML_PTRACE_WAITS_MAX];
	size_t n;
};

/* To be called before the threads are stopped. */
void ml_ptrace_waits_note(struct ml_ptrace_waits *waits, pid_t pid);

/* To be called once the thread is stopped: when the wait ends that the stop has interrupted; 0: unknown. */
ml_u64 ml_ptrace_waits_end(const struct ml_ptrace_waits *waits, pid_t pid, pid_t tid);
