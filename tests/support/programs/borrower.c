/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A child that runs in its parent's memory frees a block of it and leaves one of another size behind. The child is made by clone();
 * with -DVFORK by vfork(); with -DFOUND by a clone() that no object of the program imports.
 */
#include "libc.h"

void *volatile freed_by_child, *volatile left_by_child;

__attribute__((noipa)) static void leak_in_child(void)
{
	left_by_child = realloc(memalign(64, 101), 2003);
}

static int exchange(void *unused)
{
	(void)unused;
	free(freed_by_child);
	leak_in_child();
	_exit(0);
}

static pid_t begin_child(void)
{
#ifdef VFORK
	pid_t child = vfork();

	return child ? child : exchange(NULL);
#else
	static char stack[65536] __attribute__((aligned(16)));
#ifdef FOUND
	int (*begin)(int (*)(void *), void *, int, void *, ...) = dlsym(RTLD_DEFAULT, "clone");
#else
	int (*begin)(int (*)(void *), void *, int, void *, ...) = clone;
#endif
	return begin(exchange, stack + sizeof(stack), CLONE_VM | SIGCHLD, NULL);
#endif
}

int main(void)
{
	freed_by_child = malloc(1009);
	pid_t child = begin_child();

	return child <= 0 || waitpid(child, NULL, 0) != child;
}
