/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stops a command at its end, before its memory is freed, so that the host can scan it: PTRACE_EVENT_EXIT (ptrace(2)). A thread of
 * the agent traces; if that thread or the agent ends, the command goes on.
 */
#pragma once

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "agent/protocol/config.h"

/* All zero: no command is held, and the calls below do nothing. */
struct ml_exit_hold {
	pid_t pid;
	pthread_t thread;
	bool is_started;
	bool is_reported;
	sem_t started, go;
	atomic_int phase;
	atomic_bool is_over;
	atomic_int signal;        /* the last one delivered to the command, */
	atomic_ullong signal_ns;  /* and when */
	int error;                /* errno if the command cannot be traced */
	bool is_reaped;           /* the command ended without a stop: */
	int wait_status;
	struct ml_exit_stop stop; /* of the held thread */
};

/* Called before the command runs. Logs why it cannot be held. */
void ml_exit_hold_start(struct ml_exit_hold *hold, pid_t pid);

/* Writes an EXIT_STOP block, once per hold. -1: the host is gone. */
int ml_exit_hold_report(struct ml_exit_hold *hold);

/* Lets a held command end, in any state. Returns when no thread is traced. */
void ml_exit_hold_resume(struct ml_exit_hold *hold);

/*
 * ML_CONTROL_RESUME: the same. ML_CONTROL_DETACH: stops tracing, unless the command is held already or a signal ends it at that time;
 * returns when others can trace it. Ignores all other lines.
 */
void ml_exit_hold_control(struct ml_exit_hold *hold, enum ml_control control);

/* waitpid(pid, status, WNOHANG) of a command that may be held: whether it has ended. */
bool ml_exit_hold_has_ended(struct ml_exit_hold *hold, pid_t pid, int *wait_status);
