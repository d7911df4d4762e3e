/*
 * Loads the library named by its argument into a linker namespace of its own (dlmopen), with a libc of its own, and has two
 * threads allocate in both. Leaks on request: a byte on standard input, 23 blocks of 5003 bytes.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void *volatile kept;
static void *(*other_malloc)(size_t);
static void (*other_free)(void *);

static void *churn(void *unused)
{
	(void)unused;
	for (;;) {
		free(kept = malloc(100));
		other_free(other_malloc(77));
	}
	return NULL;
}

int main(int argc, char **argv)
{
	void *other = argc > 1 ? dlmopen(LM_ID_NEWLM, argv[1], RTLD_NOW) : NULL;
	pthread_t thread;
	char order;

	if (!other)
		return 77;
	other_malloc = (void *(*)(size_t))dlsym(other, "malloc");
	other_free = (void (*)(void *))dlsym(other, "free");
	for (int i = 0; i < 2; i++)
		if (pthread_create(&thread, NULL, churn, NULL))
			return 77;
	puts("ready");
	fflush(stdout);
	while (read(0, &order, 1) == 1) {
		for (int i = 0; i < 23; i++)
			kept = malloc(5003);
		puts("leaked");
		fflush(stdout);
	}
	return 0;
}
