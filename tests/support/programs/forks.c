/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps 7 bytes and forks argv[1] children, one after the other, each of which keeps 11 bytes by the same call. */
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

void *volatile kept;

__attribute__((noipa)) static void leak_in_child(void)
{
	kept = malloc(11);
}

int main(int argc, char **argv)
{
	kept = malloc(7);
	for (int i = argc > 1 ? atoi(argv[1]) : 0; i > 0; i--) {
		pid_t child = fork();

		if (child == 0) {
			leak_in_child();
			_exit(0);
		}
		if (child < 0 || waitpid(child, NULL, 0) != child)
			return 1;
	}
	return 0;
}
