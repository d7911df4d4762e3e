// SPDX-License-Identifier: Apache-2.0
/* Children that run another program at once: three by posix_spawn(), one by system(). They call no allocator of ours. */
#include "../../support/programs/libc.h"

extern char **environ;

int main(void)
{
	char *words[] = { "/bin/true", NULL };
	pid_t child;

	for (int i = 0; i < 3; i++)
		if (posix_spawn(&child, words[0], NULL, NULL, words, environ) || waitpid(child, NULL, 0) != child)
			return 1;
	return !malloc(1009) || system("true");
}
