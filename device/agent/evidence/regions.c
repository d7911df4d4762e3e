// SPDX-License-Identifier: Apache-2.0
#include "agent/evidence/regions.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SEARCH_WORK 32 /* halvings of ML_REGIONS_MAX, and the rest of a call */

/* The first row of the pid that ends above the address, or where it would stand. */
static size_t find(const struct ml_regions *regions, ml_u32 pid, ml_u64 address)
{
	size_t low = 0, high = regions->count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;
		const struct ml_region *row = &regions->rows[middle];

		if (row->pid < pid || (row->pid == pid && row->end <= address))
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* Twice the memory that is needed, with as much of it free before the rows as behind them. */
static int make_room(struct ml_regions *regions)
{
	size_t room = 2 * regions->count + 256;
	struct ml_region *memory = malloc(room * sizeof(*memory));
	struct ml_region *rows;

	if (!memory)
		return -1;
	rows = memory + (room - regions->count) / 2;
	if (regions->count)
		memcpy(rows, regions->rows, regions->count * sizeof(*rows));
	free(regions->memory);
	regions->memory = memory;
	regions->room = room;
	regions->rows = rows;
	regions->work += regions->count;
	return 0;
}

/* The shorter side gives way: the kernel maps from the top downwards, so that most changes are near the first row. */
static int insert(struct ml_regions *regions, size_t at, const struct ml_region *row)
{
	size_t before = (size_t)(regions->rows - regions->memory);
	size_t behind = regions->room - before - regions->count;
	int is_front = at < regions->count / 2;

	regions->work += is_front ? at : regions->count - at;
	if (regions->count == ML_REGIONS_MAX || ((is_front ? !before : !behind) && make_room(regions)))
		return -1;
	if (is_front) {
		memmove(regions->rows - 1, regions->rows, at * sizeof(*row));
		regions->rows--;
	} else {
		memmove(&regions->rows[at + 1], &regions->rows[at], (regions->count - at) * sizeof(*row));
	}
	regions->rows[at] = *row;
	regions->count++;
	return 0;
}

static void delete(struct ml_regions *regions, size_t at, size_t n)
{
	size_t behind = regions->count - at - n;

	if (!n)
		return;
	regions->work += at < behind ? at : behind;
	if (at < behind) {
		memmove(regions->rows + n, regions->rows, at * sizeof(*regions->rows));
		regions->rows += n;
	} else {
		memmove(&regions->rows[at], &regions->rows[at + n], behind * sizeof(*regions->rows));
	}
	regions->count -= n;
}

/* [start, end) lies inside the row, whose ends stay. */
static int split(struct ml_regions *regions, size_t at, ml_u64 start, ml_u64 end)
{
	struct ml_region tail = regions->rows[at];

	tail.start = end;
	if (insert(regions, at + 1, &tail))
		return -1;
	regions->rows[at].end = start;
	return 0;
}

/*
 * Takes [start, end) out: whole rows, parts of rows, or the middle of one, which makes two. Rows that are younger than
 * as_of_ns stay: two processors may tell of an unmapping after what was mapped in its place.
 */
static int cut(struct ml_regions *regions, ml_u32 pid, ml_u64 start, ml_u64 end, ml_u64 as_of_ns)
{
	size_t at = find(regions, pid, start), kept = at;

	for (; at < regions->count; at++) {
		struct ml_region row = regions->rows[at];

		regions->work++;
		if (row.pid != pid || row.start >= end)
			break;
		if (row.timestamp_ns <= as_of_ns) {
			if (row.start < start && row.end > end)
				return split(regions, at, start, end);
			if (row.start < start)
				row.end = start;
			else if (row.end > end)
				row.start = end;
			else
				continue;
		}
		regions->rows[kept++] = row;
	}
	delete(regions, kept, at - kept);
	return 0;
}

/* shmdt() gives the address only. */
static int detach(struct ml_regions *regions, const struct ml_event *event)
{
	size_t at = find(regions, event->pid, event->address);
	const struct ml_region *row = &regions->rows[at];

	if (at == regions->count || row->pid != event->pid || row->start != event->address || row->function != ML_FN_SHMAT)
		return 0;
	return cut(regions, event->pid, row->start, row->end, event->timestamp_ns);
}

int ml_regions_apply(struct ml_regions *regions, const struct ml_event *event)
{
	ml_u64 page = (ml_u64)sysconf(_SC_PAGESIZE);
	struct ml_region row = {
		.start = event->address,
		.end = event->address + ((event->size + page - 1) & ~(page - 1)),
		.timestamp_ns = event->timestamp_ns,
		.key = event->key,
		.pid = event->pid,
		.tid = event->tid,
		.function = event->function,
	};

	regions->work += SEARCH_WORK;
	if (event->function == ML_FN_MUNMAP && !event->size)
		return detach(regions, event);
	if (row.end <= row.start)
		return 0;
	if (event->function == ML_FN_MUNMAP)
		return cut(regions, row.pid, row.start, row.end, event->timestamp_ns);
	/* A new mapping replaces what stood in its place (MAP_FIXED). */
	if (cut(regions, row.pid, row.start, row.end, ~0ull))
		return -1;
	return insert(regions, find(regions, row.pid, row.start), &row);
}

void ml_regions_forget(struct ml_regions *regions, ml_u32 pid, ml_u64 as_of_ns)
{
	cut(regions, pid, 0, ~0ull, as_of_ns); /* no row reaches beyond: none is split */
}

void ml_regions_destroy(struct ml_regions *regions)
{
	free(regions->memory);
}
