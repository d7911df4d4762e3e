// SPDX-License-Identifier: Apache-2.0
#include "agent/process/process_set.h"

#include <stdlib.h>

#include "agent/process/thread_states.h"
#include "agent/protocol/extend.h"

/* A thread that ends its process may wait so long for a CPU before its own end is visible. */
#define ENDING_NS 250000000ull

static size_t find(const struct ml_process_set *set, ml_u32 pid)
{
	size_t i = 0;

	while (i < set->count && set->processes[i].pid != pid)
		i++;
	return i;
}

bool ml_process_set_has(const struct ml_process_set *set, ml_u32 pid)
{
	return find(set, pid) < set->count;
}

int ml_process_set_add(struct ml_process_set *set, ml_u32 pid)
{
	size_t i = find(set, pid);

	if (i < set->count) {
		set->processes[i].state = RUNNING; /* the pid was reused */
		return 0;
	}
	if (!ML_EXTEND(set->processes, set->count, set->room))
		return -1;
	set->processes[set->count++] = (struct ml_traced_process){ .pid = pid, .state = RUNNING };
	return 0;
}

void ml_process_set_leave(struct ml_process_set *set, ml_u32 pid, ml_u64 now_ns)
{
	size_t i = find(set, pid);

	if (i < set->count)
		set->processes[i] = (struct ml_traced_process){ .pid = pid, .state = LEAVING, .left_ns = now_ns };
}

bool ml_process_set_has_left(const struct ml_process_set *set, ml_u32 pid)
{
	size_t i = find(set, pid);

	return i < set->count && set->processes[i].state != RUNNING;
}

bool ml_process_set_stay(struct ml_process_set *set, ml_u32 pid)
{
	size_t i = find(set, pid);
	bool has_left = ml_process_set_has_left(set, pid);

	if (i < set->count)
		set->processes[i].state = RUNNING;
	return has_left;
}

bool ml_process_set_goes_on(struct ml_process_set *set, ml_u32 pid, ml_u64 now_ns)
{
	size_t i = find(set, pid);

	if (i == set->count || set->processes[i].state != LEAVING || now_ns < set->processes[i].left_ns + ENDING_NS ||
	    !ml_process_has_other_threads(pid))
		return false;
	set->processes[i].state = GOING_ON;
	return true;
}

bool ml_process_set_find_ended(struct ml_process_set *set, bool is_doubtful)
{
	bool is_any = false;

	for (size_t i = 0; i < set->count; i++) {
		if ((set->processes[i].state == RUNNING && !is_doubtful) || !ml_process_has_ended(set->processes[i].pid, -1))
			continue;
		set->processes[i].state = ENDED;
		is_any = true;
	}
	return is_any;
}

void ml_process_set_drop_ended(struct ml_process_set *set)
{
	for (size_t i = set->count; i-- > 0;)
		if (set->processes[i].state == ENDED)
			set->processes[i] = set->processes[--set->count];
}

void ml_process_set_remove(struct ml_process_set *set, ml_u32 pid)
{
	size_t i = find(set, pid);

	if (i < set->count)
		set->processes[i] = set->processes[--set->count];
}

void ml_process_set_destroy(struct ml_process_set *set)
{
	free(set->processes);
	set->processes = NULL;
	set->count = set->room = 0;
}
