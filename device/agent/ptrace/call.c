// SPDX-License-Identifier: Apache-2.0
#include "agent/ptrace/call.h"

#include <elf.h>
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include "agent/protocol/blocks.h"
#include "agent/ptrace/threads.h"
#include "agent/process/target_objects.h"

#define RED_ZONE_BYTES 128 /* psABI x86-64 §3.2.2; others have none */
#define SYSTEM_CALL_STOP (SIGTRAP | 0x80) /* PTRACE_O_TRACESYSGOOD */
#define MASK(signal) (1ull << ((signal) - 1))
/* Signals of a fault in the function itself: if they were blocked, the kernel would reset the handler and kill. */
#define FAULTS (MASK(SIGSEGV) | MASK(SIGBUS) | MASK(SIGILL) | MASK(SIGFPE) | MASK(SIGTRAP) | MASK(SIGSYS))

struct call {
	pid_t tid;
	const struct ml_ptrace_state *state;
	const struct ml_ptrace_request *request;
	ml_u64 deadline_ns;
	struct ml_ptrace_entry entry;
	ml_ptrace_registers registers;
};

static struct ml_ptrace_called ended(enum ml_call_end end)
{
	return (struct ml_ptrace_called){ .end = end };
}

/* Writes the text and the frame of the call below the thread's own frames. */
static int prepare(pid_t pid, struct call *call)
{
	static ml_u8 frame[ML_FRAME_BYTES_MAX];
	const struct ml_ptrace_request *request = call->request;
	struct ml_ptrace_call plan = { .function = request->function, .code = request->code };
	ml_u64 held = ~FAULTS;
	size_t text_bytes = request->text ? strlen(request->text) + 1 : 0, frame_bytes;

	/* exec ends the call at once, not by the timeout */
	if (ptrace(PTRACE_SETOPTIONS, call->tid, NULL, PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACEEXEC))
		return -1;
	memcpy(plan.arguments, request->arguments, sizeof(plan.arguments));
	plan.stack = ml_ptrace_frame_of(&call->state->registers).sp - RED_ZONE_BYTES;
	if (text_bytes) {
		plan.stack = (plan.stack - text_bytes) & ~15ull;
		plan.arguments[0] = plan.stack;
		if (ml_target_write((ml_u32)pid, plan.stack, request->text, text_bytes))
			return -1;
	}
	memset(frame, 0, sizeof(frame));
	frame_bytes = ml_ptrace_call_frame(call->state, &plan, frame, &call->entry);
	if (ml_target_write((ml_u32)pid, call->entry.address, frame, frame_bytes))
		return -1;
	/* From here on the thread returns through the frame even without a tracer. Signals are blocked after this. */
	if (ml_ptrace_write_set(call->tid, NT_PRSTATUS, &call->entry.registers, sizeof(call->entry.registers)))
		return -1;
	return ptrace(PTRACE_SETSIGMASK, call->tid, sizeof(held), &held) ? -1 : 0;
}

static int read_registers(struct call *call)
{
	return ml_ptrace_read_set(call->tid, NT_PRSTATUS, &call->registers, sizeof(call->registers)) ==
			       (ssize_t)sizeof(call->registers) ?
		       0 :
		       -1;
}

/*
 * Moves from the stop before rt_sigreturn to a stop in which the kernel handles signals, as at the beginning: only there it
 * restarts an interrupted system call. Until all of its state is written, the thread is before the return, and makes it by
 * itself if this process is killed.
 */
static int leave(struct call *call)
{
	ml_u64 all = ~0ull;
	int status;

	if (ptrace(PTRACE_SETSIGMASK, call->tid, sizeof(all), &all) ||
	    ml_ptrace_skip_system_call(call->tid, &call->registers, call->request->code.trampoline) ||
	    ptrace(PTRACE_INTERRUPT, call->tid, NULL, NULL) || ptrace(PTRACE_CONT, call->tid, NULL, NULL))
		return -1;
	while (ml_ptrace_wait(call->tid, ~0ull, &status) > 0) {
		if (status >> 16 == PTRACE_EVENT_STOP)
			return ml_ptrace_state_write(call->tid, call->state);
		ptrace(PTRACE_CONT, call->tid, NULL, NULL);
	}
	return -1;
}

static struct ml_ptrace_called returned(struct call *call)
{
	struct ml_ptrace_called called = { .end = ML_CALL_RETURNED };

	called.has_result = call->request->code.keeps_result || !ml_ptrace_n_keeper_bytes;
	called.result = ml_ptrace_result(&call->registers);
	if (leave(call))
		called.end = ML_CALL_GONE;
	return called;
}

/* Ends a call whose function faulted: restores the thread. A signal that a process sent is not a fault. */
static struct ml_ptrace_called faulted(struct call *call, int signal)
{
	struct ml_ptrace_called called = { .end = ML_CALL_FAULTED, .signal = signal };

	if (ml_ptrace_state_write(call->tid, call->state))
		called.end = ML_CALL_GONE;
	return called;
}

/* Whether the kernel raised the signal, and not another process: si_code > 0 (sigaction(2)). */
static bool is_own_fault(pid_t tid, int signal)
{
	siginfo_t information;

	return FAULTS & MASK(signal) && !ptrace(PTRACE_GETSIGINFO, tid, NULL, &information) && information.si_code > 0;
}

static struct ml_ptrace_called abandon(struct call *call)
{
	int status;

	/* only a stopped thread can be detached; the end of this process detaches one that does not stop */
	ptrace(PTRACE_INTERRUPT, call->tid, NULL, NULL);
	if (ml_ptrace_wait(call->tid, ml_clock_ns() + 100000000ull, &status) > 0)
		ptrace(PTRACE_DETACH, call->tid, NULL, NULL);
	return ended(ML_CALL_TIMEOUT);
}

static struct ml_ptrace_called run_to_end(struct call *call)
{
	int status, deliver = 0;

	for (;;) {
		if (ptrace(PTRACE_SYSCALL, call->tid, NULL, (void *)(long)deliver) && errno == ESRCH)
			return ended(ML_CALL_GONE);
		deliver = 0;
		switch (ml_ptrace_wait(call->tid, call->deadline_ns, &status)) {
		case -1: return ended(ML_CALL_GONE);
		case 0: return abandon(call);
		}
		if (WSTOPSIG(status) == SYSTEM_CALL_STOP) {
			if (read_registers(call))
				return ended(ML_CALL_GONE);
			if (ml_ptrace_is_return(call->tid, &call->registers, call->entry.frame_address))
				return returned(call);
		} else if (status >> 16 == PTRACE_EVENT_EXEC) {
			ptrace(PTRACE_DETACH, call->tid, NULL, NULL);
			return ended(ML_CALL_GONE);
		} else if (!(status >> 16)) {
			if (is_own_fault(call->tid, WSTOPSIG(status)))
				return faulted(call, WSTOPSIG(status));
			deliver = WSTOPSIG(status);
		}
	}
}

struct ml_ptrace_called ml_ptrace_make_call(pid_t pid, pid_t tid, const struct ml_ptrace_state *state,
					    const struct ml_ptrace_request *request)
{
	struct call call = {
		.tid = tid, .state = state, .request = request, .deadline_ns = ml_clock_ns() + request->patience_ms * 1000000ull
	};

	if (prepare(pid, &call)) {
		ml_ptrace_state_write(tid, state);
		return ended(ML_CALL_REFUSED);
	}
	return run_to_end(&call);
}
