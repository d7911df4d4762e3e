/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who held what at the high-water mark. Nothing is copied as it is reached: each key remembers what it held the first
 * time that it changes afterwards, so that a key that has not changed since holds now what it held then.
 * Kept where every allocation counts; with samples generation stays 0.
 */
#pragma once

#include "preload/freestanding/atomics.h"
#include "preload/segment/segment.h"

/* The key remembers; `generation` is of the mark that it has not yet seen. */
void ml_peak_remember(const struct ml_view *view, ml_u32 number, ml_u64 generation);
/* `total` is held: the mark rises where that is a step more than ever. */
void ml_peak_raise(const struct ml_view *view, ml_u64 total);
/* Of a process of several threads: tells the change together with others of this thread. */
void ml_peak_gather(const struct ml_view *view, ml_u64 change);

void ml_peak_begin(const struct ml_view *view);

/* Before the counters of a key change. */
static inline void ml_peak_see(const struct ml_view *view, ml_u32 number)
{
	ml_u64 generation = ml_read(&view->segment->peak.generation);

	if (__builtin_expect(ml_read(&view->peaks[number]) >> ML_PEAK_BYTES_BITS != generation, 0))
		ml_peak_remember(view, number, generation);
}

/* After they have changed: so many bytes more are held. Threads that race see the mark rise a block early or late. */
static inline void ml_peak_add(const struct ml_view *view, ml_u64 size)
{
	struct ml_peak_state *peak = &view->segment->peak;
	ml_u64 total, mark;

	if (__builtin_expect(ml_read(&peak->batch) != 0, 0)) {
		ml_peak_gather(view, size);
		return;
	}
	total = ml_subtract(&peak->total, -size);
	mark = ml_read(&peak->mark);
	if (__builtin_expect((long long)(total - mark - (mark >> ML_PEAK_STEP_SHIFT)) > 0, 0))
		ml_peak_raise(view, total);
}

static inline void ml_peak_take(const struct ml_view *view, ml_u64 size)
{
	if (__builtin_expect(ml_read(&view->segment->peak.batch) != 0, 0))
		ml_peak_gather(view, -size);
	else
		ml_add(&view->segment->peak.total, -size);
}

/* The counters of the key in entry `number`, and with them the mark. */
static inline void ml_key_count_alloc(const struct ml_view *view, ml_u32 number, ml_u64 size)
{
	struct ml_key *key = &view->keys[number];

	ml_peak_see(view, number);
	ml_add(&key->alloc_objects, 1);
	ml_add(&key->alloc_bytes, size);
	ml_peak_add(view, size);
}

static inline void ml_key_count_free(const struct ml_view *view, ml_u32 number, ml_u64 size)
{
	struct ml_key *key = &view->keys[number];

	ml_peak_see(view, number);
	ml_add(&key->free_objects, 1);
	ml_add(&key->free_bytes, size);
	ml_peak_take(view, size);
}
