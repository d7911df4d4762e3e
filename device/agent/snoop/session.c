// SPDX-License-Identifier: Apache-2.0
#include "agent/snoop/session.h"

#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/evidence/table_blocks.h"
#include "agent/process/descendants.h"
#include "agent/protocol/blocks.h"
#include "agent/probes/probed_code.h"
#include "agent/snoop/mappings.h"
#include "agent/snoop/output.h"
#include "agent/session/loop.h"
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
	struct ml_session base;
	struct ml_snoop_config *config;
	struct ml_snoop snoop;
	struct ml_call_batch *batch;
	struct ml_call_stacks *stacks;
	struct ml_snoop_mappings *mappings; /* NULL: there are no stacks */
	struct target targets[ML_SNOOP_PROCESSES];
	int n_targets;
};

static int on_stack(void *context, void *record, size_t bytes)
{
	struct session *session = context;

	session->base.is_host_gone |= ml_call_stacks_add(session->stacks, record, bytes) != 0;
	return 0;
}

/* A stack is in its ring before its call is in the other, so stacks are written first. */
static void write_calls(struct session *session)
{
	if (session->mappings) {
		ring_buffer__consume(session->snoop.stacks);
		ml_snoop_mappings_drain(session->mappings); /* new stacks are resolved in them */
		session->base.is_host_gone |= ml_call_stacks_write(session->stacks) != 0;
	}
	session->base.is_host_gone |= ml_call_batch_write(session->batch) != 0;
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

static int write_status(void *context)
{
	struct session *session = context;
	struct ml_status status = { 0 };

	for (ml_u32 cause = 0; cause < ML_LOST_MAX; cause++)
		status.lost[cause] = session->base.lost[cause] + ml_snoop_counter(&session->snoop, cause);
	return ml_status_write(&status);
}

static int write_statistics(struct session *session, bool is_final)
{
	drain(session);
	return ml_call_statistics_write(&session->snoop, is_final) || write_status(session);
}

static int write_snapshot(void *session)
{
	return write_statistics(session, false);
}

static void add_target(struct session *session, int pid)
{
	session->targets[session->n_targets++] = (struct target){ pid, (int)syscall(SYS_pidfd_open, pid, 0), NULL };
	ml_snoop_add_process(&session->snoop, (ml_u32)pid);
}

/* Checks every target, so that the command is reaped. */
static bool have_all_ended(struct session *session)
{
	int n_left = 0;

	for (int i = 0; i < session->n_targets; i++) {
		struct target *target = &session->targets[i];

		if (!target->pid)
			continue;
		if (session->base.is_child ? waitpid(target->pid, &session->base.wait_status, WNOHANG) == target->pid :
					     ml_process_has_ended((ml_u32)target->pid, target->pidfd))
			target->pid = 0;
		else
			n_left++;
	}
	return !n_left;
}

static bool has_children(struct session *session)
{
	return session->config->session.follow && ml_snoop_has_processes(&session->snoop);
}

/* Children that have ended make room for others also while the command runs. */
static int write_periodic_status(void *session)
{
	has_children(session);
	return write_status(session);
}

static int poll_calls(void *context)
{
	struct session *session = context;

	session->base.timeout_ms = drain(session) > BUSY_RECORDS ? BUSY_MS : IDLE_MS;
	return have_all_ended(session) && !has_children(session) ? ML_REASON_TARGET_EXIT : 0;
}

static int follow_mappings(struct session *session)
{
	int pids[ML_SNOOP_PROCESSES];

	for (int i = 0; i < session->n_targets; i++)
		pids[i] = session->targets[i].pid;
	session->mappings = ml_snoop_mappings_open(pids, session->n_targets);
	return session->mappings && (session->base.is_child || !ml_snoop_mappings_begin(session->mappings)) ? 0 : -1;
}

static void follow_descendant(void *context, ml_u32 pid)
{
	struct session *session = context;

	session->base.lost[ML_LOST_PROGRAMS] += ml_snoop_add_process(&session->snoop, pid) != 0;
}

/* The processes that the targets had started before; later ones are seen when they are forked. */
static void follow_descendants(struct session *session)
{
	for (int i = 0; i < session->n_targets; i++)
		session->base.lost[ML_LOST_PROGRAMS] +=
			ml_descendants_each(session->targets[i].pid, follow_descendant, session) != ML_DESCENDANTS_ALL;
}

static int arm(struct session *session)
{
	struct ml_snoop_config *config = session->config;
	int n_placed;

	if (session->base.is_child)
		add_target(session, session->base.child.pid);
	for (int i = 0; i < config->n_pids; i++)
		add_target(session, config->pids[i]);
	if (session->snoop.stacks && follow_mappings(session))
		return -1;
	n_placed = ml_snoop_attach(&session->snoop, config, session->base.child.pid);
	if (n_placed < 0)
		return -1;
	if (!n_placed)
		return ml_blocks_error(ML_REASON_TARGET_ERROR, "none of the functions could be probed (see the reasons above)");
	if (config->session.follow && !session->base.is_child)
		follow_descendants(session);
	update_addresses(session);
	session->snoop.control->is_armed = 1;
	session->base.next_status_ns = ml_clock_ns() + STATUS_NS;
	session->base.is_host_gone |= write_status(session) != 0; /* the host begins to count the time */
	return session->base.is_child ? ml_spawn_release(&config->session, &session->base.child) : 0;
}

static int start(void *context)
{
	struct session *session = context;
	struct ml_snoop_config *config = session->config;
	ml_u32 only = session->base.is_child ? (ml_u32)session->base.pid : config->n_pids == 1 ? (ml_u32)config->pids[0] : 0;

	return ml_probed_code_settle(&config->session) ||
			       ml_snoop_load(&session->snoop, config, config->session.follow ? 0 : only, on_call, on_stack,
					     session) ||
			       arm(session) ?
		       5 :
		       0;
}

/* Probes are removed after the END block: with a perf event for each of thousands that takes minutes. */
static int end(void *context, enum ml_reason reason)
{
	struct session *session = context;

	session->snoop.control->is_armed = 0; /* calls that begin from here on do not count */
	write_statistics(session, true);
	ml_blocks_end(reason, session->base.wait_status);
	return 0;
}

static int run(struct session *session)
{
	static const struct ml_session_ops ops = { start, NULL, poll_calls, write_snapshot, write_periodic_status, end };
	struct ml_snoop_config *config = session->config;
	int exit_code = ml_session_begin(&session->base, &config->session, (struct ml_spawn_extra){ 0 });

	if (exit_code)
		return exit_code;
	session->base.status_interval_ns = STATUS_NS;
	ml_blocks_hello(ML_COLLECTOR_BPF, session->base.is_child ? session->base.pid : config->pids[0]);
	return ml_session_run(session, &ops);
}

int ml_snoop_run(void)
{
	struct session *session = calloc(1, sizeof(*session));
	struct ml_call_batch *batch = calloc(1, sizeof(*batch));
	struct ml_call_stacks *stacks = calloc(1, sizeof(*stacks));
	int exit_code = 2;

	ml_control_catch_signals();
	if (!session || !batch || !stacks)
		return 1;
	session->base.pidfd = -1;
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
	ml_session_close(&session->base);
	for (int i = 0; i < session->n_targets; i++)
		free(session->targets[i].addresses);
	ml_snoop_mappings_close(session->mappings);
	free(stacks);
	free(batch);
	free(session);
	return exit_code;
}
