/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a library gets into a process by dlopen(): by its path; where the process sees other files than we do, as a file
 * without a name (memfd_create(2)) that the process makes and we fill.
 */
#ifndef MEMLEAK_INJECT_LIBRARY_H
#define MEMLEAK_INJECT_LIBRARY_H

#include "agent/inject/checks.h"
#include "agent/ptrace/call.h"
#include "agent/process/target_objects.h"

/* A thread of the process that may be made to call. */
struct ml_inject_caller {
	pid_t pid, tid;
	const struct ml_ptrace_state *state;
	struct ml_ptrace_code code;
	bool is_lost; /* not ours any more: it ended, or a call did not return */
	struct ml_target_objects *objects; /* read anew where they change */
};

/* Makes one call, by its function's address; a refusal in words where it does not return. 0, or -1. */
int ml_inject_call(struct ml_inject_caller *caller, const char *name, const struct ml_ptrace_request *request,
		   struct ml_ptrace_called *called, struct ml_refusal *refusal);

/* The library if it is loaded already, by whichever of both ways: function is one that it alone defines. */
const struct ml_target_object *ml_inject_loaded(const struct ml_target_objects *objects, const char *library,
						const char *function);

/* 0, or -1 and the refusal. */
int ml_inject_load(struct ml_inject_caller *caller, const char *library, const char *function, struct ml_refusal *refusal);

/* Can the process call dlopen() at all? 0, or -1 and the refusal. Before any thread is stopped. */
int ml_inject_can_load(const struct ml_target_objects *objects, const char *library, struct ml_refusal *refusal);

#endif
