/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads a library into a process by dlopen(): by its path, or, if the process sees other files than the agent, as a memory file
 * (memfd_create(2)) that the process creates and the agent fills.
 */
#pragma once

#include "agent/inject/checks.h"
#include "agent/ptrace/call.h"
#include "agent/process/target_objects.h"

/* A borrowed thread of the process. */
struct ml_inject_caller {
	pid_t pid, tid;
	const struct ml_ptrace_state *state;
	struct ml_ptrace_code code;
	bool is_lost; /* it ended, or a call did not return */
	struct ml_target_objects *objects; /* read again when they change */
};

/* Address of a function that some object defines, the first in symbol lookup order; 0: none. */
ml_u64 ml_inject_function(const struct ml_target_objects *objects, const char *name);

/* Makes one call. 0, or -1 and the refusal if it does not return. */
int ml_inject_call(struct ml_inject_caller *caller, const char *name, const struct ml_ptrace_request *request,
		   struct ml_ptrace_called *called, struct ml_refusal *refusal);

/* The library if it is loaded already, by path or as a memory file; only it defines `function`. */
const struct ml_target_object *ml_inject_loaded(const struct ml_target_objects *objects, const char *library,
						const char *function);

/* 0, or -1 and the refusal. */
int ml_inject_load(struct ml_inject_caller *caller, const char *library, const char *function, struct ml_refusal *refusal);

/* Before any thread is stopped: whether the process can call dlopen(). 0, or -1 and the refusal. */
int ml_inject_can_load(const struct ml_target_objects *objects, const char *library, struct ml_refusal *refusal);
