/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All threads of a process, stopped by ptrace. Whatever ends the program that stopped them lets them go on, in any state:
 * it should be a process of its own.
 */
#ifndef MEMLEAK_PTRACE_THREADS_H
#define MEMLEAK_PTRACE_THREADS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "wire.h"

struct ml_ptrace_thread {
	pid_t tid;
	bool is_stopped, is_gone;
	bool is_late;          /* asked to stop, and has not yet */
	bool is_group_stopped; /* by job control, before us */
	ml_u64 asked_ns;       /* when it was asked to stop */
};

struct ml_ptrace_threads {
	pid_t pid;
	struct ml_ptrace_thread *threads;
	size_t n, room;
	ml_u64 longest_stop_ns; /* of those that were let go since all were stopped last */
};

/*
 * Stops every thread, also those that come meanwhile. A thread that does not stop in time (in an uninterruptible sleep, or in
 * vfork()) stays as it is: see is_stopped.
 * 0, or -1 with errno: EPERM, ESRCH (the process is gone), EBUSY (stopped by job control), ENOMEM, ETIMEDOUT (threads came faster than they were stopped).
 */
int ml_ptrace_stop_all(struct ml_ptrace_threads *threads, pid_t pid, ml_u32 patience_ms);

/* Lets one go on as it is, and untraced. */
void ml_ptrace_let_go(struct ml_ptrace_threads *threads, struct ml_ptrace_thread *thread);

/* All that are stopped, but one (NULL: none). Frees nothing: the times stay. */
void ml_ptrace_let_others_go(struct ml_ptrace_threads *threads, const struct ml_ptrace_thread *kept);

/* Waits for a stop of a thread: 1, 0: not in time, -1: it is gone. */
int ml_ptrace_wait(pid_t tid, ml_u64 deadline_ns, int *status);

void ml_ptrace_free(struct ml_ptrace_threads *threads);

#endif
