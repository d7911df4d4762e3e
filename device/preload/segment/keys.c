// SPDX-License-Identifier: Apache-2.0
#include "preload/segment/keys.h"

#include "preload/freestanding/clock.h"
#include "preload/segment/thread.h"

/* Index of a new entry, or 0. Failed attempts may raise the count beyond n_keys. */
static ml_u32 new_entry(const struct ml_view *view, ml_u64 key)
{
	ml_u32 *used = &view->segment->n_keys_used;
	ml_u32 number;

	if (__atomic_load_n(used, __ATOMIC_RELAXED) >= view->settings.n_keys)
		return 0;
	number = __atomic_fetch_add(used, 1, __ATOMIC_RELAXED);
	if (number >= view->settings.n_keys)
		return 0;
	ml_write(&view->keys[number].next_due, 1);
	ml_write(&view->keys[number].next_verify, 2);
	__atomic_store_n(&view->keys[number].key, key, __ATOMIC_RELEASE);
	return number;
}

ml_u32 ml_keys_find(const struct ml_view *view, ml_u64 key)
{
	ml_u32 fresh = 0;

	for (ml_u32 i = 0; i < ML_KEY_PROBES; i++) {
		ml_u32 *slot = &view->key_index[ml_key_slot(&view->settings, key, i)];
		ml_u32 number = __atomic_load_n(slot, __ATOMIC_ACQUIRE);

		if (!number) {
			if (!fresh && !(fresh = new_entry(view, key)))
				return 0;
			/* If another thread fills the slot first, `number` is its entry. */
			if (__atomic_compare_exchange_n(slot, &number, fresh, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
				return fresh;
		}
		if (view->keys[number].key == key)
			return number;
	}
	return 0;
}

/* ---- the high-water mark ------------------------------------------------------------------------------ */

void ml_peak_remember(const struct ml_view *view, ml_u32 number, ml_u64 generation)
{
	const struct ml_key *key = &view->keys[number];
	ml_u64 word = ml_read(&view->peaks[number]);
	ml_u64 held = ml_read(&key->alloc_bytes) - ml_read(&key->free_bytes);

	/*
	 * Two threads may race here. The loser sees that the value is saved already; its own read may be newer and is
	 * discarded.
	 */
	if (word >> ML_PEAK_BYTES_BITS != generation)
		ml_exchange_if(&view->peaks[number], word, generation << ML_PEAK_BYTES_BITS | (held & ML_PEAK_BYTES_MASK));
}

void ml_peak_raise(const struct ml_view *view, ml_u64 total)
{
	struct ml_peak_state *peak = &view->segment->peak;
	ml_u64 generation = ml_read(&peak->generation), mark = ml_read(&peak->mark);

	if (!generation || generation == ML_PEAK_GENERATION_MAX)
		return;
	if ((long long)(total - mark - (mark >> ML_PEAK_STEP_SHIFT)) <= 0 || !ml_exchange_if(&peak->mark, mark, total))
		return;
	ml_write(&peak->timestamp_ns, ml_clock_coarse_ns());
	ml_add(&peak->generation, 1);
	ml_thread_set_batch(peak);
}

/* Threads share the first slot. */
static void add_pending(const struct ml_view *view, struct ml_thread *thread, ml_u64 change)
{
	if (thread == view->threads)
		ml_add(&thread->pending_bytes, change);
	else
		ml_add_own(&thread->pending_bytes, change);
}

void ml_peak_gather(const struct ml_view *view, ml_u64 change)
{
	struct ml_peak_state *peak = &view->segment->peak;
	struct ml_thread *thread = ml_thread_current(view);
	ml_u64 batch = ml_read(&peak->batch), pending_bytes;

	add_pending(view, thread, change);
	pending_bytes = ml_read(&thread->pending_bytes);
	if (pending_bytes + batch <= 2 * batch)
		return;
	add_pending(view, thread, -pending_bytes);
	ml_peak_raise(view, ml_subtract(&peak->total, -pending_bytes));
}

void ml_peak_begin(const struct ml_view *view)
{
	if (!view->settings.sample_bytes)
		ml_write(&view->segment->peak.generation, 1);
}
