// SPDX-License-Identifier: Apache-2.0
#include "agent/shim/rows.h"

#include <errno.h>
#include <unistd.h>

#include "preload/segment/keys.h"
#include "preload/segment/shadow.h"
#include "preload/segment/table.h"

#define SLOTS_PER_PAGE (4096 / sizeof(struct ml_slot)) /* or a part of a larger page */

/* ---- blocks ------------------------------------------------------------------------------------------- */

static struct ml_live_row row_of(const struct ml_preload_target *target, ml_u64 address, const struct ml_entry *entry)
{
	return (struct ml_live_row){
		.address = address & ML_PAIR_HANDLE_MASK,
		.size = entry->size,
		.timestamp_ns = entry->timestamp_ns,
		.sequence = ml_preload_target_sequence(target, entry->sequence),
		.key = target->view.keys[entry->key_index & (target->view.settings.n_keys - 1)].key,
		.pid = target->pid,
		.tid = entry->tid,
		.function = entry->function,
		.sample_bytes = (ml_u32)target->view.settings.sample_bytes,
	};
}

/* The first slot from i on in an existing page: reading a hole would allocate it. */
static ml_u64 skip_hole(const struct ml_preload_target *target, ml_u32 level, ml_u64 i)
{
	off_t start = (const char *)&target->view.level_slots[level][i] - (const char *)target->view.segment;
	off_t data = lseek(target->memory_fd, start, SEEK_DATA);

	if (data < 0)
		return errno == ENXIO ? ~0ull : i;
	return i + (ml_u64)(data - start) / sizeof(struct ml_slot);
}

static int take_level(const struct ml_preload_target *target, ml_u32 level, ml_take_live *take, void *context)
{
	ml_u64 slots = (ml_u64)ML_BUCKET_SLOTS << ml_view_level_bits(&target->view, level);
	int result = 0;

	for (ml_u64 i = 0; i < slots && !result; i++) {
		struct ml_live_row row;
		struct ml_entry entry;
		ml_u64 address;

		if (i % SLOTS_PER_PAGE == 0)
			i = skip_hole(target, level, i);
		if (i >= slots)
			break;
		address = ml_slot_read(target->view.segment, &target->view.level_slots[level][i], &entry);
		if (!address)
			continue;
		row = row_of(target, address, &entry);
		result = take(context, &row);
	}
	return result;
}

/* ---- blocks in shadow memory -------------------------------------------------------------------------- */

static struct {
	ml_u64 before[ML_SHADOW_GRANULES], after[ML_SHADOW_GRANULES];
	struct ml_shadow_rest rest[ML_SHADOW_GRANULES];
} shadow;

static int copy_segment(const struct ml_preload_target *target, const void *from, void *to, size_t bytes)
{
	off_t offset = (const char *)from - (const char *)target->view.segment;

	return pread(target->memory_fd, to, bytes, offset) == (ssize_t)bytes ? 0 : -1;
}

/*
 * The kernel copies the words: mapping the pages costs as much, and would allocate holes. A block is valid if its word is the same before
 * and after reading its rest. Not 0: no blocks.
 */
static int copy_chunk(const struct ml_preload_target *target, ml_u32 index)
{
	const struct ml_shadow_chunk *chunk = &target->view.chunks[index];
	ml_u32 n_rests = ml_shadow_n_rests(&target->view.settings);
	ml_u64 any = 0;

	if (copy_segment(target, chunk->words, shadow.before, sizeof(shadow.before)))
		return -1;
	for (ml_u32 i = 0; i < ML_SHADOW_GRANULES; i++) /* vectorised by the compiler */
		any |= shadow.before[i];
	if (!(any & ML_SHADOW_USED))
		return 1;
	for (ml_u32 i = 0; i < ML_SHADOW_GRANULES; i++) {
		ml_u64 word = shadow.before[i];

		if (word & ML_SHADOW_USED && ml_shadow_rest_of(word) < n_rests)
			shadow.rest[i] = *(const volatile struct ml_shadow_rest *)&target->view.rests[ml_shadow_rest_of(word)];
		else
			shadow.before[i] = 0; /* not one of another process's rests, read before */
	}
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	return target->is_gone ? 0 : copy_segment(target, chunk->words, shadow.after, sizeof(shadow.after));
}

static int take_chunk(const struct ml_preload_target *target, ml_u32 index, ml_u64 start, ml_take_live *take, void *context)
{
	const ml_u64 *after = target->is_gone ? shadow.before : shadow.after; /* in an ended process words do not change */
	int result = 0;

	if (copy_chunk(target, index))
		return 0;
	for (ml_u64 i = 0; i < ML_SHADOW_GRANULES && !result; i++) {
		ml_u64 word = shadow.before[i], part = word >> ML_SHADOW_PART_SHIFT & 3;
		struct ml_live_row row;
		struct ml_entry entry;

		if (!(word & ML_SHADOW_USED) || word != after[i])
			continue;
		entry = ml_shadow_unpack(target->view.segment, word, &shadow.rest[i]);
		row = row_of(target, start + (i << ML_SHADOW_GRANULE_SHIFT) + (part << 3), &entry);
		result = take(context, &row);
	}
	return result;
}

static int take_chunks(const struct ml_preload_target *target, ml_take_live *take, void *context)
{
	static ml_u64 numbers[4096];
	ml_u32 n_chunks = target->view.settings.n_chunks;
	int result = 0;

	for (ml_u32 index = 0; index < n_chunks && !result; index++) {
		ml_u32 i = index % 4096;

		if (!i && copy_segment(target, &target->view.chunk_numbers[index], numbers,
				       (n_chunks - index < 4096 ? n_chunks - index : 4096) * sizeof(numbers[0])))
			return -1;
		if (numbers[i])
			result = take_chunk(target, index, (numbers[i] - 1) << ML_SHADOW_CHUNK_SHIFT, take, context);
	}
	return result;
}

int ml_preload_rows_live(const struct ml_preload_target *target, ml_take_live *take, void *context)
{
	ml_u32 open = __atomic_load_n(&target->view.segment->n_levels_open, __ATOMIC_ACQUIRE);
	int result = take_chunks(target, take, context);

	for (ml_u32 level = 0; level < open && level < target->view.n_levels && !result; level++)
		result = take_level(target, level, take, context);
	return result;
}

/* ---- counters ----------------------------------------------------------------------------------------- */

int ml_preload_rows_keys(const struct ml_preload_target *target, ml_take_key *take, void *context)
{
	ml_u32 n = ml_view_n_keys(&target->view);
	int result = 0;

	for (ml_u32 number = 0; number < n && !result; number++) {
		const struct ml_key *key = &target->view.keys[number];
		struct ml_key_row row = { .key = key->key, .pid = target->pid };

		if (!key->alloc_objects)
			continue;
		/* Frees are read first, so that they never exceed allocations. */
		row.free_objects = __atomic_load_n(&key->free_objects, __ATOMIC_ACQUIRE);
		row.free_bytes = __atomic_load_n(&key->free_bytes, __ATOMIC_ACQUIRE);
		row.alloc_objects = __atomic_load_n(&key->alloc_objects, __ATOMIC_RELAXED);
		row.alloc_bytes = __atomic_load_n(&key->alloc_bytes, __ATOMIC_RELAXED);
		row.flags = row.key & ML_KEY_SAW_PART ? ML_KEY_PARTIAL : 0;
		result = take(context, &row);
	}
	return result;
}

void ml_preload_rows_count(const struct ml_preload_target *target, struct ml_status *status)
{
	const struct ml_view *view = &target->view;
	ml_u32 n_keys = ml_view_n_keys(&target->view);

	for (ml_u32 i = 0; i < n_keys; i++)
		ml_status_add(status, view->keys[i].alloc_objects, view->keys[i].alloc_bytes, view->keys[i].free_objects,
			      view->keys[i].free_bytes);
	for (ml_u32 i = 0; i < view->settings.n_threads; i++)
		if (view->owners[i])
			status->untracked_frees += view->threads[i].untracked_frees;
	for (int i = 0; i < ML_LOST_MAX; i++)
		status->lost[i] += view->segment->lost[i];
	status->evidence_records += target->evidence_records;
}
