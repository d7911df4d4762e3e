/* SPDX-License-Identifier: Apache-2.0 */
/* Those of odd_programs.c that make other processes, or become another program. */
#pragma once

static int vforks(void)
{
	char *words[] = { "true", NULL };

	for (int i = 0; i < 8; i++) {
		int status;
		pid_t child = vfork();

		if (!child) {
			execvp("true", words);
			_exit(91);
		}
		if (waitpid(child, &status, 0) != child || status)
			return fail("vfork");
		keep(3);
	}
	return 0;
}

static int spawns(void)
{
	char *words[] = { "true", NULL };
	int status;
	pid_t child;

	keep(BLOCKS);
	if (posix_spawnp(&child, "true", NULL, NULL, words, environ) || waitpid(child, &status, 0) != child)
		return fail("posix_spawn");
	return status;
}

static int fork_storm(void)
{
	for (int i = 0; i < 64; i++)
		if (!fork()) {
			free(malloc(BYTES + 3));
			_exit(0);
		}
	while (wait(NULL) > 0)
		;
	return plain();
}

static void *forks(void *unused)
{
	pid_t child = fork();

	if (!child)
		_exit(0);
	waitpid(child, NULL, 0);
	return keep_three(unused);
}

static int forks_of_threads(void)
{
	return run_threads(8, 0, forks);
}

static int shell(void)
{
	keep(BLOCKS);
	return system("exit 7") == 7 << 8 ? 0 : fail("system");
}

static int raw_clone(void)
{
	static char stack[65536] __attribute__((aligned(16)));
	pid_t child = clone((int (*)(void *))(void (*)(void))keep_none, stack + sizeof(stack), SIGCHLD, NULL);

	waitpid(child, NULL, 0);
	return plain();
}

static int no_children(void)
{
	signal(SIGCHLD, SIG_IGN);
	if (!fork())
		_exit(0);
	while (wait(NULL) > 0)
		;
	return errno == ECHILD ? plain() : fail("wait");
}

static int execs(void)
{
	static char left[12];
	char *words[] = { "/proc/self/exe", "execs", left, NULL };
	const char *before_this = getenv("ODD_EXECS");
	int n = before_this ? atoi(before_this) : 5;

	if (!n)
		return plain();
	keep(3);
	snprintf(left, sizeof(left), "%d", n - 1);
	setenv("ODD_EXECS", left, 1);
	execv(words[0], words);
	return fail("execv");
}

/* Bytes of writable memory that others write, too: those of one file, or (0) the file of the largest. */
static unsigned long shared_bytes(unsigned long file, unsigned long *largest)
{
	unsigned long low, high, inode, sum = 0, most = 0;
	char line[512], writes, shares;
	FILE *maps = fopen("/proc/self/maps", "r");

	while (maps && fgets(line, sizeof(line), maps)) {
		if (sscanf(line, "%lx-%lx %*c%c%*c%c %*x %*s %lu", &low, &high, &writes, &shares, &inode) != 5 || writes != 'w' ||
		    shares != 's')
			continue;
		sum += inode == file ? high - low : 0;
		*largest = high - low > most ? inode : *largest;
		most = high - low > most ? high - low : most;
	}
	if (maps)
		fclose(maps);
	return sum;
}

/* Children that may give up their rights share no memory with their parent, however they are made. */
static int forks_apart(void)
{
	unsigned long file = 0, unused;
	int status;

	keep(12);
	shared_bytes(0, &file);
	for (int by_clone = 0; by_clone < 2; by_clone++) {
		pid_t child = by_clone ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();

		if (!child) {
			free(malloc(BYTES));
			_exit(file && shared_bytes(file, &unused) > 64 << 10);
		}
		if (child < 0 || waitpid(child, &status, 0) != child || status)
			return fail("a child shares memory");
	}
	keep(12);
	return 0;
}
