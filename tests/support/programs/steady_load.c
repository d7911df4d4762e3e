/* SPDX-License-Identifier: Apache-2.0 */
/* Four threads, argv[1] seconds, 50,000 malloc+free pairs a second each; every 10,000th block stays. Prints what stays. */
#include "libc.h"

#define BATCH 100
#define BATCHES_A_SECOND 500

static int seconds;
void *volatile kept;

__attribute__((noipa)) static void pair(int i)
{
	void *volatile block = malloc(64 + i % 64);

	free(block);
}

__attribute__((noipa)) static void leak(void)
{
	kept = malloc(127);
}

static void *thread(void *arg)
{
	struct timespec next;
	int n = 0;

	(void)arg;
	clock_gettime(CLOCK_MONOTONIC, &next);
	for (int batch = 0; batch < seconds * BATCHES_A_SECOND; batch++) {
		for (int i = 0; i < BATCH; i++, n++) {
			if (n % 10000 == 9999)
				leak();
			else
				pair(i);
		}
		next.tv_nsec += 1000000000 / BATCHES_A_SECOND;
		if (next.tv_nsec >= 1000000000) {
			next.tv_nsec -= 1000000000;
			next.tv_sec++;
		}
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &next, NULL);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t threads[4];

	seconds = argc > 1 ? atoi(argv[1]) : 1;
	for (int i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, thread, NULL);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	return 0;
}
