// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "agent/process/network_space.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static int open_space(const char *process)
{
	char path[40];

	snprintf(path, sizeof(path), "/proc/%s/ns/net", process);
	return open(path, O_RDONLY | O_CLOEXEC);
}

int ml_network_enter(pid_t pid)
{
	char number[16];
	struct stat ours, its;
	int way_back = open_space("self"), space, error;

	snprintf(number, sizeof(number), "%d", pid);
	space = open_space(number);
	if (way_back < 0 || space < 0 || fstat(way_back, &ours) || fstat(space, &its) || ours.st_ino == its.st_ino)
		error = 0; /* the same, or a kernel without; a process that is gone is refused later, in better words */
	else if (!setns(space, CLONE_NEWNET))
		error = -1;
	else
		error = errno;
	if (space >= 0)
		close(space);
	if (error < 0)
		return way_back;
	if (way_back >= 0)
		close(way_back);
	errno = error;
	return error ? -2 : -1;
}

void ml_network_leave(int way_back)
{
	if (way_back < 0)
		return;
	setns(way_back, CLONE_NEWNET);
	close(way_back);
}
