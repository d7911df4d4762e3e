// SPDX-License-Identifier: Apache-2.0
#include "agent/ptrace/repeat.h"

#if ML_HAS_PTRACE_CALLS

#include <errno.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>

#include "agent/process/proc_file.h"
#include "agent/process/target_objects.h"

#define LONGEST_S 1000000 /* in milliseconds an int */
#define RED_ZONE_BYTES 128 /* psABI x86-64 §3.2.2; others have none */
#define ARGUMENTS_BYTES sizeof(((struct ml_ptrace_system_call *)0)->arguments)

#ifdef SYS_epoll_wait
#define IS_EPOLL_WAIT(number) ((number) == SYS_epoll_wait)
#else
#define IS_EPOLL_WAIT(number) false
#endif

/* Other limits belong to a socket, or their calls would end with EINTR once more (struct ml_ptrace_limit). */
static bool has_limit_in_register(ml_u64 number)
{
	return IS_EPOLL_WAIT(number) || number == SYS_epoll_pwait;
}

/* Those of sockets end so with a time limit (SO_RCVTIMEO), and have then done nothing yet. */
static bool is_ended_by_stop(ml_u64 number)
{
	static const ml_u64 waits[] = { SYS_epoll_pwait2,   SYS_rt_sigtimedwait, SYS_semop,    SYS_semtimedop, SYS_io_getevents,
					SYS_io_uring_enter, SYS_accept,          SYS_accept4,  SYS_recvfrom,   SYS_recvmsg,
					SYS_sendto,         SYS_sendmsg,         SYS_recvmmsg, SYS_sendmmsg,   SYS_read,
					SYS_readv,          SYS_write,           SYS_writev };

	for (size_t i = 0; i < sizeof(waits) / sizeof(waits[0]); i++)
		if (number == waits[i])
			return true;
	return has_limit_in_register(number);
}

/* Interrupted, it goes on by restart_syscall(2), which knows the time left. */
static bool is_restarted_by_kernel(const struct ml_ptrace_wait *wait)
{
	const ml_u64 *arguments = wait->arguments;

	return wait->number == SYS_nanosleep || (wait->number == SYS_clock_nanosleep && !(arguments[1] & TIMER_ABSTIME)) ||
	       (wait->number == SYS_futex && (arguments[1] & FUTEX_CMD_MASK) == FUTEX_WAIT && arguments[3]);
}

/* A sandbox (seccomp) may allow the call that the thread made, and not the one that replaces it. */
static bool is_sandboxed(pid_t tid)
{
	char status[4096];

	return ml_proc_read(tid, "status", status, sizeof(status)) < 0 || ml_proc_field(status, "Seccomp:\t", 10);
}

static ml_u64 read_limit_ms(pid_t tid, ml_u64 number, const ml_u64 *arguments)
{
	ml_u64 limit[2], address = number == SYS_rt_sigtimedwait ? arguments[2] : arguments[3]; /* struct __kernel_timespec */

	if (has_limit_in_register(number))
		return (ml_s32)arguments[3] > 0 ? (ml_u32)arguments[3] : 0;
	if ((number != SYS_epoll_pwait2 && number != SYS_rt_sigtimedwait) ||
	    ml_target_read((ml_u32)tid, address, limit, sizeof(limit)) || limit[0] > LONGEST_S || limit[1] >= 1000000000 ||
	    (number == SYS_epoll_pwait2 && (!ML_PTRACE_KEEPS_ARGUMENTS || is_sandboxed(tid))))
		return 0;
	return limit[0] * 1000 + (limit[1] + 999999) / 1000000;
}

bool ml_ptrace_is_noted(pid_t tid, const struct ml_ptrace_wait *wait, ml_u64 *limit_ms)
{
	*limit_ms = read_limit_ms(tid, wait->number, wait->arguments);
	return *limit_ms || (!ML_PTRACE_KEEPS_ARGUMENTS && (is_ended_by_stop(wait->number) || is_restarted_by_kernel(wait)));
}

/* False if the call already has a limit from an earlier stop, which may be overwritten by now. */
static bool shorten(struct ml_ptrace_system_call *call, ml_u64 stack_pointer, long left_ms, struct ml_ptrace_limit *limit)
{
	ml_u64 below = stack_pointer - RED_ZONE_BYTES - sizeof(limit->time);

	if (left_ms < 0)
		return call->number != SYS_rt_sigtimedwait || call->arguments[2] != below;
	if (call->number == SYS_rt_sigtimedwait) { /* the program's own may be constant */
		*limit = (struct ml_ptrace_limit){ below, { (ml_u64)left_ms / 1000, (ml_u64)left_ms % 1000 * 1000000 } };
		call->arguments[2] = below;
	} else if (call->number == SYS_epoll_pwait2) {
		call->number = SYS_epoll_pwait; /* has the same arguments, but its limit in a register */
		call->arguments[3] = (ml_u64)left_ms;
	} else if (has_limit_in_register(call->number) && left_ms < (ml_s32)call->arguments[3]) {
		call->arguments[3] = (ml_u64)left_ms;
	}
	return true;
}

/* Whether the thread returns from the wait's call, or is about to make it anew. */
static bool is_in(const struct ml_ptrace_wait *wait, const struct ml_ptrace_frame *frame,
		  const struct ml_ptrace_system_call *call)
{
	return wait && frame->sp == wait->stack_pointer && call->number == wait->number &&
	       !memcmp(call->arguments + 1, wait->arguments + 1, ARGUMENTS_BYTES - sizeof(ml_u64));
}

bool ml_ptrace_repeat_wait(ml_ptrace_registers *registers, const struct ml_ptrace_wait *wait, long left_ms,
			   struct ml_ptrace_limit *limit)
{
	struct ml_ptrace_system_call call = ml_ptrace_system_call_of(registers);
	struct ml_ptrace_frame frame = ml_ptrace_frame_of(registers);

	limit->address = 0;
	if (!ML_PTRACE_KEEPS_ARGUMENTS && !is_in(wait, &frame, &call))
		return false;
	if (!ML_PTRACE_KEEPS_ARGUMENTS && is_restarted_by_kernel(wait) && frame.pc < wait->pc) {
		call.number = SYS_restart_syscall; /* as the kernel would have done without the injected call */
		call.address = frame.pc;
		ml_ptrace_call_again(registers, &call);
		return true;
	}
	if (call.result != (ml_u64)-EINTR || !is_ended_by_stop(call.number) || !shorten(&call, frame.sp, left_ms, limit))
		return false;
	if (!ML_PTRACE_KEEPS_ARGUMENTS)
		call.arguments[0] = wait->arguments[0];
	ml_ptrace_call_again(registers, &call);
	return true;
}
#endif
