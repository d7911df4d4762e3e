// SPDX-License-Identifier: Apache-2.0
/* A session with the shim: starts or attaches to processes, reads their shared memory, and writes blocks. */
#include "agent/shim/session.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent/shim/attached_target.h"
#include "agent/protocol/abstract_socket.h"
#include "agent/protocol/blocks.h"
#include "agent/evidence/nursery.h"
#include "agent/shim/children.h"
#include "agent/shim/command.h"
#include "agent/shim/handshakes.h"
#include "agent/shim/peak.h"
#include "agent/shim/regions.h"
#include "agent/shim/seen.h"
#include "agent/shim/processes.h"
#include "agent/process/process_maps.h"
#include "agent/process/resource_limits.h"
#include "agent/session/loop.h"

#define IDLE_MS 16
#define STATUS_NS 250000000ull

#define BUSY_BYTES (1u << 20) /* more than this in the rings after one wait: come back at once */
#define SOME_BYTES (1u << 16) /* … soon; what is less could come for IDLE_MS many times over before a ring is full */

struct session {
	struct ml_session base;
	struct ml_settings settings;
	struct ml_preload_seen seen;
	struct ml_preload_regions regions;
	struct ml_region_sizes region_sizes;
	struct ml_preload_processes processes;
	struct ml_preload_children children;
	int listener;
	struct ml_session_word word;
	struct ml_handshakes handshakes;
	struct ml_attached_target attached; /* a running process, instead of the child, … */
	struct ml_attached_children attached_children; /* … and with --follow those below it */
	bool has_exited;
	struct ml_event_batch events;
};

/* Else a process is awaited that another program starts, or the target runs already. */
static bool starts_command(const struct ml_config *config)
{
	return !config->await && !config->pid;
}

/* ---- callbacks of the nursery -------------------------------------------------------------------------- */

static ml_u64 live_objects(void *context, ml_u64 key, ml_u64 *allocated)
{
	return ml_preload_processes_live_objects(&((struct session *)context)->processes, key, allocated);
}

static void ask_again(void *context, ml_u64 key)
{
	struct session *session = context;

	ml_preload_seen_forget(&session->seen, key);
	ml_preload_processes_ask_again(&session->processes, key);
}

static bool was_in_peak(void *context, ml_u64 key)
{
	const struct ml_preload_processes *processes = &((struct session *)context)->processes;

	return ml_preload_was_in_peak(&processes->last_peak, processes->targets, processes->n_targets, key);
}

/* ---- records ------------------------------------------------------------------------------------------ */

static bool is_wanted(void *context, ml_u64 key, ml_u64 stack_hash)
{
	struct session *session = context;
	return session->base.config->every_stack || !ml_preload_seen_test(&session->seen, key, stack_hash);
}

static void on_evidence(void *context, const struct ml_evidence *record)
{
	if (ml_nursery_add(((struct session *)context)->base.nursery, record))
		((struct session *)context)->base.lost[ML_LOST_NURSERY_FULL]++;
}

static void on_event(void *context, const struct ml_event *event)
{
	struct session *session = context;
	bool is_region = event->function >= ML_FN_MMAP && event->function < ML_FN_PAIR;

	struct ml_event whole = *event;
	int change = ml_region_complete(&session->region_sizes, &whole);

	if (change < 0 || (is_region && change && ml_preload_regions_add(&session->regions, &whole)))
		session->base.lost[ML_LOST_REGIONS]++;
	if (change > 0 && session->base.config->events && (!is_region || session->base.config->mmap > 1))
		session->base.is_host_gone |= ml_event_batch_add(&session->events, &whole) != 0;
}

static size_t drain(struct session *session)
{
	struct ml_preload_sink sink = { is_wanted, on_evidence, on_event, session };
	size_t bytes = 0;

	ml_preload_regions_begin(&session->regions);
	session->region_sizes.n_looks = 0;
	for (size_t i = 0; i < session->processes.n_targets; i++) {
		bytes += ml_preload_target_drain(session->processes.targets[i], &sink);
		session->base.is_host_gone |= ml_preload_hooked_write(session->processes.targets[i]) != 0;
	}
	session->base.lost[ML_LOST_REGIONS] += ml_preload_regions_settle(&session->regions);
	session->base.is_host_gone |= ml_event_batch_write(&session->events) != 0;
	return bytes;
}

/* ---- processes ---------------------------------------------------------------------------------------- */

/* A process of the session that waits for the agent, or cannot be recorded. */
static void join(struct session *session, const struct ml_joined *joined)
{
	ml_preload_children_drain(&session->children);
	ml_preload_children_joined(&session->children, joined->pid);
	drain(session); /* records of the program before exec */
	if (!joined->target) {
		ml_preload_processes_refuse(&session->processes, joined->pid, joined->reason, &session->regions.ledger);
		return;
	}
	ml_preload_settings_pairs(joined->target->view.pairs, session->base.config);
	/* Its first maps are newer than its connection. */
	ml_preload_processes_add(&session->processes, joined->target, &session->regions.ledger, joined->begun_ns);
	ml_handshake_release(joined->connection);
	ml_abstract_close(joined->connection);
}

static void go_on_with_handshakes(struct session *session, bool is_any_new)
{
	struct ml_invitation invitation = { &session->word.nonce, &session->settings,
					    ml_preload_processes_refusal(&session->processes), &session->processes.next_index };
	struct ml_joined joined;

	if (is_any_new)
		ml_handshakes_accept(&session->handshakes, session->listener, &invitation);
	while (ml_handshakes_next(&session->handshakes, &invitation, &joined)) {
		join(session, &joined);
		invitation.refusal = ml_preload_processes_refusal(&session->processes);
	}
}

static void close_ended(struct session *session)
{
	ml_preload_children_drain(&session->children);
	if (!ml_preload_processes_find_ended(&session->processes))
		return;
	ml_preload_children_drain(&session->children); /* records from before their end */
	drain(session);
	ml_preload_processes_close(&session->processes, &session->regions.ledger);
}

/* Awaited and attached processes are not our children, so the session ends when the last joined process exits. */
static bool have_all_ended(const struct ml_preload_processes *processes)
{
	return processes->n_joined && !processes->n_targets && !processes->n_left;
}

/* How the process ended to which the session was attached, or which joined it first: known then, and not for long. */
static void watch_target(struct session *session)
{
	struct ml_session *base = &session->base;

	if (!base->pid && session->processes.n_targets) {
		base->pid = (int)session->processes.targets[0]->pid;
		base->pidfd = (int)syscall(SYS_pidfd_open, base->pid, 0);
	}
	if (base->wait_status < 0)
		ml_session_target_has_ended(base);
}

static bool has_ended(struct session *session)
{
	const struct ml_preload_processes *processes = &session->processes;

	close_ended(session);
	if (!starts_command(session->base.config)) {
		watch_target(session);
		return have_all_ended(processes);
	}
	if (!session->has_exited &&
	    ml_exit_hold_has_ended(&session->base.child.hold, session->base.child.pid, &session->base.wait_status)) {
		session->has_exited = true;
		close_ended(session);
		ml_process_write((ml_u32)session->base.child.pid, ML_PROCESS_EXIT, session->base.wait_status, ml_clock_ns());
		session->processes.command = 0; /* its pid may be reused from now on */
	}
	return session->has_exited && !(session->base.config->follow && (processes->n_targets + processes->n_left ||
									 ml_preload_children_awaited(&session->children)));
}

/* ---- starting ----------------------------------------------------------------------------------------- */

static int start_command(struct session *session)
{
	const struct ml_config *config = session->base.config;

	if (ml_preload_command_start(config, session->word.text, &session->base.child))
		return -1;
	session->processes.command = (ml_u32)session->base.child.pid;
	ml_preload_children_open(&session->children, session->base.child.pid, config->follow, &session->processes);
	return 0;
}

static int open_session(struct session *session)
{
	struct ml_nursery_source source = { live_objects, ask_again, was_in_peak, session };

	session->base.nursery = ml_nursery_create(session->base.config->nursery_bytes, session->base.config->older_ns, source);
	session->settings = ml_preload_settings(session->base.config);
	session->processes.config = session->base.config;
	session->processes.ended.live_max = session->base.config->max_live;
	if (session->base.config->pid && !session->base.config->hook)
		return ml_blocks_error(
			ML_REASON_TRACER_ERROR,
			"could not attach to pid %d: the preload tracer starts commands (use --tracer plt or bpf)",
			session->base.config->pid);
	if (!session->base.nursery || ml_preload_seen_create(&session->seen))
		return ml_blocks_error(ML_REASON_TRACER_ERROR, "out of memory");
	ml_preload_settings_log(session->base.config);
	session->listener = ml_attached_listen(session->base.config, &session->word);
	if (session->listener < 0 || (starts_command(session->base.config) && start_command(session)))
		return -1;
	if (session->base.config->pid && !session->base.config->follow)
		ml_preload_children_open(&session->children, session->base.config->pid, false, &session->processes);
	ml_limits_raise_descriptors(ML_DESCRIPTORS_OF_TRACER); /* two a process */
	return session->base.config->pid ?
		       ml_attached_start(&session->attached, session->base.config->pid, session->base.config, &session->word) :
		       0;
}

/* ---- running ------------------------------------------------------------------------------------------ */

static void watch_maps(struct session *session, bool only_unread)
{
	for (size_t i = 0; i < session->processes.n_targets; i++) {
		struct ml_preload_target *target = session->processes.targets[i];

		if (!only_unread || ml_preload_target_maps_unread(target))
			ml_preload_target_watch_maps(target);
	}
}

static int write_snapshot(void *context)
{
	struct session *session = context;

	watch_maps(session, true);
	drain(session);
	ml_preload_processes_drop_left(&session->processes, &session->regions.ledger);
	return ml_nursery_flush(session->base.nursery) ||
	       ml_preload_snapshot(&session->processes, &session->regions.ledger, ++session->base.n_snapshots) ||
	       ml_preload_status(&session->processes, session->base.lost);
}

static int write_status(void *context)
{
	struct session *session = context;

	watch_maps(session, false);
	return ml_preload_status(&session->processes, session->base.lost);
}

/* Waits for the host, for a new process, or until the rings are due. */
static void wait_for_input(void *context, int timeout_ms)
{
	struct session *session = context;
	struct pollfd sources[2 + ML_HANDSHAKES_MAX] = { { .fd = STDIN_FILENO, .events = POLLIN },
							 { .fd = session->listener, .events = POLLIN } };
	size_t n = 2 + ml_handshakes_poll(&session->handshakes, sources + 2);

	poll(sources, n, timeout_ms);
	go_on_with_handshakes(session, sources[1].revents & POLLIN);
}

static int next_wait_ms(int last_ms, size_t bytes)
{
	if (bytes > SOME_BYTES)
		return bytes <= BUSY_BYTES;
	return 2 * last_ms < IDLE_MS ? 2 * last_ms + !last_ms : IDLE_MS;
}

/* -1: after an ERROR block. */
static int poll_attached(struct session *session)
{
	const char *refusal = ml_attached_poll(&session->attached);

	if (refusal)
		return ml_blocks_error(ML_REASON_TARGET_ERROR, "%s", refusal);
	if (session->attached.is_attached && session->base.config->follow)
		ml_attached_children_poll(&session->attached_children, session->base.config, &session->word,
					  &session->processes, &session->regions.ledger);
	return 0;
}

static int poll_targets(void *context)
{
	struct session *session = context;
	size_t bytes = drain(session);

	if (poll_attached(session))
		return ML_REASON_TARGET_ERROR;
	if (has_ended(session))
		return ML_REASON_TARGET_EXIT;
	session->base.timeout_ms = next_wait_ms(session->base.timeout_ms, bytes);
	return 0;
}

/* A process that asks to join while the hooks are taken out must not wait for an answer. */
static void stop_listening(struct session *session)
{
	ml_abstract_close(session->listener);
	session->listener = -1;
	ml_handshakes_close(&session->handshakes);
}

static void drain_again(void *session)
{
	drain(session);
}

static int end(void *context, enum ml_reason reason)
{
	struct session *session = context;

	if (reason == ML_REASON_TARGET_ERROR) {
		ml_blocks_end(reason, -1);
		return 4;
	}
	if (!session->processes.n_joined) {
		reason = ml_preload_report_absent(&session->base);
		ml_blocks_end(reason, session->base.wait_status);
		return reason == ML_REASON_TARGET_ERROR ? 4 : 5;
	}
	ml_preload_children_report_rest(&session->children);
	if (session->base.config->follow || session->base.config->pid) /* else they only count children */
		session->base.lost[ML_LOST_MAPPINGS] += session->children.lost;
	stop_listening(session);
	ml_preload_last_calls(&session->processes, drain_again, session);
	ml_attached_children_end(&session->attached_children);
	ml_attached_end(&session->attached, reason == ML_REASON_TARGET_EXIT);
	session->base.lost[ML_LOST_REGIONS] += ml_preload_regions_overdue(&session->regions);
	write_snapshot(session); /* nothing changes any more */
	ml_preload_processes_report_left(&session->processes);
	ml_blocks_log_children(ml_preload_processes_children(&session->processes) + session->children.n_other_programs);
	ml_blocks_end(reason, session->base.wait_status);
	return 0;
}

static int start(void *context)
{
	struct session *session = context;

	if (open_session(session))
		return 5;
	session->base.timeout_ms = 1;
	return starts_command(session->base.config) && ml_spawn_release(session->base.config, &session->base.child) ? 4 : 0;
}

int ml_preload_run(const struct ml_config *config)
{
	static const struct ml_session_ops ops = { start, wait_for_input, poll_targets, write_snapshot, write_status, end };
	struct session *session = calloc(1, sizeof(*session));
	int exit_code;

	if (!session)
		return 1;
	session->base = (struct ml_session){
		.config = config, .pidfd = -1, .wait_status = -1, .child.release_fd = -1, .status_interval_ns = STATUS_NS
	};
	session->listener = -1;
	ml_blocks_hello(ml_preload_collector(config), config->pid);
	exit_code = ml_session_run(session, &ops);
	if (session->listener >= 0)
		stop_listening(session);
	ml_attached_children_end(&session->attached_children); /* unless it is done */
	ml_attached_end(&session->attached, false);
	ml_preload_processes_end(&session->processes, ML_SESSION_ABANDONED);
	ml_preload_children_close(&session->children);
	ml_preload_processes_destroy(&session->processes);
	ml_preload_seen_destroy(&session->seen);
	ml_preload_regions_destroy(&session->regions);
	ml_session_close(&session->base);
	free(session);
	return exit_code;
}
