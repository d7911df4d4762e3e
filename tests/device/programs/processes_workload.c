/* SPDX-License-Identifier: Apache-2.0 */
/* Processes that end, fork, and become other programs: argv[1] says how, argv[2] and on which program. */
#include "../../support/programs/libc.h"

#define TRIES 200
#define CANNOT 77
#define STAY_S 3
#define THREADS 4

extern char **environ;
void *volatile kept;
static char **new_arguments;

static void keep(int n, size_t bytes)
{
	while (n--)
		kept = malloc(bytes);
}

static int fails_to_exec(char *unused)
{
	char *const arguments[] = { unused, NULL };

	keep(3, 1009);
	execv("/nonexistent", arguments);
	execvp("nonexistent-program", arguments);
	keep(4, 1013);
	return 0;
}

static int becomes(char *program)
{
	keep(5, 1019);
	execv(program, new_arguments);
	return 1;
}

static void *exec_in_thread(void *program)
{
	becomes(program);
	return NULL;
}

static int becomes_by_thread(char *program)
{
	pthread_t thread;

	pthread_create(&thread, NULL, exec_in_thread, program);
	pthread_join(thread, NULL);
	return 1;
}

static int child_becomes(char *program)
{
	pid_t child = fork();

	if (child)
		return waitpid(child, NULL, 0) != child;
	return becomes(program);
}

/* The children exec; this process, whose memory they share until then, does not. */
static int lends_memory(char *program)
{
	char *const arguments[] = { program, NULL };
	pid_t child;

	keep(6, 1021);
	if (posix_spawn(&child, program, NULL, NULL, arguments, environ) || waitpid(child, NULL, 0) != child)
		return 1;
	child = vfork();
	if (child == 0) {
		execv(program, arguments);
		_exit(1);
	}
	return waitpid(child, NULL, 0) != child;
}

/* By no function that could be interposed. */
static int calls_exec(char *target)
{
	char *const arguments[] = { new_arguments[1], NULL };
	pid_t child = 0;

	keep(2, 1039);
	if (!strcmp(target, "child"))
		child = fork();
	if (child > 0)
		return waitpid(child, NULL, 0) != child;
	syscall(SYS_execve, arguments[0], arguments, environ);
	return 1;
}

/* The child makes its first call, by which it joins, when this process has ended. */
static int leaves_a_child(char *unused)
{
	if (fork() == 0) {
		usleep(300000);
		keep(3, 1049);
	}
	return 0;
}

static pid_t fork_child(size_t bytes)
{
	pid_t child = fork();

	if (child == 0) {
		keep(7, bytes);
		_exit(0);
	}
	waitpid(child, NULL, 0);
	return child;
}

static int has_ten_children(char *unused)
{
	for (int i = 0; i < 10; i++)
		fork_child(1039);
	return 0;
}

static void *wait_for_the_others(void *barrier)
{
	pthread_barrier_wait(barrier);
	return NULL;
}

static void *keep_with_the_others(void *barrier)
{
	pthread_barrier_wait(barrier);
	keep(7, 1051);
	return NULL;
}

/* On stacks that the C library keeps from then on, so that it allocates nothing for a child's threads. */
static void run_threads(void *run(void *barrier))
{
	pthread_t threads[THREADS];
	pthread_barrier_t barrier;

	pthread_barrier_init(&barrier, NULL, THREADS);
	for (int i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, run, &barrier);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
}

/* The first calls of each child are those of its threads, at the same moment. */
static int has_threaded_children(char *unused)
{
	run_threads(wait_for_the_others);
	for (int i = 0; i < 20; i++) {
		pid_t child = fork();

		if (child == 0) {
			run_threads(keep_with_the_others);
			_exit(0);
		}
		waitpid(child, NULL, 0);
	}
	return 0;
}

static int stays(char *unused)
{
	sleep(STAY_S);
	return 0;
}

/* Two children of one pid. Other processes may take it in between: those hold nothing. */
static int reuses_a_pid(char *unused)
{
	pid_t first = fork_child(1031);
	char text[16];

	for (int i = 0; i < TRIES; i++) {
		int fd = open("/proc/sys/kernel/ns_last_pid", O_WRONLY);
		int n = snprintf(text, sizeof(text), "%d", first - 1);
		pid_t child;

		if (fd < 0 || write(fd, text, (size_t)n) != n)
			return CANNOT;
		close(fd);
		child = fork();
		if (child == 0) {
			if (getpid() == first)
				keep(7, 1033);
			_exit(0);
		}
		waitpid(child, NULL, 0);
		if (child == first)
			return 0;
	}
	return CANNOT;
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		int (*run)(char *program);
	} ways[] = {
		{ "fails", fails_to_exec },    { "becomes", becomes },	 { "thread", becomes_by_thread },
		{ "child", child_becomes },    { "lends", lends_memory }, { "reuse", reuses_a_pid },
		{ "ten", has_ten_children },   { "stays", stays },	 { "calls", calls_exec },
		{ "leaves", leaves_a_child },  { "threads", has_threaded_children },
	};

	new_arguments = argv + 2;
	for (size_t i = 0; argc > 2 && i < sizeof(ways) / sizeof(ways[0]); i++)
		if (!strcmp(argv[1], ways[i].name))
			return ways[i].run(argv[2]);
	return 2;
}
