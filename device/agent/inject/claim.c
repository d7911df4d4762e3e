// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "agent/inject/claim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "agent/process/process_maps.h"
#include "agent/process/target_objects.h"
#include "agent/protocol/blocks.h"
#include "agent/process/proc_file.h"
#include "preload/segment/segment.h"

#define SILENCE_NS 3000000000ull /* the shim's own patience with its agent (preload/recorder/recorder_session.c) */
#define LOOK_EVERY_US 50000 /* an agent writes four times a second */
#define STATUS_BYTES 8192

/* The process's number in its own PID namespace, as getpid(2) returns it there. */
static ml_u32 own_number(pid_t pid)
{
	char status[STATUS_BYTES], *numbers;

	if (ml_proc_read(pid, "status", status, sizeof(status)) <= 0 || !(numbers = strstr(status, "\nNSpid:\t")))
		return (ml_u32)pid; /* CONFIG_PID_NS is off */
	numbers[1 + strcspn(numbers + 1, "\n")] = '\0';
	return (ml_u32)atoi(strrchr(numbers, '\t') + 1);
}

/* A session's segment in the process. address 0: there is none. */
struct found {
	ml_u64 address, alive_ns;
};

/* Finds the segment of a session in the maps, whatever route or container began it. A forked child also maps its parent's: not that. */
static struct found find_segment(pid_t pid)
{
	char *maps = ml_process_maps_read((ml_u32)pid, NULL);
	ml_u32 number = own_number(pid);
	struct found found = { 0 };
	struct ml_segment segment;
	struct ml_maps_line line;

	for (const char *at = maps; !found.address && (at = ml_process_maps_line(at, &line));) {
		if (line.offset || !ml_process_maps_has(&line, "/memfd:" ML_SEGMENT_NAME " ") ||
		    ml_target_read((ml_u32)pid, line.start, &segment, sizeof(segment)))
			continue;
		if (segment.magic == ML_SEGMENT_MAGIC && segment.pid == number && !segment.is_over)
			found = (struct found){ line.start,
						segment.agent_alive_ns ? segment.agent_alive_ns : segment.start_ns };
	}
	free(maps);
	return found;
}

/* Whether an agent reads the segment. A killed agent leaves the segment as it is: waits until the shim itself would notice the silence. */
static bool has_agent(pid_t pid)
{
	struct found first = find_segment(pid), now = first;
	ml_u64 end_ns = ml_clock_ns() + SILENCE_NS; /* whatever the process writes there */

	while (now.address && ml_clock_ns() < end_ns && ml_clock_ns() < first.alive_ns + SILENCE_NS) {
		usleep(LOOK_EVERY_US);
		now = find_segment(pid);
		if (now.alive_ns > first.alive_ns)
			return true;
	}
	return false;
}

int ml_inject_claim(pid_t pid, struct ml_refusal *refusal)
{
	int fd = ml_proc_open(pid, "mem", O_RDONLY); /* opens for those who may trace the process; stays open */

	if (fd < 0)
		return 0; /* ml_inject_check() has the reason */
	if ((!flock(fd, LOCK_EX | LOCK_NB) || errno != EWOULDBLOCK) && !has_agent(pid))
		return 0;
	return ml_refuse(
		refusal,
		"process %d is measured already, by another session with the shim (end that one first, or use --tracer bpf)",
		pid);
}
