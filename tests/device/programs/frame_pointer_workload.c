// SPDX-License-Identifier: Apache-2.0
/*
 * Allocates through calls of several kinds, on the first thread and on another; all blocks are kept. Its stacks by frame
 * pointers are those by unwind information where it is built to keep frame pointers, and not where it is not.
 */
#include <pthread.h>
#include <stdlib.h>

#define BLOCKS 60

static void *volatile kept;

__attribute__((noinline)) static void *leaf(size_t size)
{
	void *block = malloc(size);

	kept = block;
	return block;
}

__attribute__((noinline)) static void *deep(int depth, size_t size)
{
	volatile char room[40];
	void *block;

	room[0] = (char)depth;
	block = depth ? deep(depth - 1, size) : leaf(size);
	return room[0] == (char)depth ? block : NULL;
}

__attribute__((noinline)) static void *wide(size_t size)
{
	volatile long numbers[30];
	void *block = deep((int)(size % 7), size);

	numbers[size % 30] = 1;
	return numbers[size % 30] ? block : NULL;
}

static void *run(void *argument)
{
	size_t base = *(size_t *)argument;

	for (size_t i = 0; i < BLOCKS; i++)
		kept = i % 2 ? wide(base + i) : deep((int)(i % 5), base + i);
	return NULL;
}

int main(void)
{
	size_t first = 1000, second = 2000;
	pthread_t thread;

	run(&first);
	if (pthread_create(&thread, NULL, run, &second))
		return 1;
	pthread_join(thread, NULL);
	return 0;
}
