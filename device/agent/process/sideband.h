/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Process events besides allocations: executable mappings, forks, execs and exits, from the
 * kernel's perf side-band records (perf_event_open(2)), ordered by time.
 */
#pragma once

#include "wire.h"

struct ml_sideband_ops {
	bool (*is_traced)(void *context, ml_u32 pid);
	/* path is not terminated beyond record->path_bytes. NULL: mappings are not requested. */
	void (*on_mapping)(void *context, const struct ml_mapping *record, const char *path);
	void (*on_process)(void *context, const struct ml_process *record);
	void *context;
};

struct ml_sideband;

/*
 * pid: of a process with one thread. Its records and those of later children need no privilege up to perf_event_paranoid 2.
 * -1: the whole machine. NULL with errno set when the kernel refuses; nothing is written.
 */
struct ml_sideband *ml_sideband_open(int pid, struct ml_sideband_ops ops);

/* Reports everything that happened before the call. Returns records lost by the kernel. */
ml_u64 ml_sideband_drain(struct ml_sideband *sideband);

void ml_sideband_close(struct ml_sideband *sideband);

/* An on_mapping() that only passes the record on. */
void ml_sideband_write_mapping(void *context, const struct ml_mapping *record, const char *path);
