// SPDX-License-Identifier: Apache-2.0
#include "agent/shim/ended.h"

#include <stdlib.h>
#include <sys/random.h>

#include "agent/protocol/blocks.h"
#include "agent/protocol/extend.h"

#define FIRST_SLOTS 1024
#define PHI 0x9e3779b97f4a7c15ull

static int take_live(void *context, const struct ml_live_row *row)
{
	struct ml_preload_ended *ended = context;

	if (ended->n_live < ended->live_max && ML_EXTEND(ended->live, ended->n_live, ended->live_room))
		ended->live[ended->n_live++] = *row;
	else
		ended->totals.lost[ML_LOST_TABLE_FULL]++;
	return 0;
}

/* ---- blocks by key ------------------------------------------------------------------------------------ */

/* A target chooses its keys, but does not know the seed: it cannot make all of them meet in one place. */
static size_t hash(const struct ml_preload_ended *ended, ml_u64 key)
{
	ml_u64 mixed = (key ^ ended->seed) * PHI;

	mixed = (mixed ^ mixed >> 32 ^ ended->seed >> 7) * PHI;
	return (size_t)(mixed ^ mixed >> 29);
}

/* The slot of the key, or the free slot for it. The table is never full. */
static struct ml_held_key *find_slot(const struct ml_preload_ended *ended, ml_u64 key)
{
	size_t i = hash(ended, key);

	while (ended->held[i & (ended->held_slots - 1)].key && ended->held[i & (ended->held_slots - 1)].key != key)
		i++;
	return &ended->held[i & (ended->held_slots - 1)];
}

static bool enlarge_held(struct ml_preload_ended *ended)
{
	struct ml_preload_ended larger = *ended;

	if (!ended->held_slots && getrandom(&larger.seed, sizeof(larger.seed), GRND_NONBLOCK) < 0)
		larger.seed = ml_clock_ns();
	larger.held_slots = ended->held_slots ? 2 * ended->held_slots : FIRST_SLOTS;
	larger.held = calloc(larger.held_slots, sizeof(*larger.held));
	if (!larger.held)
		return false;
	for (size_t i = 0; i < ended->held_slots; i++)
		if (ended->held[i].key)
			*find_slot(&larger, ended->held[i].key) = ended->held[i];
	free(ended->held);
	*ended = larger;
	return true;
}

static bool add_held(struct ml_preload_ended *ended, const struct ml_key_row *row)
{
	struct ml_held_key *slot;

	if (!row->key)
		return true;
	if (2 * ended->n_held >= ended->held_slots && !enlarge_held(ended))
		return false;
	slot = find_slot(ended, row->key);
	ended->n_held += !slot->key;
	slot->key = row->key;
	slot->objects += row->alloc_objects - row->free_objects;
	return true;
}

ml_u64 ml_preload_ended_objects(const struct ml_preload_ended *ended, ml_u64 key, bool *is_counted)
{
	const struct ml_held_key *slot = ended->held_slots && key ? find_slot(ended, key) : NULL;

	if (!slot || !slot->key)
		return 0;
	*is_counted = true;
	return slot->objects;
}

/* ---- a whole target ----------------------------------------------------------------------------------- */

/*
 * A stack without blocks matters only beside one of a sibling that has some. Not repeated if it freed little room, because it reads all
 * rows.
 */
static void drop_keys_without_blocks(struct ml_preload_ended *ended)
{
	size_t n = 0;

	if (ended->is_full)
		return;
	free(ended->held);
	ended->held = NULL;
	ended->held_slots = ended->n_held = 0;
	for (size_t i = 0; i < ended->n_keys; i++)
		if (ended->keys[i].alloc_objects != ended->keys[i].free_objects && add_held(ended, &ended->keys[i]))
			ended->keys[n++] = ended->keys[i];
	ended->n_keys = n;
	ended->is_full = n > ML_ENDED_KEYS_MAX / 8 * 7;
}

static int take_key(void *context, const struct ml_key_row *row)
{
	struct ml_preload_ended *ended = context;

	if (ended->n_keys == ML_ENDED_KEYS_MAX) {
		if (!ended->has_dropped_keys)
			ml_blocks_log("too many stacks of ended processes; those without blocks are left out of the "
				      "allocation counts");
		ended->has_dropped_keys = true;
		if (row->alloc_objects == row->free_objects)
			return 0;
		drop_keys_without_blocks(ended);
	}
	if (ended->n_keys < ML_ENDED_KEYS_MAX && ML_EXTEND(ended->keys, ended->n_keys, ended->keys_room) &&
	    add_held(ended, row)) {
		ended->keys[ended->n_keys++] = *row;
		return 0;
	}
	ended->totals.lost[ML_LOST_KEYS_FULL] += row->alloc_objects - row->free_objects;
	return 0;
}

void ml_preload_ended_add(struct ml_preload_ended *ended, const struct ml_preload_target *target, struct ml_regions *regions)
{
	ml_preload_rows_count(target, &ended->totals);
	ml_preload_rows_keys(target, take_key, ended);
	ml_preload_rows_live(target, take_live, ended);
	for (size_t i = 0; i < regions->count; i++) {
		struct ml_live_row row = ml_region_row(&regions->rows[i]);

		if (row.pid == target->pid)
			take_live(ended, &row);
	}
	ml_regions_forget(regions, target->pid, ~0ull);
}

void ml_preload_ended_destroy(struct ml_preload_ended *ended)
{
	free(ended->live);
	free(ended->keys);
	free(ended->held);
}
