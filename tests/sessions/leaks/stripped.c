// SPDX-License-Identifier: Apache-2.0
/* Several calls of the allocator in each function: named or stripped, the functions are the places. */
#include <stdlib.h>

static void *volatile kept;

__attribute__((noinline)) static void decode(int i)
{
	switch (i % 4) {
	case 0: kept = malloc(101); break;
	case 1: kept = malloc(211); break;
	case 2: kept = malloc(307); break;
	default: kept = malloc(401); break;
	}
}

__attribute__((noinline)) static void *copy(int i)
{
	kept = malloc(43);
	return calloc(1, 53 + i % 3);
}

int main(void)
{
	for (int i = 0; i < 100; i++) {
		decode(i);
		kept = copy(i);
	}
}
