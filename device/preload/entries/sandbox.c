// SPDX-License-Identifier: Apache-2.0
/* Notices that the program goes into a sandbox, by the two functions through which libraries do (libseccomp: both). */
#include <linux/seccomp.h>
#include <linux/prctl.h>

#include "preload/entries/originals.h"
#include "preload/freestanding/clock.h"
#include "preload/freestanding/seccomp_filter.h"
#include "preload/freestanding/syscalls.h"
#include "preload/freestanding/tail_call.h"
#include "preload/recorder/recorder.h"

#define EXPORT __attribute__((visibility("default")))

static void expect(int is_strict, unsigned long program)
{
	if (is_strict)
		ml_sandbox_expect_strict();
	else
		ml_sandbox_expect_filter((const void *)program);
	if (ml_recorder_is_own_process())
		__atomic_fetch_or(&ml_view_in_force()->segment->forbidden_calls, ml_sandbox_forbidden(), __ATOMIC_RELAXED);
}

static void note_option(unsigned long option, unsigned long a, unsigned long b)
{
	if (option == PR_SET_SECCOMP)
		expect(a == SECCOMP_MODE_STRICT, b);
	if (option == PR_SET_TSC && a == PR_TSC_SIGSEGV)
		__atomic_store_n(&ml_clock_has_no_counter, 1, __ATOMIC_RELAXED);
}

EXPORT int prctl(int option, unsigned long a, unsigned long b, unsigned long c, unsigned long d)
{
	note_option((unsigned long)option, a, b);
	if (!ml_originals_ready() || !ml_original.prctl)
		return (int)ml_from_kernel(ml_kernel_call(__NR_prctl, option, (long)a, (long)b, (long)c, (long)d, 0));
	TAIL return ml_original.prctl(option, a, b, c, d);
}

/* A jump: the caller may make a child that shares its stack. */
EXPORT long syscall(long number, long a, long b, long c, long d, long e, long f)
{
	if (number == __NR_seccomp && (a == SECCOMP_SET_MODE_FILTER || a == SECCOMP_SET_MODE_STRICT))
		expect(a == SECCOMP_SET_MODE_STRICT, (unsigned long)c);
	else if (number == __NR_prctl)
		note_option((unsigned long)a, (unsigned long)b, (unsigned long)c);
	if (!ml_originals_ready() || !ml_original.syscall)
		return ml_from_kernel(ml_kernel_call(number, a, b, c, d, e, f));
	TAIL return ml_original.syscall(number, a, b, c, d, e, f);
}
