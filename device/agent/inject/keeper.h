/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process of the agent that attaches the shim to a running process, and detaches it on order or when the agent ends in whatever way.
 * Only the keeper uses ptrace, so the kernel frees all threads when it ends.
 */
#pragma once

#include "agent/inject/inject.h"

struct ml_keeper {
	pid_t pid;   /* 0 = none */
	int orders;  /* closed: order to detach */
	int results; /* readable: a result is there */
	pid_t target;
};

/*
 * Starts a keeper that calls memleak_attach(line) of the shim. line NULL: attached already, by a keeper that was killed. patches NULL:
 * no inline hooks. 0, or -1 with errno.
 */
int ml_keeper_start(struct ml_keeper *keeper, pid_t target, const char *shim, const char *line,
		    const struct ml_patches *patches);

/* 1: the result came, at once or within the time. 0: not yet. -1: the keeper ended without one. injected->refusal is "" on success. */
int ml_keeper_result(struct ml_keeper *keeper, struct ml_injected *injected, int timeout_ms);

/* Orders it to detach, waits for that and for its end. 1 and the result, or -1 as above. */
int ml_keeper_detach(struct ml_keeper *keeper, struct ml_injected *injected);
