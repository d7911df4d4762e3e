/* SPDX-License-Identifier: Apache-2.0 */
/* One ring for each thread: the thread writes, the agent reads, no lock between them. */
#pragma once

#include "preload/segment/segment.h"

/*
 * Room for a record of payload_bytes in one piece, or NULL when the ring is full. The caller holds ML_OWNER_BUSY.
 * What ml_ring_reserve() returned is seen by the agent after ml_ring_commit(); used_bytes may be less than asked for.
 */
void *ml_ring_reserve(const struct ml_view *view, struct ml_thread *thread, ml_u32 payload_bytes);

/*
 * As ml_ring_reserve(), but waits for the agent, so that a burst of new stacks is not lost. Not again when the agent
 * did not move in all that time: it is gone or stopped, and the target must go on.
 */
void *ml_ring_reserve_patiently(const struct ml_view *view, struct ml_thread *thread, ml_u32 payload_bytes);

/* The agent has not moved since waiting for it was given up: nothing large need be prepared for it. */
static inline int ml_ring_is_stuck(const struct ml_thread *thread)
{
	return thread->stuck_tail == __atomic_load_n(&thread->tail, __ATOMIC_RELAXED) + 1;
}

void ml_ring_commit(const struct ml_view *view, struct ml_thread *thread, ml_u32 kind, ml_u32 used_bytes);
