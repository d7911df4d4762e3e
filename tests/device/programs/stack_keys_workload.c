// SPDX-License-Identifier: Apache-2.0
/*
 * Allocates by PATHS call paths whose frames hold what other calls left behind, at ever other depths of the stack, so
 * that only the return addresses stay the same. Sizes tell the paths apart: 1000 + path. All blocks are kept.
 */
#include <alloca.h>
#include <stdlib.h>
#include <unistd.h>

#define PATHS 8
#define ROUNDS 400

static void *volatile kept;

/* Leaves addresses of code all over the stack below. */
static __attribute__((noinline)) void litter(int seed)
{
	void *volatile words[256];

	for (int i = 0; i < 256; i++)
		words[i] = (char *)litter + (i * 7 + seed * 13) % 300;
}

static __attribute__((noinline)) void *left(int path, int depth);

static __attribute__((noinline)) void *right(int path, int depth)
{
	volatile char frame[200];
	void *block;

	frame[0] = 1;
	if (!depth)
		return malloc(1000 + (size_t)path);
	block = path >> (depth - 1) & 1 ? right(path, depth - 1) : left(path, depth - 1);
	return frame[0] ? block : NULL;
}

static void *left(int path, int depth)
{
	volatile char frame[120];
	void *block;

	frame[0] = 1;
	if (!depth)
		return malloc(1000 + (size_t)path);
	block = path >> (depth - 1) & 1 ? right(path, depth - 1) : left(path, depth - 1);
	return frame[0] ? block : NULL;
}

static __attribute__((noinline)) void *deeper(int round, int path)
{
	volatile char *room = alloca(16 + (size_t)(round % 50) * 48);
	void *block;

	room[0] = 1;
	litter(round);
	block = right(path, 3);
	return room[0] ? block : NULL;
}

int main(void)
{
	for (int round = 0; round < ROUNDS; round++)
		for (int path = 0; path < PATHS; path++)
			kept = deeper(round, path);
	_exit(0);
}
