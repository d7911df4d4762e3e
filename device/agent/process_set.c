// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "process_set.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct ml_traced_process {
	ml_u32 pid;
	enum { RUNNING, LEAVING, ENDED } state;
};

/* Nobody is there, or a zombie without other threads: proc_pid_stat(5), fields 3 and 20. */
static bool has_no_thread(ml_u32 pid)
{
	char path[64], text[512], state;
	int fd, n_threads;
	const char *behind;
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/%u/stat", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT;
	n = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (n <= 0)
		return n < 0 && errno == ESRCH;
	text[n] = '\0';
	behind = strrchr(text, ')'); /* the name may hold anything */
	return behind &&
	       sscanf(behind, ") %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %d", &state,
		      &n_threads) == 2 &&
	       (state == 'X' || (state == 'Z' && n_threads <= 1));
}

bool ml_process_has_ended(ml_u32 pid, int pidfd)
{
	struct pollfd end = { .fd = pidfd, .events = POLLIN };

	return pidfd >= 0 ? poll(&end, 1, 0) == 1 : has_no_thread(pid);
}

static size_t find(const struct ml_process_set *set, ml_u32 pid)
{
	size_t i = 0;

	while (i < set->count && set->processes[i].pid != pid)
		i++;
	return i;
}

bool ml_process_set_has(const struct ml_process_set *set, ml_u32 pid)
{
	return find(set, pid) < set->count;
}

int ml_process_set_add(struct ml_process_set *set, ml_u32 pid)
{
	size_t i = find(set, pid);

	if (i == set->room) {
		size_t room = set->room ? 2 * set->room : 16;
		struct ml_traced_process *larger = realloc(set->processes, room * sizeof(*larger));

		if (!larger)
			return -1;
		set->processes = larger;
		set->room = room;
	}
	set->count += i == set->count;
	set->processes[i] = (struct ml_traced_process){ .pid = pid, .state = RUNNING };
	return 0;
}

void ml_process_set_leave(struct ml_process_set *set, ml_u32 pid)
{
	size_t i = find(set, pid);

	if (i < set->count)
		set->processes[i].state = LEAVING;
}

bool ml_process_set_find_ended(struct ml_process_set *set)
{
	bool is_any = false;

	for (size_t i = 0; i < set->count; i++) {
		if (set->processes[i].state != LEAVING || !has_no_thread(set->processes[i].pid))
			continue;
		set->processes[i].state = ENDED;
		is_any = true;
	}
	return is_any;
}

void ml_process_set_drop_ended(struct ml_process_set *set)
{
	for (size_t i = set->count; i-- > 0;)
		if (set->processes[i].state == ENDED)
			set->processes[i] = set->processes[--set->count];
}

void ml_process_set_remove(struct ml_process_set *set, ml_u32 pid)
{
	size_t i = find(set, pid);

	if (i < set->count)
		set->processes[i] = set->processes[--set->count];
}

void ml_process_set_destroy(struct ml_process_set *set)
{
	free(set->processes);
	set->processes = NULL;
	set->count = set->room = 0;
}
