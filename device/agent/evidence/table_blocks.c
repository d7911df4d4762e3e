// SPDX-License-Identifier: Apache-2.0
#include "agent/evidence/table_blocks.h"

#include <stdlib.h>
#include <sys/resource.h>

#include "agent/protocol/blocks.h"

#define CHUNK_ROWS 65536u
#define KEY_COLUMNS 7
#define LIVE_WIDE 5 /* columns of 64 bits, then those of 32 */
#define LIVE_NARROW 4

struct ml_snapshot {
	struct ml_live live;
	struct ml_keys keys;
	ml_u64 wide[LIVE_WIDE][CHUNK_ROWS];
	ml_u32 narrow[LIVE_NARROW][CHUNK_ROWS];
	ml_u64 key_columns[KEY_COLUMNS][CHUNK_ROWS];
};

struct ml_snapshot *ml_snapshot_begin(ml_u64 number, ml_u64 taken_ns)
{
	struct ml_snapshot *snapshot = malloc(sizeof(*snapshot));

	if (!snapshot)
		return NULL;
	snapshot->keys = (struct ml_keys){ .snapshot = number, .timestamp_ns = taken_ns };
	snapshot->live = (struct ml_live){ .snapshot = number };
	return snapshot;
}

static int write_keys(struct ml_snapshot *snapshot, bool is_last)
{
	struct iovec parts[1 + KEY_COLUMNS] = { { &snapshot->keys, sizeof(snapshot->keys) } };

	for (int i = 0; i < KEY_COLUMNS; i++)
		parts[1 + i] = (struct iovec){ snapshot->key_columns[i], snapshot->keys.count * sizeof(ml_u64) };
	snapshot->keys.last = is_last;
	if (ml_blocks_writev(ML_BLOCK_KEYS, parts, 1 + KEY_COLUMNS))
		return -1;
	snapshot->keys.count = 0;
	return 0;
}

int ml_snapshot_add_key(void *context, const struct ml_key_row *row)
{
	struct ml_snapshot *snapshot = context;
	const ml_u64 values[KEY_COLUMNS] = { row->key,        row->alloc_objects, row->alloc_bytes, row->free_objects,
					     row->free_bytes, row->flags,         row->pid };

	for (int i = 0; i < KEY_COLUMNS; i++)
		snapshot->key_columns[i][snapshot->keys.count] = values[i];
	return ++snapshot->keys.count == CHUNK_ROWS ? write_keys(snapshot, false) : 0;
}

int ml_snapshot_end_keys(struct ml_snapshot *snapshot)
{
	int result = write_keys(snapshot, true);

	snapshot->live.timestamp_ns = ml_clock_ns();
	return result;
}

static int write_live(struct ml_snapshot *snapshot, bool is_last)
{
	struct iovec parts[1 + LIVE_WIDE + LIVE_NARROW] = { { &snapshot->live, sizeof(snapshot->live) } };

	for (int i = 0; i < LIVE_WIDE; i++)
		parts[1 + i] = (struct iovec){ snapshot->wide[i], snapshot->live.count * sizeof(ml_u64) };
	for (int i = 0; i < LIVE_NARROW; i++)
		parts[1 + LIVE_WIDE + i] = (struct iovec){ snapshot->narrow[i], snapshot->live.count * sizeof(ml_u32) };
	snapshot->live.last = is_last;
	if (ml_blocks_writev(ML_BLOCK_LIVE, parts, sizeof(parts) / sizeof(parts[0])))
		return -1;
	snapshot->live.count = 0;
	return 0;
}

int ml_snapshot_add_live(void *context, const struct ml_live_row *row)
{
	struct ml_snapshot *snapshot = context;
	const ml_u64 wide[LIVE_WIDE] = { row->address, row->size, row->timestamp_ns, row->sequence, row->key };
	const ml_u32 narrow[LIVE_NARROW] = { row->pid, row->tid, row->function, row->sample_bytes };

	for (int i = 0; i < LIVE_WIDE; i++)
		snapshot->wide[i][snapshot->live.count] = wide[i];
	for (int i = 0; i < LIVE_NARROW; i++)
		snapshot->narrow[i][snapshot->live.count] = narrow[i];
	return ++snapshot->live.count == CHUNK_ROWS ? write_live(snapshot, false) : 0;
}

/* No sequence number: a region may be the rest of a larger one, so only its key leads to a stack. */
struct ml_live_row ml_region_row(const struct ml_region *region)
{
	return (struct ml_live_row){ .address = region->start,
				     .size = region->end - region->start,
				     .timestamp_ns = region->timestamp_ns,
				     .key = region->key,
				     .pid = region->pid,
				     .tid = region->tid,
				     .function = region->function };
}

int ml_snapshot_add_regions(struct ml_snapshot *snapshot, const struct ml_regions *regions)
{
	int result = 0;

	for (size_t i = 0; i < regions->count && !result; i++) {
		struct ml_live_row row = ml_region_row(&regions->rows[i]);

		result = ml_snapshot_add_live(snapshot, &row);
	}
	return result;
}

int ml_snapshot_end(struct ml_snapshot *snapshot, int result)
{
	if (!snapshot)
		return -1;
	if (!result)
		result = write_live(snapshot, true);
	free(snapshot);
	return result;
}

static int write_peak_rows(struct ml_peak_rows *rows, bool is_last)
{
	size_t bytes = rows->head.count * sizeof(ml_u64);
	struct iovec parts[] = { { &rows->head, sizeof(rows->head) }, { rows->key, bytes }, { rows->bytes, bytes } };

	rows->head.last = is_last;
	if (ml_blocks_writev(ML_BLOCK_HIGH_WATER, parts, 3))
		return -1;
	rows->head.count = 0;
	return 0;
}

int ml_peak_rows_add(struct ml_peak_rows *rows, ml_u64 key, ml_u64 bytes)
{
	if (!bytes)
		return 0;
	rows->key[rows->head.count] = key;
	rows->bytes[rows->head.count] = bytes;
	return ++rows->head.count == ML_PEAK_ROWS ? write_peak_rows(rows, false) : 0;
}

int ml_peak_rows_end(struct ml_peak_rows *rows)
{
	return write_peak_rows(rows, true);
}

int ml_status_write(struct ml_status *status)
{
	struct rusage usage;

	status->timestamp_ns = ml_clock_ns();
	getrusage(RUSAGE_SELF, &usage);
	status->tracer_cpu_ns = (ml_u64)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000000u +
				(ml_u64)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1000u;
	return ml_blocks_write(ML_BLOCK_STATUS, status, sizeof(*status));
}
