/* SPDX-License-Identifier: Apache-2.0 */
/* The agent's set of processes, asked about children that end in several ways. Writes what does not hold. */
#define _GNU_SOURCE
#include "agent/process/process_set.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/process/thread_states.h"

#define S 1000000000ull

static void check(bool holds, const char *what)
{
	if (!holds)
		puts(what);
}

static void *wait_for_end(void *unused)
{
	pause();
	return unused;
}

static pid_t start(bool without_first_thread)
{
	pid_t pid = fork();
	pthread_t thread;

	if (pid)
		return pid;
	if (without_first_thread && !pthread_create(&thread, NULL, wait_for_end, NULL))
		pthread_exit(NULL);
	pause();
	_exit(0);
}

static void wait_for_zombie(pid_t pid)
{
	char path[64], state = '?';

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	while (state != 'Z') {
		FILE *file = fopen(path, "r");

		if (!file || fscanf(file, "%*d %*s %c", &state) != 1)
			exit(1);
		fclose(file);
	}
}

static void check_process_without_first_thread(struct ml_process_set *set)
{
	ml_u32 pid = (ml_u32)start(true);

	ml_process_set_add(set, pid);
	wait_for_zombie((pid_t)pid);
	ml_process_set_leave(set, pid, 1 * S);
	check(!ml_process_has_ended(pid, -1), "a process without its first thread has ended");
	check(!ml_process_set_find_ended(set, false), "it is forgotten");
	check(!ml_process_set_goes_on(set, pid, 1 * S), "it goes on at once");
	check(ml_process_set_goes_on(set, pid, 3 * S), "it does not go on");
	check(!ml_process_set_goes_on(set, pid, 4 * S), "it goes on twice");
	kill((pid_t)pid, SIGKILL);
	while (!ml_process_has_ended(pid, -1))
		usleep(1000);
	check(ml_process_set_find_ended(set, false), "its end is not found");
	check(ml_process_set_has(set, pid), "it is forgotten before what it did is drained");
	ml_process_set_drop_ended(set);
	check(!ml_process_set_has(set, pid), "it is not forgotten");
	waitpid((pid_t)pid, NULL, 0);
}

static void check_exec_by_another_thread(struct ml_process_set *set)
{
	ml_process_set_add(set, 7);
	check(!ml_process_set_stay(set, 7), "an exec by the first thread is one by another");
	ml_process_set_leave(set, 7, 1 * S);
	check(ml_process_set_stay(set, 7), "an exec by another thread is one by the first");
	ml_process_set_remove(set, 7);
}

static void check_lost_records(struct ml_process_set *set)
{
	ml_u32 ended = (ml_u32)start(false), running = (ml_u32)start(false);

	ml_process_set_add(set, ended);
	ml_process_set_add(set, running);
	kill((pid_t)ended, SIGKILL);
	waitpid((pid_t)ended, NULL, 0);
	check(!ml_process_set_find_ended(set, false), "an unannounced end is found");
	check(ml_process_set_find_ended(set, true), "an end whose record was lost is not found");
	ml_process_set_drop_ended(set);
	check(!ml_process_set_has(set, ended) && ml_process_set_has(set, running), "the wrong one is forgotten");
	kill((pid_t)running, SIGKILL);
	waitpid((pid_t)running, NULL, 0);
}

int main(void)
{
	struct ml_process_set set = { 0 };

	check_process_without_first_thread(&set);
	check_exec_by_another_thread(&set);
	check_lost_records(&set);
	ml_process_set_destroy(&set);
	return 0;
}
