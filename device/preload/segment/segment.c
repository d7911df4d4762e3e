// SPDX-License-Identifier: Apache-2.0
#include "preload/segment/segment.h"

#define FIRST_LEVEL_BITS 12u
#define LAYOUT_ALIGN 65536u /* at least a page on every Linux machine */

/*
 * The first threads have large rings. Each further one has a ring for two of the largest records, because address space
 * is scarce.
 */
#define THREADS_NEAR (sizeof(void *) == 8 ? 1024u : 64u)
#define FAR_RING_BYTES (sizeof(void *) == 8 ? 512u << 10 : 256u << 10)

static ml_u32 smaller(ml_u32 one, ml_u32 other)
{
	return one < other ? one : other;
}

/* The next part of the segment. */
static void *part(struct ml_view *view, ml_u64 n, ml_u64 bytes)
{
	ml_u64 start = view->bytes;

	view->bytes = (start + n * bytes + LAYOUT_ALIGN - 1) & ~(ml_u64)(LAYOUT_ALIGN - 1);
	return (void *)((unsigned long)view->segment + (unsigned long)start);
}

static int is_power_of_two(ml_u64 value, ml_u64 least, ml_u64 most)
{
	return value >= least && value <= most && !(value & (value - 1));
}

/*
 * A block may be in a few pairs of buckets of each level. At about three quarters load some block finds all of them
 * full, so max_live is that share of all slots.
 */
static void set_levels(struct ml_view *view)
{
	ml_u64 wanted = view->settings.max_live + view->settings.max_live / 3;
	ml_u64 slots = 0;

	view->first_level_bits = FIRST_LEVEL_BITS;
	while (view->first_level_bits > 6 && (ML_BUCKET_SLOTS << (view->first_level_bits - 1)) >= wanted)
		view->first_level_bits--;
	view->n_levels = 0;
	do {
		ml_u32 level = view->n_levels++;
		ml_u64 buckets = 1ull << ml_view_level_bits(view, level);

		view->level_slots[level] = part(view, buckets * ML_BUCKET_SLOTS, sizeof(struct ml_slot));
		view->level_displaced[level] = part(view, buckets / 16 + 8, 1);
		slots += buckets * ML_BUCKET_SLOTS;
	} while (slots < wanted && view->n_levels < ML_TABLE_LEVELS);
}

int ml_view_set(struct ml_view *view, void *base, const struct ml_settings *settings)
{
	if (!is_power_of_two(settings->n_threads, 2, 1u << 16) || !is_power_of_two(settings->n_keys, 2, ML_KEY_NUMBERS_MAX) ||
	    !is_power_of_two(settings->ring_bytes, 1u << 16, 1u << 28) || settings->max_live > 1ull << 30 ||
	    (settings->n_chunks && !is_power_of_two(settings->n_chunks, 2, 1u << 20)))
		return -1;
	view->segment = base;
	view->bytes = 0;
	view->settings = *settings;
	part(view, 1, sizeof(*view->segment));
	view->code_maps = part(view, 2, sizeof(*view->code_maps));
	view->rules = part(view, ML_FRAME_RULES, sizeof(*view->rules));
	view->owners = part(view, settings->n_threads, sizeof(*view->owners));
	view->threads = part(view, settings->n_threads, sizeof(*view->threads));
	view->memos = part(view, settings->n_threads * ML_MEMOS, sizeof(*view->memos));
	view->key_index = part(view, ml_key_near(settings) + 2ull * settings->n_keys, sizeof(*view->key_index));
	view->keys = part(view, settings->n_keys, sizeof(*view->keys));
	view->peaks = part(view, settings->n_keys, sizeof(*view->peaks));
	view->filter = part(view, ML_FILTER_COUNTS, 1);
	view->chunk_numbers = part(view, settings->n_chunks, sizeof(*view->chunk_numbers));
	view->chunks = part(view, settings->n_chunks, sizeof(*view->chunks));
	view->rests = part(view, ml_shadow_n_rests(settings), sizeof(*view->rests));
	set_levels(view);
	view->n_near = smaller(settings->n_threads, THREADS_NEAR);
	view->far_ring_bytes = smaller(settings->ring_bytes, FAR_RING_BYTES);
	view->rings = part(view, view->n_near, settings->ring_bytes);
	part(view, settings->n_threads - view->n_near, view->far_ring_bytes);
	view->hooked = part(view, ML_HOOKED_MAX, sizeof(*view->hooked));
	view->pairs = part(view, 1, sizeof(*view->pairs));
	view->python_slots = part(view, 1u << ML_PYTHON_SLOT_BITS, sizeof(*view->python_slots));
	view->children = part(view, 1, sizeof(*view->children));
	return 0;
}
