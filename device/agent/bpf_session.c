// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "bpf_session.h"

#include <bpf/bpf.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "armed.h"
#include "blocks.h"
#include "bpf_evidence.h"
#include "bpf_images.h"
#include "bpf_keys.h"
#include "bpf_rules.h"
#include "bpf_snapshot.h"
#include "event_batch.h"
#include "live_levels.h"
#include "nursery.h"
#include "probed_code.h"
#include "process_maps.h"
#include "process_set.h"
#include "regions.h"
#include "sideband.h"
#include "self_test.h"
#include "spawn.h"
#include "stack_ends.h"
#include "thread_states.h"
#include "tracefs.h"
#include "trampolines.h"

/*
 * Rings are drained at least this often, and at once again while they bring much; wake-ups would triple the
 * cost of an event in the target.
 */
#define BUSY_MS 1
#define IDLE_MS 10
#define BUSY_RECORDS 64
#define IDLE_ROUNDS 100
#define STATUS_NS 500000000ull

struct session {
	const struct ml_config *config;
	struct ml_bpf bpf;
	struct ml_nursery *nursery;
	struct ml_sideband *sideband;
	struct ml_frames *frames;
	struct ml_process_set processes; /* that are traced and have not exited */
	struct ml_child child;
	bool is_host_gone, is_child; /* of ours, not attached to */
	int pid, pidfd;
	int wait_status;
	int idle_rounds;
	ml_u64 snapshots, next_status_ns, evidence_records, self_tests, n_children;
	ml_u64 before_armed[ML_LOST_MAX]; /* counted while the probes were being placed one by one */
	ml_u64 lost[ML_LOST_MAX]; /* by the agent, beside what the programs count */
	struct ml_regions regions;
	struct ml_stack_ends stack_ends;
	struct ml_trampolines trampolines;
	struct ml_event_batch events;
};

static void add_code(void *context, ml_u64 start, ml_u64 end)
{
	struct session *session = context;

	ml_bpf_add_code(&session->bpf, start, end);
}

static void write_events(struct session *session)
{
	session->is_host_gone |= ml_event_batch_write(&session->events) != 0;
}

static void on_event(struct session *session, const struct ml_event *event)
{
	if (event->function >= ML_FN_MMAP && ml_regions_apply(&session->regions, event))
		session->lost[ML_LOST_REGIONS]++;
	if (session->config->events)
		session->is_host_gone |= ml_event_batch_add(&session->events, event) != 0;
}

/* The ring carries evidence and events; their sizes tell them apart. */
static int on_record(void *context, void *data, size_t bytes)
{
	struct session *session = context;
	const struct ml_evidence *record = ml_trampolines_undo(&session->trampolines, ml_frames_arch(session->frames), data, bytes);

	if (bytes == sizeof(struct ml_event)) {
		on_event(session, data);
		return 0;
	}
	if (bytes < sizeof(*record) ||
	    (!session->config->no_evidence && ml_bpf_evidence_keep(session->nursery, record, bytes))) {
		session->lost[ML_LOST_NURSERY_FULL]++;
	} else if (!(record->flags & ML_EVIDENCE_STACK_SPARSE)) { /* of an exact key: there is nothing to learn */
		ml_stack_ends_teach(&session->stack_ends, record);
		ml_bpf_learn(&session->bpf, session->frames, record);
	}
	session->evidence_records++;
	return 0;
}

static bool is_traced(void *context, ml_u32 pid)
{
	struct session *session = context;

	return ml_process_set_has(&session->processes, pid);
}

static void on_mapping(void *context, const struct ml_mapping *record, const char *path)
{
	struct session *session = context;
	struct iovec parts[] = { { (void *)record, sizeof(*record) }, { (void *)path, record->path_bytes } };

	if (record->protection & 4 /* PROT_EXEC */)
		ml_bpf_code_mapped(&session->bpf, record->start, record->end);
	ml_frames_forget(session->frames, record->pid);
	ml_blocks_writev(ML_BLOCK_MAPPINGS, parts, 2);
}

/* The whole map of a process, with what the side band does not tell: the vdso, stacks, older mappings. */
static void write_maps(struct session *session, ml_u32 pid)
{
	ml_u64 timestamp_ns;
	size_t bytes;
	char *text = ml_process_maps_now(pid, &timestamp_ns, &bytes);

	if (!text)
		return;
	ml_process_maps_code(text, add_code, session);
	ml_process_maps_write(pid, timestamp_ns, text, bytes);
	free(text);
}

/* The kernel gives up a probe on one process with its first thread: uprobe_perf_filter() in kernel/trace/trace_uprobe.c. */
static void tell_first_thread_ended(struct session *session)
{
	if (session->config->follow)
		return;
	session->lost[ML_LOST_PROGRAMS]++;
	ml_blocks_log("pid %d went on without its first thread: what it allocated from then on was not measured (use --follow)",
		      session->pid);
}

static void on_process(void *context, const struct ml_process *record)
{
	struct session *session = context;

	if (record->event == ML_PROCESS_FORK) {
		session->n_children += !session->config->follow;
		if (!session->config->follow)
			return;
		session->lost[ML_LOST_MAPPINGS] += ml_process_set_add(&session->processes, record->pid) < 0;
	}
	ml_blocks_write(ML_BLOCK_PROCESS, record, sizeof(*record));
	if (record->event != ML_PROCESS_FORK)
		ml_frames_forget(session->frames, record->pid);
	if (record->event == ML_PROCESS_EXEC) {
		if (ml_process_set_stay(&session->processes, record->pid))
			tell_first_thread_ended(session);
		write_maps(session, record->pid);
		ml_regions_forget(&session->regions, record->pid, record->timestamp_ns);
	}
	if (record->event == ML_PROCESS_EXIT)
		ml_process_set_leave(&session->processes, record->pid, ml_clock_ns());
}

/* Who must keep up with the target runs before it; the command itself was started with the user's priority. */
static void raise_priority(void)
{
	setpriority(PRIO_PROCESS, 0, -10);
}

static int open_session(struct session *session)
{
	const struct ml_config *config = session->config;
	struct ml_nursery_source source = { ml_bpf_live_objects, ml_bpf_ask_again, &session->bpf };
	struct ml_sideband_ops ops = { is_traced, on_mapping, on_process, session };

	session->nursery = ml_nursery_create(config->nursery_bytes, config->older_ns, source);
	session->frames = ml_frames_create();
	if (!session->nursery || !session->frames || ml_bpf_load(&session->bpf, config, on_record, session))
		return -1;
	session->stack_ends.fd = session->bpf.stack_ends_fd;
	ml_bpf_add_process(&session->bpf, (ml_u32)session->pid);
	ml_process_set_add(&session->processes, (ml_u32)session->pid);
	session->sideband = ml_sideband_open(-1, ops);
	if (!session->sideband) {
		ml_blocks_error(ML_REASON_TRACER_ERROR, "could not follow the mappings of pid %d: %s (run as root)",
				session->pid, strerror(errno));
		return -1;
	}
	if (!session->is_child) {
		struct ml_process start = { ml_clock_ns(), (ml_u32)session->pid, 0, ML_PROCESS_START, -1, "" };

		ml_blocks_write(ML_BLOCK_PROCESS, &start, sizeof(start));
		write_maps(session, (ml_u32)session->pid);
	}
	return 0;
}

/* The child calls free() with an address that is no block: the programs must have counted it. */
static int test_probes(struct session *session)
{
	if (!ml_self_test_possible(session->config) || session->config->empty_probes)
		return 0;
	session->self_tests = ml_self_test_run(&session->child, &session->bpf);
	return session->self_tests ? 0 : -1;
}

/* A call that was under way when its function's probes came is not one that was missed. */
static void begin_counting(struct session *session)
{
	for (ml_u32 cause = 0; cause < ML_LOST_MAX; cause++)
		session->before_armed[cause] = ml_bpf_counter(&session->bpf, cause);
	ml_bpf_drain(&session->bpf);
	if (session->is_child)
		session->events.count = 0; /* of the self-test */
}

static int arm(struct session *session)
{
	const struct ml_config *config = session->config;

	if (ml_bpf_attach(&session->bpf, config, config->follow ? -1 : session->pid))
		return -1;
	if (session->is_child ? test_probes(session) : ml_armed_check(config, session->pid))
		return -1;
	begin_counting(session);
	return session->is_child ? ml_spawn_release(config, &session->child) : 0;
}

/* Returns how many evidence records came. */
static int drain(struct session *session)
{
	int records;

	/* Mappings first: the stacks that run through new ones are looked up in them. */
	session->lost[ML_LOST_MAPPINGS] += ml_sideband_drain(session->sideband);
	records = ml_bpf_drain(&session->bpf);
	ml_bpf_recycle_rules(&session->bpf, session->frames, &session->processes);
	write_events(session);
	return records;
}

static bool is_gone(struct session *session)
{
	if (session->is_child)
		return waitpid(session->pid, &session->wait_status, WNOHANG) == session->pid;
	return ml_process_has_ended((ml_u32)session->pid, session->pidfd);
}

/* Nothing follows what a process recorded before it was gone: it stays in the set until that is drained. */
static void forget_ended(struct session *session)
{
	bool is_target = session->pid && is_gone(session);

	if (!ml_process_set_find_ended(&session->processes, session->lost[ML_LOST_MAPPINGS]) && !is_target)
		return;
	drain(session);
	ml_process_set_drop_ended(&session->processes);
	if (!is_target)
		return;
	ml_process_set_remove(&session->processes, (ml_u32)session->pid);
	session->is_child = false;
	session->pid = 0;
}

static void look_at_first_thread(struct session *session)
{
	if (ml_process_set_goes_on(&session->processes, (ml_u32)session->pid, ml_clock_ns()))
		tell_first_thread_ended(session);
}

static bool has_target_ended(struct session *session)
{
	look_at_first_thread(session);
	forget_ended(session);
	return !session->pid && (!session->config->follow || !session->processes.count);
}

static int write_totals(struct session *session)
{
	ml_u64 lost[ML_LOST_MAX];

	for (int cause = 0; cause < ML_LOST_MAX; cause++)
		lost[cause] = session->lost[cause] - session->before_armed[cause];
	if (session->bpf.perf_path)
		lost[ML_LOST_RING_FULL] += ml_perf_path_lost(session->bpf.perf_path);
	return ml_bpf_status(&session->bpf, session->evidence_records, session->self_tests, lost);
}

static void write_status(struct session *session)
{
	ml_u64 now = ml_clock_ns();

	if (now < session->next_status_ns)
		return;
	session->next_status_ns = now + STATUS_NS;
	if (write_totals(session))
		session->is_host_gone = true;
}

static void write_snapshot(struct session *session)
{
	drain(session);
	if (ml_nursery_flush(session->nursery) || ml_bpf_snapshot(&session->bpf, &session->regions, ++session->snapshots) ||
	    write_totals(session))
		session->is_host_gone = true;
}

/* How long the rings may wait after a drain that brought so many records. */
static int pause_after(struct session *session, int records)
{
	session->idle_rounds = records ? 0 : session->idle_rounds + 1;
	if (records > BUSY_RECORDS)
		return 0;
	return session->idle_rounds < IDLE_ROUNDS ? BUSY_MS : IDLE_MS;
}

static enum ml_reason follow_target(struct session *session)
{
	int pause_ms = 0;

	while (!session->is_host_gone) {
		ml_bpf_wait(&session->bpf, STDIN_FILENO, pause_ms);
		switch (ml_control_poll(0)) {
		case ML_CONTROL_STOP:
			return ML_REASON_STOPPED;
		case ML_CONTROL_CLOSED:
			return ML_REASON_INPUT_CLOSED;
		case ML_CONTROL_SNAPSHOT:
			write_snapshot(session);
			break;
		case ML_CONTROL_NONE:
			break;
		}
		pause_ms = pause_after(session, drain(session));
		ml_bpf_grow(&session->bpf, session->config->max_live);
		if (has_target_ended(session))
			return ML_REASON_TARGET_EXIT;
		if (ml_nursery_age(session->nursery, ml_clock_ns()))
			session->is_host_gone = true;
		write_status(session);
	}
	return ML_REASON_INPUT_CLOSED;
}

static int finish(struct session *session, enum ml_reason reason)
{
	/* A target that is gone calls nothing any more; one that lives must not change what is being read. */
	if (reason != ML_REASON_TARGET_EXIT)
		ml_bpf_detach(&session->bpf);
	write_snapshot(session);
	ml_blocks_log_children(session->n_children);
	ml_blocks_end(reason, session->wait_status);
	return 0;
}

int ml_bpf_run(const struct ml_config *config)
{
	struct session *session = calloc(1, sizeof(*session));
	int exit_code = 5;

	if (!session)
		return 1;
	session->config = config;
	session->pid = config->pid;
	session->wait_status = -1;
	session->pidfd = config->pid ? (int)syscall(SYS_pidfd_open, config->pid, 0) : -1;
	if (config->n_arguments) {
		if (ml_spawn_stopped(config, NULL, &session->child))
			return 4;
		session->is_child = true;
		session->pid = session->child.pid;
	}
	raise_priority();
	ml_tracefs_mount();
	ml_blocks_hello(ML_COLLECTOR_BPF, session->pid);
	if (!ml_probed_code_check(config) && !open_session(session) && !arm(session))
		exit_code = finish(session, follow_target(session));
	else
		ml_blocks_end(ML_REASON_TRACER_ERROR, -1);
	if (session->bpf.object)
		ml_bpf_destroy(&session->bpf);
	if (session->is_child && session->child.release_fd >= 0)
		ml_spawn_abandon(&session->child);
	ml_sideband_close(session->sideband);
	ml_nursery_destroy(session->nursery);
	ml_frames_destroy(session->frames);
	ml_process_set_destroy(&session->processes);
	ml_regions_destroy(&session->regions);
	free(session);
	return exit_code;
}
