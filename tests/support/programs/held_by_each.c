/* SPDX-License-Identifier: Apache-2.0 */
/* Three children hold 1, 2 and 3 MiB and their parent 5, written to, for some seconds after the measurement. */
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1ul << 20)
#define SECONDS 8

static void hold(unsigned long bytes)
{
	char *volatile block = malloc(bytes);

	for (unsigned long i = 0; i < bytes; i += 64)
		block[i] = 1;
	sleep(SECONDS);
}

int main(void)
{
	close(1);
	close(2);
	for (int i = 1; i <= 3; i++)
		if (!fork()) {
			hold(i * MIB);
			return 0;
		}
	hold(5 * MIB);
	while (wait(NULL) > 0)
		;
	return 0;
}
