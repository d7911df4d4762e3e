/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process of the agent's that brings the shim into a running one, and takes its hooks out again when it is told to, or when
 * the agent has ended in whatever way. Only it ever uses ptrace, so that the kernel frees all threads when it ends.
 */
#ifndef MEMLEAK_INJECT_KEEPER_H
#define MEMLEAK_INJECT_KEEPER_H

#include "agent/inject/inject.h"

struct ml_keeper {
	pid_t pid;   /* 0 = none */
	int orders;  /* closed: detach */
	int results; /* readable: something is done */
	pid_t target;
};

/*
 * Has it attach: memleak_attach(line) of the shim; NULL: that has been done, by one that was killed. patches: NULL but for
 * inline hooks. 0, or -1 with errno.
 */
int ml_keeper_start(struct ml_keeper *keeper, pid_t target, const char *shim, const char *line,
		    const struct ml_patches *patches);

/*
 * 1 and the result, when one has come (at once, or within the time); 0: not yet; -1: it has ended without one.
 * injected->refusal is "" where all went well.
 */
int ml_keeper_result(struct ml_keeper *keeper, struct ml_injected *injected, int timeout_ms);

/* Has it detach, waits for that, and for its end. 1 and the result, or -1 as above. */
int ml_keeper_detach(struct ml_keeper *keeper, struct ml_injected *injected);

#endif
