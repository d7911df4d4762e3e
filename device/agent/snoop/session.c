// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "agent/snoop/session.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/protocol/blocks.h"
#include "agent/probes/probed_code.h"
#include "agent/snoop/addresses.h"
#include "agent/snoop/attach.h"
#include "agent/snoop/mappings.h"
#include "agent/snoop/output.h"
#include "agent/snoop/stacks.h"
#include "agent/spawn/spawn.h"
#include "agent/process/thread_states.h"

/* The ring is drained at least this often: wake-ups would triple the cost of an event in the target. */
#define BUSY_MS 1
#define IDLE_MS 10
#define BUSY_RECORDS 64
#define STATUS_NS 500000000ull

struct target {
	int pid; /* 0: it has ended */
	int pidfd;
	struct ml_snoop_addresses *addresses; /* without cookies */
};

struct session {
	struct ml_snoop_config *config;
	struct ml_snoop snoop;
	struct ml_call_batch *batch;
	struct ml_call_stacks *stacks;
	struct ml_snoop_mappings *mappings; /* NULL: there are no stacks */
	struct ml_child child;
	struct target targets[ML_SNOOP_PROCESSES];
	int n_targets;
	bool is_child, is_host_gone;
	int wait_status;
	ml_u64 next_status_ns;
};

static int on_stack(void *context, void *record, size_t bytes)
{
	struct session *session = context;

	session->is_host_gone |= ml_call_stacks_add(session->stacks, record, bytes) != 0;
	return 0;
}

/* A call's stack stands in its ring before the call in its own: it is written first. */
static void write_calls(struct session *session)
{
	if (session->mappings) {
		ring_buffer__consume(session->snoop.stacks);
		ml_snoop_mappings_drain(session->mappings); /* the stacks that run through new ones are looked up in them */
		session->is_host_gone |= ml_call_stacks_write(session->stacks) != 0;
	}
	session->is_host_gone |= ml_call_batch_write(session->batch) != 0;
}

static int on_call(void *context, void *record, size_t bytes)
{
	struct session *session = context;

	ml_call_batch_add(session->batch, record, bytes);
	if (ml_call_batch_is_full(session->batch))
		write_calls(session);
	return 0;
}

static void update_addresses(struct session *session)
{
	for (int i = 0; i < session->n_targets && !session->snoop.has_cookies; i++)
		if (session->targets[i].pid)
			ml_snoop_addresses_update(&session->snoop, session->config, (ml_u32)session->targets[i].pid,
						  &session->targets[i].addresses);
}

/* Returns how many records came. */
static int drain(struct session *session)
{
	int records = ring_buffer__consume(session->snoop.calls);

	write_calls(session);
	update_addresses(session);
	return records;
}

static void write_status(struct session *session)
{
	struct ml_status status = { .timestamp_ns = ml_clock_ns() };
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	status.tracer_cpu_ns = (ml_u64)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000000u +
			       (ml_u64)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1000u;
	for (ml_u32 cause = 0; cause < ML_LOST_MAX; cause++)
		status.lost[cause] = ml_snoop_counter(&session->snoop, cause);
	session->is_host_gone |= ml_blocks_write(ML_BLOCK_STATUS, &status, sizeof(status)) != 0;
}

static void write_numbers(struct session *session, bool is_final)
{
	drain(session);
	session->is_host_gone |= ml_call_statistics_write(&session->snoop, is_final) != 0;
	write_status(session);
}

static void add_target(struct session *session, int pid)
{
	session->targets[session->n_targets++] = (struct target){ pid, (int)syscall(SYS_pidfd_open, pid, 0), NULL };
	ml_snoop_add_process(&session->snoop, (ml_u32)pid);
}

/* Looks at all of them, so that the command is waited for. */
static bool have_all_ended(struct session *session)
{
	int n_left = 0;

	for (int i = 0; i < session->n_targets; i++) {
		struct target *target = &session->targets[i];

		if (!target->pid)
			continue;
		if (session->is_child ? waitpid(target->pid, &session->wait_status, WNOHANG) == target->pid :
					ml_process_has_ended((ml_u32)target->pid, target->pidfd))
			target->pid = 0;
		else
			n_left++;
	}
	return !n_left;
}

/* Looked at with each STATUS: those that have ended make room for others in the meantime, too. */
static bool has_children(struct session *session)
{
	return session->config->session.follow && ml_snoop_has_processes(&session->snoop);
}

static enum ml_reason follow_targets(struct session *session)
{
	struct pollfd input = { .fd = STDIN_FILENO, .events = POLLIN };
	int pause_ms = 0;

	while (!session->is_host_gone) {
		poll(&input, 1, pause_ms);
		switch (ml_control_poll(0)) {
		case ML_CONTROL_STOP:
			return ML_REASON_STOPPED;
		case ML_CONTROL_CLOSED:
			return ML_REASON_INPUT_CLOSED;
		case ML_CONTROL_SNAPSHOT:
			write_numbers(session, false);
			break;
		case ML_CONTROL_DETACH:
		case ML_CONTROL_RESUME:
		case ML_CONTROL_NONE:
			break;
		}
		pause_ms = drain(session) > BUSY_RECORDS ? BUSY_MS : IDLE_MS;
		if (have_all_ended(session) && !has_children(session))
			return ML_REASON_TARGET_EXIT;
		if (ml_clock_ns() >= session->next_status_ns) {
			session->next_status_ns = ml_clock_ns() + STATUS_NS;
			has_children(session);
			write_status(session);
		}
	}
	return ML_REASON_INPUT_CLOSED;
}

static int follow_mappings(struct session *session)
{
	int pids[ML_SNOOP_PROCESSES];

	for (int i = 0; i < session->n_targets; i++)
		pids[i] = session->targets[i].pid;
	session->mappings = ml_snoop_mappings_open(pids, session->n_targets);
	return session->mappings && (session->is_child || !ml_snoop_mappings_begin(session->mappings)) ? 0 : -1;
}

static int arm(struct session *session)
{
	struct ml_snoop_config *config = session->config;
	int n_placed;

	if (session->is_child)
		add_target(session, session->child.pid);
	for (int i = 0; i < config->n_pids; i++)
		add_target(session, config->pids[i]);
	if (session->snoop.stacks && follow_mappings(session))
		return -1;
	n_placed = ml_snoop_attach(&session->snoop, config, session->child.pid);
	if (n_placed < 0)
		return -1;
	if (!n_placed) {
		ml_blocks_error(ML_REASON_TARGET_ERROR, "none of the functions could be probed (see the reasons above)");
		return -1;
	}
	update_addresses(session);
	session->snoop.control->is_armed = 1;
	write_status(session); /* the host begins to count the time */
	return session->is_child ? ml_spawn_release(&config->session, &session->child) : 0;
}

static int follow(struct session *session)
{
	enum ml_reason reason = follow_targets(session);

	/*
	 * What begins from here on does not count. The probes are taken away after the end has been told: with a perf event
	 * for each of thousands that takes minutes.
	 */
	session->snoop.control->is_armed = 0;
	write_numbers(session, true);
	ml_blocks_end(reason, session->wait_status);
	return 0;
}

static int run(struct session *session)
{
	struct ml_snoop_config *config = session->config;
	ml_u32 only;

	if (config->session.n_arguments) {
		if (ml_spawn_stopped(&config->session, (struct ml_spawn_extra){ 0 }, &session->child))
			return 4;
		session->is_child = true;
	}
	setpriority(PRIO_PROCESS, 0, -10); /* who must keep up with the target runs before it */
	ml_blocks_hello(ML_COLLECTOR_BPF, session->is_child ? session->child.pid : config->pids[0]);
	only = session->is_child ? (ml_u32)session->child.pid : config->n_pids == 1 ? (ml_u32)config->pids[0] : 0;
	if (!ml_probed_code_settle(&config->session) &&
	    !ml_snoop_load(&session->snoop, config, config->session.follow ? 0 : only, on_call, on_stack, session) && !arm(session))
		return follow(session);
	ml_blocks_end(ML_REASON_TRACER_ERROR, -1);
	return 5;
}

int ml_snoop_run(void)
{
	struct session *session = calloc(1, sizeof(*session));
	struct ml_call_batch *batch = calloc(1, sizeof(*batch));
	struct ml_call_stacks *stacks = ml_call_stacks_create();
	int exit_code = 2;

	ml_control_catch_signals();
	if (!session || !batch || !stacks)
		return 1;
	session->wait_status = -1;
	session->child.release_fd = -1;
	session->batch = batch;
	session->stacks = stacks;
	session->config = ml_snoop_config_read();
	if (session->config) {
		batch->config = session->config;
		exit_code = run(session);
	} else {
		ml_blocks_end(ML_REASON_USAGE_ERROR, -1);
	}
	if (session->snoop.object)
		ml_snoop_close(&session->snoop);
	if (session->is_child && session->child.release_fd >= 0)
		ml_spawn_abandon(&session->child);
	for (int i = 0; i < session->n_targets; i++)
		ml_snoop_addresses_forget(session->targets[i].addresses);
	ml_snoop_mappings_close(session->mappings);
	ml_call_stacks_destroy(stacks);
	free(batch);
	free(session);
	return exit_code;
}
