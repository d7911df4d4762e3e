/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Holds a command at its end, before its memory goes, so that the host can search it: PTRACE_EVENT_EXIT (ptrace(2)). A thread
 * of the agent's own does the tracing; whatever ends that thread or the agent, the command goes on as if it were not there.
 */
#ifndef MEMLEAK_EXIT_HOLD_H
#define MEMLEAK_EXIT_HOLD_H

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

#include "agent/protocol/config.h"

/* All zero: nothing is held, and the calls below do nothing. */
struct ml_exit_hold {
	pid_t pid;
	pthread_t thread;
	bool is_started;
	bool is_told;
	sem_t started, go;
	atomic_int phase;
	atomic_bool is_over_asked;
	atomic_int signal;        /* the last one that the command took, */
	atomic_ullong signal_ns;  /* and when */
	int error;                /* errno of why it cannot be traced, 0 = it is */
	bool is_reaped;           /* it ended without a stop: */
	int wait_status;
	struct ml_exit_stop stop; /* of the thread that is held */
};

/* Before the command runs. Says in a LOG block why it cannot be held, where that is so. */
void ml_exit_hold_start(struct ml_exit_hold *hold, pid_t pid);

/* Tells of the hold in an EXIT_STOP block, once. -1 when the host is gone. */
int ml_exit_hold_tell(struct ml_exit_hold *hold);

/* Lets a held command end; for any state. Returns when nothing is traced any more. */
void ml_exit_hold_resume(struct ml_exit_hold *hold);

/*
 * ML_CONTROL_RESUME: the same. ML_CONTROL_DETACH: no longer to be held, but one that is held already stays so, and so is one that a
 * signal ends at the same time; returns when the command can be traced by others. Nothing else is obeyed.
 */
void ml_exit_hold_obey(struct ml_exit_hold *hold, enum ml_control control);

/* waitpid(pid, status, WNOHANG) of the command, for as long as somebody may hold it: has it ended? */
bool ml_exit_hold_has_ended(struct ml_exit_hold *hold, pid_t pid, int *wait_status);

#endif
