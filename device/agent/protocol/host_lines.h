/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of the host on standard input, one by one; while a session runs, they are its control lines. */
#pragma once

/* Longest line: an argument of execve() has at most 128 KiB, and percent quoting triples it. */
#define ML_HOST_LINE_BYTES (400u << 10)

/* Waits for the next line, of at most ML_HOST_LINE_BYTES. -1: standard input closed, or a line without end. */
int ml_host_line_wait(char *line);

enum ml_control {
	ML_CONTROL_NONE,
	ML_CONTROL_SNAPSHOT,
	ML_CONTROL_STOP,
	ML_CONTROL_DETACH, /* do not hold the command at its end */
	ML_CONTROL_RESUME, /* let the held command end */
	ML_CONTROL_CLOSED, /* the host is gone */
};

/* SIGTERM and SIGHUP become ML_CONTROL_STOP; SIGINT and SIGPIPE are ignored. */
void ml_control_catch_signals(void);

/* In a child that becomes the command: as the agent inherited them. */
void ml_control_restore_signals(void);

/* The next control line, waiting at most timeout_ms for one. */
enum ml_control ml_control_poll(int timeout_ms);
