/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Has a stopped thread call a function, and puts it back as it was. While it calls, signals wait (but for those that a fault
 * of the function itself raises). Whatever becomes of the caller meanwhile, the thread returns into its own state.
 */
#ifndef MEMLEAK_PTRACE_CALL_H
#define MEMLEAK_PTRACE_CALL_H

#include "agent/ptrace/state.h"

enum ml_call_end {
	ML_CALL_RETURNED,
	ML_CALL_FAULTED,  /* a signal that it raised itself; the thread is back in its state */
	ML_CALL_TIMEOUT,  /* it goes on by itself, untraced, and returns into its state when the function does */
	ML_CALL_GONE,     /* the thread, or the process */
	ML_CALL_REFUSED,  /* it was never begun: errno */
};

struct ml_ptrace_called {
	enum ml_call_end end;
	int signal;        /* FAULTED */
	bool has_result;
	ml_u64 result;
};

struct ml_ptrace_request {
	ml_u64 function;
	struct ml_ptrace_code code;
	ml_u64 arguments[ML_CALL_ARGUMENTS];
	const char *text; /* copied onto its stack; it becomes the first argument. NULL: none */
	ml_u32 patience_ms;
};

/*
 * The thread is stopped, and is so afterwards, as `state` says, but after TIMEOUT and GONE. Several calls in a row may
 * be made from one state.
 */
struct ml_ptrace_called ml_ptrace_make_call(pid_t pid, pid_t tid, const struct ml_ptrace_state *state,
					    const struct ml_ptrace_request *request);

#endif
