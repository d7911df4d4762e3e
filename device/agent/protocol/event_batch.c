// SPDX-License-Identifier: Apache-2.0
#include "agent/protocol/event_batch.h"

#include "agent/protocol/blocks.h"

int ml_event_batch_write(struct ml_event_batch *batch)
{
	size_t bytes = batch->count * sizeof(batch->events[0]);

	batch->count = 0;
	return bytes ? ml_blocks_write(ML_BLOCK_EVENTS, batch->events, bytes) : 0;
}

int ml_event_batch_add(struct ml_event_batch *batch, const struct ml_event *event)
{
	batch->events[batch->count++] = *event;
	return batch->count == ML_EVENT_BATCH ? ml_event_batch_write(batch) : 0;
}
