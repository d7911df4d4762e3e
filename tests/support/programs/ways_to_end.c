// SPDX-License-Identifier: Apache-2.0
/* Loses one block and keeps one; then ends in the way that is named. */
#include "libc.h"

static void *volatile kept;
static char **words;

static void lose(void)
{
	char *volatile lost = malloc(4001);

	memset(lost, 0, 4001);
	kept = malloc(5003);
	lost = 0;
}

static void *end(void *way)
{
	usleep(100000);
	if (!strcmp(way, "thread-execs"))
		execl("/proc/self/exe", words[0], "returns", (char *)0);
	if (!strcmp(way, "thread-exits"))
		_exit(7);
	return 0; /* after the first thread, it is the last: the process ends with status 0 */
}

static volatile int n_signals;

static void count(int number)
{
	(void)number;
	n_signals++;
}

static int fork_and_count(void)
{
	int status;

	signal(SIGUSR1, count);
	for (int i = 0; i < 100; i++)
		raise(SIGUSR1);
	if (fork() == 0)
		_exit(5);
	wait(&status);
	return WEXITSTATUS(status) == 5 && n_signals == 100 ? 7 : 1;
}

int main(int argc, char **argv)
{
	const char *way = argc > 1 ? argv[1] : "returns";
	pthread_t id;

	words = argv;
	if (!strcmp(way, "execs"))
		execl("/proc/self/exe", argv[0], "returns", (char *)0);
	lose();
	if (!strcmp(way, "killed"))
		raise(SIGKILL);
	if (!strcmp(way, "aborts"))
		abort();
	if (!strcmp(way, "stops")) {
		raise(SIGSTOP);
		close(creat("went-on", 0600));
	}
	if (!strcmp(way, "forks"))
		return fork_and_count();
	if (strchr(way, '-')) {
		pthread_create(&id, 0, end, (void *)way);
		if (!strcmp(way, "first-thread-ends"))
			pthread_exit(0);
		pause();
	}
	return 7;
}
