// SPDX-License-Identifier: Apache-2.0
#include "agent/process/freezer.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "agent/process/proc_file.h"

#define TEXT_BYTES (64u << 10)

/* One version of control groups: proc(5), "/proc/PID/cgroup"; kernel, admin-guide/cgroup-v2.rst and cgroup-v1/freezer-subsystem.rst. */
struct version {
	const char *line;  /* of /proc/PID/cgroup, up to the path */
	const char *mount; /* of /proc/self/mountinfo, behind the mount's folder */
	const char *option;
	const char *file, *frozen;
};

static const struct version versions[] = {
	{ "0::", " - cgroup2 ", "", "cgroup.events", "frozen 1" },
	{ ":freezer:", " - cgroup ", "freezer", "freezer.state", "F" }, /* FREEZING, FROZEN */
};

/* Cuts the text behind its line. Returns the next one, or NULL. */
static char *cut_line(char *text)
{
	char *end = strchr(text, '\n');

	if (!end)
		return NULL;
	*end = '\0';
	return end + 1;
}

/* Finds where the hierarchy is mounted. mounts: of /proc/self/mountinfo, which it cuts. */
static bool find_mount(const struct version *version, char *mounts, char folder[PATH_MAX])
{
	for (char *line = mounts, *next; line && *line; line = next) {
		const char *kind;

		next = cut_line(line);
		kind = strstr(line, version->mount);
		if (kind && strstr(kind, version->option) && sscanf(line, "%*d %*d %*s %*s %4095s", folder) == 1)
			return true;
	}
	return false;
}

/* The process's path in the hierarchy. groups: of /proc/PID/cgroup, which it cuts; NULL: none. */
static const char *find_path(const struct version *version, char *groups)
{
	for (char *line = groups, *next; line && *line; line = next) {
		char *found;

		next = cut_line(line);
		found = strstr(line, version->line);
		if (found)
			return found + strlen(version->line);
	}
	return NULL;
}

static bool is_frozen(const struct version *version, pid_t pid)
{
	char groups[4096], mounts[TEXT_BYTES], folder[PATH_MAX], file[2 * PATH_MAX], state[256] = "";
	const char *path;
	int fd;

	if (ml_proc_read(pid, "cgroup", groups, sizeof(groups)) <= 0 || !(path = find_path(version, groups)) ||
	    ml_proc_read(getpid(), "mountinfo", mounts, sizeof(mounts)) <= 0 || !find_mount(version, mounts, folder))
		return false;
	snprintf(file, sizeof(file), "%s%s/%s", folder, path, version->file);
	fd = open(file, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	if (read(fd, state, sizeof(state) - 1) < 0)
		state[0] = '\0';
	close(fd);
	return strstr(state, version->frozen) != NULL;
}

bool ml_process_is_frozen(pid_t pid)
{
	return is_frozen(&versions[0], pid) || is_frozen(&versions[1], pid);
}
