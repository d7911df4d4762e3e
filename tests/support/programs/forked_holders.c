// SPDX-License-Identifier: Apache-2.0
/*
 * A process, a child that it forked, and one that called exec: each keeps a block and loses one, of sizes (primes) that name
 * them; the forked one keeps its own only by a block that its parent had allocated. They sleep for argv[1] seconds, the parent for argv[2]. No optimisation.
 */
#include "libc.h"

#include "wipe.h"

static void **kept;

__attribute__((noinline)) static void lose(size_t size)
{
	memset(malloc(size), 0, size);
}

__attribute__((noinline)) static void keep(void **where, size_t size)
{
	*where = calloc(1, size);
}

static int hold(const char *seconds)
{
	wipe();
	close(0), close(1), close(2);
	sleep((unsigned int)atoi(seconds));
	return kept == 0;
}

int main(int argc, char **argv)
{
	if (argc == 2) {
		keep((void **)&kept, 557);
		lose(563);
		return hold(argv[1]);
	}
	keep((void **)&kept, 449);
	lose(457);
	if (!fork()) {
		keep(&kept[1], 461);
		lose(463);
		return hold(argv[1]);
	}
	if (!fork())
		return execl(argv[0], argv[0], argv[1], (char *)0);
	return hold(argv[2]);
}
