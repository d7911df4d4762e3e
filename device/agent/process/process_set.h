/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Traced processes. A process stays in the set until no more records of it can arrive. Its first thread may end before the
 * others, or before one of them takes over its pid by exec (de_thread in fs/exec.c).
 */
#pragma once

#include "wire.h"

struct ml_traced_process {
	ml_u32 pid;
	enum { RUNNING, LEAVING, GOING_ON, ENDED } state; /* GOING_ON: without its first thread, and reported */
	ml_u64 left_ns;
};

struct ml_process_set {
	struct ml_traced_process *processes;
	size_t count, room;
};

bool ml_process_set_has(const struct ml_process_set *set, ml_u32 pid);

/* -1: out of memory. */
int ml_process_set_add(struct ml_process_set *set, ml_u32 pid);

/* Its first thread has ended. */
void ml_process_set_leave(struct ml_process_set *set, ml_u32 pid, ml_u64 now_ns);

/* Whether its first thread has ended. */
bool ml_process_set_has_left(const struct ml_process_set *set, ml_u32 pid);

/* The process runs another program. Returns whether one of its other threads called exec. */
bool ml_process_set_stay(struct ml_process_set *set, ml_u32 pid);

/* Returns true once for a process whose first thread has ended while others run on. */
bool ml_process_set_goes_on(struct ml_process_set *set, ml_u32 pid, ml_u64 now_ns);

/*
 * Finds leaving processes whose last thread has ended, and returns whether there is any. All their records are in the rings by
 * then: drain these, then call ml_process_set_drop_ended(). is_doubtful: records were lost, so any process may have ended.
 */
bool ml_process_set_find_ended(struct ml_process_set *set, bool is_doubtful);
void ml_process_set_drop_ended(struct ml_process_set *set);

void ml_process_set_remove(struct ml_process_set *set, ml_u32 pid);
void ml_process_set_destroy(struct ml_process_set *set);
