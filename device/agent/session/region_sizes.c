// SPDX-License-Identifier: Apache-2.0
#include "agent/session/region_sizes.h"

#include <stdlib.h>

#include "agent/process/process_maps.h"

#define LOOKS_MAX 8 /* a target may attach memory all the time */

int ml_region_complete(struct ml_region_sizes *sizes, struct ml_event *event)
{
	struct ml_maps_line line;
	char *text;

	if (event->function != ML_FN_SHMAT || event->size)
		return 1;
	if (sizes->n_looks++ >= LOOKS_MAX)
		return -1;
	text = ml_process_maps_read(event->pid, NULL);
	if (text && ml_process_maps_find(text, event->address, &line) && line.start == event->address)
		event->size = line.end - line.start;
	free(text);
	return event->size != 0;
}
