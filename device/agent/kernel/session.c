// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "agent/kernel/session.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/protocol/blocks.h"
#include "agent/probes/bpf_complaint.h"
#include "agent/kernel/evidence.h"
#include "agent/kernel/object.h"
#include "agent/kernel/snapshot.h"
#include "agent/kernel/stacks.h"
#include "agent/kernel/symbols.h"
#include "agent/kernel/tree.h"
#include "agent/process/process_maps.h"
#include "agent/process/process_name.h"
#include "agent/process/process_set.h"
#include "agent/process/sideband.h"
#include "agent/spawn/spawn.h"
#include "agent/process/thread_states.h"
#include "agent/probes/tracefs.h"

#define PAUSE_MS 20
#define STATUS_NS 500000000ull

struct session {
	const struct ml_config *config;
	struct ml_kernel kernel;
	struct ml_kernel_evidence evidence;
	struct ml_kernel_stacks stacks;
	struct ml_sideband *sideband;
	struct ml_process_set processes; /* whose code stacks were taken of, and that have not exited */
	int pid; /* 0 = the whole machine */
	int pidfd;
	struct ml_child child;
	bool is_child, is_host_gone;
	int wait_status;
	ml_u64 snapshots, next_status_ns, evidence_records;
	ml_u64 lost[ML_LOST_MAX];
};

static void write_maps(ml_u32 pid)
{
	ml_u64 timestamp_ns;
	size_t bytes;
	char *text = ml_process_maps_now(pid, &timestamp_ns, &bytes);

	if (text)
		ml_process_maps_write(pid, timestamp_ns, text, bytes);
	free(text);
}

/* What it has mapped is asked for at the first record of it: many end soon, and take it with them. */
static void meet_process(struct session *session, ml_u32 pid)
{
	struct ml_process start = { ml_clock_ns(), pid, 0, ML_PROCESS_START, -1, "" };

	if (ml_process_set_has(&session->processes, pid))
		return;
	ml_process_name(pid, start.comm);
	session->lost[ML_LOST_MAPPINGS] += ml_process_set_add(&session->processes, pid) < 0;
	session->is_host_gone |= ml_blocks_write(ML_BLOCK_PROCESS, &start, sizeof(start)) != 0;
	write_maps(pid);
}

static int on_record(void *context, void *data, size_t bytes)
{
	struct session *session = context;
	const struct ml_evidence *record = data;
	int kept;

	if (bytes < sizeof(*record))
		return 0;
	kept = ml_kernel_evidence_add(&session->evidence, record, bytes);
	session->lost[ML_LOST_NURSERY_FULL] += kept < 0;
	session->evidence_records++;
	if (kept > 0 && !session->config->n_arguments) /* a command's processes are known from their forks on */
		meet_process(session, record->pid);
	return 0;
}

static bool is_met(void *context, ml_u32 pid)
{
	struct session *session = context;

	return ml_process_set_has(&session->processes, pid);
}

static void on_mapping(void *context, const struct ml_mapping *record, const char *path)
{
	struct iovec parts[] = { { (void *)record, sizeof(*record) }, { (void *)path, record->path_bytes } };

	(void)context;
	ml_blocks_writev(ML_BLOCK_MAPPINGS, parts, 2);
}

static void on_process(void *context, const struct ml_process *record)
{
	struct session *session = context;

	if (record->event == ML_PROCESS_FORK) {
		if (!session->config->n_arguments)
			return; /* a child is met when it has a stack of its own */
		session->lost[ML_LOST_MAPPINGS] += ml_process_set_add(&session->processes, record->pid) < 0;
	}
	ml_blocks_write(ML_BLOCK_PROCESS, record, sizeof(*record));
	if (record->event == ML_PROCESS_EXEC)
		write_maps(record->pid);
	else if (record->event == ML_PROCESS_EXIT)
		ml_process_set_remove(&session->processes, record->pid);
}

/* It waits before its exec until everything is armed. */
static int start_command(struct session *session)
{
	ml_u32 pid = (ml_u32)session->child.pid;

	session->lost[ML_LOST_MAPPINGS] += ml_process_set_add(&session->processes, pid) < 0;
	return ml_kernel_tree_begin(&session->kernel, pid) || ml_spawn_release(session->config, &session->child) ? -1 : 0;
}

static int open_session(struct session *session)
{
	struct ml_nursery_source source = { ml_kernel_live_objects, ml_kernel_ask_again, NULL, NULL, &session->evidence };
	struct ml_sideband_ops ops = { is_met, on_mapping, on_process, session };

	session->evidence.kernel = &session->kernel;
	session->evidence.symbols = ml_kernel_symbols_read();
	session->evidence.nursery = ml_nursery_create(session->config->nursery_bytes, session->config->older_ns, source);
	if (!session->evidence.symbols || !session->evidence.nursery) {
		ml_blocks_error(ML_REASON_TRACER_ERROR, "out of memory (free some on the target)");
		return -1;
	}
	if (ml_kernel_load(&session->kernel, session->config, session->evidence.symbols, on_record, session))
		return -1;
	session->sideband = ml_sideband_open(-1, ops);
	if (!session->sideband)
		return ml_bpf_refuse("could not follow mappings", errno, "run as root");
	return ml_kernel_attach(&session->kernel, session->evidence.symbols) || (session->is_child && start_command(session)) ? -1 : 0;
}

static void drain(void *context)
{
	struct session *session = context;

	session->lost[ML_LOST_MAPPINGS] += ml_sideband_drain(session->sideband);
	ring_buffer__consume(session->kernel.ring);
	session->lost[ML_LOST_KEYS_FULL] += ml_kernel_stacks_recycle(&session->stacks, &session->kernel);
}

static void write_status(struct session *session)
{
	session->next_status_ns = ml_clock_ns() + STATUS_NS;
	session->is_host_gone |= ml_kernel_status(&session->kernel, &session->evidence, session->evidence_records, session->lost) != 0;
}

static void write_snapshot(struct session *session)
{
	drain(session);
	if (ml_nursery_flush(session->evidence.nursery, ml_clock_ns()) || ml_kernel_evidence_complete(&session->evidence) ||
	    ml_kernel_snapshot(&session->kernel, &session->evidence, ++session->snapshots))
		session->is_host_gone = true;
	write_status(session);
}

static bool has_target_ended(struct session *session)
{
	if (session->is_child)
		return waitpid(session->child.pid, &session->wait_status, WNOHANG) == session->child.pid;
	return session->pid && ml_process_has_ended((ml_u32)session->pid, session->pidfd);
}

/* What the command had in use is given back as it ends. What outlives it is the kernel's, or of a process that goes on. */
static void settle(struct session *session)
{
	ml_u32 n_running;

	session->is_child = false;
	ml_kernel_tree_settle(&session->kernel, drain, session);
	n_running = ml_kernel_tree_look(&session->kernel);
	if (n_running)
		ml_blocks_log("%u process%s that the command started went on running as it ended: what the kernel held on %s behalf is "
			      "in the report", n_running, n_running == 1 ? "" : "es", n_running == 1 ? "its" : "their");
}

static enum ml_reason follow(struct session *session)
{
	struct pollfd input = { .fd = STDIN_FILENO, .events = POLLIN };

	write_status(session); /* the host begins to count the time */
	while (!session->is_host_gone) {
		poll(&input, 1, PAUSE_MS);
		switch (ml_control_poll(0)) {
		case ML_CONTROL_STOP:
			return ML_REASON_STOPPED;
		case ML_CONTROL_CLOSED:
			return ML_REASON_INPUT_CLOSED;
		case ML_CONTROL_SNAPSHOT:
			write_snapshot(session);
			break;
		case ML_CONTROL_DETACH:
		case ML_CONTROL_RESUME:
		case ML_CONTROL_NONE:
			break;
		}
		drain(session);
		if (has_target_ended(session))
			return ML_REASON_TARGET_EXIT;
		session->is_host_gone |= ml_nursery_age(session->evidence.nursery, ml_clock_ns()) != 0;
		if (ml_clock_ns() < session->next_status_ns)
			continue;
		ml_kernel_evidence_sweep(&session->evidence);
		if (session->is_child)
			ml_kernel_tree_look(&session->kernel);
		write_status(session);
	}
	return ML_REASON_INPUT_CLOSED;
}

int ml_kernel_run(const struct ml_config *config)
{
	struct session *session = calloc(1, sizeof(*session));
	enum ml_reason reason = ML_REASON_TRACER_ERROR;
	int exit_code = 5;

	if (!session)
		return 1;
	session->config = config;
	session->pid = config->pid;
	session->wait_status = -1;
	session->pidfd = config->pid ? (int)syscall(SYS_pidfd_open, config->pid, 0) : -1;
	if (config->n_arguments) {
		if (ml_spawn_stopped(config, (struct ml_spawn_extra){ 0 }, &session->child)) {
			free(session);
			return 4;
		}
		session->is_child = true;
		session->pid = session->child.pid;
	}
	setpriority(PRIO_PROCESS, 0, -10); /* who must keep up with everybody runs before them */
	ml_tracefs_mount();
	ml_blocks_hello(ML_COLLECTOR_BPF, session->pid);
	if (!open_session(session)) {
		reason = follow(session);
		if (session->is_child && reason == ML_REASON_TARGET_EXIT)
			settle(session);
		ml_kernel_detach(&session->kernel);
		write_snapshot(session);
		exit_code = 0;
	}
	ml_blocks_end(reason, session->wait_status);
	if (session->kernel.object)
		ml_kernel_close(&session->kernel);
	if (session->is_child && session->child.release_fd >= 0)
		ml_spawn_abandon(&session->child);
	ml_sideband_close(session->sideband);
	ml_nursery_destroy(session->evidence.nursery);
	ml_kernel_symbols_free(session->evidence.symbols);
	ml_process_set_destroy(&session->processes);
	free(session);
	return exit_code;
}
