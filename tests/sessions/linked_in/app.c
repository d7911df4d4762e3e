// SPDX-License-Identifier: Apache-2.0
/*
 * An app that watches its own memory: `app FOLDER [every]`. Two threads work, with blocks of even sizes, while the first leaks
 * and writes snapshots: NNN.memleak after leak_small() has been called NNN times, app.memleak at the end. Sizes identify the
 * function that leaked: 1009 bytes by leak_small(), 40009 by leak_large().
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "memleak.h"

#define SMALL 200
#define LARGE 30

static void *volatile kept;
static volatile int is_over;

__attribute__((noinline)) static void leak_small(void)
{
	kept = malloc(1009);
	__asm__ volatile("" ::: "memory");
}

__attribute__((noinline)) static void leak_large(void)
{
	kept = calloc(1, 40009);
	__asm__ volatile("" ::: "memory");
}

static void *work(void *unused)
{
	(void)unused;
	while (!is_over) {
		void *block = malloc(100 + (size_t)rand() % 2500 * 2);

		kept = block;
		free(block);
	}
	return NULL;
}

static int expect(const char *what, int result, int wanted)
{
	if (result != wanted)
		fprintf(stderr, "%s: %d, not %d\n", what, result, wanted);
	return result != wanted;
}

static int check_errors(const char *folder)
{
	char path[4096];
	int wrong = 0;

	wrong += expect("a second start", memleak_start(NULL), -EBUSY);
	snprintf(path, sizeof(path), "%s/absent/app.memleak", folder);
	wrong += expect("a folder that is not there", memleak_snapshot(path), -ENOENT);
	wrong += expect("no path", memleak_snapshot(NULL), -EINVAL);
	wrong += expect("options of no length", memleak_start(&(struct memleak_options){ .max_live = 1 }), -EINVAL);
	snprintf(path, sizeof(path), "%s/full/app.memleak", folder);
	if (!access(folder, W_OK) && !access(path, F_OK))
		wrong += expect("a full disk", memleak_snapshot(path), -ENOSPC);
	return wrong;
}

static char handlers_path[4096];
static volatile int handlers_result = 1;

static void write_in_handler(int signal)
{
	(void)signal;
	handlers_result = memleak_snapshot(handlers_path);
}

/* In a handler that interrupts an allocation, or nearly. */
static int check_handler(const char *folder)
{
	snprintf(handlers_path, sizeof(handlers_path), "%s/handler.memleak", folder);
	signal(SIGPROF, write_in_handler);
	setitimer(ITIMER_PROF, &(struct itimerval){ .it_value = { .tv_usec = 2000 } }, NULL);
	while (handlers_result > 0)
		free(malloc(1000));
	return expect("in a handler", handlers_result, 0);
}

static int check_marks(void)
{
	int wrong = 0;

	for (int i = 1; i < 64; i++)
		wrong += expect("a mark", memleak_mark("again"), 0);
	return wrong + expect("a mark too many", memleak_mark("again"), -ENOSPC);
}

static int check_child(const char *folder)
{
	char path[4096];
	int status = 0;
	pid_t child = fork();

	if (!child) {
		snprintf(path, sizeof(path), "%s/child.memleak", folder);
		leak_small();
		_exit(memleak_snapshot(path) != -ECHILD || memleak_mark("child") != -ECHILD);
	}
	return expect("in a child", child < 0 || waitpid(child, &status, 0) < 0 || status, 0);
}

static int start_again(const struct memleak_options *options, const char *folder)
{
	char path[4096];
	int wrong = expect("start again", memleak_start(options), 0);

	for (int i = 0; i < 3; i++)
		leak_small();
	snprintf(path, sizeof(path), "%s/again.memleak", folder);
	wrong += expect("snapshot of the second time", memleak_snapshot(path), 0);
	return wrong + expect("stop again", memleak_stop(), 0);
}

int main(int argc, char **argv)
{
	struct memleak_options options = {
		.struct_bytes = sizeof(options),
		.sample_bytes = argc > 2 && !strcmp(argv[2], "every") ? MEMLEAK_EVERY_ALLOCATION : 0,
	};
	const char *folder = argc > 1 ? argv[1] : ".";
	char path[4096];
	pthread_t threads[2];
	int wrong = expect("before the start", memleak_snapshot("x"), -ESRCH);

	kept = malloc(5003); /* before: not recorded */
	wrong += expect("start", memleak_start(&options), 0);
	for (int i = 0; i < 2; i++)
		if (pthread_create(&threads[i], NULL, work, NULL))
			return 2;
	for (int i = 1; i <= SMALL; i++) {
		leak_small();
		snprintf(path, sizeof(path), "%s/%03d.memleak", folder, i);
		if (i % 20 == 0)
			wrong += expect("snapshot", memleak_snapshot(path), 0);
	}
	wrong += expect("mark", memleak_mark("small \"ones\" done"), 0);
	for (int i = 0; i < LARGE; i++)
		leak_large();
	wrong += check_errors(folder) + check_child(folder) + check_marks();
	is_over = 1;
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	snprintf(path, sizeof(path), "%s/app.memleak", folder);
	wrong += check_handler(folder);
	wrong += expect("last snapshot", memleak_snapshot(path), 0);
	wrong += expect("stop", memleak_stop(), 0);
	wrong += expect("a second stop", memleak_stop(), -ESRCH);
	leak_large(); /* after: not recorded */
	snprintf(path, sizeof(path), "%s/stopped.memleak", folder);
	wrong += expect("snapshot after the end", memleak_snapshot(path), 0);
	return wrong + start_again(&options, folder) != 0;
}
