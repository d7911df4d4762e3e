/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The processes that are traced. One stays in the set until nothing of it can come any more: its first thread may end
 * before the others, or before one of them takes its number over by exec (de_thread in fs/exec.c).
 */
#ifndef MEMLEAK_PROCESS_SET_H
#define MEMLEAK_PROCESS_SET_H

#include <stdbool.h>
#include <stddef.h>

#include "wire.h"

struct ml_process_set {
	struct ml_traced_process *processes;
	size_t count, room;
};

bool ml_process_set_has(const struct ml_process_set *set, ml_u32 pid);

/* -1: out of memory. */
int ml_process_set_add(struct ml_process_set *set, ml_u32 pid);

/* Its first thread has ended, as is seen now. */
void ml_process_set_leave(struct ml_process_set *set, ml_u32 pid, ml_u64 now_ns);

/* Another program has begun in it: true when one of its other threads called exec. */
bool ml_process_set_stay(struct ml_process_set *set, ml_u32 pid);

/* Once for each process that was seen to leave and goes on with other threads: true. */
bool ml_process_set_goes_on(struct ml_process_set *set, ml_u32 pid, ml_u64 now_ns);

/*
 * Looks which of those that are leaving have no thread any more: whether there is any. All that they did is in the
 * rings by then; ml_process_set_drop_ended() forgets them once those have been drained. is_doubtful: records were lost,
 * so that any may have ended.
 */
bool ml_process_set_find_ended(struct ml_process_set *set, bool is_doubtful);
void ml_process_set_drop_ended(struct ml_process_set *set);

void ml_process_set_remove(struct ml_process_set *set, ml_u32 pid);
void ml_process_set_destroy(struct ml_process_set *set);

/* One of the first `count` of them. */
ml_u32 ml_process_set_pid(const struct ml_process_set *set, size_t i);

#endif
