/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stops all threads of a process by ptrace. The kernel lets them continue when the tracer ends, in whatever way, so the tracer
 * should be a process of its own.
 */
#pragma once

#include <sys/types.h>

#include "agent/ptrace/waits.h"

struct ml_ptrace_thread {
	pid_t tid;
	bool is_stopped, is_gone;
	bool is_late;          /* has not stopped in time */
	bool is_group_stopped; /* by job control, before */
	ml_u64 asked_ns;       /* when its stop was requested */
	struct ml_ptrace_wait wait; /* that its stop has interrupted, if it is noted; else tid 0 */
};

struct ml_ptrace_threads {
	pid_t pid;
	struct ml_ptrace_thread *threads;
	size_t n, room;
	struct ml_ptrace_waits waits; /* before they were stopped */
	ml_u64 longest_stop_ns; /* of the threads detached since the last stop of all */
};

/*
 * Stops every thread, also new ones. A thread that does not stop in time (in an uninterruptible sleep, or in vfork()) runs on:
 * see is_stopped. 0, or -1 with errno: EPERM, ESRCH (the process is gone), EBUSY (stopped by job control), ENOMEM, ETIMEDOUT
 * (threads appeared faster than they were stopped).
 */
int ml_ptrace_stop_all(struct ml_ptrace_threads *threads, pid_t pid, ml_u32 patience_ms);

/* Detaches a stopped thread, which continues. */
void ml_ptrace_let_go(struct ml_ptrace_threads *threads, struct ml_ptrace_thread *thread);

/* Detaches all stopped threads but one (NULL: all). Frees nothing: the times stay. */
void ml_ptrace_let_others_go(struct ml_ptrace_threads *threads, const struct ml_ptrace_thread *kept);

/* Waits for a stop of a thread: 1, 0: not in time, -1: it is gone. */
int ml_ptrace_wait(pid_t tid, ml_u64 deadline_ns, int *status);

void ml_ptrace_free(struct ml_ptrace_threads *threads);
