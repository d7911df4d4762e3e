// SPDX-License-Identifier: Apache-2.0
/* Reads from stdin how many calls of called() to run, which begins with a push as most functions do; prints "CPU_NS WALL_NS\n" of the whole burst. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* Leaf work between the calls would only blur the figure. The register is saved, so that a push stands at the entry. */
__attribute__((noinline, noipa)) long called(long i, const char *text)
{
	__asm__ volatile("" : : "r"(text) : "rbx", "memory");
	return i + 1;
}

static double now(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

__attribute__((noinline)) static void run(long calls)
{
	for (long i = 0; i < calls; i++)
		called(i, "text");
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
		run(atol(line));
		cpu = now(CLOCK_THREAD_CPUTIME_ID) - cpu;
		wall = now(CLOCK_MONOTONIC) - wall;
		length = snprintf(line, sizeof(line), "%.0f %.0f\n", cpu, wall);
		if (write(STDOUT_FILENO, line, (size_t)length) != length)
			return 1;
	}
}
