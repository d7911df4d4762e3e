/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes a stopped thread call a function, and restores its state. During the call signals are blocked, except for those of a
 * fault in the function itself. The thread returns into its own state even if the tracer ends meanwhile.
 */
#pragma once

#include "agent/ptrace/state.h"

enum ml_call_end {
	ML_CALL_RETURNED,
	ML_CALL_FAULTED,  /* by a signal of its own; the thread's state is restored */
	ML_CALL_TIMEOUT,  /* the thread runs on untraced, and returns into its state when the function returns */
	ML_CALL_GONE,     /* the thread or the process has ended */
	ML_CALL_REFUSED,  /* the call was not begun: errno */
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
 * The thread is stopped in `state`, and afterwards again, except after TIMEOUT and GONE. Several calls may be made from one
 * state.
 */
struct ml_ptrace_called ml_ptrace_make_call(pid_t pid, pid_t tid, const struct ml_ptrace_state *state,
					    const struct ml_ptrace_request *request);
