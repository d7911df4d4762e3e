// SPDX-License-Identifier: Apache-2.0
#include "agent/probes/tracefs.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

/* Mount points of tracefs, newest first (Documentation/trace/ftrace.rst). */
static const char *const roots[] = { "/sys/kernel/tracing", "/sys/kernel/debug/tracing" };

void ml_tracefs_mount(void)
{
	for (unsigned i = 0; i < sizeof(roots) / sizeof(roots[0]); i++) {
		char path[64];

		snprintf(path, sizeof(path), "%s/events", roots[i]);
		if (!access(path, X_OK))
			return;
	}
	if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
		return;
	mount("tracefs", roots[0], "tracefs", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
}

static FILE *open_format(const char *event)
{
	char path[256];
	FILE *file = NULL;

	for (unsigned i = 0; i < sizeof(roots) / sizeof(roots[0]) && !file; i++) {
		snprintf(path, sizeof(path), "%s/events/%s/format", roots[i], event);
		file = fopen(path, "re");
	}
	return file;
}

int ml_tracefs_field(const char *event, const char *field)
{
	FILE *file = open_format(event);
	size_t length = strlen(field);
	char line[512];
	int found = -1;

	if (!file)
		return -1;
	/* "	field:pid_t child_pid;	offset:44;	size:4;	signed:1;" */
	while (found < 0 && fgets(line, sizeof(line), file)) {
		char *end = strchr(line, ';');
		char *offset = strstr(line, "offset:");

		if (!strstr(line, "field:") || !end || !offset || end < line + length + 1)
			continue;
		if (end[-(int)length - 1] == ' ' && !strncmp(end - length, field, length))
			sscanf(offset, "offset:%d", &found);
	}
	fclose(file);
	return found;
}

ml_u32 ml_tracefs_offset(const char *event, const char *field)
{
	int offset = ml_tracefs_field(event, field);

	return offset > 0 ? (ml_u32)offset : 0;
}

bool ml_tracefs_sees_mappings(void)
{
	return ml_tracefs_field("syscalls/sys_enter_mmap", "prot") > 0 &&
	       ml_tracefs_field("syscalls/sys_enter_munmap", "addr") > 0 &&
	       ml_tracefs_field("syscalls/sys_enter_execve", "filename") > 0 &&
	       ml_tracefs_field("syscalls/sys_enter_execveat", "filename") > 0;
}
