/* SPDX-License-Identifier: Apache-2.0 */
/* The loop of every session: control lines of the host and the tracer's records come in, blocks go out. */
#pragma once

#include "agent/evidence/nursery.h"
#include "agent/protocol/config.h"
#include "agent/session/spawn.h"

/* The first member of each session's own structure. All zero but what ml_session_begin() fills in. */
struct ml_session {
	const struct ml_config *config;
	struct ml_nursery *nursery; /* NULL: the session has no evidence */
	struct ml_child child;
	bool is_child; /* the target is `child`, and has not ended */
	int pid, pidfd; /* of the target; 0: none, or it has ended */
	int wait_status;
	bool is_host_gone;
	int timeout_ms; /* until the next poll(); set by it */
	ml_u64 n_snapshots, next_status_ns, status_interval_ns;
	ml_u64 lost[ML_LOST_MAX]; /* by the agent itself */
};

/* Callbacks of one kind of session. `session`: its own structure. */
struct ml_session_ops {
	int (*start)(void *session); /* arms the tracer and releases the command: 0, or an exit code after an ERROR block */
	void (*wait)(void *session, int timeout_ms); /* for input of the host and of the tracer; NULL: of the host only */
	int (*poll)(void *session); /* handles what came in: 0, or the enum ml_reason to end for */
	int (*snapshot)(void *session); /* -1: the host is gone */
	int (*status)(void *session);   /* the same */
	int (*end)(void *session, enum ml_reason reason); /* last snapshot and END block; returns the exit code */
};

/*
 * Starts the command, held before exec, and raises the agent's priority; pids and names are those of `config`.
 * 0, or the exit code after an ERROR block.
 */
int ml_session_begin(struct ml_session *session, const struct ml_config *config, struct ml_spawn_extra extra);

/* start(), then the loop until the host, the target or the tracer ends it, then end(). Returns the exit code. */
int ml_session_run(void *session, const struct ml_session_ops *ops);

/* Whether the target has ended; a command is reaped. */
bool ml_session_target_has_ended(struct ml_session *session);

/* Ends a command that was not released, and frees what ml_session_begin() and the nursery took. */
void ml_session_close(struct ml_session *session);
