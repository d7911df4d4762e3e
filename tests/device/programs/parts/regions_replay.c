// SPDX-License-Identifier: Apache-2.0
/*
 * struct ml_event records on standard input through the agent's own ledger, then its rows on standard output:
 * start, end and time. A record of no function ends one reading of the rings; the next begins at its time. One of malloc()
 * stands for an exec of its pid at its time. How many rounds the last reading took goes to standard error, if more than one.
 */
#include <stdio.h>

#include "agent/protocol/blocks.h"
#include "agent/shim/regions.h"

static ml_u64 now_ns;

ml_u64 ml_clock_ns(void)
{
	return now_ns;
}

static ml_u64 settle(struct ml_preload_regions *regions)
{
	now_ns = 1ull << 62;
	return ml_preload_regions_settle(regions);
}

int main(void)
{
	struct ml_preload_regions regions = { 0 };
	struct ml_event event;
	ml_u64 failed = 0;
	unsigned n_rounds = 0;

	while (fread(&event, sizeof(event), 1, stdin)) {
		if (event.function >= ML_FN_MMAP) {
			failed += ml_preload_regions_add(&regions, &event) != 0;
			continue;
		}
		failed += settle(&regions);
		if (event.function == ML_FN_MALLOC)
			ml_regions_forget(&regions.ledger, event.pid, event.timestamp_ns);
		now_ns = event.timestamp_ns;
		ml_preload_regions_begin(&regions);
	}
	do
		failed += settle(&regions);
	while (++n_rounds && ml_preload_regions_overdue(&regions));
	if (n_rounds > 1)
		fprintf(stderr, "%u\n", n_rounds);
	for (size_t i = 0; i < regions.ledger.count; i++)
		printf("%lu %lu %lu\n", regions.ledger.rows[i].start, regions.ledger.rows[i].end,
		       regions.ledger.rows[i].timestamp_ns);
	ml_preload_regions_destroy(&regions);
	return failed != 0;
}
