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

/* libc's, which reads the vDSO: 3 ns instead of a system call. Weak, since the system call will do. */
extern int clock_gettime(int clock, struct ml_timespec *now) __attribute__((weak));

static inline ml_u64 ml_clock_ns(int clock)
{
	struct ml_timespec now = { 0, 0 };

	if (clock_gettime)
		clock_gettime(clock, &now);
	else
		ML_SYSCALL2(clock_gettime, clock, &now);
	return (ml_u64)now.seconds * 1000000000u + (ml_u64)now.nanoseconds;
}

/* CLOCK_MONOTONIC as of the last timer tick (1–10 ms). It is compared with --older, hundreds of ms. */
static inline ml_u64 ml_clock_coarse_ns(void)
{
	return ml_clock_ns(ML_CLOCK_MONOTONIC_COARSE);
}

static inline ml_u64 ml_clock_exact_ns(void)
{
	return ml_clock_ns(ML_CLOCK_MONOTONIC);
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
