// SPDX-License-Identifier: Apache-2.0
#include "agent/shim/peak.h"

#include <stdlib.h>

#include "agent/evidence/table_blocks.h"
#include "preload/segment/keys.h"

/* The bytes that the key held at the mark of this generation. An update between the reads leaves a word of this generation. */
static ml_u64 held_at(const struct ml_view *view, ml_u32 number, ml_u64 generation)
{
	const struct ml_key *key = &view->keys[number];
	ml_u64 freed = __atomic_load_n(&key->free_bytes, __ATOMIC_ACQUIRE);
	ml_u64 now = __atomic_load_n(&key->alloc_bytes, __ATOMIC_ACQUIRE) - freed;
	ml_u64 word = __atomic_load_n(&view->peaks[number], __ATOMIC_ACQUIRE);

	return word >> ML_PEAK_BYTES_BITS == generation ? word & ML_PEAK_BYTES_MASK : now;
}

static int write_keys(const struct ml_preload_target *target, struct ml_peak_rows *rows, ml_u64 generation)
{
	ml_u32 n_keys = ml_view_n_keys(&target->view);

	for (ml_u32 number = 0; number < n_keys; number++)
		if (ml_peak_rows_add(rows, target->view.keys[number].key, held_at(&target->view, number, generation)))
			return -1;
	return ml_peak_rows_end(rows);
}

int ml_preload_peak_write(struct ml_preload_target *target)
{
	const struct ml_peak_state *peak = &target->view.segment->peak;
	ml_u64 generation = __atomic_load_n(&peak->generation, __ATOMIC_ACQUIRE), mark = ml_read(&peak->mark);
	struct ml_peak_rows *rows;
	int result;

	/* A mark that stopped rising because its generations ran out is not the peak. */
	if (generation == target->peak_sent || generation >= ML_PEAK_GENERATION_MAX || !mark)
		return 0;
	rows = calloc(1, sizeof(*rows));
	if (!rows)
		return 0; /* the host keeps the earlier mark, if any */
	rows->head = (struct ml_high_water){
		.timestamp_ns = ml_read(&peak->timestamp_ns),
		.mark = mark,
		/* A step, and what threads had not published when the mark was reached and passed. */
		.bound_bytes = (mark >> ML_PEAK_STEP_SHIFT) + 2 * ml_read(&peak->batch) * ml_read(&peak->n_threads),
		.pid = target->pid,
	};
	result = write_keys(target, rows, generation);
	free(rows);
	target->peak_sent = generation;
	return result;
}

static bool held_much(const struct ml_view *view, ml_u32 number)
{
	const struct ml_peak_state *peak = &view->segment->peak;

	return held_at(view, number, ml_read(&peak->generation)) > ml_read(&peak->mark) >> ML_PEAK_PART_SHIFT;
}

void ml_preload_peak_close(struct ml_preload_last_peak *last, struct ml_preload_target *target)
{
	ml_u32 n_keys = ml_view_n_keys(&target->view);

	ml_preload_peak_write(target);
	last->n_keys = 0;
	for (ml_u32 number = 0; number < n_keys && last->n_keys < ML_PRELOAD_PEAK_KEYS; number++)
		if (held_much(&target->view, number))
			last->keys[last->n_keys++] = target->view.keys[number].key;
}

bool ml_preload_was_in_peak(const struct ml_preload_last_peak *last, struct ml_preload_target *const *targets, size_t n_targets,
			    ml_u64 key)
{
	for (size_t i = 0; i < n_targets; i++) {
		const struct ml_view *view = &targets[i]->view;
		const struct ml_key *entry = ml_preload_target_find_key(targets[i], key);

		if (entry && held_much(view, (ml_u32)(entry - view->keys)))
			return true;
	}
	for (ml_u32 i = 0; i < last->n_keys; i++)
		if (last->keys[i] == key)
			return true;
	return false;
}
