// SPDX-License-Identifier: Apache-2.0
#include "agent/shim/processes.h"

#include <linux/membarrier.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent/protocol/blocks.h"
#include "agent/process/process_maps.h"
#include "agent/process/proc_file.h"
#include "agent/process/thread_states.h"
#include "agent/shim/peak.h"

#define LAST_CALLS_NS 1000000000ull
#define STEP_US 500
#define WITHOUT_BARRIER_US 10000 /* far longer than a store takes to become visible */
#define NAMED_MAX 8 /* unmeasured programs reported by name; the others are counted */

/* ---- reports ------------------------------------------------------------------------------------------ */

void ml_preload_processes_report_unmeasured(struct ml_preload_processes *processes, ml_u32 pid, const char *name)
{
	if (++processes->n_unmeasured <= NAMED_MAX)
		ml_blocks_log("pid %u became %s by exec, which was not measured: it never loaded the shim (use --tracer "
			      "bpf)",
			      pid, *name ? name : "another program");
}

/* ---- ends --------------------------------------------------------------------------------------------- */

static bool is_inside_exec(const struct ml_preload_target *target)
{
	return __atomic_load_n(&target->view.segment->n_leaving, __ATOMIC_SEQ_CST) != 0;
}

/* The session reports the end of the command, with its status. */
static void report_end(const struct ml_preload_processes *processes, ml_u32 pid, int status)
{
	if (pid != processes->command)
		ml_process_write(pid, ML_PROCESS_EXIT, status, ml_clock_ns());
}

static void report_left(struct ml_preload_processes *processes, const struct ml_preload_left *left)
{
	if (!left->is_reported)
		ml_preload_processes_report_unmeasured(processes, left->pid, left->name);
}

static void forget_left(struct ml_preload_processes *processes, size_t i)
{
	if (processes->left[i].pidfd >= 0)
		close(processes->left[i].pidfd);
	processes->left[i] = processes->left[--processes->n_left];
}

bool ml_preload_processes_find_ended(struct ml_preload_processes *processes)
{
	bool is_any_gone = false;

	for (size_t i = processes->n_left; i-- > 0;)
		if (ml_process_has_ended(processes->left[i].pid, processes->left[i].pidfd)) {
			report_left(processes, &processes->left[i]);
			report_end(processes, processes->left[i].pid,
				   ml_process_exit_status(processes->left[i].pid, processes->left[i].pidfd));
			forget_left(processes, i);
		}
	for (size_t i = 0; i < processes->n_targets; i++) {
		struct ml_preload_target *target = processes->targets[i];

		if (is_inside_exec(target))
			ml_process_name(target->pid, target->next_name);
		target->is_gone = target->is_gone || ml_process_has_ended(target->pid, target->pidfd);
		is_any_gone |= target->is_gone;
	}
	return is_any_gone;
}

static void remove_target(struct ml_preload_processes *processes, size_t i)
{
	struct ml_preload_target *target = processes->targets[i];

	processes->n_children += target->view.children->n;
	ml_preload_target_destroy(target);
	processes->targets[i] = processes->targets[--processes->n_targets];
}

/* Drops the heap of a program that does not exist any more. */
static void drop_heap(struct ml_preload_processes *processes, size_t i, struct ml_regions *regions)
{
	ml_regions_forget(regions, processes->targets[i]->pid, ~0ull);
	remove_target(processes, i);
}

static void close_one(struct ml_preload_processes *processes, size_t i, struct ml_regions *regions)
{
	struct ml_preload_target *target = processes->targets[i];
	ml_u32 pid = target->pid;
	int status = ml_process_exit_status(pid, target->pidfd);

	if (is_inside_exec(target)) {
		ml_preload_processes_report_unmeasured(processes, pid, target->next_name);
		drop_heap(processes, i, regions);
	} else {
		ml_preload_peak_close(&processes->last_peak, target);
		ml_preload_ended_add(&processes->ended, target, regions);
		remove_target(processes, i);
	}
	report_end(processes, pid, status);
}

void ml_preload_processes_close(struct ml_preload_processes *processes, struct ml_regions *regions)
{
	for (size_t i = processes->n_targets; i-- > 0;)
		if (processes->targets[i]->is_gone)
			close_one(processes, i, regions);
}

/* ---- exec ---------------------------------------------------------------------------------------------- */

/* Whether the segment is not mapped any more. If the maps are unreadable, exec gave the process other privileges. */
static bool has_left(const struct ml_preload_target *target)
{
	char *text;
	bool is_mapped;

	if (!is_inside_exec(target))
		return false;
	text = ml_process_maps_read(target->pid, NULL);
	is_mapped = text && strstr(text, "/memfd:" ML_SEGMENT_NAME);
	free(text);
	return !is_mapped;
}

bool ml_preload_processes_on_exec(struct ml_preload_processes *processes, ml_u32 pid)
{
	for (size_t i = 0; i < processes->n_left; i++)
		if (processes->left[i].pid == pid) {
			ml_process_name(pid, processes->left[i].name);
			processes->left[i].is_reported = false; /* a third program */
			return true;
		}
	for (size_t i = 0; i < processes->n_targets; i++)
		if (processes->targets[i]->pid == pid) {
			__atomic_store_n(&processes->targets[i]->view.segment->n_leaving, 1, __ATOMIC_SEQ_CST);
			ml_process_name(pid, processes->targets[i]->next_name);
			return true;
		}
	return false;
}

/* When the table is full, the process stays a target and is reported at its end. */
static void move_to_left(struct ml_preload_processes *processes, size_t i, struct ml_regions *regions)
{
	struct ml_preload_target *target = processes->targets[i];
	struct ml_preload_left *left = &processes->left[processes->n_left];

	if (processes->n_left == ML_PRELOAD_TARGETS)
		return;
	processes->n_left++;
	*left = (struct ml_preload_left){ .pid = target->pid, .pidfd = target->pidfd };
	ml_process_name(target->pid, left->name);
	target->pidfd = -1; /* moved to `left` */
	drop_heap(processes, i, regions);
}

void ml_preload_processes_drop_left(struct ml_preload_processes *processes, struct ml_regions *regions)
{
	for (size_t i = processes->n_targets; i-- > 0;)
		if (has_left(processes->targets[i]))
			move_to_left(processes, i, regions);
}

void ml_preload_processes_report_left(struct ml_preload_processes *processes)
{
	for (; processes->n_left; forget_left(processes, processes->n_left - 1))
		report_left(processes, &processes->left[processes->n_left - 1]);
}

/* ---- joins -------------------------------------------------------------------------------------------- */

const char *ml_preload_processes_refusal(const struct ml_preload_processes *processes)
{
	if (processes->n_targets == ML_PRELOAD_TARGETS)
		return "too many processes at one time";
	return processes->next_index >= ML_SEQUENCE_PROCESSES ? "too many processes in one session" : NULL;
}

void ml_preload_processes_refuse(struct ml_preload_processes *processes, ml_u32 pid, const char *reason,
				 struct ml_regions *regions)
{
	if (++processes->n_unmeasured <= NAMED_MAX)
		ml_blocks_log("pid %u was not measured: %s", pid, reason);
	for (size_t i = 0; i < processes->n_targets; i++)
		if (processes->targets[i]->pid == pid && !ml_process_has_ended(pid, processes->targets[i]->pidfd)) {
			move_to_left(processes, i, regions);
			break;
		}
	for (size_t i = 0; i < processes->n_left; i++)
		if (processes->left[i].pid == pid)
			processes->left[i].is_reported = true;
}

/* Whether the pid has a known program that was replaced by exec. */
static bool has_called_exec(struct ml_preload_processes *processes, ml_u32 pid, struct ml_regions *regions)
{
	for (size_t i = processes->n_left; i-- > 0;)
		if (processes->left[i].pid == pid && !ml_process_has_ended(pid, processes->left[i].pidfd)) {
			forget_left(processes, i);
			return true;
		}
	for (size_t i = processes->n_targets; i-- > 0;) {
		if (processes->targets[i]->pid != pid)
			continue;
		if (!ml_process_has_ended(pid, processes->targets[i]->pidfd)) {
			drop_heap(processes, i, regions);
			return true;
		}
		close_one(processes, i, regions);
	}
	return false;
}

void ml_preload_processes_add(struct ml_preload_processes *processes, struct ml_preload_target *target,
			      struct ml_regions *regions, ml_u64 timestamp_ns)
{
	bool is_exec = has_called_exec(processes, target->pid, regions);

	processes->n_joined++;
	processes->targets[processes->n_targets++] = target;
	ml_process_write(target->pid, is_exec ? ML_PROCESS_EXEC : ML_PROCESS_START, -1, timestamp_ns);
}

static ml_u64 count_unmeasured(const struct ml_preload_processes *processes)
{
	ml_u64 n = processes->n_unmeasured;

	for (size_t i = 0; i < processes->n_left; i++)
		n += !processes->left[i].is_reported;
	return n;
}

ml_u64 ml_preload_processes_children(const struct ml_preload_processes *processes)
{
	ml_u64 n = processes->n_children;

	for (size_t i = 0; i < processes->n_targets; i++)
		n += processes->targets[i]->view.children->n;
	return n;
}

bool ml_preload_processes_has_child(const struct ml_preload_processes *processes, ml_u32 pid)
{
	for (size_t i = 0; i < processes->n_targets; i++) {
		const struct ml_children *children = processes->targets[i]->view.children;

		for (ml_u32 k = 0; k < ML_CHILDREN_PIDS && k < children->n; k++)
			if (children->pids[k] == pid)
				return true;
	}
	return false;
}

void ml_preload_processes_end(const struct ml_preload_processes *processes, enum ml_over over)
{
	for (size_t i = 0; i < processes->n_targets; i++)
		__atomic_store_n(&processes->targets[i]->view.segment->is_over, over, __ATOMIC_RELEASE);
}

/* ---- the last calls ------------------------------------------------------------------------------------ */

/* Slot 0 is shared by threads without one of their own; its state is that of the last of them. */
static bool is_any_recording(const struct ml_preload_target *target)
{
	const struct ml_view *view = &target->view;

	for (ml_u32 i = 1; i < view->settings.n_threads; i++)
		if (__atomic_load_n(&view->owners[i], __ATOMIC_RELAXED) &&
		    __atomic_load_n(&view->threads[i].is_recording, __ATOMIC_ACQUIRE))
			return !ml_process_has_ended(target->pid, target->pidfd);
	return false;
}

void ml_preload_last_calls(struct ml_preload_processes *processes, void (*drain)(void *context), void *context)
{
	ml_u64 until_ns = ml_clock_ns() + LAST_CALLS_NS;

	ml_preload_processes_end(processes, ML_SESSION_OVER);
	/* Pairs with the barrier-free start of record() in ml_recorder. The kernel has it since 4.3, except with nohz_full. */
	if (syscall(__NR_membarrier, MEMBARRIER_CMD_SHARED, 0))
		usleep(WITHOUT_BARRIER_US);
	for (size_t i = 0; i < processes->n_targets; i++)
		while (is_any_recording(processes->targets[i]) && ml_clock_ns() < until_ns) {
			drain(context);
			usleep(STEP_US);
		}
}

/* ---- keys --------------------------------------------------------------------------------------------- */

ml_u64 ml_preload_processes_live_objects(const struct ml_preload_processes *processes, ml_u64 key, ml_u64 *allocated)
{
	bool is_counted = false;
	ml_u64 live = ml_preload_ended_objects(&processes->ended, key, &is_counted);

	*allocated = 0;
	for (size_t i = 0; i < processes->n_targets; i++) {
		const struct ml_key *entry = ml_preload_target_find_key(processes->targets[i], key);

		is_counted |= entry != NULL;
		if (entry) {
			ml_u64 objects = __atomic_load_n(&entry->alloc_objects, __ATOMIC_SEQ_CST);

			*allocated += objects;
			live += objects - __atomic_load_n(&entry->free_objects, __ATOMIC_SEQ_CST);
		}
	}
	return is_counted ? live : 1; /* a region's key has no counters */
}

void ml_preload_processes_ask_again(struct ml_preload_processes *processes, ml_u64 key)
{
	for (size_t i = 0; i < processes->n_targets; i++) {
		struct ml_key *entry = ml_preload_target_find_key(processes->targets[i], key);

		if (entry)
			__atomic_store_n(&entry->next_due, 1, __ATOMIC_SEQ_CST);
	}
}

void ml_preload_processes_destroy(struct ml_preload_processes *processes)
{
	while (processes->n_left)
		forget_left(processes, processes->n_left - 1);
	while (processes->n_targets)
		remove_target(processes, processes->n_targets - 1);
	ml_preload_ended_destroy(&processes->ended);
}

/* ---- snapshots ---------------------------------------------------------------------------------------- */

static int add_all_keys(struct ml_snapshot *snapshot, const struct ml_preload_processes *processes)
{
	int result = 0;

	for (size_t i = 0; i < processes->ended.n_keys && !result; i++)
		result = ml_snapshot_add_key(snapshot, &processes->ended.keys[i]);
	for (size_t i = 0; i < processes->n_targets && !result; i++)
		result = ml_preload_rows_keys(processes->targets[i], ml_snapshot_add_key, snapshot);
	return result ? result : ml_snapshot_end_keys(snapshot);
}

static int add_all_live(struct ml_snapshot *snapshot, const struct ml_preload_processes *processes)
{
	int result = 0;

	for (size_t i = 0; i < processes->ended.n_live && !result; i++)
		result = ml_snapshot_add_live(snapshot, &processes->ended.live[i]);
	for (size_t i = 0; i < processes->n_targets && !result; i++)
		result = ml_preload_rows_live(processes->targets[i], ml_snapshot_add_live, snapshot);
	return result;
}

int ml_preload_snapshot(const struct ml_preload_processes *processes, const struct ml_regions *regions, ml_u64 number)
{
	struct ml_snapshot *snapshot;

	for (size_t i = 0; i < processes->n_targets; i++)
		if (ml_preload_peak_write(processes->targets[i]))
			return -1;
	snapshot = ml_snapshot_begin(number, ml_clock_ns());
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
	status.lost[ML_LOST_PROGRAMS] += count_unmeasured(processes);
	return ml_status_write(&status);
}
