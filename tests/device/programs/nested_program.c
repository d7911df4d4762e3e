// SPDX-License-Identifier: Apache-2.0
/*
 * Allocates in the hook of its allocator, so that calls stand on the stack that have not returned: of DEPTH in a row, of
 * which the outermost begins in main. Block n has 1000 + n bytes; ROUNDS times. -DDEPTH=N changes that.
 */
#include <stdlib.h>

#ifndef DEPTH
#define DEPTH 12
#endif
#define ROUNDS 5
#define NOINLINE __attribute__((noipa))

extern void (*volatile nested_hook)(unsigned);
void *nested_malloc(size_t bytes);

static void *volatile kept[DEPTH * ROUNDS];
static volatile unsigned n_kept;

NOINLINE static void keep(unsigned bytes)
{
	void *block = nested_malloc(bytes);

	kept[n_kept] = block;
	n_kept++;
}

NOINLINE static void descend(unsigned bytes)
{
	if (bytes < 1000 + DEPTH - 1)
		keep(bytes + 1);
}

int main(void)
{
	nested_hook = descend;
	for (unsigned i = 0; i < ROUNDS; i++)
		keep(1000);
	return n_kept != DEPTH * ROUNDS;
}
