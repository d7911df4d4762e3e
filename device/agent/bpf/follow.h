/* SPDX-License-Identifier: Apache-2.0 */
/* Mappings, forks and execs of the processes of a BPF session. */
#pragma once

#include "agent/bpf/object.h"
#include "agent/protocol/blocks.h"
#include "agent/probes/frames.h"
#include "agent/bpf/record_stacks.h"
#include "agent/process/process_set.h"
#include "agent/process/process_maps.h"
#include "agent/evidence/regions.h"
#include "agent/process/sideband.h"
#include "agent/session/loop.h"
#include "agent/bpf/trampolines.h"

#define ML_STACKS_SLOTS 1024

/* Mappings of stacks, for BPF programs that cannot find them. */
struct ml_stacks {
	int fd;                        /* of the map tid → struct ml_bpf_bounds */
	ml_u32 known[ML_STACKS_SLOTS]; /* tids, by tid % ML_STACKS_SLOTS */
};

#define ML_BREAKS 1024u

/*
 * The last break of each process: BPF sees brk() return the new one only (bpf/regions.bpf.h). All zero: empty.
 * A process may take the place of another in it; then one change of its break is not seen.
 */
struct ml_breaks {
	struct {
		ml_u32 pid;
		ml_u64 address;
	} rows[ML_BREAKS];
};

struct ml_bpf_session {
	struct ml_session base;
	struct ml_config settled; /* the configuration with the offsets of its probes */
	struct ml_bpf bpf;
	struct ml_sideband *sideband;
	struct ml_frames *frames;
	struct ml_process_set processes; /* traced, not yet exited */
	bool has_lost_probes, is_first_thread_gone;
	int idle_rounds;
	ml_u64 next_ended_ns, evidence_records, self_tests, n_children;
	ml_u64 before_armed[ML_LOST_MAX]; /* counted while the probes were placed one by one */
	struct ml_regions regions;
	struct ml_region_sizes region_sizes;
	struct ml_breaks breaks;
	struct ml_stacks stacks;
	struct ml_trampolines trampolines;
	struct ml_long_stacks long_stacks;
	struct ml_interrupted_stacks interrupted;
	struct ml_event_batch events;
};

/* Opens the perf side band of all processes; NULL with errno set. */
struct ml_sideband *ml_bpf_follow_begin(struct ml_bpf_session *session);

/* Writes all maps of a process, with those that the side band lacks: the vdso, stacks, older mappings. */
void ml_bpf_follow_write_maps(struct ml_bpf_session *session, ml_u32 pid);

/*
 * With --all: reports a process at the first stack that it sends. Many send none, or end soon and take /proc/PID/maps with
 * them. false: out of memory.
 */
bool ml_bpf_follow_report(struct ml_bpf_session *session, ml_u32 pid);

/* Traces and reports the processes that the target had started before. Later ones are seen when they are forked. */
void ml_bpf_follow_descendants(struct ml_bpf_session *session);

/* Reports all others, so that each process that holds memory has a name. */
void ml_bpf_follow_report_all(struct ml_bpf_session *session);

/* Logs if the target has lost its probes since. */
void ml_bpf_follow_check_probes(struct ml_bpf_session *session);

/* Logs if the target continues without its first thread and its calls are no longer seen. */
void ml_bpf_follow_first_thread(struct ml_bpf_session *session);

/* Passes on the mapping of this record's stack, once per thread, unless the record reaches its end. */
void ml_stacks_add(struct ml_stacks *stacks, const struct ml_evidence *record);
