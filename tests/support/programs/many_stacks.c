/* SPDX-License-Identifier: Apache-2.0 */
/* argv[1] distinct stacks, one leaked block each: the path down is spelled by the bits of the number.
 * argv[2]: microseconds to sleep after every 100, or "-": a byte of standard input is read after every 100. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

void *volatile kept;

static int left(unsigned path, int depth);
static int right(unsigned path, int depth);

__attribute__((noinline)) static int down(unsigned path, int depth)
{
	if (depth == 0) {
		kept = malloc(13);
		return 1;
	}
	return (path & 1 ? left(path >> 1, depth - 1) : right(path >> 1, depth - 1)) + 1;
}

__attribute__((noinline)) static int left(unsigned path, int depth)
{
	return down(path, depth) + 2;
}

__attribute__((noinline)) static int right(unsigned path, int depth)
{
	return down(path, depth) + 3;
}

int main(int argc, char **argv)
{
	unsigned stacks = argc > 1 ? strtoul(argv[1], NULL, 10) : 1;

	for (unsigned i = 0; i < stacks; i++) {
		down(i, 14);
		if (argc <= 2 || i % 100 != 99)
			continue;
		if (*argv[2] == '-')
			getchar();
		else
			usleep(strtoul(argv[2], NULL, 10));
	}
	return 0;
}
