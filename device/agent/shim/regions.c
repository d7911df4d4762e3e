// SPDX-License-Identifier: Apache-2.0
#include "agent/shim/regions.h"

#include <stdlib.h>
#include <string.h>

#include "agent/protocol/blocks.h"
#include "agent/protocol/extend.h"

/* Calls of one reading: 64 MiB of them. */
#define WAITING_MAX (1u << 20)
/*
 * Rows that are moved at a time, in about 0.2 s: a target can send calls that move a million each. The session goes on meanwhile.
 * Counted, because a clock would have a busy machine lose calls.
 */
#define SETTLE_WORK (1ull << 25)

void ml_preload_regions_destroy(struct ml_preload_regions *regions)
{
	ml_regions_destroy(&regions->ledger);
	free(regions->waiting);
}

void ml_preload_regions_begin(struct ml_preload_regions *regions)
{
	regions->horizon_ns = ml_clock_ns();
}

int ml_preload_regions_add(struct ml_preload_regions *regions, const struct ml_event *event)
{
	struct ml_waiting_call *call;

	if (regions->n_waiting == WAITING_MAX || !ML_EXTEND(regions->waiting, regions->n_waiting, regions->room))
		return -1;
	call = &regions->waiting[regions->n_waiting];
	*call = (struct ml_waiting_call){ *event, regions->n_waiting };
	regions->n_waiting++;
	return 0;
}

static int compare(const void *left, const void *right)
{
	const struct ml_waiting_call *a = left, *b = right;

	if (a->event.timestamp_ns != b->event.timestamp_ns)
		return a->event.timestamp_ns < b->event.timestamp_ns ? -1 : 1;
	return a->arrival < b->arrival ? -1 : a->arrival > b->arrival;
}

ml_u64 ml_preload_regions_settle(struct ml_preload_regions *regions)
{
	ml_u64 now = ml_clock_ns(), failed = 0, most_work = regions->ledger.work + SETTLE_WORK;
	size_t n = 0;

	if (!regions->n_waiting)
		return 0;
	for (size_t i = 0; i < regions->n_waiting; i++) /* a future time would wait for ever; only a broken target sends one */
		if (regions->waiting[i].event.timestamp_ns > now)
			regions->waiting[i].event.timestamp_ns = now;
	qsort(regions->waiting, regions->n_waiting, sizeof(*regions->waiting), compare);
	while (n < regions->n_waiting && regions->waiting[n].event.timestamp_ns < regions->horizon_ns &&
	       regions->ledger.work < most_work)
		failed += ml_regions_apply(&regions->ledger, &regions->waiting[n++].event) != 0;
	regions->n_waiting -= n;
	memmove(regions->waiting, regions->waiting + n, regions->n_waiting * sizeof(*regions->waiting));
	for (size_t i = 0; i < regions->n_waiting; i++)
		regions->waiting[i].arrival = i;
	return failed;
}

ml_u64 ml_preload_regions_overdue(const struct ml_preload_regions *regions)
{
	ml_u64 n = 0;

	for (size_t i = 0; i < regions->n_waiting; i++)
		n += regions->waiting[i].event.timestamp_ns < regions->horizon_ns;
	return n;
}
