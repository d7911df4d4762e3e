/* SPDX-License-Identifier: Apache-2.0 */
/* Counters by stack key (lock-free; entries are dense and permanent), and the high-water mark. */
#pragma once

#include "preload/freestanding/atomics.h"
#include "preload/segment/segment.h"

/* Index of the key's entry, which is made if there is none; 0 if there is no room. */
ml_u32 ml_keys_find(const struct ml_view *view, ml_u64 key);

static inline ml_u32 ml_view_n_keys(const struct ml_view *view)
{
	ml_u32 used = __atomic_load_n(&view->segment->n_keys_used, __ATOMIC_ACQUIRE);

	return used < view->settings.n_keys ? used : view->settings.n_keys;
}

/*
 * The bytes of each key at the high-water mark. Nothing is copied when the mark rises: a key saves its bytes at its
 * first change afterwards, so an unchanged key still holds what it held at the mark. Kept only if every allocation is
 * recorded; with sampling generation stays 0.
 */
/* Saves the key's bytes for the mark `generation`. */
void ml_peak_remember(const struct ml_view *view, ml_u32 number, ml_u64 generation);
/* Raises the mark if `total` exceeds it by a step. */
void ml_peak_raise(const struct ml_view *view, ml_u64 total);
/* With several threads: adds the change to this thread's batch, and that to the total when it is large enough. */
void ml_peak_gather(const struct ml_view *view, ml_u64 change);

void ml_peak_begin(const struct ml_view *view);

/* To be called before the counters of a key change. */
static inline void ml_peak_see(const struct ml_view *view, ml_u32 number)
{
	ml_u64 generation = ml_read(&view->segment->peak.generation);

	if (__builtin_expect(ml_read(&view->peaks[number]) >> ML_PEAK_BYTES_BITS != generation, 0))
		ml_peak_remember(view, number, generation);
}

/* To be called after they have changed by `size`. With racing threads the mark may rise a block early or late. */
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

/* Count a block of the key in entry `number`, and update the mark. */
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
