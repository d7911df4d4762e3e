/* SPDX-License-Identifier: Apache-2.0 */
/* The state of one BPF session. */
#pragma once

#include "agent/bpf/object.h"
#include "agent/protocol/blocks.h"
#include "agent/probes/frames.h"
#include "agent/bpf/interrupted_stack.h"
#include "agent/bpf/long_stack.h"
#include "agent/process/process_set.h"
#include "agent/session/region_sizes.h"
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
 * Where the break of each process was: BPF sees brk() return the new one only (bpf/regions.bpf.h). All zero: empty.
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
	bool has_lost_probes;
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
