/* SPDX-License-Identifier: Apache-2.0 */
/* The processes of a preload session: who joins, who becomes another program, who ends. */
#ifndef MEMLEAK_PRELOAD_PROCESSES_H
#define MEMLEAK_PRELOAD_PROCESSES_H

#include "agent/shim/ended.h"
#include "agent/shim/peak.h"
#include "agent/shim/target.h"

#define ML_PRELOAD_TARGETS 1024 /* at one time */

/* A process that became another program, which has not joined. */
struct ml_preload_left {
	ml_u32 pid;
	int pidfd;
	char name[16];
	bool is_told; /* its shim has said why it is not measured */
};

/* All zero but command and ended.live_max: none yet. */
struct ml_preload_processes {
	struct ml_preload_target *targets[ML_PRELOAD_TARGETS];
	size_t n_targets; /* alive and measured */
	struct ml_preload_left left[ML_PRELOAD_TARGETS];
	size_t n_left;
	struct ml_preload_ended ended;
	struct ml_preload_last_peak last_peak;
	const struct ml_config *config;
	ml_u32 command;      /* pid of the one whose end the session tells */
	ml_u32 next_index;   /* of the next that joins */
	ml_u64 n_children;   /* of programs that are no more */
	ml_u64 n_unmeasured; /* programs that ran in the session without being recorded, and ended */
};

/*
 * Answers on the connection; NULL when nobody joins by it. The process waits until it is released. `unmeasured`: the pid of
 * one that belongs to the session and was told to be not measured; else 0.
 */
struct ml_preload_target *ml_preload_processes_accept(struct ml_preload_processes *processes, int connection,
						      ml_u64 nonce, const struct ml_settings *settings,
						      ml_u32 *unmeasured);

/* It was told: where it was measured before, it has called exec, and its old heap is dropped. */
void ml_preload_processes_refuse(struct ml_preload_processes *processes, ml_u32 pid, struct ml_regions *regions);

/*
 * Counts the new one among the others, and says so to the host. A process that comes again has called exec: its old
 * heap and its regions are dropped. Unless it has ended: then it is another one under its pid.
 * All rings have been drained since it was accepted; it still waits, so that it cannot have ended by itself.
 */
void ml_preload_processes_add(struct ml_preload_processes *processes, struct ml_preload_target *target,
			      struct ml_regions *regions, ml_u64 timestamp_ns);

/* Looks who has ended. True: someone has, so drain all rings and call close(). */
bool ml_preload_processes_look(struct ml_preload_processes *processes);

/* Keeps the books of those who have ended. */
void ml_preload_processes_close(struct ml_preload_processes *processes, struct ml_regions *regions);

/* Drops the heaps of programs that are no more: what took their place has not joined, so far. Before a snapshot. */
void ml_preload_processes_drop_left(struct ml_preload_processes *processes, struct ml_regions *regions);

/* At the end of the session: tells of all that drop_left() found. */
void ml_preload_processes_tell_left(struct ml_preload_processes *processes);

/*
 * The kernel tells that a process has called exec. True when it is a measured one, whose heap is gone; what takes its place
 * is told like any other that does not join. By a system call of its own the shim would not have known.
 */
bool ml_preload_processes_becomes_another(struct ml_preload_processes *processes, ml_u32 pid);

/* A program that has run without being recorded: says so, and counts it. */
void ml_preload_processes_tell_unmeasured(struct ml_preload_processes *processes, ml_u32 pid, const char *name);

/* Programs that were not measured, so far. */
ml_u64 ml_preload_processes_unmeasured(const struct ml_preload_processes *processes);

/* Children that made calls of their own and were not followed. */
ml_u64 ml_preload_processes_children(const struct ml_preload_processes *processes);

/* Tells all of them that the session is over: whatever becomes of their hooks, they record nothing more. */
void ml_preload_processes_end(const struct ml_preload_processes *processes, enum ml_over over);

/* What the nursery asks. */
ml_u64 ml_preload_processes_live_objects(const struct ml_preload_processes *processes, ml_u64 key,
					 ml_u64 *allocated);
void ml_preload_processes_ask_again(struct ml_preload_processes *processes, ml_u64 key);

/* A PROCESS block; status: wait status of EXIT, -1 = not known. */
void ml_preload_process_write(ml_u32 pid, enum ml_process_event event, int status, ml_u64 timestamp_ns);

void ml_preload_processes_destroy(struct ml_preload_processes *processes);

#endif
