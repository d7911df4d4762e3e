// SPDX-License-Identifier: Apache-2.0
#include "agent/session/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/protocol/blocks.h"
#include "agent/protocol/host_lines.h"

/* Orders to the waiting child, a byte each. */
#define SELF_TEST 't'
#define GO 'g'

/* Descriptors 0, 1 and 2 of the command come from the host; none of the agent's leaks in. */
static void take_stdio(const int *stdio)
{
	int fds[3];

	for (int i = 0; i < 3; i++) {
		int fd = stdio[i] >= 0 ? stdio[i] : open("/dev/null", O_RDWR | O_CLOEXEC);

		fds[i] = fcntl(fd, F_DUPFD_CLOEXEC, 10);
	}
	for (int i = 0; i < 3; i++)
		dup2(fds[i], i);
	for (int i = 0; i < 3; i++)
		if (stdio[i] > 2)
			close(stdio[i]);
}

static void run_child(const struct ml_config *config, struct ml_spawn_extra extra, int release_fd, int error_fd)
{
	char order;
	ssize_t n;

	ml_control_restore_signals();
	for (char *const *change = config->env_changes; change && *change; change++)
		putenv(*change);
	for (char *const *change = extra.env; change && *change; change++)
		putenv(*change);
	take_stdio(config->stdio);
	do {
		n = read(release_fd, &order, 1);
		if (n == 1 && order == SELF_TEST)
			extra.self_test(config);
	} while ((n < 0 && errno == EINTR) || (n == 1 && order == SELF_TEST));
	if (n != 1)
		_exit(127);
	execvp(config->argv[0], config->argv);
	n = write(error_fd, &errno, sizeof(errno));
	_exit(n == sizeof(errno) ? 127 : 126);
}

int ml_spawn_stopped(const struct ml_config *config, struct ml_spawn_extra extra, struct ml_child *child)
{
	int release[2], error[2];

	if (pipe2(release, O_CLOEXEC) || pipe2(error, O_CLOEXEC) || (child->pid = fork()) < 0)
		return ml_blocks_error(ML_REASON_TARGET_ERROR, "could not fork for %s: %s", config->argv[0], strerror(errno));
	if (child->pid == 0) {
		close(release[1]);
		close(error[0]);
		run_child(config, extra, release[0], error[1]);
	}
	close(release[0]);
	close(error[1]);
	for (int i = 0; i < 3; i++)
		if (config->stdio[i] > 2)
			close(config->stdio[i]);
	child->release_fd = release[1];
	child->error_fd = error[0];
	return 0;
}

int ml_spawn_self_test(struct ml_child *child)
{
	const char order = SELF_TEST;

	return write(child->release_fd, &order, 1) == 1 ? 0 : -1;
}

int ml_spawn_release(const struct ml_config *config, struct ml_child *child)
{
	const char order = GO;
	int error = 0;
	ssize_t n;

	if (config->hold_end)
		ml_exit_hold_start(&child->hold, child->pid);
	n = write(child->release_fd, &order, 1);
	close(child->release_fd);
	child->release_fd = -1;
	if (n == 1) {
		do
			n = read(child->error_fd, &error, sizeof(error));
		while (n < 0 && errno == EINTR);
	}
	close(child->error_fd);
	if (n == 0)
		return 0;
	ml_exit_hold_resume(&child->hold);
	waitpid(child->pid, NULL, 0);
	return ml_blocks_error(ML_REASON_TARGET_ERROR, "could not start %s: %s (check the name and its permissions)",
			       config->argv[0], strerror(error ? error : EPIPE));
}

void ml_spawn_abandon(struct ml_child *child)
{
	if (child->release_fd >= 0)
		close(child->release_fd);
	close(child->error_fd);
	waitpid(child->pid, NULL, 0);
}
