// SPDX-License-Identifier: Apache-2.0
/*
 * exact_stacks ROUNDS: 16 call paths allocate in turn, from frames that hold addresses of code to which nothing will return
 * to, others each time, and at depths that differ. Twice ROUNDS rounds, with a pause between the two halves. All blocks
 * are kept; those of path n have 1000 + n bytes.
 */
#include "../../support/programs/libc.h"

#define PATHS 16

static uint64_t state = 88172645463325252u;
static void *volatile kept;

static uint64_t draw(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

static __attribute__((noinline)) void *even(unsigned path, int depth, size_t bytes);

#define STEP(name, words)                                                                               \
	static __attribute__((noinline)) void *name(unsigned path, int depth, size_t bytes)             \
	{                                                                                               \
		volatile uintptr_t stale[words];                                                        \
		void *block;                                                                            \
												\
		for (int i = 0; i < words; i++)                                                         \
			stale[i] = (uintptr_t)even + draw() % 64;                                       \
		block = !depth ? malloc(bytes) : (path & 1 ? odd : even)(path >> 1, depth - 1, bytes);  \
		return stale[0] ? block : NULL;                                                         \
	}
static void *odd(unsigned path, int depth, size_t bytes);
STEP(odd, 6)
STEP(even, 11)

/* The same path somewhere else on the stack, and out of a frame whose place follows from a word in it (GCC's realigned ones). */
static __attribute__((noinline)) void allocate(unsigned path, size_t deeper)
{
	_Alignas(64) volatile char aligned[64];
	char *room = alloca(deeper);

	aligned[0] = 0;
	memset(room, aligned[0], deeper);
	kept = room;
	kept = even(path, 12, 1000 + path);
}

int main(int argc, char **argv)
{
	long rounds = argc > 1 ? atol(argv[1]) : 1000;

	for (int half = 0; half < 2; half++) {
		for (long i = 0; i < rounds; i++)
			for (unsigned path = 0; path < PATHS; path++)
				allocate(path, 16 * (draw() % 8 + 1));
		usleep(300000);
	}
	return 0;
}
