/* SPDX-License-Identifier: Apache-2.0 */
/* Reads from stdin how often to do what is measured; prints "CPU_NS WALL_NS\n" of the whole burst. The includer has burst(). */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static void burst(long n);

static double now(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

int main(void)
{
	char line[64];

	for (;;) {
		ssize_t length = read(STDIN_FILENO, line, sizeof(line) - 1);
		double cpu, wall;

		if (length <= 0)
			return 0;
		line[length] = '\0';
		cpu = now(CLOCK_THREAD_CPUTIME_ID);
		wall = now(CLOCK_MONOTONIC);
		burst(atol(line));
		cpu = now(CLOCK_THREAD_CPUTIME_ID) - cpu;
		wall = now(CLOCK_MONOTONIC) - wall;
		length = snprintf(line, sizeof(line), "%.0f %.0f\n", cpu, wall);
		if (write(STDOUT_FILENO, line, (size_t)length) != length)
			return 1;
	}
}
