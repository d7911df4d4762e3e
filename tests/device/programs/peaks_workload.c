// SPDX-License-Identifier: Apache-2.0
/*
 * A high-water mark that lasts for no time and is by far exceeded by what is allocated before and after it.
 * peaks_workload THREADS [GO]: each thread (0: the main one alone) allocates and frees, then all hold what the peak is,
 * then all free it at once. With GO, all take the way to the peak once for one block each, print "warm", and go on when
 * the file GO is there.
 */
#include "../../support/programs/libc.h"

#define BLOCKS 500
#define ROUNDS 20000

static pthread_barrier_t together;
static void *volatile kept[BLOCKS];
static const char *go;

__attribute__((noinline)) void keep(void)
{
	for (int i = 0; i < BLOCKS; i++)
		kept[i] = malloc(1009);
}

/* Comes and goes: 997 bytes at most are held by each thread. */
__attribute__((noinline)) void churn(void)
{
	for (int i = 0; i < ROUNDS; i++) {
		void *volatile block = malloc((size_t)(i % 997 + 1));

		free(block);
	}
}

__attribute__((noinline)) void spike(void **blocks, int count)
{
	for (int i = 0; i < count; i++)
		blocks[i] = malloc(5003);
}

__attribute__((noinline)) void smaller_spike(void **blocks)
{
	for (int i = 0; i < BLOCKS; i++)
		blocks[i] = malloc(4001);
}

static void give_back(void **blocks, int count)
{
	for (int i = 0; i < count; i++)
		free(blocks[i]);
}

static int wait_for_all(void)
{
	return pthread_barrier_wait(&together);
}

static void wait_for_go(void)
{
	if (wait_for_all() == PTHREAD_BARRIER_SERIAL_THREAD && write(1, "warm\n", 5) != 5)
		abort();
	while (access(go, F_OK))
		usleep(1000);
}

static void *work(void *unused)
{
	void *blocks[BLOCKS];

	churn();
	for (int count = go ? 1 : BLOCKS;; count = BLOCKS) { /* one call site, so that a warm-up is of the same stack */
		wait_for_all();
		spike(blocks, count);
		wait_for_all();
		give_back(blocks, count);
		wait_for_all();
		if (count == BLOCKS)
			break;
		wait_for_go();
	}
	smaller_spike(blocks);
	wait_for_all();
	give_back(blocks, BLOCKS);
	churn();
	return NULL;
}

int main(int argc, char **argv)
{
	unsigned threads = argc > 1 ? (unsigned)atoi(argv[1]) : 0;
	pthread_t ids[64];

	go = argc > 2 ? argv[2] : NULL;
	keep();
	pthread_barrier_init(&together, NULL, threads ? threads : 1);
	if (!threads)
		work(NULL);
	for (unsigned i = 0; i < threads; i++)
		pthread_create(&ids[i], NULL, work, NULL);
	for (unsigned i = 0; i < threads; i++)
		pthread_join(ids[i], NULL);
	return 0;
}
