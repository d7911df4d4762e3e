// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "agent/process/process_name.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void ml_process_name(ml_u32 pid, char name[16])
{
	char path[32], text[16];
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "/proc/%u/comm", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	n = read(fd, text, sizeof(text));
	close(fd);
	if (n <= 0)
		return;
	text[n - 1] = '\0'; /* a line end */
	memcpy(name, text, (size_t)n);
}
