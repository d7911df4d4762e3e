/* SPDX-License-Identifier: Apache-2.0 */
/*
 * N [waits|clears]: so many threads that live at the same time, each with one block of 77 bytes; after a line on stdin if it waits. If
 * it clears, they all call calloc() before.
 */
#include "../../support/programs/libc.h"

#define BLOCK_BYTES 77
#define STACK_BYTES 65536

#define CLEARED 2000

static pthread_barrier_t all;
static int clears;

__attribute__((noipa)) static void *each(void *block)
{
	for (int i = 0; i < clears; i++)
		free(calloc(1, BLOCK_BYTES));
	*(void *volatile *)block = malloc(BLOCK_BYTES);
	pthread_barrier_wait(&all);
	return NULL;
}

int main(int argc, char **argv)
{
	int n = argc > 1 ? atoi(argv[1]) : 0;
	static void *blocks[1 << 14];
	pthread_attr_t attributes;
	pthread_t thread;

	clears = argc > 2 && !strcmp(argv[2], "clears") ? CLEARED : 0;
	if (argc > 2 && !clears && puts("ready") > 0 && !fflush(stdout) && getchar() == EOF)
		return 1;
	pthread_barrier_init(&all, NULL, (unsigned)n + 1);
	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, STACK_BYTES);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	for (int i = 0; i < n; i++)
		if (pthread_create(&thread, &attributes, each, &blocks[i]))
			return 3;
	pthread_barrier_wait(&all);
	return 0;
}
