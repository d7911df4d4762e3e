// SPDX-License-Identifier: Apache-2.0
/*
 * `stress FOLDER [settled]`: begins and ends to record a hundred times, with a snapshot each (N.memleak), while three threads
 * allocate, one of them forks, and a signal interrupts them a thousand times a second. settled: no call is still on its way under
 * the recording before when the next begins. Such a call ends in memory that was freed, which a sanitizer for
 * threads cannot know.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "memleak.h"

#define ROUNDS 100
#define THREADS 3
#define BLOCKS 64

static atomic_int is_over, n_begun, n_signals;
static atomic_uint n_calls[THREADS];

static void count_signal(int number)
{
	(void)number;
	n_signals++;
}

static void fork_once(void)
{
	int is_begun = n_begun > 0, status = 0;
	pid_t child = fork();

	if (!child)
		_exit(is_begun && memleak_snapshot("/nonexistent") != -ECHILD);
	if (child > 0 && waitpid(child, &status, 0) == child && status)
		fprintf(stderr, "a child ended with %d\n", status);
}

static void *work(void *argument)
{
	unsigned number = (unsigned)(size_t)argument, random = number;
	void *blocks[BLOCKS] = { NULL };

	while (!is_over) {
		unsigned slot = random >> 16 & (BLOCKS - 1);

		random = random * 1103515245 + 12345;
		free(blocks[slot]);
		blocks[slot] = malloc(random % 3000);
		n_calls[number - 1]++;
		if (number == 1 && (random & 0xfff) == 7)
			fork_once();
	}
	for (int i = 0; i < BLOCKS; i++)
		free(blocks[i]);
	return NULL;
}

/* Until each thread has begun and ended a call. */
static void settle(void)
{
	for (int i = 0; i < THREADS; i++)
		for (unsigned before = n_calls[i]; n_calls[i] - before < 2;)
			usleep(100);
}

static int once(const char *folder, int number)
{
	struct memleak_options options = { .struct_bytes = sizeof(options), .sample_bytes = MEMLEAK_EVERY_ALLOCATION };
	char path[4096];
	int wrong = memleak_start(&options);

	n_begun++;
	usleep(2000);
	snprintf(path, sizeof(path), "%s/%d.memleak", folder, number);
	wrong |= memleak_snapshot(path);
	return wrong | memleak_stop();
}

int main(int argc, char **argv)
{
	pthread_t threads[THREADS];
	struct itimerval each_ms = { { 0, 1000 }, { 0, 1000 } };
	int is_settled = argc > 2 && !strcmp(argv[2], "settled"), wrong = 0;

	if (sigaction(SIGALRM, &(struct sigaction){ .sa_handler = count_signal, .sa_flags = SA_RESTART }, NULL) ||
	    setitimer(ITIMER_REAL, &each_ms, NULL))
		return 3;
	for (size_t i = 0; i < THREADS; i++)
		if (pthread_create(&threads[i], NULL, work, (void *)(i + 1)))
			return 2;
	for (int i = 0; i < ROUNDS; i++) {
		wrong |= once(argc > 1 ? argv[1] : ".", i);
		if (is_settled)
			settle();
	}
	is_over = 1;
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	return wrong != 0 || !n_signals;
}
