// SPDX-License-Identifier: Apache-2.0
#include "agent/shim/children.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/protocol/blocks.h"
#include "agent/protocol/extend.h"
#include "agent/process/thread_states.h"

struct ml_preload_child {
	ml_u32 pid;
	bool has_called_exec;
	char name[16]; /* of its program */
};

static struct ml_preload_child *find(const struct ml_preload_children *children, ml_u32 pid)
{
	for (size_t i = 0; i < children->count; i++)
		if (children->children[i].pid == pid)
			return &children->children[i];
	return NULL;
}

/* Records are of the process and its children only. */
static bool is_traced(void *context, ml_u32 pid)
{
	const struct ml_preload_children *children = context;

	return children->are_followed || pid == children->parent || find(children, pid);
}

static struct ml_preload_child *add(struct ml_preload_children *children, ml_u32 pid)
{
	struct ml_preload_child *child = find(children, pid);

	if (!child && !ML_EXTEND(children->children, children->count, children->room)) {
		children->lost++;
		return NULL;
	}
	if (!child)
		child = &children->children[children->count++];
	*child = (struct ml_preload_child){ .pid = pid };
	return child;
}

static void forget(struct ml_preload_children *children, struct ml_preload_child *child)
{
	if (child->has_called_exec && children->are_followed)
		ml_preload_processes_report_unmeasured(children->processes, child->pid, child->name);
	*child = children->children[--children->count];
}

/* A child that has not joined may have the pid of a measured process that ended. */
static void on_exec(struct ml_preload_children *children, const struct ml_process *record)
{
	struct ml_preload_child *child = find(children, record->pid);

	if (!child && ml_preload_processes_on_exec(children->processes, record->pid))
		return;
	child = add(children, record->pid);
	if (!child)
		return;
	child->has_called_exec = record->pid != children->processes->command;
	memcpy(child->name, record->comm, sizeof(child->name) - 1);
}

static void on_unfollowed(struct ml_preload_children *children, const struct ml_process *record)
{
	struct ml_preload_child *child = find(children, record->pid);

	if (record->event == ML_PROCESS_FORK && record->parent == children->parent) {
		add(children, record->pid);
	} else if (record->event == ML_PROCESS_EXEC && child) {
		children->n_other_programs +=
			!child->has_called_exec && !ml_preload_processes_has_child(children->processes, record->pid);
		child->has_called_exec = true;
	} else if (record->event == ML_PROCESS_EXEC) {
		ml_preload_processes_on_exec(children->processes, record->pid);
	} else if (record->event == ML_PROCESS_EXIT && child) {
		forget(children, child);
	}
}

static void on_process(void *context, const struct ml_process *record)
{
	struct ml_preload_children *children = context;
	struct ml_preload_child *child = find(children, record->pid);

	if (!children->are_followed)
		on_unfollowed(children, record);
	else if (record->event == ML_PROCESS_FORK)
		add(children, record->pid);
	else if (record->event == ML_PROCESS_EXEC)
		on_exec(children, record);
	else if (record->event == ML_PROCESS_EXIT && child)
		forget(children, child);
}

void ml_preload_children_open(struct ml_preload_children *children, int pid, bool are_followed,
			      struct ml_preload_processes *processes)
{
	struct ml_sideband_ops ops = { is_traced, NULL, on_process, children };

	children->processes = processes;
	children->parent = (ml_u32)pid;
	children->are_followed = are_followed;
	children->sideband = ml_sideband_open(pid, ops);
	if (!children->sideband && are_followed)
		ml_blocks_gap(ML_GAP_PROGRAMS_UNKNOWN,
			      "children that cannot load the shim are not noticed: %s (see perf_event_paranoid)",
			      strerror(errno));
}

void ml_preload_children_drain(struct ml_preload_children *children)
{
	if (children->sideband)
		children->lost += ml_sideband_drain(children->sideband);
}

void ml_preload_children_joined(struct ml_preload_children *children, ml_u32 pid)
{
	struct ml_preload_child *child = find(children, pid);

	if (!child)
		return;
	child->has_called_exec = false;
	forget(children, child);
}

bool ml_preload_children_awaited(struct ml_preload_children *children)
{
	bool is_any = false;

	for (size_t i = children->count; i-- > 0;) {
		struct ml_preload_child *child = &children->children[i];

		if (ml_process_has_ended(child->pid, -1))
			forget(children, child);
		else
			is_any |= !child->has_called_exec && child->pid != children->processes->command;
	}
	return is_any;
}

void ml_preload_children_report_rest(struct ml_preload_children *children)
{
	ml_preload_children_drain(children);
	while (children->count)
		forget(children, &children->children[children->count - 1]);
}

void ml_preload_children_close(struct ml_preload_children *children)
{
	ml_sideband_close(children->sideband);
	free(children->children);
}
