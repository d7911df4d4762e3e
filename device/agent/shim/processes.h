/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The processes of a shim session. They join by the listener's socket, become other programs by exec, and end; their tables and rings
 * become KEYS, LIVE, EVIDENCE and PROCESS blocks.
 */
#pragma once

#include "agent/shim/ended.h"
#include "agent/shim/peak.h"
#include "agent/shim/target.h"

#define ML_PRELOAD_TARGETS 1024 /* at one time */

/* A process that became another program by exec, which has not joined. */
struct ml_preload_left {
	ml_u32 pid;
	int pidfd;
	char name[16];
	bool is_reported; /* its shim has reported why it is not measured */
};

/* All zero but command and ended.live_max: none yet. */
struct ml_preload_processes {
	struct ml_preload_target *targets[ML_PRELOAD_TARGETS];
	size_t n_targets; /* running and measured */
	struct ml_preload_left left[ML_PRELOAD_TARGETS];
	size_t n_left;
	struct ml_preload_ended ended;
	struct ml_preload_last_peak last_peak;
	const struct ml_config *config;
	ml_u32 command;      /* its end is reported by the session */
	ml_u32 next_index;   /* of the next process that is invited */
	ml_u64 n_joined;
	ml_u64 n_children;   /* of ended programs */
	ml_u64 n_unmeasured; /* ended programs that were not recorded */
};

/* Why no more processes can be measured; NULL: they can. */
const char *ml_preload_processes_refusal(const struct ml_preload_processes *processes);

/* The process cannot be measured, for a reason. If it was measured before, it has called exec, and its old heap is dropped. */
void ml_preload_processes_refuse(struct ml_preload_processes *processes, ml_u32 pid, const char *reason,
				 struct ml_regions *regions);

/*
 * Adds a process and reports it to the host. A pid that joins again has called exec, so its old heap and regions are dropped; unless the
 * old process has ended and the pid was reused. All rings were drained after it joined; the process still waits, so it cannot have ended
 * by itself.
 */
void ml_preload_processes_add(struct ml_preload_processes *processes, struct ml_preload_target *target,
			      struct ml_regions *regions, ml_u64 timestamp_ns);

/* Checks for exited processes. If it returns true, drain all rings and call close(). */
bool ml_preload_processes_find_ended(struct ml_preload_processes *processes);

/* Moves the tables of ended processes to `ended`. */
void ml_preload_processes_close(struct ml_preload_processes *processes, struct ml_regions *regions);

/* Before a snapshot: drops the heaps of programs that exec replaced by one that has not joined. */
void ml_preload_processes_drop_left(struct ml_preload_processes *processes, struct ml_regions *regions);

/* At the end of the session: reports all programs found by drop_left(). */
void ml_preload_processes_report_left(struct ml_preload_processes *processes);

/*
 * The kernel reported an exec, which the shim may not have seen. Returns true if the process was measured: its heap is gone, and the new
 * program is reported like any other that does not join.
 */
bool ml_preload_processes_on_exec(struct ml_preload_processes *processes, ml_u32 pid);

/* Reports and counts a program that ran without being recorded. */
void ml_preload_processes_report_unmeasured(struct ml_preload_processes *processes, ml_u32 pid, const char *name);

/* Children that made calls of their own and were not followed. */
ml_u64 ml_preload_processes_children(const struct ml_preload_processes *processes);

/* Whether the pid is of one of the latest of these children. */
bool ml_preload_processes_has_child(const struct ml_preload_processes *processes, ml_u32 pid);

/* Marks the session as over in all processes: they record nothing more, whatever becomes of their hooks. */
void ml_preload_processes_end(const struct ml_preload_processes *processes, enum ml_over over);

/*
 * Marks the session as over in all processes, and waits for calls that are being recorded, so that the last snapshot has their evidence
 * and no half-written block. `drain` empties the rings, which such a call may wait for. The wait is bounded to a second, for stopped or
 * slow processes.
 */
void ml_preload_last_calls(struct ml_preload_processes *processes, void (*drain)(void *context), void *context);

/* Callbacks for the nursery. */
ml_u64 ml_preload_processes_live_objects(const struct ml_preload_processes *processes, ml_u64 key, ml_u64 *allocated);
void ml_preload_processes_ask_again(struct ml_preload_processes *processes, ml_u64 key);

void ml_preload_processes_destroy(struct ml_preload_processes *processes);

/* KEYS, LIVE and STATUS blocks of all processes of the session, running and ended. Both return 0, or -1 when the host is gone. */
int ml_preload_snapshot(const struct ml_preload_processes *processes, const struct ml_regions *regions, ml_u64 number);
int ml_preload_status(const struct ml_preload_processes *processes, const ml_u64 *agent_lost);
