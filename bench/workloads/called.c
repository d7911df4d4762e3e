// SPDX-License-Identifier: Apache-2.0
/* Calls of called(), which begins with a push as most functions do. */
#define _GNU_SOURCE
#include "burst.h"

/* Leaf work between the calls would only blur the figure. The register is saved, so that a push stands at the entry. */
__attribute__((noinline, noipa)) long called(long i, const char *text)
{
	__asm__ volatile("" : : "r"(text) : "rbx", "memory");
	return i + 1;
}

__attribute__((noinline)) static void burst(long calls)
{
	for (long i = 0; i < calls; i++)
		called(i, "text");
}
