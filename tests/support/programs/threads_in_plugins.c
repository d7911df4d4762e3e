/* SPDX-License-Identifier: Apache-2.0 */
/*
 * argv[1] times: opens argv[2], has four threads call its leak() three times each, at once, closes it, and the same with
 * argv[3]. Two more threads allocate and free all the while, so that a thread always meets the new maps.
 */
#include "libc.h"

#define WORKERS 4
#define TRAFFIC 2

static pthread_barrier_t begin, end;
static void (*volatile leak)(void);
static volatile int is_over;

__attribute__((noipa)) static void exchange(size_t size)
{
	void *volatile block = malloc(size);

	free(block);
}

static void *work(void *arg)
{
	for (;;) {
		pthread_barrier_wait(&begin);
		if (is_over)
			return arg;
		for (int i = 0; i < 3; i++)
			leak();
		pthread_barrier_wait(&end);
	}
}

static void *make_traffic(void *arg)
{
	for (size_t i = 0; !is_over; i++)
		exchange(16 + i % 64);
	return arg;
}

static int use(const char *path)
{
	void *library = dlopen(path, RTLD_NOW);

	leak = library ? (void (*)(void))dlsym(library, "leak") : 0;
	if (!leak)
		return -1;
	pthread_barrier_wait(&begin);
	pthread_barrier_wait(&end);
	return dlclose(library);
}

int main(int argc, char **argv)
{
	pthread_t threads[WORKERS + TRAFFIC];
	int failed = argc != 4;

	pthread_barrier_init(&begin, NULL, WORKERS + 1);
	pthread_barrier_init(&end, NULL, WORKERS + 1);
	for (int i = 0; i < WORKERS + TRAFFIC; i++)
		pthread_create(&threads[i], NULL, i < WORKERS ? work : make_traffic, NULL);
	for (int i = failed ? 0 : atoi(argv[1]); i > 0; i--)
		failed |= use(argv[2]) || use(argv[3]);
	is_over = 1;
	pthread_barrier_wait(&begin);
	for (int i = 0; i < WORKERS + TRAFFIC; i++)
		pthread_join(threads[i], NULL);
	return failed;
}
