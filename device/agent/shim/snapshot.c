// SPDX-License-Identifier: Apache-2.0
/* Rows as KEYS and LIVE blocks, chunk by chunk. */
#include "agent/shim/snapshot.h"

#include <sys/resource.h>

#include "agent/protocol/blocks.h"
#include "agent/shim/peak.h"

#define CHUNK 32768u

static struct live_chunk {
	struct ml_live head;
	ml_u64 address[CHUNK], size[CHUNK], timestamp_ns[CHUNK], sequence[CHUNK], key[CHUNK];
	ml_u32 pid[CHUNK], tid[CHUNK], function[CHUNK], sample_bytes[CHUNK];
} live;

static struct keys_chunk {
	struct ml_keys head;
	ml_u64 columns[7][CHUNK];
} keys;

static int write_live(ml_u32 is_last)
{
	size_t wide = live.head.count * sizeof(ml_u64), narrow = live.head.count * sizeof(ml_u32);
	struct iovec parts[] = {
		{ &live.head, sizeof(live.head) }, { live.address, wide }, { live.size, wide },
		{ live.timestamp_ns, wide }, { live.sequence, wide }, { live.key, wide }, { live.pid, narrow },
		{ live.tid, narrow }, { live.function, narrow }, { live.sample_bytes, narrow },
	};
	int result;

	live.head.last = is_last;
	result = ml_blocks_writev(ML_BLOCK_LIVE, parts, sizeof(parts) / sizeof(parts[0]));
	live.head.count = 0;
	return result;
}

static int add_live(void *context, const struct ml_live_row *row)
{
	ml_u32 i = live.head.count++;

	(void)context;
	live.address[i] = row->address;
	live.size[i] = row->size;
	live.timestamp_ns[i] = row->timestamp_ns;
	live.sequence[i] = row->sequence;
	live.key[i] = row->key;
	live.pid[i] = row->pid;
	live.tid[i] = row->tid;
	live.function[i] = row->function;
	live.sample_bytes[i] = row->sample_bytes;
	return live.head.count == CHUNK ? write_live(0) : 0;
}

static int write_keys(ml_u32 is_last)
{
	size_t bytes = keys.head.count * sizeof(ml_u64);
	struct iovec parts[8] = { { &keys.head, sizeof(keys.head) } };
	int result;

	for (int i = 0; i < 7; i++)
		parts[1 + i] = (struct iovec){ keys.columns[i], bytes };
	keys.head.last = is_last;
	result = ml_blocks_writev(ML_BLOCK_KEYS, parts, 8);
	keys.head.count = 0;
	return result;
}

static int add_key(void *context, const struct ml_key_row *row)
{
	const ml_u64 columns[7] = {
		row->key, row->alloc_objects, row->alloc_bytes, row->free_objects, row->free_bytes, row->flags, row->pid,
	};

	(void)context;
	for (int i = 0; i < 7; i++)
		keys.columns[i][keys.head.count] = columns[i];
	return ++keys.head.count == CHUNK ? write_keys(0) : 0;
}

static int add_all_keys(const struct ml_preload_processes *processes)
{
	int result = 0;

	for (size_t i = 0; i < processes->ended.n_keys && !result; i++)
		result = add_key(NULL, &processes->ended.keys[i]);
	for (size_t i = 0; i < processes->n_targets && !result; i++)
		result = ml_preload_rows_keys(processes->targets[i], add_key, NULL);
	return result ? result : write_keys(1);
}

static int add_all_live(const struct ml_preload_processes *processes, const struct ml_regions *regions)
{
	int result = 0;

	for (size_t i = 0; i < processes->ended.n_live && !result; i++)
		result = add_live(NULL, &processes->ended.live[i]);
	for (size_t i = 0; i < processes->n_targets && !result; i++)
		result = ml_preload_rows_live(processes->targets[i], add_live, NULL);
	for (size_t i = 0; i < regions->count && !result; i++) {
		struct ml_live_row row = ml_preload_region_row(&regions->rows[i]);

		result = add_live(NULL, &row);
	}
	return result ? result : write_live(1);
}

int ml_preload_snapshot(const struct ml_preload_processes *processes, const struct ml_regions *regions, ml_u64 number)
{
	ml_u64 now = ml_clock_ns();

	live.head = (struct ml_live){ .snapshot = number, .timestamp_ns = now };
	keys.head = (struct ml_keys){ .snapshot = number, .timestamp_ns = now };
	for (size_t i = 0; i < processes->n_targets; i++)
		if (ml_preload_peak_write(processes->targets[i]))
			return -1;
	return add_all_keys(processes) || add_all_live(processes, regions) ? -1 : 0;
}

int ml_preload_status(const struct ml_preload_processes *processes, const ml_u64 *agent_lost)
{
	struct ml_status status = processes->ended.totals;
	struct rusage usage;

	status.timestamp_ns = ml_clock_ns();
	for (size_t i = 0; i < processes->n_targets; i++)
		ml_preload_rows_count(processes->targets[i], &status);
	for (int i = 0; i < ML_LOST_MAX; i++)
		status.lost[i] += agent_lost[i];
	status.lost[ML_LOST_PROGRAMS] += ml_preload_processes_unmeasured(processes);
	getrusage(RUSAGE_SELF, &usage);
	status.tracer_cpu_ns = (ml_u64)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000000u +
			       (ml_u64)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1000u;
	return ml_blocks_write(ML_BLOCK_STATUS, &status, sizeof(status));
}
