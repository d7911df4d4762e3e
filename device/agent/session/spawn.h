/* SPDX-License-Identifier: Apache-2.0 */
/* Starts the user's command, held before exec until everything is armed. */
#pragma once

#include <sys/types.h>

#include "agent/protocol/config.h"
#include "agent/session/exit_hold.h"

struct ml_child {
	pid_t pid;
	int release_fd; /* closed without a byte, it ends the child before exec */
	int error_fd;   /* receives errno if exec fails; closed by a successful exec */
	struct ml_exit_hold hold;
};

/* The session's additions to the child; both may be NULL. */
struct ml_spawn_extra {
	char *const *env; /* NAME=VALUE strings set for the command, NULL-terminated */
	void (*self_test)(const struct ml_config *config); /* runs in the child at ml_spawn_self_test() */
};

/* Forks the child, which waits for an order. 0, or -1 after an ERROR block. */
int ml_spawn_stopped(const struct ml_config *config, struct ml_spawn_extra extra, struct ml_child *child);

/* Has the child call extra.self_test, still before exec. -1: the child is gone. */
int ml_spawn_self_test(struct ml_child *child);

/* Lets the child exec. 0, or -1 after an ERROR block (TARGET_ERROR) if the command cannot be started. */
int ml_spawn_release(const struct ml_config *config, struct ml_child *child);

/* Ends a child that was not released. */
void ml_spawn_abandon(struct ml_child *child);
