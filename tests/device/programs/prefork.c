// SPDX-License-Identifier: Apache-2.0
/*
 * A master with two workers, the second of which has one of its own. Each says that it runs, leaks when it has read a byte,
 * gives back other blocks, which all have at the same addresses at the same time, and stays.
 */
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define BLOCKS 23
#define WORKERS 3

static void *volatile kept;
static int *n_leaked;

static int say(const char word[7])
{
	return write(1, word, 7) == 7;
}

static int work(void)
{
	static void *given_back[BLOCKS];
	char byte;

	if (!say("ready!\n") || read(0, &byte, 1) != 1)
		return 1;
	for (int i = 0; i < BLOCKS; i++) {
		kept = malloc(5003);
		given_back[i] = malloc(6007);
	}
	__atomic_add_fetch(n_leaked, 1, __ATOMIC_SEQ_CST);
	while (__atomic_load_n(n_leaked, __ATOMIC_SEQ_CST) < WORKERS)
		usleep(1000);
	for (int i = 0; i < BLOCKS; i++)
		free(given_back[i]);
	return say("leaked\n") ? pause() : 1;
}

int main(void)
{
	n_leaked = mmap(NULL, sizeof(*n_leaked), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (n_leaked == MAP_FAILED)
		return 1;
	if (!fork())
		return work();
	if (!fork()) {
		fork();
		return work();
	}
	while (wait(NULL) > 0)
		;
	return 0;
}
