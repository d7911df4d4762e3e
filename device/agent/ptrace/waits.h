/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waits that a stop ends with EINTR. Repeated, those with a time limit would begin anew. So when they began is noted before the stop, by
 * the time at which the scheduler took the thread from its processor (exec_start in /proc/PID/task/TID/sched).
 */
#pragma once

#include "agent/ptrace/repeat.h"

#define ML_PTRACE_WAITS_MAX 64 /* of one process; others begin anew, and on arm64 they end */

struct ml_ptrace_waits {
	struct ml_ptrace_wait waits[ML_PTRACE_WAITS_MAX];
	size_t n;
};

/* To be called before the threads are stopped. */
void ml_ptrace_waits_note(struct ml_ptrace_waits *waits, pid_t pid);

/* To be called once the thread is stopped: the wait that the stop has interrupted, if it is noted, or NULL. */
const struct ml_ptrace_wait *ml_ptrace_waits_find(const struct ml_ptrace_waits *waits, pid_t pid, pid_t tid);
