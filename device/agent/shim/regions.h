/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The region ledger of a shim session. Each thread reports its calls through its own ring, but the ledger must apply them in the order
 * of their times, in which the address space changed (preload/recorder/regions.h).
 */
#pragma once

#include "agent/evidence/regions.h"

struct ml_waiting_call {
	struct ml_event event;
	size_t arrival;
};

/* All zero: empty. */
struct ml_preload_regions {
	struct ml_regions ledger;
	struct ml_waiting_call *waiting;
	size_t n_waiting, room;
	ml_u64 horizon_ns;
};

void ml_preload_regions_destroy(struct ml_preload_regions *regions);

/* Before the rings are read. */
void ml_preload_regions_begin(struct ml_preload_regions *regions);

/* -1: out of memory, or too many at once; the call is lost. */
int ml_preload_regions_add(struct ml_preload_regions *regions, const struct ml_event *event);

/*
 * After the rings were read: applies the calls from before that reading. Later ones wait, because an earlier call of another thread may
 * be in a ring that was read already. So do those that would cost too much at once. Returns the number that could not be applied.
 */
ml_u64 ml_preload_regions_settle(struct ml_preload_regions *regions);

/* Calls from before the last reading that would have cost too much. */
ml_u64 ml_preload_regions_overdue(const struct ml_preload_regions *regions);
