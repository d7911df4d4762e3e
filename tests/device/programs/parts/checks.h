/* SPDX-License-Identifier: Apache-2.0 */
/* Programs that write what does not hold. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

static inline void check(bool holds, const char *what)
{
	if (!holds)
		puts(what);
}

static inline unsigned random_below(unsigned n)
{
	return (unsigned)rand() % n;
}
