// SPDX-License-Identifier: Apache-2.0
// The processes of apps: found by their command lines in /proc, started by the zygote.
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "apps.h"
#include "service.h"

static bool process_name(const char *pid, char *name, size_t size)
{
	char path[64];
	snprintf(path, sizeof(path), "/proc/%s/cmdline", pid);
	int file = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t length = file < 0 ? -1 : read(file, name, size - 1);
	if (file >= 0)
		close(file);
	name[length < 0 ? 0 : length] = '\0';
	return length > 0;
}

// Calls `act` for every process with its name.
static void each_process(void (*act)(pid_t pid, const char *name, void *argument), void *argument)
{
	DIR *folder = opendir("/proc");
	for (struct dirent *entry; folder && (entry = readdir(folder));) {
		char name[256];
		pid_t pid = atoi(entry->d_name);
		if (pid > 0 && process_name(entry->d_name, name, sizeof(name)))
			act(pid, name, argument);
	}
	if (folder)
		closedir(folder);
}

struct search {
	const char *name;
	pid_t found;
};

static void note(pid_t pid, const char *name, void *argument)
{
	struct search *search = argument;
	if (!strcmp(name, search->name))
		search->found = pid;
}

pid_t ml_process(const char *name)
{
	struct search search = {name, 0};
	each_process(note, &search);
	return search.found;
}

static void kill_member(pid_t pid, const char *name, void *argument)
{
	const char *package = argument;
	size_t length = strlen(package);
	if (!strncmp(name, package, length) && (name[length] == '\0' || name[length] == ':'))
		kill(pid, SIGKILL);
}

void ml_kill_package(const char *package)
{
	struct app app;
	if (ml_find_app(package, &app))
		each_process(kill_member, app.package);
}

pid_t ml_start_process(const char *name)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct app app;
	if (!ml_find_app(name, &app))
		return 0;
	// One zygote for each app_process, as a phone has one for each word size.
	snprintf(address.sun_path, sizeof(address.sun_path), ZYGOTE_SOCKET "_%s", strrchr(app.runtime, '/') + 1);
	int zygote = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	pid_t pid = 0;
	if (zygote >= 0 && connect(zygote, (struct sockaddr *)&address, sizeof(address)) == 0 &&
	    send(zygote, name, strlen(name), MSG_NOSIGNAL) > 0 && recv(zygote, &pid, sizeof(pid), 0) != sizeof(pid))
		pid = 0;
	if (zygote >= 0)
		close(zygote);
	return pid;
}

bool ml_deliver(pid_t pid, const char *extra)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int length = snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1, "looper.%d", pid);
	socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
	int sender = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	bool sent = sender >= 0 && sendto(sender, extra, strlen(extra), 0, (struct sockaddr *)&address, size) >= 0;
	if (sender >= 0)
		close(sender);
	return sent;
}
