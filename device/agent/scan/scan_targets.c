// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "agent/scan/scan_targets.h"

#include <sys/mman.h>

#define BITMAP_BYTES ((1u << (ML_SCAN_GIBIBYTE_BITS - ML_SCAN_PAGE_BITS)) / 8)
#define BITMAPS_MAX 4096u /* 128 MiB in the agent; a process spread over more is resolved less precisely */
#define GIBIBYTE (1ull << ML_SCAN_GIBIBYTE_BITS)

const ml_u8 ml_scan_whole_gibibyte[1] = { 0xff };

/* NULL: no room. */
static ml_u8 *bitmap_of(struct ml_scan_targets *targets, size_t number)
{
	ml_u8 *made;

	if (targets->gibibytes[number])
		return (ml_u8 *)targets->gibibytes[number];
	if (targets->n_bitmaps == BITMAPS_MAX)
		return NULL;
	made = mmap(NULL, BITMAP_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (made == MAP_FAILED)
		return NULL;
	targets->n_bitmaps++;
	targets->gibibytes[number] = made;
	return made;
}

static void add_within(struct ml_scan_targets *targets, ml_u64 start, ml_u64 end)
{
	size_t number = start >> ML_SCAN_GIBIBYTE_BITS;
	ml_u64 base = (ml_u64)number << ML_SCAN_GIBIBYTE_BITS;
	ml_u8 *pages;

	if (targets->gibibytes[number] == ml_scan_whole_gibibyte)
		return;
	pages = end - start == GIBIBYTE ? NULL : bitmap_of(targets, number);
	if (!pages) {
		targets->gibibytes[number] = ml_scan_whole_gibibyte;
		return;
	}
	for (ml_u64 page = (start - base) >> ML_SCAN_PAGE_BITS; page < (end - base) >> ML_SCAN_PAGE_BITS; page++)
		pages[page / 8] |= (ml_u8)(1u << page % 8);
}

void ml_scan_targets_add(struct ml_scan_targets *targets, ml_u64 start, ml_u64 end)
{
	if (end > 1ull << ML_SCAN_ADDRESS_BITS)
		end = 1ull << ML_SCAN_ADDRESS_BITS;
	if (start >= end)
		return;
	if (!targets->high || start < targets->low)
		targets->low = start;
	if (end > targets->high)
		targets->high = end;
	while (start < end) {
		ml_u64 next = (start | (GIBIBYTE - 1)) + 1;

		add_within(targets, start, next < end ? next : end);
		start = next;
	}
}
