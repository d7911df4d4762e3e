// SPDX-License-Identifier: Apache-2.0
#include "process_set.h"

#include <stdlib.h>

static size_t find(const struct ml_process_set *set, ml_u32 pid)
{
	size_t i = 0;

	while (i < set->count && set->pids[i] != pid)
		i++;
	return i;
}

bool ml_process_set_has(const struct ml_process_set *set, ml_u32 pid)
{
	return find(set, pid) < set->count;
}

int ml_process_set_add(struct ml_process_set *set, ml_u32 pid)
{
	if (ml_process_set_has(set, pid))
		return 0;
	if (set->count == set->room) {
		size_t room = set->room ? 2 * set->room : 16;
		ml_u32 *larger = realloc(set->pids, room * sizeof(*larger));

		if (!larger)
			return -1;
		set->pids = larger;
		set->room = room;
	}
	set->pids[set->count++] = pid;
	return 0;
}

void ml_process_set_remove(struct ml_process_set *set, ml_u32 pid)
{
	size_t i = find(set, pid);

	if (i < set->count)
		set->pids[i] = set->pids[--set->count];
}
