// SPDX-License-Identifier: Apache-2.0
#include "preload/stacks/code_lines.h"

#include "preload/freestanding/bytes.h"

#define LINES_MAX 2048u
#define STARTS_MAX 8192u

struct code_line {
	ml_u64 low;
	ml_u64 high;
	ml_u64 hash; /* of the text */
	ml_u32 n_starts; /* number of readable mappings up to this one */
};

struct list {
	ml_u32 n_lines;
	ml_u32 n_starts;
	struct code_line lines[LINES_MAX]; /* by address */
	ml_u64 starts[STARTS_MAX];
};

static struct list lists[2];

void ml_code_lines_clear(ml_u32 which)
{
	__atomic_store_n(&lists[which].n_lines, 0, __ATOMIC_RELAXED);
	lists[which].n_starts = 0;
}

void ml_code_lines_add(ml_u32 which, const struct ml_maps_line *line)
{
	struct list *list = &lists[which];
	struct code_line *added = &list->lines[list->n_lines];

	if (line->is_readable && list->n_starts < STARTS_MAX)
		__atomic_store_n(&list->starts[list->n_starts++], line->low, __ATOMIC_RELAXED);
	if (!line->is_code || list->n_lines == LINES_MAX)
		return;
	added->hash = ml_hash_text(line->text, line->length);
	__atomic_store_n(&added->low, line->low, __ATOMIC_RELAXED);
	__atomic_store_n(&added->high, line->high, __ATOMIC_RELAXED);
	__atomic_store_n(&added->n_starts, list->n_starts, __ATOMIC_RELAXED);
	__atomic_store_n(&list->n_lines, list->n_lines + 1, __ATOMIC_RELAXED);
}

int ml_code_lines_are_kept(ml_u32 old, ml_u32 new)
{
	const struct list *before = &lists[old], *after = &lists[new];
	ml_u32 j = 0;

	for (ml_u32 i = 0; i < before->n_lines; i++) {
		while (j < after->n_lines && after->lines[j].low < before->lines[i].low)
			j++;
		if (j == after->n_lines || after->lines[j].hash != before->lines[i].hash)
			return 0;
	}
	return 1;
}

/* The first line that ends above the address. */
static ml_u32 search(const struct list *list, ml_u64 address)
{
	ml_u32 low = 0, high = __atomic_load_n(&list->n_lines, __ATOMIC_RELAXED);

	while (low < high) {
		ml_u32 middle = low + (high - low) / 2;

		if (__atomic_load_n(&list->lines[middle].high, __ATOMIC_RELAXED) <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

int ml_code_lines_find(ml_u32 which, ml_u64 address, struct ml_code_location *location)
{
	const struct list *list = &lists[which];
	ml_u32 i = search(list, address), n;

	if (i >= __atomic_load_n(&list->n_lines, __ATOMIC_RELAXED))
		return 0;
	location->low = __atomic_load_n(&list->lines[i].low, __ATOMIC_RELAXED);
	if (location->low > address)
		return 0;
	n = __atomic_load_n(&list->lines[i].n_starts, __ATOMIC_RELAXED);
	for (location->n_headers = 0; n && location->n_headers < ML_CODE_HEADERS_MAX; location->n_headers++)
		location->headers[location->n_headers] = __atomic_load_n(&list->starts[--n], __ATOMIC_RELAXED);
	return 1;
}

void ml_code_lines_forget(void)
{
	ml_code_lines_clear(0);
	ml_code_lines_clear(1);
}
