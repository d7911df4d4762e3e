/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes that probes on all processes leave out, because another tool has patched their code (patched_code.h). The kernel places such
 * a probe in every process. A spared one is stopped meanwhile, and its own bytes are written back before it continues. The kernel removes
 * only breakpoints that are still there (verify_opcode() in kernel/events/uprobes.c).
 */
#pragma once

#include "agent/probes/patched_code.h"

/* All zero: none. */
struct ml_spared {
	int *pids;
	size_t n, room;
};

/*
 * Adds and logs all processes but `except` in which a probe would lie in patched code. probes: addresses are 0. -1: out of memory, and
 * nothing may be placed.
 */
int ml_spared_find(struct ml_spared *spared, const struct ml_probed_file *file, struct ml_probed_address *probes, size_t n,
		   int except);

/* The process that holds the spared ones while probes are placed: whatever ends it, they continue. */
struct ml_spared_hold {
	int worker; /* 0: none is spared */
	int orders;
};

/* Stops the spared processes before probes are placed at these offsets of a file. -1: errno, and nothing may be placed. */
int ml_spared_begin(struct ml_spared_hold *hold, const struct ml_spared *spared, const char *path, const ml_u64 *offsets,
		    size_t n);

/* Removes the breakpoints from them and lets them continue. */
void ml_spared_end(struct ml_spared_hold *hold);
