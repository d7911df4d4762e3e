// SPDX-License-Identifier: Apache-2.0
/* A child that shares its parent's memory, until it ends, frees a block of it and leaves one of another size behind. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void *volatile freed_by_child, *volatile left_by_child;

int main(void)
{
	pid_t child;

	freed_by_child = malloc(1009);
	child = vfork();
	if (!child) {
		free(freed_by_child);
		left_by_child = malloc(2003);
		_exit(0);
	}
	return waitpid(child, NULL, 0) != child;
}
