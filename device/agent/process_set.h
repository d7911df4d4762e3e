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

/* All threads of it. pidfd: -1 where there is none (before Linux 5.3). */
bool ml_process_has_ended(ml_u32 pid, int pidfd);

struct ml_process_set {
	struct ml_traced_process *processes;
	size_t count, room;
};

bool ml_process_set_has(const struct ml_process_set *set, ml_u32 pid);

/* Also one whose first thread has ended: it runs again. -1: out of memory. */
int ml_process_set_add(struct ml_process_set *set, ml_u32 pid);

/* Its first thread has ended. */
void ml_process_set_leave(struct ml_process_set *set, ml_u32 pid);

/*
 * Looks which of those that are leaving have no thread any more: whether there is any. All that they did is in the
 * rings by then; ml_process_set_drop_ended() forgets them once those have been drained.
 */
bool ml_process_set_find_ended(struct ml_process_set *set);
void ml_process_set_drop_ended(struct ml_process_set *set);

void ml_process_set_remove(struct ml_process_set *set, ml_u32 pid);
void ml_process_set_destroy(struct ml_process_set *set);

#endif
