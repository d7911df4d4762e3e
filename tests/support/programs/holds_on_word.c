// SPDX-License-Identifier: Apache-2.0
/* holds_on_word COUNT SIZE: at each line of its input it allocates COUNT blocks of SIZE bytes, and says so; it ends with its input. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void *volatile kept;

__attribute__((noinline)) static void hold(size_t size)
{
	kept = malloc(size);
}

int main(int argc, char **argv)
{
	int count = argc > 2 ? atoi(argv[1]) : 0;
	size_t size = argc > 2 ? (size_t)atol(argv[2]) : 0;
	char line[64];

	while (read(0, line, sizeof(line)) > 0) {
		for (int i = 0; i < count; i++)
			hold(size);
		if (write(1, "held\n", 5) != 5)
			return 1;
	}
	return 0;
}
