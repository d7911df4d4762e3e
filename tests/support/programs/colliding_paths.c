/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two paths of the same depth and frame sizes to one malloc; they differ only beyond a frame of 6000 bytes.
 * argv: blocks by first, blocks by second, "interleaved" or "after", microseconds between blocks.
 */
#include "libc.h"

void *volatile kept;

__attribute__((noipa)) static int leaf(int size)
{
	kept = malloc(size);
	return kept != NULL;
}

__attribute__((noipa)) static int middle(int size)
{
	volatile char buffer[6000];

	buffer[0] = (char)size;
	return leaf(size) + buffer[0];
}

#define PATH(name)                                                                                             \
	__attribute__((noipa)) static int name(int size)                                                       \
	{                                                                                                      \
		volatile int local = size;                                                                     \
		return middle(size) + local;                                                                   \
	}
PATH(first_path)
PATH(second_path)

int main(int argc, char **argv)
{
	int (*volatile paths[2])(int) = { first_path, second_path };
	int left[2], pause;

	if (argc != 5)
		return 3;
	left[0] = atoi(argv[1]);
	left[1] = atoi(argv[2]);
	pause = atoi(argv[4]);
	for (int turn = 0; left[0] || left[1]; turn = strcmp(argv[3], "after") ? !turn : left[0] == 0) {
		if (left[turn]) {
			left[turn]--;
			paths[turn](101);
		}
		if (pause)
			usleep(pause);
	}
	return 0;
}
