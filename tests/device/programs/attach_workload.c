/* A program under allocation load that leaks on request: 'l' on standard input, 23 blocks of 5003 bytes. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static atomic_int is_over;
static void *volatile kept;

/* 1009 bytes at most */
static void *churn(void *unused)
{
	void *blocks[64] = { 0 };
	unsigned random = (unsigned)(size_t)&blocks;

	(void)unused;
	while (!is_over) {
		int i = (int)((random = random * 1103515245 + 12345) >> 8) % 64;

		free(blocks[i]);
		blocks[i] = malloc(1 + (random >> 16) % 1009);
	}
	for (int i = 0; i < 64; i++)
		free(blocks[i]);
	return NULL;
}

__attribute__((noinline)) static void leak_some(void)
{
	for (int i = 0; i < 23; i++)
		memset(kept = malloc(5003), i, 5003);
}

int main(int argc, char **argv)
{
	int n = argc > 1 ? atoi(argv[1]) : 0;
	pthread_t threads[32];
	char order;

	for (int i = 0; i < n && i < 32; i++)
		if (pthread_create(&threads[i], NULL, churn, NULL))
			return 77;
	puts("ready");
	fflush(stdout);
	while (read(0, &order, 1) == 1 && order == 'l') {
		leak_some();
		puts("leaked");
		fflush(stdout);
	}
	is_over = 1;
	for (int i = 0; i < n && i < 32; i++)
		pthread_join(threads[i], NULL);
	return 0;
}
