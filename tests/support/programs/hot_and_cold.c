// SPDX-License-Identifier: Apache-2.0
/*
 * hot_and_cold SECONDS PATHS [MANY]: allocations over PATHS call paths that are freed at once, as many as go into SECONDS.
 * At the end each path keeps a block of 16 bytes. Others hold memory: 4 KiB more every 2000 allocations; one block of
 * 1 MiB that is allocated once; one that grows by 24 bytes, 20 times a second. MANY paths have 256 bytes each, which
 * are replaced again and again. All but the first begin in the middle: their blocks before it are freed at once.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static void *volatile kept;

static __attribute__((noinline)) void *left(unsigned path, int depth, size_t size);

static __attribute__((noinline)) void *right(unsigned path, int depth, size_t size)
{
	void *block;

	if (!depth)
		return malloc(size);
	block = path & 1 ? right(path >> 1, depth - 1, size) : left(path >> 1, depth - 1, size);
	__asm__ volatile("" ::: "memory");
	return block;
}

static __attribute__((noinline)) void *left(unsigned path, int depth, size_t size)
{
	void *block;

	if (!depth)
		return malloc(size);
	block = path & 1 ? right(path >> 1, depth - 1, size) : left(path >> 1, depth - 1, size);
	__asm__ volatile("" ::: "memory");
	return block;
}

static __attribute__((noipa)) void *hold_once(size_t size)
{
	void *block = malloc(size);

	__asm__ volatile("# hold_once" ::: "memory");
	return block;
}

static __attribute__((noipa)) void *hold_often(size_t size)
{
	void *block = malloc(size);

	__asm__ volatile("# hold_often" ::: "memory");
	return block;
}

static __attribute__((noipa)) void *grow_slowly(size_t size)
{
	void *block = malloc(size);

	__asm__ volatile("# grow_slowly" ::: "memory");
	return block;
}

/* Each of the n entries by a path of its own, in turn replaced; as long as nothing is kept, freed at once. */
static __attribute__((noinline)) void replace(void **blocks, unsigned n, unsigned turn, int is_kept)
{
	if (!n)
		return;
	free(blocks[turn % n]);
	blocks[turn % n] = left(turn % n, 10, 256);
	if (is_kept)
		return;
	free(blocks[turn % n]);
	blocks[turn % n] = NULL;
}

static double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
	double length = argc > 1 ? atof(argv[1]) : 3, begin = seconds(), past = 0;
	unsigned paths = argc > 2 ? (unsigned)atoi(argv[2]) : 4096, many = argc > 3 ? (unsigned)atoi(argv[3]) : 0;
	static void *replaced[1024];
	int is_held = 0, n_slow = 0;

	for (unsigned i = 0; past < length; i++) {
		int is_late = past > length / 2;
		void *once = NULL, *slow = NULL;

		free(left(i % paths, 12, 64));
		replace(replaced, many, i, is_late);
		if (i % 2000)
			continue;
		past = seconds() - begin;
		kept = hold_often(4096);
		if (!is_held)
			once = hold_once(is_late ? 1 << 20 : 16);
		is_held |= is_late;
		if (n_slow < past * 20) { /* as often in a second */
			n_slow++;
			slow = grow_slowly(24);
		}
		if (!is_late) {
			free(once);
			free(slow);
		}
		kept = once ? once : slow;
	}
	for (unsigned path = 0; path < paths; path++)
		kept = left(path, 12, 16);
	_exit(0);
}
