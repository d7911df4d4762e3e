/* SPDX-License-Identifier: Apache-2.0 */
/* One ring for each thread, written by the thread and read by the agent without a lock. */
#pragma once

#include "preload/segment/segment.h"

static inline ml_u32 ml_view_ring_bytes(const struct ml_view *view, ml_u32 slot)
{
	return slot < view->n_near ? view->settings.ring_bytes : view->far_ring_bytes;
}

static inline unsigned char *ml_view_ring(const struct ml_view *view, ml_u32 slot)
{
	ml_u32 near = slot < view->n_near ? slot : view->n_near;

	return view->rings + (ml_u64)near * view->settings.ring_bytes + (ml_u64)(slot - near) * view->far_ring_bytes;
}

/* Maximum of a struct ml_stack_above in a ring, whose records are at most 256 KiB. */
#define ML_RING_ABOVE_WORDS 12288u
#define ML_STACK_ABOVE_ROOM (sizeof(struct ml_stack_above) + ML_RING_ABOVE_WORDS * (sizeof(ml_u64) + sizeof(ml_u32)))

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
