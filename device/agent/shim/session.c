// SPDX-License-Identifier: Apache-2.0
/* A session with the preload shim: starts the command with it, reads what the processes share, writes blocks. */
#define _GNU_SOURCE
#include "agent/shim/session.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/shim/attached_target.h"
#include "agent/protocol/blocks.h"
#include "agent/protocol/event_batch.h"
#include "agent/evidence/nursery.h"
#include "agent/shim/children.h"
#include "agent/shim/hooked.h"
#include "agent/shim/last_calls.h"
#include "agent/shim/peak.h"
#include "agent/shim/regions.h"
#include "agent/shim/seen.h"
#include "agent/shim/settings.h"
#include "agent/shim/snapshot.h"
#include "agent/process/resource_limits.h"
#include "agent/spawn/spawn.h"

#define IDLE_MS 16
#define STATUS_NS 250000000ull

#define BUSY_BYTES (1u << 20) /* more than this in the rings after one wait: come back at once */
#define SOME_BYTES (1u << 16) /* … soon; what is less could come for IDLE_MS many times over before a ring is full */

struct session {
	const struct ml_config *config;
	struct ml_settings settings;
	struct ml_nursery *nursery;
	struct ml_preload_seen seen;
	struct ml_preload_regions regions;
	struct ml_preload_processes processes;
	struct ml_preload_children children;
	int listener;
	ml_u64 nonce;
	struct ml_child child;
	struct ml_attached_target attached; /* a process that runs already, in the child's place */
	int wait_status;
	bool has_exited, is_host_gone;
	ml_u64 snapshots, next_status_ns;
	ml_u64 lost[ML_LOST_MAX];
	struct ml_event_batch events;
};

/* Else a process is awaited that somebody else starts, or one is entered that runs already. */
static bool starts_command(const struct ml_config *config)
{
	return !config->await && !config->pid;
}

/* ---- what the nursery asks ---------------------------------------------------------------------------- */

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
	return session->config->every_stack || !ml_preload_seen_test(&session->seen, key, stack_hash);
}

static void on_evidence(void *context, const struct ml_evidence *record)
{
	if (ml_nursery_add(((struct session *)context)->nursery, record))
		((struct session *)context)->lost[ML_LOST_NURSERY_FULL]++;
}

static void on_event(void *context, const struct ml_event *event)
{
	struct session *session = context;

	if (event->function >= ML_FN_MMAP && event->function <= ML_FN_MREMAP &&
	    ml_preload_regions_add(&session->regions, event))
		session->lost[ML_LOST_REGIONS]++;
	if (session->config->events)
		session->is_host_gone |= ml_event_batch_add(&session->events, event) != 0;
}

static size_t drain(struct session *session)
{
	struct ml_preload_sink sink = { is_wanted, on_evidence, on_event, session };
	size_t bytes = 0;

	ml_preload_regions_begin(&session->regions);
	for (size_t i = 0; i < session->processes.n_targets; i++) {
		bytes += ml_preload_target_drain(session->processes.targets[i], &sink);
		session->is_host_gone |= ml_preload_hooked_look(session->processes.targets[i]) != 0;
	}
	session->lost[ML_LOST_REGIONS] += ml_preload_regions_settle(&session->regions);
	session->is_host_gone |= ml_event_batch_write(&session->events) != 0;
	return bytes;
}

/* ---- processes ---------------------------------------------------------------------------------------- */

static void accept_one(struct session *session)
{
	ml_u64 before_ns = ml_clock_ns(); /* of its first maps, which it sends once it is let go */
	int connection = accept4(session->listener, NULL, NULL, SOCK_CLOEXEC);
	struct ml_preload_target *target;
	ml_u32 unmeasured;

	if (connection < 0)
		return;
	target = ml_preload_processes_accept(&session->processes, connection, session->nonce, &session->settings,
					     &unmeasured);
	if (target || unmeasured) {
		ml_preload_children_drain(&session->children);
		ml_preload_children_joined(&session->children, target ? target->pid : unmeasured);
		drain(session); /* what an old program of the same process left */
	}
	if (unmeasured)
		ml_preload_processes_refuse(&session->processes, unmeasured, &session->regions.ledger);
	if (target) {
		ml_preload_processes_add(&session->processes, target, &session->regions.ledger, before_ns);
		ml_preload_target_release(connection);
	}
	close(connection);
}

static void close_ended(struct session *session)
{
	ml_preload_children_drain(&session->children);
	if (!ml_preload_processes_look(&session->processes))
		return;
	ml_preload_children_drain(&session->children); /* what they did until their end */
	drain(session);
	ml_preload_processes_close(&session->processes, &session->regions.ledger);
}

/* Who is awaited or entered is no child: the session ends with the last of those who joined. */
static bool have_all_ended(const struct ml_preload_processes *processes)
{
	return processes->next_index && !processes->n_targets && !processes->n_left;
}

static bool has_ended(struct session *session)
{
	const struct ml_preload_processes *processes = &session->processes;

	close_ended(session);
	if (!starts_command(session->config))
		return have_all_ended(processes);
	if (!session->has_exited && ml_exit_hold_has_ended(&session->child.hold, session->child.pid, &session->wait_status)) {
		session->has_exited = true;
		close_ended(session);
		ml_preload_process_write((ml_u32)session->child.pid, ML_PROCESS_EXIT, session->wait_status, ml_clock_ns());
		session->processes.command = 0; /* its pid may be another's from now on */
	}
	return session->has_exited && !(session->config->follow && (processes->n_targets + processes->n_left ||
								    ml_preload_children_awaited(&session->children)));
}

/* ---- starting ----------------------------------------------------------------------------------------- */

static int start_listening(struct session *session, char *name, size_t room)
{
	session->listener = ml_attached_listen(session->config, &session->nonce, name, room);
	return session->listener < 0;
}

/* LD_PRELOAD with ours first, so that the shim can take exactly its own entry out again. */
static int start_command(struct session *session, const char *name)
{
	const struct ml_config *config = session->config;
	const char *users = getenv("LD_PRELOAD");
	char *preload, *variable;
	char *extra[3] = { NULL };

	if (!config->shim_path || access(config->shim_path, R_OK)) {
		ml_blocks_error(ML_REASON_TRACER_ERROR, "could not read the shim %s: %s (build it with `make device`)",
				config->shim_path ? config->shim_path : "(none named)", strerror(errno));
		return -1;
	}
	for (int i = 0; i < config->n_env_changes; i++)
		if (!strncmp(config->env_changes[i], "LD_PRELOAD=", 11))
			users = config->env_changes[i] + 11;
	if (asprintf(&preload, "LD_PRELOAD=%s%s%s", config->shim_path, users && *users ? ":" : "",
		     users && *users ? users : "") < 0 ||
	    asprintf(&variable, "MEMLEAK_SESSION=%s:%016llx", name, (unsigned long long)session->nonce) < 0) {
		ml_blocks_error(ML_REASON_TRACER_ERROR, "out of memory");
		return -1;
	}
	extra[0] = preload;
	extra[1] = variable;
	if (ml_spawn_stopped(config, (struct ml_spawn_extra){ .env = extra }, &session->child))
		return -1;
	session->processes.command = (ml_u32)session->child.pid;
	if (config->follow)
		ml_preload_children_open(&session->children, session->child.pid, &session->processes);
	return 0;
}

static int open_session(struct session *session)
{
	struct ml_nursery_source source = { live_objects, ask_again, NULL, was_in_peak, session };
	char name[64];

	session->nursery = ml_nursery_create(session->config->nursery_bytes, session->config->older_ns, source);
	session->settings = ml_preload_settings(session->config);
	session->processes.config = session->config;
	session->processes.ended.live_max = session->config->max_live;
	if (session->config->pid && !session->config->hook) {
		ml_blocks_error(ML_REASON_TRACER_ERROR,
				"could not attach to pid %d: the preload tracer starts commands (use --tracer plt or bpf)",
				session->config->pid);
		return -1;
	}
	if (!session->nursery || ml_preload_seen_create(&session->seen)) {
		ml_blocks_error(ML_REASON_TRACER_ERROR, "out of memory");
		return -1;
	}
	ml_preload_tell_refused(session->config);
	if (start_listening(session, name, sizeof(name)) || (starts_command(session->config) && start_command(session, name)))
		return -1;
	ml_limits_raise_descriptors(ML_DESCRIPTORS_OF_TRACER); /* two a process */
	return session->config->pid ? ml_attached_start(&session->attached, session->config, name, session->nonce) : 0;
}

/* ---- running ------------------------------------------------------------------------------------------ */

static void write_snapshot(struct session *session)
{
	drain(session);
	ml_preload_processes_drop_left(&session->processes, &session->regions.ledger);
	if (ml_nursery_flush(session->nursery, ml_clock_ns()) ||
	    ml_preload_snapshot(&session->processes, &session->regions.ledger, ++session->snapshots) ||
	    ml_preload_status(&session->processes, session->lost))
		session->is_host_gone = true;
}

static void write_status(struct session *session)
{
	ml_u64 now = ml_clock_ns();

	if (now < session->next_status_ns)
		return;
	session->next_status_ns = now + STATUS_NS;
	for (size_t i = 0; i < session->processes.n_targets; i++)
		ml_preload_target_watch_maps(session->processes.targets[i]);
	if (ml_preload_status(&session->processes, session->lost))
		session->is_host_gone = true;
}

/* Waits for the host, for a new process, or for the next look at the rings. */
static void wait_for_anything(struct session *session, int timeout_ms)
{
	struct pollfd sources[] = {
		{ .fd = STDIN_FILENO, .events = POLLIN },
		{ .fd = session->listener, .events = POLLIN },
	};

	poll(sources, 2, timeout_ms);
	if (sources[1].revents & POLLIN)
		accept_one(session);
}

static int next_wait_ms(int last_ms, size_t bytes)
{
	if (bytes > SOME_BYTES)
		return bytes <= BUSY_BYTES;
	return 2 * last_ms < IDLE_MS ? 2 * last_ms + !last_ms : IDLE_MS;
}

static enum ml_reason follow_target(struct session *session)
{
	int timeout_ms = 1;

	while (!session->is_host_gone) {
		enum ml_control control;
		size_t bytes;

		wait_for_anything(session, timeout_ms);
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
		bytes = drain(session);
		session->is_host_gone |= ml_exit_hold_tell(&session->child.hold) != 0;
		if (ml_attached_look(&session->attached))
			return ML_REASON_TARGET_ERROR;
		if (has_ended(session))
			return ML_REASON_TARGET_EXIT;
		timeout_ms = next_wait_ms(timeout_ms, bytes);
		if (ml_nursery_age(session->nursery, ml_clock_ns()))
			session->is_host_gone = true;
		write_status(session);
	}
	return ML_REASON_INPUT_CLOSED;
}

/* Whoever still asks to join while the hooks are taken out is not to wait for an answer. */
static void stop_listening(struct session *session)
{
	close(session->listener);
	session->listener = -1;
}

static void drain_again(void *session)
{
	drain(session);
}

static int finish(struct session *session, enum ml_reason reason)
{
	if (reason == ML_REASON_TARGET_ERROR) {
		ml_blocks_end(reason, -1);
		return 4;
	}
	if (!session->processes.next_index) {
		if (session->config->pid)
			ml_blocks_error(ML_REASON_TRACER_ERROR, "process %d was not attached to yet (wait longer)",
					session->config->pid);
		else if (session->config->await)
			ml_blocks_error(ML_REASON_TRACER_ERROR, "no process loaded the recorder (was the target started anew?)");
		else
			ml_blocks_error(ML_REASON_TRACER_ERROR,
					"%s never loaded the recorder: linked statically, or set-user-ID (use --tracer bpf)",
					session->config->argv[0]);
		ml_blocks_end(ML_REASON_TRACER_ERROR, session->wait_status);
		return 5;
	}
	ml_preload_children_tell_rest(&session->children);
	session->lost[ML_LOST_MAPPINGS] += session->children.lost;
	stop_listening(session);
	ml_preload_last_calls(&session->processes, drain_again, session);
	ml_attached_end(&session->attached, reason == ML_REASON_TARGET_EXIT);
	write_snapshot(session); /* of what changes no more */
	ml_preload_processes_tell_left(&session->processes);
	ml_blocks_log_children(ml_preload_processes_children(&session->processes));
	ml_blocks_end(reason, session->wait_status);
	return 0;
}

int ml_preload_run(const struct ml_config *config)
{
	struct session *session = calloc(1, sizeof(*session));
	int exit_code = 5;

	if (!session)
		return 1;
	session->config = config;
	session->wait_status = -1;
	session->child.release_fd = -1;
	session->listener = -1;
	ml_blocks_hello(ml_preload_collector(config), config->pid);
	if (open_session(session))
		ml_blocks_end(ML_REASON_TRACER_ERROR, -1);
	else if (starts_command(config) && ml_spawn_release(config, &session->child))
		ml_blocks_end(ML_REASON_TARGET_ERROR, -1), exit_code = 4;
	else
		exit_code = finish(session, follow_target(session));
	if (session->listener >= 0)
		stop_listening(session);
	ml_attached_end(&session->attached, false); /* as far as it is not done */
	ml_preload_processes_end(&session->processes, ML_SESSION_ABANDONED);
	ml_preload_children_close(&session->children);
	ml_preload_processes_destroy(&session->processes);
	ml_preload_seen_destroy(&session->seen);
	ml_preload_regions_destroy(&session->regions);
	ml_nursery_destroy(session->nursery);
	free(session);
	return exit_code;
}
