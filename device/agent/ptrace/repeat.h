/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Restarts waits that a stop has ended (signal(7), "Interruption of system calls … by stop signals"), or that an injected call has made
 * the kernel forget.
 */
#pragma once

#include "agent/ptrace/state.h"

struct ml_ptrace_wait {
	pid_t tid;
	ml_u64 number, arguments[6], stack_pointer, pc; /* of its system call */
	ml_u64 end_ns; /* 0: unknown */
	ml_u64 n_switches; /* how often the thread has left its processor by itself */
};

/*
 * The rest of a time limit, for a call that takes it from memory: below the thread's stack, where a handler that runs before the call
 * overwrites it. Detached at the entry of their call, most waits end with EINTR at once, for a pretended signal (kernel/ptrace.c,
 * __ptrace_unlink()): all but those that look for signals themselves.
 */
struct ml_ptrace_limit {
	ml_u64 address; /* 0: nothing is to be written */
	ml_u64 time[2]; /* struct __kernel_timespec */
};

#if ML_HAS_PTRACE_CALLS
/*
 * Whether the thread is in a wait that can be restarted only if it is noted before the stop. Fills in limit_ms: its time limit, where a
 * repeated one can be given another; 0: none.
 */
bool ml_ptrace_is_noted(pid_t tid, const struct ml_ptrace_wait *wait, ml_u64 *limit_ms);

/*
 * Changes the registers so that the thread waits again. False if it was in no wait, or in one that cannot be restarted. Call only if no
 * signal is pending. wait: noted before its stop, or NULL. left_ms: what is left of its time limit; -1: the call has the limit that it
 * had. limit: to be written before the thread runs, which has to reach the call without a handler.
 */
bool ml_ptrace_repeat_wait(ml_ptrace_registers *registers, const struct ml_ptrace_wait *wait, long left_ms,
			   struct ml_ptrace_limit *limit);
#else
static inline bool ml_ptrace_is_noted(pid_t tid, const struct ml_ptrace_wait *wait, ml_u64 *limit_ms)
{
	(void)tid, (void)wait, (void)limit_ms;
	return false;
}

static inline bool ml_ptrace_repeat_wait(ml_ptrace_registers *registers, const struct ml_ptrace_wait *wait, long left_ms,
					 struct ml_ptrace_limit *limit)
{
	(void)registers, (void)wait, (void)left_ms, (void)limit;
	return false;
}
#endif
