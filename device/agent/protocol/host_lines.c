// SPDX-License-Identifier: Apache-2.0
#include "agent/protocol/host_lines.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/protocol/blocks.h"
#include "agent/protocol/host_watch.h"

static char line_buffer[ML_HOST_LINE_BYTES];
static size_t line_fill;

/* Moves a whole line from the buffer to `line`. NULL: none yet. */
static char *take_line(char *line)
{
	char *newline = memchr(line_buffer, '\n', line_fill);
	size_t length;

	if (!newline)
		return NULL;
	length = (size_t)(newline - line_buffer);
	memcpy(line, line_buffer, length);
	line[length] = '\0';
	line_fill -= length + 1;
	memmove(line_buffer, newline + 1, line_fill);
	return line;
}

/* 1: more bytes, 0: none within the time, -1: closed, or a line without end. */
static int fill_buffer(int timeout_ms)
{
	struct pollfd input = { .fd = STDIN_FILENO, .events = POLLIN };
	ssize_t n;

	if (line_fill == sizeof(line_buffer))
		return -1;
	if (poll(&input, 1, timeout_ms) <= 0)
		return 0;
	n = read(STDIN_FILENO, line_buffer + line_fill, sizeof(line_buffer) - line_fill);
	if (n < 0 && (errno == EINTR || errno == EAGAIN))
		return 0;
	if (n <= 0)
		return -1;
	line_fill += (size_t)n;
	return 1;
}

int ml_host_line_wait(char *line)
{
	while (!take_line(line))
		if (fill_buffer(-1) < 0)
			return -1;
	return 0;
}

/* Set by a signal: the same as the line `stop`. */
static volatile sig_atomic_t is_stop_requested;

static void request_stop(int signal)
{
	(void)signal;
	is_stop_requested = 1;
}

/* Set by the shell or by nohup, for the command too. */
static const int taken[] = { SIGTERM, SIGHUP, SIGINT, SIGPIPE };
static struct sigaction before[sizeof(taken) / sizeof(taken[0])];

void ml_control_catch_signals(void)
{
	const struct sigaction stop = { .sa_handler = request_stop }, ignore = { .sa_handler = SIG_IGN };

	/* The host decides when to stop: Ctrl-C on the terminal must not prevent the last snapshot. */
	for (size_t i = 0; i < sizeof(taken) / sizeof(taken[0]); i++)
		sigaction(taken[i], taken[i] == SIGTERM || taken[i] == SIGHUP ? &stop : &ignore, &before[i]);
}

void ml_control_restore_signals(void)
{
	for (size_t i = 0; i < sizeof(taken) / sizeof(taken[0]); i++)
		sigaction(taken[i], &before[i], NULL);
}

enum ml_control ml_control_poll(int timeout_ms)
{
	static char line[ML_HOST_LINE_BYTES];

	if (!take_line(line)) {
		int filled = fill_buffer(timeout_ms);

		if (is_stop_requested)
			return ML_CONTROL_STOP;
		if (filled < 0 || ml_host_is_silent())
			return ML_CONTROL_CLOSED;
		if (!filled || !take_line(line))
			return ML_CONTROL_NONE;
	}
	ml_host_heard();
	if (!strcmp(line, "alive"))
		return ML_CONTROL_NONE;
	if (!strcmp(line, "snapshot"))
		return ML_CONTROL_SNAPSHOT;
	if (!strcmp(line, "stop"))
		return ML_CONTROL_STOP;
	if (!strcmp(line, "detach"))
		return ML_CONTROL_DETACH;
	if (!strcmp(line, "resume"))
		return ML_CONTROL_RESUME;
	ml_blocks_log("unknown control line: %.80s", line);
	return ML_CONTROL_NONE;
}
