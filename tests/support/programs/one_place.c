/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One leak that no single stack shows: every 2 ms 20 blocks by one function, reached by another caller after each 250 rounds
 * ("callers"), or at another depth of a recursion each time ("depth"). "freed": callers, and at its exit it frees all. Writes a line
 * before it begins; ends with its input.
 */
#include "libc.h"

#define BLOCKS 20
#define SIZE 41
#define ROUNDS 250
#define DEPTH_MAX 40

static void **volatile kept; /* each block leads to the one before */

__attribute__((noipa)) static void make_handle(void)
{
	void **block = malloc(SIZE);

	*block = kept;
	kept = block;
}

static void free_all(void)
{
	for (void **block = kept, **before; block; block = before) {
		before = *block;
		free(block);
	}
}

#define CALLER(n)                                          \
	__attribute__((noipa)) static void caller##n(void) \
	{                                                  \
		make_handle();                             \
		__asm__ volatile("");                      \
	}
CALLER(0)
CALLER(1) CALLER(2) CALLER(3) CALLER(4) CALLER(5) CALLER(6) CALLER(7)

	static void (*const callers[])(void) = { caller0, caller1, caller2, caller3, caller4, caller5, caller6, caller7 };

__attribute__((noipa)) static void recurse(unsigned depth)
{
	if (depth)
		recurse(depth - 1);
	else
		make_handle();
	__asm__ volatile("");
}

int main(int argc, char **argv)
{
	int is_deep = argc > 1 && !strcmp(argv[1], "depth");
	struct pollfd input = { .fd = STDIN_FILENO, .events = POLLIN };

	if (argc > 1 && !strcmp(argv[1], "freed"))
		atexit(free_all);
	puts("ready");
	fflush(stdout);
	for (unsigned round = 0; !poll(&input, 1, 2); round++) {
		for (int i = 0; i < BLOCKS; i++) {
			if (is_deep)
				recurse((round * BLOCKS + (unsigned)i) % DEPTH_MAX);
			else
				callers[round / ROUNDS % 8]();
		}
	}
	return 0;
}
