/* SPDX-License-Identifier: Apache-2.0 */
/*
 * By perf side-band records of the kernel. With --follow: notices programs of the command's children that never load the shim
 * (static ones). Without: counts children of the process that run another program. Others are counted by the shim at
 * their first call, or have the process's memory (vfork()), where their calls are measured.
 */
#pragma once

#include "agent/shim/processes.h"
#include "agent/process/sideband.h"

struct ml_preload_children {
	struct ml_sideband *sideband; /* NULL: unavailable */
	struct ml_preload_processes *processes;
	struct ml_preload_child *children; /* that have not joined */
	size_t count, room;
	bool are_followed;
	ml_u32 parent;
	ml_u64 n_other_programs; /* children of the parent, not followed, that ran exec without a call before */
	ml_u64 lost; /* records, and children for lack of memory */
};

/*
 * Called before the command is released. are_followed: then it is a gap if no children can be noticed. If not, exec of the process
 * itself is noticed, too.
 */
void ml_preload_children_open(struct ml_preload_children *children, int pid, bool are_followed,
			      struct ml_preload_processes *processes);

/* Reads new records, and reports programs that have ended. */
void ml_preload_children_drain(struct ml_preload_children *children);

/* After a drain: the process has joined. */
void ml_preload_children_joined(struct ml_preload_children *children, ml_u32 pid);

/* Whether a forked child may still join. */
bool ml_preload_children_awaited(struct ml_preload_children *children);

/* At the end of the session: reports programs that still run. */
void ml_preload_children_report_rest(struct ml_preload_children *children);

void ml_preload_children_close(struct ml_preload_children *children);
