// SPDX-License-Identifier: Apache-2.0
#include "agent/session/region_sizes.h"

#include <stdlib.h>

#include "agent/process/process_maps.h"

#define LOOKS_MAX 8 /* a target may attach memory all the time */

/* 0: it is detached already. */
static int find_shared(struct ml_region_sizes *sizes, struct ml_event *event)
{
	struct ml_maps_line line;
	char *text;

	if (sizes->n_looks++ >= LOOKS_MAX)
		return -1;
	text = ml_process_maps_read(event->pid, NULL);
	if (text && ml_process_maps_find(text, event->address, &line) && line.start == event->address)
		event->size = line.end - line.start;
	free(text);
	return event->size != 0;
}

/* The event has the new break. */
static int move_break(struct ml_region_sizes *sizes, struct ml_event *event)
{
	ml_u64 now = event->address, before = 0;
	ml_u32 slot = event->pid % ML_BREAKS;

	if (sizes->breaks[slot].pid == event->pid)
		before = sizes->breaks[slot].address;
	sizes->breaks[slot].pid = event->pid;
	sizes->breaks[slot].address = now;
	if (event->old_address == ML_BREAK_IS_NO_REGION || !before || now == before)
		return 0;
	event->address = now < before ? now : before;
	event->size = now < before ? before - now : now - before;
	if (now < before)
		event->function = ML_FN_MUNMAP;
	return 1;
}

int ml_region_complete(struct ml_region_sizes *sizes, struct ml_event *event)
{
	if (event->size)
		return 1;
	switch (event->function) {
	case ML_FN_SHMAT: return find_shared(sizes, event);
	case ML_FN_SBRK: return move_break(sizes, event);
	default: return 1;
	}
}
