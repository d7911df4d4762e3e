// SPDX-License-Identifier: Apache-2.0
/* A session with the preload shim: starts the command with it, reads what the processes share, writes blocks. */
#define _GNU_SOURCE
#include "preload_session.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "blocks.h"
#include "event_batch.h"
#include "nursery.h"
#include "preload_children.h"
#include "preload_processes.h"
#include "preload_regions.h"
#include "preload_seen.h"
#include "preload_snapshot.h"
#include "spawn.h"

#define IDLE_MS 16
#define STATUS_NS 250000000ull

#define BUSY_BYTES (1u << 20) /* more than this in the rings after one wait: come back at once */
#define SOME_BYTES (1u << 16) /* … soon; what is less could come for IDLE_MS many times over before a ring is full */
#define SPARSE_SAMPLES 4096u /* from there on a sampled block is alone on its page of shadow memory */

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
	int wait_status;
	bool has_exited, is_host_gone;
	ml_u64 snapshots, next_status_ns;
	ml_u64 lost[ML_LOST_MAX];
	struct ml_event_batch events;
};

/* ---- what the nursery asks ---------------------------------------------------------------------------- */

static ml_u64 live_objects(void *context, ml_u64 key)
{
	struct session *session = context;

	return ml_preload_processes_live_objects(&session->processes, key);
}

static void ask_again(void *context, ml_u64 key)
{
	struct session *session = context;

	ml_preload_seen_forget(&session->seen, key);
	ml_preload_processes_ask_again(&session->processes, key);
}

/* ---- records ------------------------------------------------------------------------------------------ */

static bool is_wanted(void *context, ml_u64 key, ml_u64 stack_hash)
{
	struct session *session = context;

	return session->config->every_stack || !ml_preload_seen_test(&session->seen, key, stack_hash);
}

static void on_evidence(void *context, const struct ml_evidence *record)
{
	struct session *session = context;

	if (ml_nursery_add(session->nursery, record))
		session->lost[ML_LOST_NURSERY_FULL]++;
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
	for (size_t i = 0; i < session->processes.n_targets; i++)
		bytes += ml_preload_target_drain(session->processes.targets[i], &sink);
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

	if (connection < 0)
		return;
	target = ml_preload_processes_accept(&session->processes, connection, session->nonce, &session->settings);
	if (target) {
		ml_preload_children_drain(&session->children);
		ml_preload_children_joined(&session->children, target->pid);
		drain(session); /* what an old program of the same process left */
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

/* Who is awaited is no child: the session ends with the last of those who joined. */
static bool have_all_ended(const struct ml_preload_processes *processes)
{
	return processes->next_index && !processes->n_targets && !processes->n_left;
}

static bool has_ended(struct session *session)
{
	const struct ml_preload_processes *processes = &session->processes;

	close_ended(session);
	if (session->config->await)
		return have_all_ended(processes);
	if (!session->has_exited && waitpid(session->child.pid, &session->wait_status, WNOHANG) == session->child.pid) {
		session->has_exited = true;
		close_ended(session);
		ml_preload_process_write((ml_u32)session->child.pid, ML_PROCESS_EXIT, session->wait_status, ml_clock_ns());
		session->processes.command = 0; /* its pid may be another's from now on */
	}
	return session->has_exited && !(session->config->follow && (processes->n_targets + processes->n_left ||
								    ml_preload_children_awaited(&session->children)));
}

/* Two descriptors a process. The command was started already, with the limit that it is to find. */
static void allow_descriptors(void)
{
	struct rlimit limit;

	if (!getrlimit(RLIMIT_NOFILE, &limit)) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
}

/* ---- starting ----------------------------------------------------------------------------------------- */

static struct ml_settings settings_from(const struct ml_config *config)
{
	return (struct ml_settings){
		.sample_bytes = config->sample_bytes,
		.min_size = config->min_size,
		.max_size = config->max_size,
		.max_live = config->max_live,
		.stack_bytes = config->stack_bytes < ML_STACK_BYTES_MAX ? config->stack_bytes : ML_STACK_BYTES_MAX,
		.key_bytes = 65536,
		.flags = (config->every_stack ? ML_SETTING_EVERY_STACK : 0) | (config->follow ? ML_SETTING_FOLLOW : 0) |
			 (config->events ? ML_SETTING_EVENTS : 0) | (config->mmap ? ML_SETTING_MMAP : 0) |
			 (config->no_evidence ? ML_SETTING_NO_EVIDENCE : 0),
		.n_threads = sizeof(void *) == 8 ? 1024 : 64,
		.n_keys = sizeof(void *) == 8 ? 1u << 20 : 1u << 17,
		.ring_bytes = sizeof(void *) == 8 ? 8u << 20 : 1u << 20,
		/* 16 GiB of heap. A table that is to be small, or for a block here and there, is better hashed. */
		.n_chunks = sizeof(void *) == 8 && config->max_live >= 1u << 16 && config->sample_bytes < SPARSE_SAMPLES ?
				    1u << 16 :
				    0,
	};
}

static int start_listening(struct session *session, char *name, size_t room)
{
	session->listener = ml_preload_listen(session->config->await, &session->nonce, name, room);
	if (session->listener < 0)
		ml_blocks_error(ML_REASON_TRACER_ERROR, "could not listen for the target: %s", strerror(errno));
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
	if (ml_spawn_stopped(config, extra, &session->child))
		return -1;
	session->processes.command = (ml_u32)session->child.pid;
	if (config->follow)
		ml_preload_children_open(&session->children, session->child.pid, &session->processes);
	return 0;
}

static int open_session(struct session *session)
{
	struct ml_nursery_source source = { live_objects, ask_again, session };
	char name[64];

	session->nursery = ml_nursery_create(session->config->nursery_bytes, session->config->older_ns, source);
	session->settings = settings_from(session->config);
	session->processes.ended.live_max = session->config->max_live;
	if (session->config->pid) {
		ml_blocks_error(ML_REASON_TRACER_ERROR,
				"could not attach to pid %d: the preload tracer starts commands (use --tracer bpf)",
				session->config->pid);
		return -1;
	}
	if (!session->nursery || ml_preload_seen_create(&session->seen)) {
		ml_blocks_error(ML_REASON_TRACER_ERROR, "out of memory");
		return -1;
	}
	if (session->config->mmap && sizeof(long) < 8)
		ml_blocks_log("the preload tracer keeps no ledger of mmap on 32-bit systems (use --tracer bpf)");
	if (start_listening(session, name, sizeof(name)) || (!session->config->await && start_command(session, name)))
		return -1;
	allow_descriptors();
	return 0;
}

/* ---- running ------------------------------------------------------------------------------------------ */

static void write_snapshot(struct session *session)
{
	drain(session);
	ml_preload_processes_drop_left(&session->processes, &session->regions.ledger);
	if (ml_nursery_flush(session->nursery) ||
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
		size_t bytes;

		wait_for_anything(session, timeout_ms);
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
		bytes = drain(session);
		if (has_ended(session))
			return ML_REASON_TARGET_EXIT;
		timeout_ms = next_wait_ms(timeout_ms, bytes);
		if (ml_nursery_age(session->nursery, ml_clock_ns()))
			session->is_host_gone = true;
		write_status(session);
	}
	return ML_REASON_INPUT_CLOSED;
}

static int finish(struct session *session, enum ml_reason reason)
{
	if (!session->processes.next_index) {
		if (session->config->await)
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
	write_snapshot(session);
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
	ml_blocks_hello(ML_COLLECTOR_PRELOAD, 0);
	if (open_session(session))
		ml_blocks_end(ML_REASON_TRACER_ERROR, -1);
	else if (!config->await && ml_spawn_release(config, &session->child))
		ml_blocks_end(ML_REASON_TARGET_ERROR, -1), exit_code = 4;
	else
		exit_code = finish(session, follow_target(session));
	ml_preload_children_close(&session->children);
	ml_preload_processes_destroy(&session->processes);
	ml_preload_seen_destroy(&session->seen);
	ml_preload_regions_destroy(&session->regions);
	ml_nursery_destroy(session->nursery);
	if (session->listener >= 0)
		close(session->listener);
	free(session);
	return exit_code;
}
