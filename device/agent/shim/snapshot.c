// SPDX-License-Identifier: Apache-2.0
#include "agent/shim/snapshot.h"

#include "agent/shim/peak.h"

static int add_live(void *snapshot, const struct ml_live_row *row)
{
	return ml_snapshot_add_live(snapshot, row);
}

static int add_key(void *snapshot, const struct ml_key_row *row)
{
	return ml_snapshot_add_key(snapshot, row);
}

static int add_all_keys(struct ml_snapshot *snapshot, const struct ml_preload_processes *processes)
{
	int result = 0;

	for (size_t i = 0; i < processes->ended.n_keys && !result; i++)
		result = add_key(snapshot, &processes->ended.keys[i]);
	for (size_t i = 0; i < processes->n_targets && !result; i++)
		result = ml_preload_rows_keys(processes->targets[i], add_key, snapshot);
	return result ? result : ml_snapshot_end_keys(snapshot);
}

static int add_all_live(struct ml_snapshot *snapshot, const struct ml_preload_processes *processes)
{
	int result = 0;

	for (size_t i = 0; i < processes->ended.n_live && !result; i++)
		result = add_live(snapshot, &processes->ended.live[i]);
	for (size_t i = 0; i < processes->n_targets && !result; i++)
		result = ml_preload_rows_live(processes->targets[i], add_live, snapshot);
	return result;
}

int ml_preload_snapshot(const struct ml_preload_processes *processes, const struct ml_regions *regions, ml_u64 number)
{
	struct ml_snapshot *snapshot;

	for (size_t i = 0; i < processes->n_targets; i++)
		if (ml_preload_peak_write(processes->targets[i]))
			return -1;
	snapshot = ml_snapshot_begin(number);
	return ml_snapshot_end(snapshot, !snapshot || add_all_keys(snapshot, processes) || add_all_live(snapshot, processes) ||
						 ml_snapshot_add_regions(snapshot, regions));
}

int ml_preload_status(const struct ml_preload_processes *processes, const ml_u64 *agent_lost)
{
	struct ml_status status = processes->ended.totals;

	for (size_t i = 0; i < processes->n_targets; i++)
		ml_preload_rows_count(processes->targets[i], &status);
	for (int i = 0; i < ML_LOST_MAX; i++)
		status.lost[i] += agent_lost[i];
	status.lost[ML_LOST_PROGRAMS] += ml_preload_processes_unmeasured(processes);
	return ml_status_write(&status);
}
