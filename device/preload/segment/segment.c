// SPDX-License-Identifier: Apache-2.0
#include "preload/segment/segment.h"

#define FIRST_LEVEL_BITS 12u
#define LAYOUT_ALIGN 65536u /* at least a page on every Linux machine */

static ml_u64 reserve(ml_u64 *end, ml_u64 bytes)
{
	ml_u64 start = *end;

	*end = (start + bytes + LAYOUT_ALIGN - 1) & ~(ml_u64)(LAYOUT_ALIGN - 1);
	return start;
}

static int is_power_of_two(ml_u64 value, ml_u64 least, ml_u64 most)
{
	return value >= least && value <= most && !(value & (value - 1));
}

/*
 * A block may be in a few pairs of buckets of each level. At about three quarters load some block finds all of them
 * full, so max_live is that share of all slots.
 */
static void reserve_levels(const struct ml_settings *settings, struct ml_layout *layout, ml_u64 *end)
{
	ml_u64 wanted = settings->max_live + settings->max_live / 3;
	ml_u64 slots = 0;
	ml_u32 bits = FIRST_LEVEL_BITS;

	while (bits > 6 && (ML_BUCKET_SLOTS << (bits - 1)) >= wanted)
		bits--;
	layout->first_level_bits = bits;
	layout->n_levels = 0;
	do {
		ml_u64 level_slots = (ml_u64)ML_BUCKET_SLOTS << ml_layout_level_bits(layout, layout->n_levels);

		layout->level_slots[layout->n_levels] = reserve(end, level_slots * sizeof(struct ml_slot));
		layout->level_displaced[layout->n_levels] = reserve(end, level_slots / ML_BUCKET_SLOTS / 16 + 8);
		layout->n_levels++;
		slots += level_slots;
	} while (slots < wanted && layout->n_levels < ML_TABLE_LEVELS);
}

int ml_layout_compute(const struct ml_settings *settings, struct ml_layout *layout)
{
	ml_u64 end = 0;

	if (!is_power_of_two(settings->n_threads, 2, 1u << 16) || !is_power_of_two(settings->n_keys, 2, ML_KEY_NUMBERS_MAX) ||
	    !is_power_of_two(settings->ring_bytes, 1u << 16, 1u << 28) || settings->max_live > 1ull << 30 ||
	    (settings->n_chunks && !is_power_of_two(settings->n_chunks, 2, 1u << 20)))
		return -1;
	reserve(&end, sizeof(struct ml_segment));
	layout->code_maps = reserve(&end, 2 * sizeof(struct ml_code_map));
	layout->rules = reserve(&end, ML_FRAME_RULES * sizeof(struct ml_frame_rule));
	layout->owners = reserve(&end, settings->n_threads * sizeof(ml_u64));
	layout->threads = reserve(&end, settings->n_threads * (ml_u64)sizeof(struct ml_thread));
	layout->memos = reserve(&end, (ml_u64)settings->n_threads * ML_MEMOS * sizeof(struct ml_memo));
	layout->key_index = reserve(&end, (ml_key_near(settings) + 2ull * settings->n_keys) * sizeof(ml_u32));
	layout->keys = reserve(&end, settings->n_keys * (ml_u64)sizeof(struct ml_key));
	layout->peaks = reserve(&end, settings->n_keys * (ml_u64)sizeof(ml_u64));
	layout->filter = reserve(&end, ML_FILTER_COUNTS);
	layout->chunk_numbers = reserve(&end, settings->n_chunks * sizeof(ml_u64));
	layout->chunks = reserve(&end, settings->n_chunks * (ml_u64)sizeof(struct ml_shadow_chunk));
	layout->rests = reserve(&end, ml_shadow_n_rests(settings) * (ml_u64)sizeof(struct ml_shadow_rest));
	reserve_levels(settings, layout, &end);
	layout->rings = reserve(&end, (ml_u64)settings->n_threads * settings->ring_bytes);
	layout->hooked = reserve(&end, ML_HOOKED_MAX * sizeof(struct ml_hooked));
	layout->pairs = reserve(&end, sizeof(struct ml_pair_table));
	layout->bytes = end;
	return 0;
}

void ml_view_set(struct ml_view *view, void *base, const struct ml_settings *settings, const struct ml_layout *layout)
{
	unsigned char *bytes = base;

	view->segment = base;
	view->layout = *layout;
	view->settings = *settings;
	view->code_maps = (struct ml_code_map *)(bytes + layout->code_maps);
	view->rules = (struct ml_frame_rule *)(bytes + layout->rules);
	view->owners = (ml_u64 *)(bytes + layout->owners);
	view->threads = (struct ml_thread *)(bytes + layout->threads);
	view->memos = (struct ml_memo *)(bytes + layout->memos);
	view->key_index = (ml_u32 *)(bytes + layout->key_index);
	view->filter = bytes + layout->filter;
	view->chunk_numbers = (ml_u64 *)(bytes + layout->chunk_numbers);
	view->rests = (struct ml_shadow_rest *)(bytes + layout->rests);
	view->chunks = (struct ml_shadow_chunk *)(bytes + layout->chunks);
	view->keys = (struct ml_key *)(bytes + layout->keys);
	view->peaks = (ml_u64 *)(bytes + layout->peaks);
	for (ml_u32 i = 0; i < layout->n_levels; i++) {
		view->level_displaced[i] = (ml_u64 *)(bytes + layout->level_displaced[i]);
		view->level_slots[i] = (struct ml_slot *)(bytes + layout->level_slots[i]);
	}
	view->rings = bytes + layout->rings;
	view->hooked = (struct ml_hooked *)(bytes + layout->hooked);
	view->pairs = (struct ml_pair_table *)(bytes + layout->pairs);
}
