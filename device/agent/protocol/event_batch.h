/* SPDX-License-Identifier: Apache-2.0 */
/* Events on their way into EVENTS blocks. */
#ifndef MEMLEAK_EVENT_BATCH_H
#define MEMLEAK_EVENT_BATCH_H

#include <stddef.h>

#include "wire.h"

#define ML_EVENT_BATCH 4096

struct ml_event_batch {
	size_t count;
	struct ml_event events[ML_EVENT_BATCH];
};

/* Writes a block when it is full. 0, or -1 when nobody reads any more. */
int ml_event_batch_add(struct ml_event_batch *batch, const struct ml_event *event);

/* Writes what there is. 0 or -1 as above. */
int ml_event_batch_write(struct ml_event_batch *batch);

#endif
