// SPDX-License-Identifier: Apache-2.0
/* malloc+free pairs. */
#define _GNU_SOURCE
#include "burst.h"

static void *volatile sink;

__attribute__((noinline)) static void run(long pairs)
{
	for (long i = 0; i < pairs; i++) {
		sink = malloc(64);
		free(sink);
	}
}

/* Frames of 256 bytes below: an honest stack is some kilobytes deep. */
__attribute__((noinline)) static int descend(int depth, long pairs)
{
	volatile char frame[256];

	frame[0] = (char)depth;
	if (depth)
		descend(depth - 1, pairs);
	else
		run(pairs);
	return frame[0];
}

static void burst(long pairs)
{
	(void)descend(40, pairs);
}
