// SPDX-License-Identifier: Apache-2.0
/* Reads from stdin how many malloc+free pairs to run; prints "CPU_NS WALL_NS\n" of the whole burst. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void *volatile sink;

static double now(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

__attribute__((noinline)) static void run(long pairs)
{
	for (long i = 0; i < pairs; i++) {
		sink = malloc(64);
		free(sink);
	}
}

/* Frames of 256 bytes below: an honest stack is some kilobytes deep. */
__attribute__((noinline)) static int descend(int depth, long pairs)
{
	volatile char frame[256];

	frame[0] = (char)depth;
	if (depth)
		descend(depth - 1, pairs);
	else
		run(pairs);
	return frame[0];
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
		(void)descend(40, atol(line));
		cpu = now(CLOCK_THREAD_CPUTIME_ID) - cpu;
		wall = now(CLOCK_MONOTONIC) - wall;
		length = snprintf(line, sizeof(line), "%.0f %.0f\n", cpu, wall);
		if (write(STDOUT_FILENO, line, (size_t)length) != length)
			return 1;
	}
}
