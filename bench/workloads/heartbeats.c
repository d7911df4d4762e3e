/* Threads that allocate without a pause, and note in shared memory for how long there was no progress.
 *
 *   heartbeats FILE THREADS     FILE: the size of struct shared, zeros; bench/figures/attach.py reads it
 *
 * A thread beats after some allocations each, by CLOCK_MONOTONIC. A gap between two beats of one thread is a time in which it
 * did not run; a gap between the beats of all threads is one in which none did.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define PAIRS 32
#define LEAST_NS 20000
#define GAPS (1u << 20)

struct gap {
	uint64_t begin_ns, end_ns, thread; /* 0: all of them */
};

struct shared {
	_Atomic uint64_t n_gaps, last_ns;
	struct gap gaps[GAPS];
};

static struct shared *shared;

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void note(uint64_t begin_ns, uint64_t end_ns, uint64_t thread)
{
	uint64_t index;

	if (end_ns - begin_ns < LEAST_NS)
		return;
	index = atomic_fetch_add(&shared->n_gaps, 1);
	if (index < GAPS)
		shared->gaps[index] = (struct gap){ begin_ns, end_ns, thread };
}

/* The clock of all only goes forward: who was interrupted behind reading it says nothing. */
static void beat(uint64_t *own_ns, uint64_t thread)
{
	uint64_t now = now_ns(), last = atomic_load(&shared->last_ns);

	while (last < now && !atomic_compare_exchange_weak(&shared->last_ns, &last, now))
		;
	if (last && last < now)
		note(last, now, 0);
	note(*own_ns, now, thread);
	*own_ns = now;
}

static void *churn(void *number)
{
	void *blocks[PAIRS];
	uint64_t own_ns = now_ns();

	for (;;) {
		for (int i = 0; i < PAIRS; i++)
			blocks[i] = malloc(64 + 16u * (unsigned)i);
		for (int i = 0; i < PAIRS; i++)
			free(blocks[i]);
		beat(&own_ns, (uintptr_t)number);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	int file = argc == 3 ? open(argv[1], O_RDWR) : -1;
	pthread_t thread;

	if (file < 0)
		return 2;
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (shared == MAP_FAILED)
		return 1;
	for (int i = 0; i < atoi(argv[2]); i++)
		if (pthread_create(&thread, NULL, churn, (void *)(uintptr_t)(i + 1)))
			return 1;
	puts("ready");
	fflush(stdout);
	getchar();
	return 0;
}
