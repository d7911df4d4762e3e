// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "agent/process/thread_states.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* include/linux/sched.h */
#define PF_EXITING 0x4u
#define PF_SIGNALED 0x400u
#define SIGKILL_IS_PENDING (1ul << 8)

struct thread_state { /* proc_pid_stat(5), fields 3, 9, 20 and 31 */
	char letter;
	unsigned flags;
	int n_threads;
	unsigned long pending_signals;
};

/* 0, or -1 with errno set: ENOENT or ESRCH for an unknown thread. */
static int read_state(const char *path, struct thread_state *ret)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	char text[1024];
	const char *behind;
	ssize_t n;

	if (fd < 0)
		return -1;
	n = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (n < 0)
		return -1;
	text[n] = '\0';
	behind = strrchr(text, ')'); /* the name may hold anything */
	errno = EPROTO;
	return behind && sscanf(behind,
				") %c %*s %*s %*s %*s %*s %u %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %d %*s %*s %*s %*s "
				"%*s %*s %*s %*s %*s %*s %lu",
				&ret->letter, &ret->flags, &ret->n_threads, &ret->pending_signals) == 4 ?
		       0 :
		       -1;
}

static bool is_zombie(const struct thread_state *thread)
{
	return thread->letter == 'Z' || thread->letter == 'X';
}

static bool has_no_thread(ml_u32 pid)
{
	struct thread_state first;
	char path[64];

	snprintf(path, sizeof(path), "/proc/%u/stat", pid);
	if (read_state(path, &first))
		return errno == ENOENT || errno == ESRCH;
	return is_zombie(&first) && first.n_threads <= 1;
}

bool ml_process_has_ended(ml_u32 pid, int pidfd)
{
	struct pollfd end = { .fd = pidfd, .events = POLLIN };

	return pidfd >= 0 ? poll(&end, 1, 0) == 1 : has_no_thread(pid);
}

/* exit_group() kills all threads, including the calling one. */
static bool goes_on(const struct thread_state *thread)
{
	return !is_zombie(thread) && !(thread->flags & (PF_EXITING | PF_SIGNALED)) &&
	       !(thread->pending_signals & SIGKILL_IS_PENDING);
}

bool ml_process_has_other_threads(ml_u32 pid)
{
	struct thread_state thread;
	bool is_found = false;
	struct dirent *entry;
	char path[320];
	DIR *threads;

	snprintf(path, sizeof(path), "/proc/%u/task", pid);
	threads = opendir(path);
	while (threads && !is_found && (entry = readdir(threads))) {
		if (strtoul(entry->d_name, NULL, 10) == pid)
			continue;
		snprintf(path, sizeof(path), "/proc/%u/task/%s/stat", pid, entry->d_name);
		is_found = entry->d_name[0] != '.' && !read_state(path, &thread) && goes_on(&thread);
	}
	if (threads)
		closedir(threads);
	return is_found;
}

bool ml_thread_has_ended(ml_u32 pid, ml_u32 tid)
{
	struct thread_state state;
	char path[64];

	snprintf(path, sizeof(path), "/proc/%u/task/%u/stat", pid, tid);
	return read_state(path, &state) || is_zombie(&state);
}
