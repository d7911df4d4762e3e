/* SPDX-License-Identifier: Apache-2.0 */
/*
 * step() is called 5 times by the program, 7 times by its child, 11 times by what the child becomes by exec, and 13 times by a
 * grandchild that outlives them all. Prints the process ids of the first and of the last.
 */
#include "../../../support/programs/libc.h"

__attribute__((noipa)) int step(int n)
{
	return n + getppid();
}

static void take(int steps)
{
	for (int i = 0; i < steps; i++)
		step(i);
}

int main(int argc, char **argv)
{
	if (argc > 1) {
		take(11);
		if (!fork()) {
			usleep(300000);
			take(13);
			printf("%d\n", getpid());
		}
		return 0;
	}
	printf("%d\n", getpid());
	fflush(stdout);
	take(5);
	if (!fork()) {
		take(7);
		execl(argv[0], argv[0], "again", NULL);
		return 1;
	}
	wait(NULL);
	return 0;
}
