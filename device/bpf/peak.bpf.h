/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The high-water mark (session.h). Nothing is copied when the mark rises: a key saves its bytes at its first change
 * afterwards, so an unchanged key still holds what it held at the mark. With racing CPUs the mark may rise a block
 * early or late.
 */
#pragma once

#include "maps.bpf.h"

ML_MAP(ARRAY, peak, ml_u32, struct ml_bpf_peak, 1, BPF_F_MMAPABLE);
ML_MAP(ARRAY, peak_words, ml_u32, ml_u64, ML_BPF_KEY_SLOTS, BPF_F_MMAPABLE);

/* NULL: no mark is kept for several processes. */
static __always_inline struct ml_bpf_peak *ml_peak(void)
{
	ml_u32 zero = 0;

	return options.follow || options.is_system_wide ? NULL : bpf_map_lookup_elem(&peak, &zero);
}

/* To be called before the counters of a key change. */
static __always_inline void ml_peak_see(ml_u32 slot, const struct ml_bpf_key *entry)
{
	const struct ml_bpf_peak *state = ml_peak();
	ml_u64 *word = state ? bpf_map_lookup_elem(&peak_words, &slot) : NULL;
	ml_u64 old, generation;

	if (!word)
		return;
	old = *word;
	generation = state->generation;
	if (old >> ML_BPF_PEAK_BYTES_BITS == generation)
		return;
	/* The loser of a race finds the value saved already. */
	__sync_val_compare_and_swap(word, old,
				    generation << ML_BPF_PEAK_BYTES_BITS |
					    ((entry->alloc_bytes - entry->free_bytes) & ML_BPF_PEAK_BYTES_MASK));
}

static __always_inline bool ml_peak_is_higher(ml_u64 total, ml_u64 mark)
{
	return (long long)(total - mark - (mark >> ML_BPF_PEAK_STEP_SHIFT)) > 0;
}

static __noinline void ml_peak_raise(struct ml_bpf_peak *state, ml_u64 total)
{
	ml_u64 mark = state->mark;

	if (!state->generation || state->generation >= ML_BPF_PEAK_GENERATION_MAX || !ml_peak_is_higher(total, mark))
		return;
	if (__sync_val_compare_and_swap(&state->mark, mark, total) != mark)
		return;
	state->timestamp_ns = bpf_ktime_get_ns();
	__sync_fetch_and_add(&state->generation, 1);
}

/* To be called after they have changed by `change`. */
static __always_inline void ml_peak_add(ml_u64 change)
{
	struct ml_bpf_peak *state = ml_peak();
	ml_u64 total;

	if (!state)
		return;
	total = __sync_fetch_and_add(&state->total, change) + change;
	if (ml_peak_is_higher(total, state->mark))
		ml_peak_raise(state, total);
}

/* After exec: the old program's blocks are gone. */
static __always_inline void ml_peak_forget(void)
{
	struct ml_bpf_peak *state = ml_peak();

	if (!state)
		return;
	state->total = state->mark = 0;
	__sync_fetch_and_add(&state->generation, 1);
}
