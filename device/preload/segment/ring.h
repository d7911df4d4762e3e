/* SPDX-License-Identifier: Apache-2.0 */
/* One ring for each thread, written by the thread and read by the agent without a lock. */
#pragma once

#include "preload/segment/segment.h"

/*
 * Contiguous room for a record of payload_bytes, or NULL if the ring is full. The caller holds ML_OWNER_BUSY.
 * ml_ring_commit() makes the record visible to the agent; used_bytes may be less than reserved.
 */
void *ml_ring_reserve(const struct ml_view *view, struct ml_thread *thread, ml_u32 payload_bytes);

/*
 * Waits for the agent, so that a burst of new stacks is not lost. After a wait without any progress it does not wait
 * again until the agent moves: the agent may be gone or stopped, and the target must go on.
 */
void *ml_ring_reserve_patiently(const struct ml_view *view, struct ml_thread *thread, ml_u32 payload_bytes);

/* The agent has made no progress since the last wait failed, so large records need not be prepared. */
static inline int ml_ring_is_stuck(const struct ml_thread *thread)
{
	return thread->stuck_tail == __atomic_load_n(&thread->tail, __ATOMIC_RELAXED) + 1;
}

void ml_ring_commit(const struct ml_view *view, struct ml_thread *thread, ml_u32 kind, ml_u32 used_bytes);

/* Waits like ml_ring_reserve_patiently(). Returns 0 if the ring is full. */
int ml_ring_send_event(const struct ml_view *view, struct ml_thread *thread, const struct ml_event *event);
