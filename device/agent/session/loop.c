// SPDX-License-Identifier: Apache-2.0
#include "agent/session/loop.h"

#include <poll.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent/process/thread_states.h"
#include "agent/protocol/blocks.h"

int ml_session_begin(struct ml_session *session, const struct ml_config *config, struct ml_spawn_extra extra)
{
	session->config = config;
	session->pid = config->pid;
	session->wait_status = -1;
	session->child.release_fd = -1;
	session->pidfd = config->pid ? (int)syscall(SYS_pidfd_open, config->pid, 0) : -1;
	if (config->n_arguments) {
		if (ml_spawn_stopped(config, extra, &session->child))
			return 4;
		session->is_child = true;
		session->pid = session->child.pid;
	}
	/* The agent must keep up with the target. The command, started before, keeps the user's priority. */
	setpriority(PRIO_PROCESS, 0, -10);
	return 0;
}

static void write_status(struct ml_session *session, const struct ml_session_ops *ops)
{
	ml_u64 now = ml_clock_ns();

	if (now < session->next_status_ns)
		return;
	session->next_status_ns = now + session->status_interval_ns;
	session->is_host_gone |= ops->status(session) != 0;
}

static enum ml_reason run_loop(struct ml_session *session, const struct ml_session_ops *ops)
{
	while (!session->is_host_gone) {
		enum ml_control control;
		int reason;

		if (ops->wait)
			ops->wait(session, session->timeout_ms);
		else
			poll(&(struct pollfd){ .fd = STDIN_FILENO, .events = POLLIN }, 1, session->timeout_ms);
		switch (control = ml_control_poll(0)) {
		case ML_CONTROL_STOP: return ML_REASON_STOPPED;
		case ML_CONTROL_CLOSED: return ML_REASON_INPUT_CLOSED;
		case ML_CONTROL_SNAPSHOT: session->is_host_gone |= ops->snapshot(session) != 0; break;
		default: ml_exit_hold_control(&session->child.hold, control);
		}
		session->is_host_gone |= ml_exit_hold_report(&session->child.hold) != 0;
		reason = ops->poll(session);
		if (reason)
			return (enum ml_reason)reason;
		if (session->nursery)
			session->is_host_gone |= ml_nursery_age(session->nursery, ml_clock_ns()) != 0;
		write_status(session, ops);
	}
	return ML_REASON_INPUT_CLOSED;
}

int ml_session_run(void *session, const struct ml_session_ops *ops)
{
	int exit_code = ops->start(session);

	if (!exit_code)
		return ops->end(session, run_loop(session, ops));
	ml_blocks_end(exit_code == 4 ? ML_REASON_TARGET_ERROR : ML_REASON_TRACER_ERROR, -1);
	return exit_code;
}

bool ml_session_target_has_ended(struct ml_session *session)
{
	if (session->is_child)
		return ml_exit_hold_has_ended(&session->child.hold, session->pid, &session->wait_status);
	if (!session->pid || !ml_process_has_ended((ml_u32)session->pid, session->pidfd))
		return false;
	if (session->wait_status < 0)
		session->wait_status = ml_process_exit_status((ml_u32)session->pid, session->pidfd);
	return true;
}

void ml_session_close(struct ml_session *session)
{
	if (session->is_child && session->child.release_fd >= 0)
		ml_spawn_abandon(&session->child);
	if (session->pidfd >= 0)
		close(session->pidfd);
	ml_nursery_destroy(session->nursery);
}
