/*
 * File descriptors opened and closed in every way but by open() and close() alone. At the end it prints how many more there
 * are than at first, as /proc/self/fd has them: those that keep_…() keep.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#define CASE __attribute__((noinline)) static void
#define OR_DIE(call)                                                                                              \
	do                                                                                                        \
		if (!(call))                                                                                      \
			abort();                                                                                  \
	while (0)

extern char **environ;

static int count(void)
{
	int n = 0;

	for (int fd = 0; fd < 1024; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

CASE files_of_libc(void)
{
	FILE *file = fopen("/dev/null", "r");

	OR_DIE(file);
	file = freopen("/dev/zero", "r", file);
	OR_DIE(file && !fclose(file));
	file = tmpfile();
	OR_DIE(file && !fclose(file));
	file = popen("true", "r");
	OR_DIE(file && !pclose(file));
}

CASE folder_of_libc(void)
{
	DIR *folder = opendir("/");

	OR_DIE(folder && readdir(folder) && !closedir(folder));
}

CASE handed_to_libc(void)
{
	FILE *file = fdopen(open("/dev/null", O_RDONLY), "r");
	DIR *folder = fdopendir(open("/", O_RDONLY | O_DIRECTORY));

	OR_DIE(file && !fclose(file) && folder && !closedir(folder));
}

/* The child closes and opens in a table of its own, in its parent's memory. */
CASE in_a_child_of_vfork(int fd)
{
	pid_t child = vfork();
	int status;

	if (!child) {
		dup2(fd, 40);
		close(fd);
		_exit(0);
	}
	OR_DIE(waitpid(child, &status, 0) == child);
}

CASE in_a_spawned_child(int fd)
{
	char *const words[] = { "true", NULL };
	posix_spawn_file_actions_t actions;
	pid_t child;
	int status;

	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, fd, 41);
	OR_DIE(!posix_spawnp(&child, "true", &actions, NULL, words, environ));
	posix_spawn_file_actions_destroy(&actions);
	OR_DIE(waitpid(child, &status, 0) == child);
}

CASE other_commands_of_fcntl(int fd)
{
	OR_DIE(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL)) >= 0 && fcntl(fd, F_GETFD) >= 0);
}

CASE changed_signalfd(void)
{
	sigset_t set;
	int fd;

	sigemptyset(&set);
	fd = signalfd(-1, &set, 0);
	OR_DIE(fd >= 0);
	sigaddset(&set, SIGUSR1);
	OR_DIE(signalfd(fd, &set, 0) == fd && !close(fd));
}

CASE keep_opened(void)
{
	OR_DIE(open("/dev/null", O_RDONLY) >= 0);
}

CASE keep_duplicates(int fd)
{
	OR_DIE(fcntl(fd, F_DUPFD, 100) >= 100 && fcntl(fd, F_DUPFD_CLOEXEC, 200) >= 200);
}

CASE keep_signalfd(void)
{
	sigset_t set;

	sigemptyset(&set);
	OR_DIE(signalfd(-1, &set, 0) >= 0);
}

/* With an argument only what modules call themselves. */
int main(int n_arguments, char **arguments)
{
	int before = count();

	(void)arguments;
	for (int round = 0; round < 7; round++) {
		keep_opened();
		if (n_arguments == 1) {
			files_of_libc();
			folder_of_libc();
			handed_to_libc();
		}
		in_a_child_of_vfork(before);
		in_a_spawned_child(before);
		other_commands_of_fcntl(before);
		changed_signalfd();
		keep_duplicates(before);
		keep_signalfd();
	}
	printf("%d\n", count() - before);
	return 0;
}
