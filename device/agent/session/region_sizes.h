/* SPDX-License-Identifier: Apache-2.0 */
/* What a system call does not tell of the region that it changes: the size of shared memory, and where the break was. */
#pragma once

#include "wire.h"

#define ML_BREAKS 1024u

/* All zero: empty. A process may take the place of another in it; then one change of its break is not seen. */
struct ml_region_sizes {
	struct {
		ml_u32 pid;
		ml_u64 address;
	} breaks[ML_BREAKS];
	ml_u32 n_looks; /* into /proc/PID/maps since 0 was put here, before each reading of the events */
};

/* Completes a call of the ledger. 1: to be applied; 0: it changes nothing; -1: its size cannot be found any more. */
int ml_region_complete(struct ml_region_sizes *sizes, struct ml_event *event);
