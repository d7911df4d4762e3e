/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For each letter of argv[1] a child: `f` forked; or by vfork(), with a child of its own that is made by vfork() (`v`), by vfork() for
 * /bin/true (`x`), or forked (`F`).
 */
#include "libc.h"

void *volatile kept;

static void end_of(pid_t child)
{
	if (child < 0 || waitpid(child, NULL, 0) != child)
		_exit(1);
}

static pid_t begin(char kind)
{
	pid_t child = kind == 'f' || kind == 'F' ? fork() : vfork();

	if (child)
		return child;
	kept = malloc(1009);
	if (kind == 'x')
		execl("/bin/true", "true", NULL);
	_exit(0);
}

static pid_t begin_for(char kind)
{
	pid_t child = kind == 'f' ? begin(kind) : vfork();

	if (child)
		return child;
	kept = malloc(503);
	end_of(begin(kind));
	_exit(0);
}

int main(int argc, char **argv)
{
	for (const char *kind = argc > 1 ? argv[1] : ""; *kind; kind++)
		end_of(begin_for(*kind));
	return 0;
}
