/* Threads that allocate on new call paths for longer than any session; nothing is freed. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define THREADS 3
#define TURNS 16
#define AFTER_S 120 /* longer than the test */

static void *volatile kept;

static void turn(uint64_t road, int turns);

static __attribute__((noinline)) void left(uint64_t road, int turns)
{
	turn(road, turns);
	__asm__ volatile("");
}

static __attribute__((noinline)) void right(uint64_t road, int turns)
{
	turn(road, turns);
	__asm__ volatile("");
}

static void turn(uint64_t road, int turns)
{
	if (!turns)
		kept = malloc(24);
	else if (road & 1)
		left(road >> 1, turns - 1);
	else
		right(road >> 1, turns - 1);
}

static void *drive(void *first)
{
	const struct timespec pause = { 0, 1000000 };

	for (uint64_t road = (uintptr_t)first;; road++) {
		turn(road, TURNS);
		nanosleep(&pause, NULL);
	}
	return NULL;
}

int main(void)
{
	alarm(AFTER_S);
	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
	for (uintptr_t i = 0; i < THREADS; i++) {
		pthread_t thread;

		if (pthread_create(&thread, NULL, drive, (void *)(i * ((1u << TURNS) / THREADS))))
			return 1;
	}
	puts("driving");
	fflush(stdout);
	/* The reader must not wait for the end. */
	close(1);
	close(2);
	return pause();
}
