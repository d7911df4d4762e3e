/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread that is not the first allocates and executes the program again, with its number: a child gets that number, and leaves 7 blocks
 * of 2029 bytes. With the word "true" it executes that program. Exit code 77: the kernel does not give out a chosen number.
 */
#include "../../support/programs/libc.h"
#include <linux/sched.h>

static void *volatile kept[8];

__attribute__((noipa)) static void *become_another(void *path)
{
	char number[16];

	kept[0] = malloc(33);
	snprintf(number, sizeof(number), "%ld", syscall(SYS_gettid));
	execl(path, path, number, (char *)NULL);
	_exit(1);
}

int main(int argc, char **argv)
{
	pid_t number = argc > 1 ? atoi(argv[1]) : 0, child; /* 0: a word */
	struct clone_args how = { .exit_signal = SIGCHLD, .set_tid = (uintptr_t)&number, .set_tid_size = 1 };
	pthread_t thread;
	int status;

	if (!number) {
		pthread_create(&thread, NULL, become_another, argc > 1 ? "/bin/true" : "/proc/self/exe");
		pause();
	}
	child = (pid_t)syscall(SYS_clone3, &how, sizeof(how));
	for (int i = 0; !child && i < 7; i++)
		kept[i] = malloc(2029);
	if (!child)
		_exit(0);
	return child != number ? 77 : waitpid(child, &status, 0) != child || status;
}
