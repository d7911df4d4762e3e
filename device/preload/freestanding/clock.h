/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "wire.h"
#include "preload/freestanding/syscalls.h"

#define ML_CLOCK_MONOTONIC 1
#define ML_CLOCK_MONOTONIC_COARSE 6

struct ml_timespec {
	long seconds;
	long nanoseconds;
};

typedef int ml_clock_function(int clock, struct ml_timespec *now);

/*
 * 3 ns instead of a system call; NULL: there is none. Not libc's clock_gettime(): another library may come before it, which allocates
 * or gives another time (libfaketime).
 */
extern ml_clock_function *ml_clock_vdso __attribute__((visibility("hidden")));

/* 1: the kernel sends SIGSEGV for reading the cycle counter, as the vDSO does for the exact time: prctl(PR_SET_TSC), x86. */
extern int ml_clock_has_no_counter __attribute__((visibility("hidden")));

/* Called once, before blocks are recorded. */
void ml_clock_find_vdso(void);

static inline ml_u64 ml_clock_ns(int clock)
{
	struct ml_timespec now = { 0, 0 };

	if (ml_clock_vdso && (clock == ML_CLOCK_MONOTONIC_COARSE || __builtin_expect(!ml_clock_has_no_counter, 1)))
		ml_clock_vdso(clock, &now);
	else
		ML_SYSCALL2(clock_gettime, clock, &now);
	return (ml_u64)now.seconds * 1000000000u + (ml_u64)now.nanoseconds;
}

/* CLOCK_MONOTONIC as of the last timer tick (1–10 ms). It is compared with --older, hundreds of ms. */
static inline ml_u64 ml_clock_coarse_ns(void)
{
	return ml_clock_ns(ML_CLOCK_MONOTONIC_COARSE);
}

/*
 * In a sandbox without clock_gettime() it is coarse: the vDSO reads the cycle counter, for which the kernel sends SIGSEGV in seccomp's
 * strict mode (arch/x86, disable_TSC()), or makes the system call.
 */
static inline ml_u64 ml_clock_exact_ns(void)
{
	return ml_clock_ns(ml_sandbox_forbids(__NR_clock_gettime) ? ML_CLOCK_MONOTONIC_COARSE : ML_CLOCK_MONOTONIC);
}

/*
 * Not nanosleep(): it forgets the interrupted wait of a borrowed thread (restart_block, kernel/time/hrtimer.c), which then ends
 * with EINTR. A ppoll() that is stopped itself starts anew.
 */
static inline void ml_pause_ns(long nanoseconds)
{
	ml_u64 end_ns = ml_sandbox_forbids(__NR_ppoll) ? ml_clock_exact_ns() + (ml_u64)nanoseconds : 0;

	if (!end_ns)
		ML_SYSCALL3(ppoll, 0, 0, (&(struct ml_timespec){ 0, nanoseconds }));
	while (end_ns && ml_clock_exact_ns() < end_ns)
		;
}

#define ML_WAIT_STEP_NS 100000
#define ML_WAIT_STEP_NS_MAX 6400000

/* A wait for another thread or process; { 0 } at its begin. */
struct ml_wait {
	long step_ns;
	long waited_ns; /* set to 0 where the other makes progress */
};

/* Each pause is twice as long as the one before: thousands of threads that wait leave the other one its time on the processor. */
static inline void ml_wait_on(struct ml_wait *wait)
{
	wait->step_ns = wait->step_ns ? wait->step_ns * 2 : ML_WAIT_STEP_NS;
	if (wait->step_ns > ML_WAIT_STEP_NS_MAX)
		wait->step_ns = ML_WAIT_STEP_NS_MAX;
	ml_pause_ns(wait->step_ns);
	wait->waited_ns += wait->step_ns;
}
