// SPDX-License-Identifier: Apache-2.0
#include "agent/process/proc_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int ml_proc_open(pid_t pid, const char *name, int flags)
{
	char path[80];

	snprintf(path, sizeof(path), "/proc/%d/%s", pid, name);
	return open(path, flags | O_CLOEXEC);
}

ssize_t ml_proc_read(pid_t pid, const char *name, char *text, size_t room)
{
	int fd = ml_proc_open(pid, name, O_RDONLY), error;
	ssize_t fill = 0, n = fd < 0 ? -1 : 0;

	/* a list comes a page at a time (fs/seq_file.c) */
	while (fd >= 0 && (n = read(fd, text + fill, room - 1 - (size_t)fill)) > 0)
		fill += n;
	error = errno;
	if (fd >= 0)
		close(fd);
	text[fill] = '\0';
	errno = error;
	return fill ? fill : n;
}

unsigned long long ml_proc_field(const char *status, const char *name, int base)
{
	const char *line = strstr(status, name);

	/* the first line is the process's name, which may be that of a field */
	while (line && (line == status || line[-1] != '\n'))
		line = strstr(line + 1, name);
	return line ? strtoull(line + strlen(name), NULL, base) : 0;
}

int ml_proc_find(pid_t pid, const char *folder, bool (*use)(void *context, int number), void *context)
{
	char path[40];
	struct dirent *entry;
	int found = ML_PROC_NONE;
	DIR *open_folder;

	snprintf(path, sizeof(path), "/proc/%d/%s", pid, folder);
	open_folder = opendir(path);
	if (!open_folder)
		return ML_PROC_GONE;
	while (found < 0 && (entry = readdir(open_folder))) {
		int number = atoi(entry->d_name);

		if (entry->d_name[0] != '.' && use(context, number))
			found = number;
	}
	closedir(open_folder);
	return found;
}

void ml_process_name(ml_u32 pid, char name[16])
{
	char text[17];
	ssize_t n = ml_proc_read((pid_t)pid, "comm", text, sizeof(text));

	if (n > 0) {
		text[n - 1] = '\0'; /* a line end */
		memcpy(name, text, (size_t)n);
	}
}
