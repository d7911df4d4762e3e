/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the size of shared memory that a process has attached: shmat() gives the address only. */
#pragma once

#include "wire.h"

/* All zero: empty. */
struct ml_region_sizes {
	ml_u32 n_looks; /* into /proc/PID/maps since 0 was put here, before each reading of the events */
};

/* Completes a call of the ledger. 1: it can be applied; 0: the memory is detached already; -1: its size was not looked for. */
int ml_region_complete(struct ml_region_sizes *sizes, struct ml_event *event);
