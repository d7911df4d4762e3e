/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays that grow by doubling. */
#pragma once

#include <stdlib.h>

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
