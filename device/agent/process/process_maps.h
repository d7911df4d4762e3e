/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "wire.h"

/* The text of /proc/PID/maps (malloc'ed), or NULL with errno set. *bytes: its length; NULL: not needed. */
char *ml_process_maps_read(ml_u32 pid, size_t *bytes);

/*
 * The maps as they were at a time, which lies between two readings with the same code. A reading takes long on a busy machine, and the
 * kernel locks the mappings for a page of text only (fs/seq_file.c). For a process that changes all the time, the time is that before
 * the last reading.
 */
char *ml_process_maps_now(ml_u32 pid, ml_u64 *timestamp_ns, size_t *bytes);

/* Sends the text as a MAPS block stamped with its time. */
int ml_process_maps_write(ml_u32 pid, ml_u64 timestamp_ns, const char *text, size_t bytes);

/* Reads and sends them. A process without maps sends none. -1: the host is gone. */
int ml_process_maps_report(ml_u32 pid);

/* Sends a PROCESS block with the process's name. status: wait status of EXIT, -1: unknown. -1: the host is gone. */
int ml_process_write(ml_u32 pid, enum ml_process_event event, int status, ml_u64 timestamp_ns);

/* "START-END PERMISSIONS OFFSET MAJOR:MINOR INODE PATH" */
struct ml_maps_line {
	const char *text; /* of the line; its end is the next line's start */
	ml_u64 start, end, offset, inode;
	ml_u32 major, minor;
	char permissions[4]; /* "r-xp" */
	const char *path;    /* not terminated */
	size_t path_bytes;
};

/*
 * Parses the line at `text`, and returns the start of the next one. NULL: there is none, it is cut, or `text` is NULL.
 * A loop over all lines: for (const char *at = text; (at = ml_process_maps_line(at, &line));)
 */
const char *ml_process_maps_line(const char *text, struct ml_maps_line *line);

/* The same for the next line of executable memory, without the kernel's own ([vsyscall]). */
const char *ml_process_maps_code(const char *text, struct ml_maps_line *line);

/* The same for the line of the mapping that holds the address. */
const char *ml_process_maps_find(const char *text, ml_u64 address, struct ml_maps_line *line);

/* Whether the line's path contains the name. */
bool ml_process_maps_has(const struct ml_maps_line *line, const char *name);

/* Finds the size of shared memory that a process has attached: shmat() gives the address only. All zero: empty. */
struct ml_region_sizes {
	ml_u32 n_looks; /* into /proc/PID/maps since 0 was put here, before each reading of the events */
};

/* Completes a call of the ledger. 1: it can be applied; 0: the memory is detached already; -1: its size was not looked for. */
int ml_region_complete(struct ml_region_sizes *sizes, struct ml_event *event);
