// SPDX-License-Identifier: Apache-2.0
#include "agent/bpf/follow.h"

#include <bpf/bpf.h>
#include <stdlib.h>
#include <sys/sysmacros.h>

#include "agent/protocol/blocks.h"
#include "agent/bpf/images.h"
#include "agent/probes/probed_code.h"
#include "agent/process/descendants.h"
#include "agent/process/process_maps.h"

static bool is_traced(void *context, ml_u32 pid)
{
	struct ml_bpf_session *session = context;

	return ml_process_set_has(&session->processes, pid);
}

/*
 * A probe on one process compares its address space with that of its first thread, which that loses when it ends. A perf event compares
 * at each call (uprobe_perf_filter() in kernel/trace/trace_uprobe.c), a link for many probes only where code is mapped
 * (uprobe_multi_link_filter() in kernel/trace/bpf_trace.c).
 */
static void report_lost_probes(struct ml_bpf_session *session, const char *reason)
{
	if (session->base.config->follow || session->base.config->whole_machine || session->has_lost_probes)
		return;
	session->has_lost_probes = true;
	session->base.lost[ML_LOST_PROGRAMS]++;
	ml_blocks_log("pid %d %s; later allocations were not measured (use --follow)", session->base.pid, reason);
}

static bool is_probed(const struct ml_config *config, const struct ml_mapping *record)
{
	for (int i = 0; i < config->n_probes; i++) {
		const struct ml_file_version *version = &config->files[config->probes[i].file].version;

		if (version->inode == record->inode && version->device == makedev(record->device_major, record->device_minor) &&
		    config->probes[i].entry_offset - record->file_offset < record->end - record->start)
			return true;
	}
	return false;
}

static void on_mapping(void *context, const struct ml_mapping *record, const char *path)
{
	struct ml_bpf_session *session = context;

	if (record->protection & 4 /* PROT_EXEC */)
		ml_bpf_code_mapped(&session->bpf, record->start, record->end);
	if (ml_process_set_has_left(&session->processes, record->pid) && is_probed(session->base.config, record))
		report_lost_probes(session, "mapped traced code after its first thread exited");
	ml_frames_forget(session->frames, record->pid);
	ml_sideband_write_mapping(context, record, path);
}

void ml_bpf_follow_write_maps(struct ml_bpf_session *session, ml_u32 pid)
{
	struct ml_maps_line line;
	ml_u64 timestamp_ns;
	size_t bytes;
	char *text = ml_process_maps_now(pid, &timestamp_ns, &bytes);

	if (!text)
		return;
	for (const char *at = text; (at = ml_process_maps_code(at, &line));)
		ml_bpf_add_code(&session->bpf, line.start, line.end);
	ml_process_maps_write(pid, timestamp_ns, text, bytes);
	free(text);
}

bool ml_bpf_follow_report(struct ml_bpf_session *session, ml_u32 pid)
{
	if (ml_process_set_has(&session->processes, pid))
		return true;
	if (ml_process_set_add(&session->processes, pid))
		return false;
	ml_process_write(pid, ML_PROCESS_START, -1, ml_clock_ns());
	ml_bpf_follow_write_maps(session, pid);
	return true;
}

void ml_bpf_follow_report_all(struct ml_bpf_session *session)
{
	ml_u32 pid, *previous = NULL;

	while (!bpf_map_get_next_key(session->bpf.processes_fd, previous, &pid)) {
		session->base.lost[ML_LOST_MAPPINGS] += !ml_bpf_follow_report(session, pid);
		previous = &pid;
	}
}

static void follow_descendant(void *context, ml_u32 pid)
{
	struct ml_bpf_session *session = context;

	ml_bpf_add_process(&session->bpf, pid);
	session->base.lost[ML_LOST_MAPPINGS] += !ml_bpf_follow_report(session, pid);
}

void ml_bpf_follow_descendants(struct ml_bpf_session *session)
{
	session->base.lost[ML_LOST_PROGRAMS] +=
		ml_descendants_each(session->base.pid, follow_descendant, session) != ML_DESCENDANTS_ALL;
}

static void on_process(void *context, const struct ml_process *record)
{
	struct ml_bpf_session *session = context;

	if (record->event == ML_PROCESS_FORK) {
		if (session->base.config->whole_machine)
			return; /* a child is reported at its own first stack */
		session->n_children += !session->base.config->follow;
		if (!session->base.config->follow)
			return;
		session->base.lost[ML_LOST_MAPPINGS] += ml_process_set_add(&session->processes, record->pid) < 0;
	}
	ml_blocks_write(ML_BLOCK_PROCESS, record, sizeof(*record));
	if (record->event != ML_PROCESS_FORK)
		ml_frames_forget(session->frames, record->pid);
	if (record->event == ML_PROCESS_EXEC) {
		if (ml_process_set_stay(&session->processes, record->pid))
			report_lost_probes(session, "called exec on another than its first thread");
		ml_bpf_follow_write_maps(session, record->pid);
		ml_regions_forget(&session->regions, record->pid, record->timestamp_ns);
	}
	session->is_first_thread_gone |= record->event == ML_PROCESS_EXIT && record->pid == (ml_u32)session->base.pid;
	if (record->event == ML_PROCESS_EXIT)
		ml_process_set_leave(&session->processes, record->pid, ml_clock_ns());
}

void ml_bpf_follow_first_thread(struct ml_bpf_session *session)
{
	if (!ml_process_set_goes_on(&session->processes, (ml_u32)session->base.pid, ml_clock_ns()))
		return;
	if (!(session->bpf.has_multi && ml_uprobe_multi_sees(ML_CALLS_LATE)))
		report_lost_probes(session, "continued after its first thread exited");
}

void ml_bpf_follow_check_probes(struct ml_bpf_session *session)
{
	if (session->is_first_thread_gone && session->base.pid && !session->has_lost_probes &&
	    !ml_breakpoints_remain(session->base.config, session->base.pid))
		report_lost_probes(session,
				   "continued after its first thread exited, and lost its probes to the end of another tracer");
}

struct ml_sideband *ml_bpf_follow_begin(struct ml_bpf_session *session)
{
	struct ml_sideband_ops ops = { is_traced, on_mapping, on_process, session };

	return ml_sideband_open(-1, ops);
}

void ml_stacks_add(struct ml_stacks *stacks, const struct ml_evidence *record)
{
	ml_u32 *slot = &stacks->known[record->tid % ML_STACKS_SLOTS];
	struct ml_maps_line line;
	char *text;

	if (record->flags & ML_EVIDENCE_STACK_WHOLE || *slot == record->tid)
		return;
	*slot = record->tid;
	text = ml_process_maps_read(record->pid, NULL);
	if (text && ml_process_maps_find(text, record->stack_address, &line)) {
		struct ml_bpf_bounds bounds = { line.start, line.end };

		bpf_map_update_elem(stacks->fd, &record->tid, &bounds, BPF_ANY);
	}
	free(text);
}
