// SPDX-License-Identifier: Apache-2.0
#include "preload/segment/ring.h"

#include "preload/freestanding/clock.h"

#define RESTART_BYTES (256u << 10) /* more than any record */
#define PATIENCE_NS 500000000 /* without progress of the agent */

/* A power of two. */
static ml_u64 bytes_of(const struct ml_view *view, const struct ml_thread *thread)
{
	return ml_view_ring_bytes(view, (ml_u32)(thread - view->threads));
}

static struct ml_ring_record *record_at(const struct ml_view *view, const struct ml_thread *thread, ml_u64 position)
{
	ml_u32 slot = (ml_u32)(thread - view->threads);

	return (struct ml_ring_record *)(ml_view_ring(view, slot) + (position & (bytes_of(view, thread) - 1)));
}

static int has_room(const struct ml_view *view, struct ml_thread *thread, ml_u64 end)
{
	if (end - thread->cached_tail <= bytes_of(view, thread))
		return 1;
	thread->cached_tail = __atomic_load_n(&thread->tail, __ATOMIC_ACQUIRE);
	return end - thread->cached_tail <= bytes_of(view, thread);
}

/*
 * An empty ring restarts at its beginning now and then. A slow target then uses the same few pages, which stay in the
 * caches, and the others are never allocated.
 */
static int may_restart(const struct ml_view *view, struct ml_thread *thread)
{
	if ((thread->head & (bytes_of(view, thread) - 1)) < RESTART_BYTES)
		return 0;
	thread->cached_tail = __atomic_load_n(&thread->tail, __ATOMIC_ACQUIRE);
	return thread->cached_tail == thread->head;
}

void *ml_ring_reserve(const struct ml_view *view, struct ml_thread *thread, ml_u32 payload_bytes)
{
	ml_u64 bytes = sizeof(struct ml_ring_record) + ((payload_bytes + 7u) & ~7u);
	ml_u64 left = bytes_of(view, thread) - (thread->head & (bytes_of(view, thread) - 1)); /* to its end */

	if (left >= bytes && !may_restart(view, thread))
		return has_room(view, thread, thread->head + bytes) ? record_at(view, thread, thread->head) + 1 : NULL;
	if (!has_room(view, thread, thread->head + left + bytes))
		return NULL;
	*record_at(view, thread, thread->head) = (struct ml_ring_record){ (ml_u32)left, ML_RING_PAD };
	__atomic_store_n(&thread->head, thread->head + left, __ATOMIC_RELEASE);
	return record_at(view, thread, thread->head) + 1;
}

void *ml_ring_reserve_patiently(const struct ml_view *view, struct ml_thread *thread, ml_u32 payload_bytes)
{
	void *room = ml_ring_reserve(view, thread, payload_bytes);
	struct ml_wait wait = { 0 };

	if (room || ml_ring_is_stuck(thread) || view->settings.flags & ML_SETTING_NO_AGENT)
		return room;
	while (!room && wait.waited_ns < PATIENCE_NS) {
		ml_u64 tail = thread->cached_tail;

		ml_wait_on(&wait);
		room = ml_ring_reserve(view, thread, payload_bytes);
		if (thread->cached_tail != tail)
			wait = (struct ml_wait){ 0 };
	}
	thread->stuck_tail = room ? 0 : thread->cached_tail + 1;
	return room;
}

void ml_ring_commit(const struct ml_view *view, struct ml_thread *thread, ml_u32 kind, ml_u32 used_bytes)
{
	ml_u32 bytes = (ml_u32)sizeof(struct ml_ring_record) + ((used_bytes + 7u) & ~7u);

	*record_at(view, thread, thread->head) = (struct ml_ring_record){ bytes, kind };
	__atomic_store_n(&thread->head, thread->head + bytes, __ATOMIC_RELEASE);
}

int ml_ring_send_event(const struct ml_view *view, struct ml_thread *thread, const struct ml_event *event)
{
	struct ml_event *room = ml_ring_reserve_patiently(view, thread, sizeof(*room));

	if (!room)
		return 0;
	*room = *event;
	ml_ring_commit(view, thread, ML_RING_EVENT, sizeof(*room));
	return 1;
}
