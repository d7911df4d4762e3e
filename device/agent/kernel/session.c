// SPDX-License-Identifier: Apache-2.0
#include "agent/kernel/session.h"

#include <bpf/bpf.h>
#include <errno.h>
#include <linux/membarrier.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent/protocol/blocks.h"
#include "agent/probes/libbpf.h"
#include "agent/kernel/evidence.h"
#include "agent/kernel/object.h"
#include "agent/kernel/stacks.h"
#include "agent/kernel/symbols.h"
#include "agent/process/process_maps.h"
#include "agent/process/process_set.h"
#include "agent/process/sideband.h"
#include "agent/process/thread_states.h"
#include "agent/session/loop.h"
#include "agent/probes/tracefs.h"

#define PAUSE_MS 20
#define STATUS_NS 500000000ull
#define QUIET_NS 200000000ull
#define SETTLE_NS 2000000000ull

struct session {
	struct ml_session base; /* pid 0: the whole machine */
	struct ml_kernel kernel;
	struct ml_kernel_evidence evidence;
	struct ml_kernel_stacks stacks;
	struct ml_sideband *sideband;
	struct ml_process_set processes; /* not yet exited, and the host has their maps */
	ml_u64 evidence_records;
};

/* Reads the maps at the first record of a process: many end soon and take them along. */
static void meet_process(struct session *session, ml_u32 pid)
{
	if (ml_process_set_has(&session->processes, pid))
		return;
	session->base.lost[ML_LOST_MAPPINGS] += ml_process_set_add(&session->processes, pid) < 0;
	session->base.is_host_gone |= ml_process_write(pid, ML_PROCESS_START, -1, ml_clock_ns()) != 0;
	ml_process_maps_report(pid);
}

static int on_record(void *context, void *data, size_t bytes)
{
	struct session *session = context;
	const struct ml_evidence *record = data;
	int kept;

	if (bytes < sizeof(*record))
		return 0;
	kept = ml_kernel_evidence_add(&session->evidence, record, bytes);
	session->base.lost[ML_LOST_NURSERY_FULL] += kept < 0;
	session->evidence_records++;
	if (kept > 0 && !session->base.config->n_arguments) /* a command's processes are known from their forks on */
		meet_process(session, record->pid);
	return 0;
}

static bool is_met(void *context, ml_u32 pid)
{
	struct session *session = context;

	return ml_process_set_has(&session->processes, pid);
}

static void on_process(void *context, const struct ml_process *record)
{
	struct session *session = context;

	if (record->event == ML_PROCESS_FORK) {
		if (!session->base.config->n_arguments)
			return; /* a child is met when it has a stack of its own */
		session->base.lost[ML_LOST_MAPPINGS] += ml_process_set_add(&session->processes, record->pid) < 0;
	}
	ml_blocks_write(ML_BLOCK_PROCESS, record, sizeof(*record));
	if (record->event == ML_PROCESS_EXEC)
		ml_process_maps_report(record->pid);
	else if (record->event == ML_PROCESS_EXIT)
		ml_process_set_remove(&session->processes, record->pid);
}

/* From here on the process counts, and each that it forks. 0, or -1 after an ERROR block. */
static int begin_tree(struct ml_kernel *kernel, ml_u32 pid)
{
	struct bpf_program *program = bpf_object__find_program_by_name(kernel->object, "process_fork");
	struct bpf_link *link = bpf_program__attach_tracepoint(program, "task", "task_newtask");
	ml_u32 one = 1;

	if (link)
		kernel->links[kernel->n_links++] = link;
	if (link && !bpf_map_update_elem(kernel->tree_fd, &pid, &one, BPF_ANY))
		return 0;
	return ml_blocks_error(ML_REASON_TRACER_ERROR, "could not follow the command's processes: %s (run as root)",
			       strerror(errno));
}

/* Removes ended processes. Returns the number of running ones. */
static ml_u32 sweep_tree(const struct ml_kernel *kernel)
{
	ml_u32 pid, next, n = 0;

	for (bool is_there = !bpf_map_get_next_key(kernel->tree_fd, NULL, &pid); is_there; pid = next) {
		is_there = !bpf_map_get_next_key(kernel->tree_fd, &pid, &next);
		if (ml_process_has_ended(pid, -1))
			bpf_map_delete_elem(kernel->tree_fd, &pid);
		else
			n++;
	}
	return n;
}

/* It waits before its exec until everything is armed. */
static int start_command(struct session *session)
{
	ml_u32 pid = (ml_u32)session->base.child.pid;

	session->base.lost[ML_LOST_MAPPINGS] += ml_process_set_add(&session->processes, pid) < 0;
	return begin_tree(&session->kernel, pid) || ml_spawn_release(session->base.config, &session->base.child) ? -1 : 0;
}

static int open_session(struct session *session)
{
	struct ml_nursery_source source = { ml_kernel_live_objects, ml_kernel_ask_again, NULL, &session->evidence };
	struct ml_sideband_ops ops = { is_met, ml_sideband_write_mapping, on_process, session };

	session->evidence.kernel = &session->kernel;
	session->evidence.symbols = ml_kernel_symbols_read();
	session->base.nursery = ml_nursery_create(session->base.config->nursery_bytes, session->base.config->older_ns, source);
	session->evidence.nursery = session->base.nursery;
	if (!session->evidence.symbols || !session->base.nursery)
		return ml_blocks_error(ML_REASON_TRACER_ERROR, "out of memory (free some on the target)");
	if (ml_kernel_load(&session->kernel, session->base.config, session->evidence.symbols, on_record, session))
		return -1;
	session->sideband = ml_sideband_open(-1, ops);
	if (!session->sideband)
		return ml_libbpf_fail("could not follow mappings", errno, "run as root");
	return ml_kernel_attach(&session->kernel, session->evidence.symbols) ||
			       (session->base.is_child && start_command(session)) ?
		       -1 :
		       0;
}

static void drain(void *context)
{
	struct session *session = context;

	session->base.lost[ML_LOST_MAPPINGS] += ml_sideband_drain(session->sideband);
	ring_buffer__consume(session->kernel.ring);
	session->base.lost[ML_LOST_KEYS_FULL] += ml_kernel_stacks_recycle(&session->stacks, &session->kernel);
}

static int write_totals(struct session *session)
{
	return ml_kernel_status(&session->kernel, &session->evidence, session->evidence_records, session->base.lost);
}

static int write_status(void *context)
{
	struct session *session = context;

	ml_kernel_evidence_sweep(&session->evidence);
	if (session->base.is_child)
		sweep_tree(&session->kernel);
	return write_totals(session);
}

static int write_snapshot(void *context)
{
	struct session *session = context;

	drain(session);
	return ml_nursery_flush(session->base.nursery) || ml_kernel_evidence_complete(&session->evidence) ||
	       ml_kernel_snapshot(&session->kernel, &session->evidence, ++session->base.n_snapshots) || write_totals(session);
}

static ml_u64 freed_objects(const struct ml_kernel *kernel)
{
	ml_u64 sum = 0;

	for (ml_u32 slot = 0; slot < ML_KERNEL_KEY_SLOTS; slot++)
		sum += kernel->keys[slot].free_objects;
	return sum;
}

/*
 * Waits, for two seconds at most, until no more memory of ended processes is freed: the kernel frees some after an RCU grace period or from
 * a work queue.
 */
static void settle_tree(struct session *session)
{
	ml_u64 begin = ml_clock_ns(), last_free = begin, freed = freed_objects(&session->kernel);

	syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0); /* a grace period; where it is refused, the quiet has to do */
	for (ml_u64 now = begin; now - begin < SETTLE_NS && now - last_free < QUIET_NS; now = ml_clock_ns()) {
		ml_u64 sum = freed_objects(&session->kernel);

		if (sum != freed)
			last_free = now;
		freed = sum;
		poll(NULL, 0, PAUSE_MS);
		drain(session);
	}
}

/* Waits for what the command frees at its end. What remains belongs to the kernel, or to processes that still run. */
static void settle(struct session *session)
{
	ml_u32 n_running;

	session->base.is_child = false;
	settle_tree(session);
	n_running = sweep_tree(&session->kernel);
	if (n_running)
		ml_blocks_log("%u process%s of the command still ran at its end; what the kernel holds on %s behalf is "
			      "in the report",
			      n_running, n_running == 1 ? "" : "es", n_running == 1 ? "its" : "their");
}

static int poll_kernel(void *session)
{
	drain(session);
	return ml_session_target_has_ended(session) ? ML_REASON_TARGET_EXIT : 0;
}

static int start(void *context)
{
	struct session *session = context;

	if (open_session(session))
		return 5;
	session->base.timeout_ms = PAUSE_MS;
	session->base.next_status_ns = ml_clock_ns() + STATUS_NS;
	session->base.is_host_gone |= write_totals(session) != 0; /* the host begins to count the time */
	return 0;
}

static int end(void *context, enum ml_reason reason)
{
	struct session *session = context;

	if (session->base.is_child && reason == ML_REASON_TARGET_EXIT)
		settle(session);
	ml_kernel_detach(&session->kernel);
	write_snapshot(session);
	ml_blocks_end(reason, session->base.wait_status);
	return 0;
}

int ml_kernel_run(const struct ml_config *config)
{
	static const struct ml_session_ops ops = { start, NULL, poll_kernel, write_snapshot, write_status, end };
	struct session *session = calloc(1, sizeof(*session));
	int exit_code;

	if (!session)
		return 1;
	exit_code = ml_session_begin(&session->base, config, (struct ml_spawn_extra){ 0 });
	if (!exit_code) {
		session->base.status_interval_ns = STATUS_NS;
		ml_tracefs_mount();
		ml_blocks_hello(ML_COLLECTOR_BPF, session->base.pid);
		exit_code = ml_session_run(session, &ops);
	}
	if (session->kernel.object)
		ml_kernel_close(&session->kernel);
	ml_session_close(&session->base);
	ml_sideband_close(session->sideband);
	ml_kernel_symbols_free(session->evidence.symbols);
	ml_process_set_destroy(&session->processes);
	free(session);
	return exit_code;
}
