// SPDX-License-Identifier: Apache-2.0
/*
 * paced ALLOCATIONS WORK STACKS [HELD LEAK]: that many allocations, between two of them WORK rounds of arithmetic (the
 * pace), over STACKS distinct call paths. Each block lives for 512 further allocations, the last ones to the end.
 * HELD: before them as many blocks of 64 KiB, each by a path of its own, kept to the end. LEAK: with each LEAKth
 * allocation 4 KiB more are kept, by one of 8 other paths.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define LIVE 512

static void *blocks[LIVE];
static uint64_t state = 88172645463325252u;
static volatile uint64_t result;

static void spin(long work)
{
	uint64_t x = state;

	for (long i = 0; i < work; i++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
	}
	state = x;
	result = x;
}

/* The bits of `path` choose one of two callers at each level, so that every path is a call chain of its own. */
static __attribute__((noinline)) void *left(unsigned path, int depth, size_t size);

#define HELD_PATHS 0x40000u /* beyond those of STACKS */
#define LEAK_PATHS 0x80000u

static __attribute__((noinline)) void *right(unsigned path, int depth, size_t size)
{
	volatile char frame[96];
	void *block;

	frame[0] = (char)depth;
	if (!depth)
		return malloc(size);
	block = path & 1 ? right(path >> 1, depth - 1, size) : left(path >> 1, depth - 1, size);
	return frame[0] ? block : NULL;
}

static void *left(unsigned path, int depth, size_t size)
{
	volatile char frame[160];
	void *block;

	frame[0] = (char)depth;
	if (!depth)
		return malloc(size + 1);
	block = path & 1 ? right(path >> 1, depth - 1, size) : left(path >> 1, depth - 1, size);
	return frame[0] ? block : NULL;
}

int main(int argc, char **argv)
{
	long allocations = argc > 1 ? atol(argv[1]) : 100000;
	long work = argc > 2 ? atol(argv[2]) : 100;
	unsigned stacks = argc > 3 ? (unsigned)atol(argv[3]) : 64;
	unsigned held = argc > 4 ? (unsigned)atol(argv[4]) : 0;
	long leak = argc > 5 ? atol(argv[5]) : 0;

	for (unsigned i = 0; i < held; i++)
		result = (uint64_t)(uintptr_t)left(HELD_PATHS + i, 20, 65536);
	for (long i = 0; i < allocations; i++) {
		unsigned slot = (unsigned)i % LIVE;

		spin(work);
		if (leak && i % leak == 0)
			result = (uint64_t)(uintptr_t)left(LEAK_PATHS + (unsigned)(i / leak % 8), 20, 4096);
		free(blocks[slot]);
		blocks[slot] = left((unsigned)i % stacks, 20, 16 + (state & 255));
	}
	_exit(0);
}
