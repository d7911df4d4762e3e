/* SPDX-License-Identifier: Apache-2.0 */
/* argv[1] processes, fork and exec of this program, each of which lives 5 ms and leaks 7 blocks of 1009 bytes. */
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

void *volatile kept;

__attribute__((noipa)) static void leak_in_child(void)
{
	kept = malloc(1009);
}

int main(int argc, char **argv)
{
	if (argc == 1) {
		for (int i = 0; i < 7; i++)
			leak_in_child();
		usleep(5000);
		return 0;
	}
	for (int i = atoi(argv[1]); i > 0; i--) {
		pid_t child = fork();

		if (child == 0) {
			execl("/proc/self/exe", argv[0], (char *)NULL);
			_exit(127);
		}
		if (child < 0 || waitpid(child, NULL, 0) != child)
			return 1;
	}
	return 0;
}
