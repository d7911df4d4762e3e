/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays: they grow by doubling, and are sorted. */
#pragma once

#include <stdlib.h>

#include "wire.h"

/* The array with room for one row more than n; NULL: out of memory, and the array stays as it is. */
static inline void *ml_extended(void *rows, size_t n, size_t *room, size_t row_bytes)
{
	size_t wanted = *room ? 2 * *room : 64;
	void *longer = n < *room ? rows : realloc(rows, wanted * row_bytes);

	if (longer && n >= *room)
		*room = wanted;
	return longer;
}

/* Makes room for one row more than n. False: out of memory. */
#define ML_EXTEND(rows, n, room)                                                   \
	({                                                                         \
		void *longer = ml_extended((rows), (n), &(room), sizeof(*(rows))); \
                                                                                   \
		if (longer)                                                        \
			(rows) = longer;                                           \
		longer != NULL;                                                    \
	})

/* For qsort() and bsearch(): rows that are, or begin with, an ml_u64. */
static inline int ml_compare_u64(const void *left, const void *right)
{
	ml_u64 a = *(const ml_u64 *)left, b = *(const ml_u64 *)right;

	return (a > b) - (a < b);
}
