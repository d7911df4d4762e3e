/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The region ledger of a preload session. Each thread tells of its calls through a ring of its own; the ledger wants
 * them in the order in which the address space changed, which is that of their times (preload/regions.h).
 */
#ifndef MEMLEAK_PRELOAD_REGIONS_H
#define MEMLEAK_PRELOAD_REGIONS_H

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

/* -1: out of memory or too many at once, the call is lost. */
int ml_preload_regions_add(struct ml_preload_regions *regions, const struct ml_event *event);

/*
 * After the rings were read: applies the calls from before that reading. A later one waits for the next, for what led
 * to it in another thread may stand in a ring that had been read already. Returns how many could not be applied.
 */
ml_u64 ml_preload_regions_settle(struct ml_preload_regions *regions);

#endif
