// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "agent/bpf/session.h"

#include <bpf/bpf.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent/probes/armed.h"
#include "agent/protocol/blocks.h"
#include "agent/bpf/attach.h"
#include "agent/bpf/block_ages.h"
#include "agent/probes/bpf_complaint.h"
#include "agent/bpf/evidence.h"
#include "agent/bpf/follow.h"
#include "agent/bpf/images.h"
#include "agent/bpf/keys.h"
#include "agent/bpf/peak.h"
#include "agent/bpf/rules.h"
#include "agent/bpf/snapshot.h"
#include "agent/bpf/ended_processes.h"
#include "agent/bpf/live_levels.h"
#include "agent/probes/probed_code.h"
#include "agent/process/process_maps.h"
#include "agent/process/sideband.h"
#include "agent/bpf/self_test.h"
#include "agent/process/thread_states.h"
#include "agent/probes/tracefs.h"

/*
 * Rings are drained at least this often, and at once again while they bring much; wake-ups would triple the
 * cost of an event in the target.
 */
#define BUSY_MS 1
#define IDLE_MS 10
#define BUSY_RECORDS 64
#define IDLE_ROUNDS 100
#define STATUS_NS 500000000ull
/* Of every process: how often it is looked which have ended, and where the table of keys fills up. */
#define ENDED_NS 2000000000ull
#define ENDED_SOON_NS 250000000ull

static void write_events(struct ml_bpf_session *session)
{
	session->is_host_gone |= ml_event_batch_write(&session->events) != 0;
}

static void on_event(struct ml_bpf_session *session, const struct ml_event *event)
{
	if (event->function >= ML_FN_MMAP && event->function < ML_FN_PAIR && ml_regions_apply(&session->regions, event))
		session->lost[ML_LOST_REGIONS]++;
	if (session->config->events)
		session->is_host_gone |= ml_event_batch_add(&session->events, event) != 0;
}

/* The ring carries evidence and events; their sizes tell them apart. */
static int on_record(void *context, void *data, size_t bytes)
{
	struct ml_bpf_session *session = context;
	const struct ml_evidence *record;

	if (bytes == sizeof(struct ml_event)) {
		on_event(session, data);
		return 0;
	}
	if (bytes == sizeof(struct ml_bpf_above)) {
		ml_late_stacks_told(&session->late_stacks, data);
		return 0;
	}
	if (bytes == sizeof(struct ml_bpf_returns)) {
		ml_trampolines_told(&session->trampolines, data);
		return 0;
	}
	record = ml_trampolines_undo(&session->trampolines, ml_frames_arch(session->frames), data, bytes);
	if (bytes >= sizeof(*record) && session->config->extend_stacks)
		record = ml_late_stacks_complete(&session->late_stacks, session->bpf.code, data, record, bytes);
	if (bytes < sizeof(*record) ||
	    (!session->config->no_evidence && ml_bpf_evidence_keep(session->nursery, record, bytes))) {
		session->lost[ML_LOST_NURSERY_FULL]++;
	} else if (session->config->whole_machine && !ml_bpf_follow_meet(session, record->pid)) {
		session->lost[ML_LOST_MAPPINGS]++;
	} else if (!(record->flags & ML_EVIDENCE_STACK_SPARSE)) { /* of an exact key: there is nothing to learn */
		ml_stack_ends_teach(&session->stack_ends, record);
		ml_bpf_learn(&session->bpf, session->frames, record);
	}
	session->evidence_records++;
	return 0;
}

/* Who must keep up with the target runs before it; the command itself was started with the user's priority. */
static void raise_priority(void)
{
	setpriority(PRIO_PROCESS, 0, -10);
}

static int open_session(struct ml_bpf_session *session)
{
	const struct ml_config *config = session->config;
	struct ml_nursery_source source = {
		ml_bpf_live_objects, ml_bpf_ask_again, config->evidence_after_ns ? ml_bpf_wanted_from : NULL,
		ml_bpf_was_in_peak, &session->bpf,
	};

	session->nursery = ml_nursery_create(config->nursery_bytes, config->older_ns, source);
	session->frames = ml_frames_create();
	if (!session->nursery || !session->frames ||
	    (config->extend_stacks && ml_late_stacks_create(&session->late_stacks)) ||
	    ml_bpf_load(&session->bpf, config, on_record, session) || ml_bpf_begin_levels(&session->bpf))
		return -1;
	session->stack_ends.fd = session->bpf.stack_ends_fd;
	if (session->pid) {
		ml_bpf_add_process(&session->bpf, (ml_u32)session->pid);
		ml_process_set_add(&session->processes, (ml_u32)session->pid);
	}
	session->sideband = ml_bpf_follow_begin(session);
	if (!session->sideband)
		return ml_bpf_refuse("could not follow mappings", errno, "run as root");
	if (session->pid && !session->is_child) {
		struct ml_process start = { ml_clock_ns(), (ml_u32)session->pid, 0, ML_PROCESS_START, -1, "" };

		ml_blocks_write(ML_BLOCK_PROCESS, &start, sizeof(start));
		ml_bpf_follow_write_maps(session, (ml_u32)session->pid);
	}
	return 0;
}

/* The child calls free() with an address that is no block: the programs must have counted it. */
static int test_probes(struct ml_bpf_session *session)
{
	if (!ml_self_test_possible(session->config) || session->config->empty_probes)
		return 0;
	session->self_tests = ml_self_test_run(&session->child, &session->bpf);
	return session->self_tests ? 0 : -1;
}

/* A call that was under way when its function's probes came is not one that was missed. */
static void begin_counting(struct ml_bpf_session *session)
{
	for (ml_u32 cause = 0; cause < ML_LOST_MAX; cause++)
		session->before_armed[cause] = ml_bpf_counter(&session->bpf, cause);
	ml_bpf_drain(&session->bpf);
	if (session->is_child)
		session->events.count = 0; /* of the self-test */
}

static int arm(struct ml_bpf_session *session)
{
	const struct ml_config *config = session->config;

	if (ml_bpf_attach(&session->bpf, config, config->follow || config->whole_machine ? -1 : session->pid))
		return -1;
	if (config->whole_machine) {
		begin_counting(session);
		return 0;
	}
	if (session->is_child ? test_probes(session) : ml_armed_check(config, session->pid))
		return -1;
	begin_counting(session);
	return session->is_child ? ml_spawn_release(config, &session->child) : 0;
}

/* Returns how many evidence records came. */
static int drain(struct ml_bpf_session *session)
{
	int records;

	/* Mappings first: the stacks that run through new ones are looked up in them. */
	session->lost[ML_LOST_MAPPINGS] += ml_sideband_drain(session->sideband);
	records = ml_bpf_drain(&session->bpf);
	ml_bpf_recycle_rules(&session->bpf, session->frames, &session->processes);
	write_events(session);
	return records;
}

static bool is_gone(struct ml_bpf_session *session)
{
	if (session->is_child)
		return ml_exit_hold_has_ended(&session->child.hold, session->pid, &session->wait_status);
	return ml_process_has_ended((ml_u32)session->pid, session->pidfd);
}

/* Nothing follows what a process recorded before it was gone: it stays in the set until that is drained. */
static void forget_ended(struct ml_bpf_session *session)
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

static bool has_target_ended(struct ml_bpf_session *session)
{
	ml_bpf_follow_first_thread(session);
	forget_ended(session);
	return !session->config->whole_machine && !session->pid && (!session->config->follow || !session->processes.count);
}

static int write_totals(struct ml_bpf_session *session)
{
	ml_u64 lost[ML_LOST_MAX];

	for (int cause = 0; cause < ML_LOST_MAX; cause++)
		lost[cause] = session->lost[cause] - session->before_armed[cause];
	if (session->bpf.perf_path)
		lost[ML_LOST_RING_FULL] += ml_perf_path_lost(session->bpf.perf_path);
	return ml_bpf_status(&session->bpf, session->evidence_records, session->self_tests, lost);
}

static void write_status(struct ml_bpf_session *session)
{
	ml_u64 now = ml_clock_ns();

	if (now < session->next_status_ns)
		return;
	session->next_status_ns = now + STATUS_NS;
	if (write_totals(session))
		session->is_host_gone = true;
}

static void write_snapshot(struct ml_bpf_session *session)
{
	ml_u64 now;

	if (session->config->whole_machine) {
		ml_bpf_forget_ended(&session->bpf);
		ml_bpf_follow_meet_all(session);
	}
	drain(session);
	now = ml_clock_ns();
	if (session->config->evidence_after_ns)
		ml_bpf_read_ages(&session->bpf, now);
	if (ml_nursery_flush(session->nursery, now) || ml_bpf_peak_write(&session->bpf) ||
	    ml_bpf_snapshot(&session->bpf, &session->regions, ++session->snapshots) ||
	    write_totals(session))
		session->is_host_gone = true;
}

static void look_for_ended(struct ml_bpf_session *session)
{
	ml_u64 now = ml_clock_ns();

	if (!session->config->whole_machine || now < session->next_look_ns)
		return;
	ml_bpf_forget_ended(&session->bpf);
	session->next_look_ns = now + (session->bpf.ended.n_keys > ML_BPF_KEY_SLOTS / 4 ? ENDED_SOON_NS : ENDED_NS);
}

/* How long the rings may wait after a drain that brought so many records. */
static int pause_after(struct ml_bpf_session *session, int records)
{
	session->idle_rounds = records ? 0 : session->idle_rounds + 1;
	if (records > BUSY_RECORDS)
		return 0;
	return session->idle_rounds < IDLE_ROUNDS ? BUSY_MS : IDLE_MS;
}

static enum ml_reason follow_target(struct ml_bpf_session *session)
{
	int pause_ms = 0;

	while (!session->is_host_gone) {
		enum ml_control control;

		ml_bpf_wait(&session->bpf, STDIN_FILENO, pause_ms);
		switch (control = ml_control_poll(0)) {
		case ML_CONTROL_STOP:
			return ML_REASON_STOPPED;
		case ML_CONTROL_CLOSED:
			return ML_REASON_INPUT_CLOSED;
		case ML_CONTROL_SNAPSHOT:
			write_snapshot(session);
			break;
		default:
			ml_exit_hold_obey(&session->child.hold, control);
		}
		session->is_host_gone |= ml_exit_hold_tell(&session->child.hold) != 0;
		pause_ms = pause_after(session, drain(session));
		ml_bpf_grow(&session->bpf, session->config->max_live);
		if (session->config->adaptive)
			ml_hot_keys_look(&session->hot_keys, &session->bpf, ml_clock_ns());
		if (has_target_ended(session))
			return ML_REASON_TARGET_EXIT;
		look_for_ended(session);
		if (ml_nursery_age(session->nursery, ml_clock_ns()))
			session->is_host_gone = true;
		write_status(session);
	}
	return ML_REASON_INPUT_CLOSED;
}

static int finish(struct ml_bpf_session *session, enum ml_reason reason)
{
	/* A target that is gone calls nothing any more; one that lives must not change what is being read. */
	if (reason != ML_REASON_TARGET_EXIT)
		ml_bpf_detach(&session->bpf);
	write_snapshot(session);
	ml_late_stacks_log(&session->late_stacks);
	ml_blocks_log_children(session->n_children);
	if (session->bpf.ended.objects)
		ml_blocks_log("%llu bytes in %llu blocks went with the programs that held them as these ended, and are not in the report",
			      (unsigned long long)session->bpf.ended.bytes, (unsigned long long)session->bpf.ended.objects);
	ml_blocks_end(reason, session->wait_status);
	return 0;
}

int ml_bpf_run(const struct ml_config *config)
{
	struct ml_bpf_session *session = calloc(1, sizeof(*session));
	int exit_code = 5;

	if (!session)
		return 1;
	session->settled = *config;
	session->config = &session->settled;
	session->pid = config->pid;
	session->wait_status = -1;
	session->pidfd = config->pid ? (int)syscall(SYS_pidfd_open, config->pid, 0) : -1;
	if (config->n_arguments) {
		if (ml_spawn_stopped(config, (struct ml_spawn_extra){ .self_test = ml_self_test_call }, &session->child))
			return 4;
		session->is_child = true;
		session->pid = session->child.pid;
	}
	raise_priority();
	ml_tracefs_mount();
	ml_blocks_hello(ML_COLLECTOR_BPF, session->pid);
	if (!ml_probed_code_settle(&session->settled) && !open_session(session) && !arm(session))
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
	ml_hot_keys_destroy(&session->hot_keys);
	ml_late_stacks_destroy(&session->late_stacks);
	free(session);
	return exit_code;
}
